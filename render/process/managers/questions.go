package managers

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/process"
)

// QuestionOptions configures Questions.
type QuestionOptions struct {
	// Name of the questions in the metrics of work queues.
	Name string
	// Workers ask at once, and MostOfOne of them for one namespace.
	Workers, MostOfOne int
	// Timeout of one question.
	Timeout time.Duration
	// Shared is how long an answer serves other objects of its namespace that ask the same.
	Shared time.Duration
	// Wake an object whose question was answered, or has failed and is asked again later.
	Wake func(types.NamespacedName)
	// Observe is told how each question ended; it may be nil.
	Observe Observe
}

// Observe is called with the error of a question to a server, which may be nil, and with how long
// it took.
type Observe func(err error, took time.Duration)

// Questions asks servers that are not trusted to answer soon, such as Git servers and registries,
// so that no reconcile waits for one. Fairness shares the workers: a server that is slow or hostile
// delays the objects of the namespaces that ask it. A server that fails is asked again ever more
// rarely.
type Questions[T any] struct {
	QuestionOptions
	queue  workqueue.TypedRateLimitingInterface[reconcile.Request]
	asking singleflight.Group
	recent *cache.LRUExpireCache

	mu sync.Mutex // never held while a server is asked
	of map[types.NamespacedName]*question[T]
}

// question is the question of one object, and its answer.
type question[T any] struct {
	text   string
	inputs any
	ask    func(context.Context) (T, error) // nil once it is settled
	asked  time.Time
	failed error // of the server, the last time
	answer T
	fault  error // a finding
}

const (
	// Patience is how long a question may take before status says that it waits.
	Patience = time.Second
	// recheck is when an object first looks whether its answer has arrived, to report that it
	// waits. Each wait after that is twice as long.
	recheck = 5 * time.Second
	// firstRetry and lastRetry are the waits after a failure, doubled each time.
	firstRetry, lastRetry = time.Second, time.Minute
	// maxShared answers are kept to be shared.
	maxShared = 256
)

// NewQuestions returns Questions that are asked until ctx ends.
func NewQuestions[T any](ctx context.Context, o QuestionOptions) *Questions[T] {
	fair := NewFairness(o.Workers, o.MostOfOne)
	retries := fair.Options(firstRetry, lastRetry).RateLimiter
	q := &Questions[T]{
		QuestionOptions: o, queue: fair.queue(o.Name, retries),
		recent: cache.NewLRUExpireCache(maxShared), of: map[types.NamespacedName]*question[T]{},
	}
	work := fair.Share(q.work)
	for range o.Workers {
		go func() {
			for {
				request, over := q.queue.Get()
				if over {
					return
				}
				_, _ = work(ctx, request) // without errors
				q.queue.Done(request)
			}
		}()
	}
	context.AfterFunc(ctx, q.queue.ShutDown)
	return q
}

// NotYet is the error while there is no answer.
type NotYet struct {
	Waited time.Duration // for an answer
	Again  time.Duration // to look again
	Cause  error         // why the server gave none; nil while it is asked
}

func (e *NotYet) Error() string {
	if e.Cause != nil {
		return e.Cause.Error()
	}
	return "the server has not answered yet"
}

// Get returns the answer to the question of an object. The error is a *finding.Finding when the
// user must act, and a *NotYet when the object is to look again. The answer stays until the object
// asks something else, or the same from other inputs, or is forgotten. An object has one question:
// another one takes its place. What ask refers to is kept until there is an answer.
func (q *Questions[T]) Get(
	object types.NamespacedName, text string, inputs any, ask func(context.Context) (T, error),
) (answer T, _ error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.of[object]
	if s == nil || s.text != text || s.inputs != inputs {
		s = &question[T]{text: text, inputs: inputs, ask: ask, asked: time.Now()}
		q.of[object] = s
		request := reconcile.Request{NamespacedName: object}
		q.queue.Forget(request)
		q.queue.Add(request)
	}
	switch waited := time.Since(s.asked); {
	case s.failed != nil:
		return answer, &NotYet{Again: lastRetry, Cause: s.failed}
	case s.ask != nil:
		return answer, &NotYet{Waited: waited, Again: max(recheck, waited)}
	}
	return s.answer, s.fault
}

// Forget drops the question of an object.
func (q *Questions[T]) Forget(object types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.of, object)
	q.queue.Forget(reconcile.Request{NamespacedName: object})
}

// work asks the question of an object, and wakes it.
func (q *Questions[T]) work(ctx context.Context,
	request reconcile.Request) (none reconcile.Result, _ error) {
	q.mu.Lock()
	s := q.of[request.NamespacedName]
	if s == nil || s.ask == nil {
		q.mu.Unlock()
		return none, nil
	}
	ask := s.ask
	q.mu.Unlock()
	answer, err := q.share(ctx, request.Namespace+"\n"+s.text, ask)
	q.mu.Lock()
	current := q.of[request.NamespacedName] == s
	if s.failed = err; err == nil || errors.As(err, new(*finding.Finding)) {
		s.ask, s.failed, s.answer, s.fault = nil, nil, answer, err
	} else if current {
		q.queue.AddRateLimited(request)
	}
	q.mu.Unlock()
	if current {
		q.Wake(request.NamespacedName)
	}
	return none, nil
}

// share asks a question once for all objects of a namespace that ask the same.
func (q *Questions[T]) share(ctx context.Context, key string,
	ask func(context.Context) (T, error)) (T, error) {
	shared, err, _ := q.asking.Do(key, func() (any, error) {
		if have, ok := q.recent.Get(key); ok {
			return have, nil
		}
		limited, cancel := context.WithTimeout(ctx, q.Timeout)
		defer cancel()
		begun := time.Now()
		answer, err := process.Guard(limited, ask)
		if q.Observe != nil {
			q.Observe(err, time.Since(begun))
		}
		if err == nil && q.Shared > 0 {
			q.recent.Add(key, answer, q.Shared)
		}
		return answer, err
	})
	return shared.(T), err
}
