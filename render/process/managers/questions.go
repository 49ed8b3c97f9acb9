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
	// Name is the name of the queue in the metrics of work queues.
	Name string
	// Workers is the number of workers, and MostOfOne the most for one namespace.
	Workers, MostOfOne int
	// Timeout bounds one question.
	Timeout time.Duration
	// Shared is how long an answer serves other objects of its namespace with the same question.
	Shared time.Duration
	// Wake is called with an object whose question was answered, or has failed and is retried.
	Wake func(types.NamespacedName)
	// Observe is called after each question; it may be nil.
	Observe Observe
}

// Observe receives the error of a question to a server, which may be nil, and its duration.
type Observe func(err error, took time.Duration)

// Questions asks servers that may be slow, for example Git servers and registries, in workers of
// its own, so that no reconcile waits for a server. Fairness shares the workers: a slow or hostile
// server delays only the namespaces that ask it. Failed questions are retried with backoff.
type Questions[T any] struct {
	QuestionOptions
	queue  workqueue.TypedRateLimitingInterface[reconcile.Request]
	asking singleflight.Group
	recent *cache.LRUExpireCache

	mu sync.Mutex // never held during a question
	of map[types.NamespacedName]*question[T]
}

// question is the question of one object, and its answer.
type question[T any] struct {
	text   string
	inputs any
	ask    func(context.Context) (T, error) // nil after an answer
	asked  time.Time
	failed error // the last error of the server
	answer T
	fault  error // a finding as the answer
}

const (
	// Patience is how long a question may take before status says that the object waits.
	Patience = time.Second
	// recheck is the first wait until an object is reconciled again to report that it waits. The
	// wait doubles each time.
	recheck = 5 * time.Second
	// firstRetry and lastRetry bound the backoff after a failure.
	firstRetry, lastRetry = time.Second, time.Minute
	// maxShared bounds the shared answers.
	maxShared = 256
)

// NewQuestions returns Questions whose workers run until ctx ends.
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
				_, _ = work(ctx, request) // It returns no error.
				q.queue.Done(request)
			}
		}()
	}
	context.AfterFunc(ctx, q.queue.ShutDown)
	return q
}

// NotYet is the error until there is an answer.
type NotYet struct {
	Waited time.Duration // time since the question
	Again  time.Duration // wait until the next reconcile
	Cause  error         // error of the server; nil until it fails
}

func (e *NotYet) Error() string {
	if e.Cause != nil {
		return e.Cause.Error()
	}
	return "the server has not answered yet"
}

// Get returns the answer to the question of an object. The error is a *finding.Finding if the user
// must act, and a *NotYet if the object has to be reconciled again. An object has one question: the
// answer stays until the object asks with another text or other inputs, or Forget. ask, and all
// that it refers to, stays in memory until there is an answer.
func (q *Questions[T]) Get(object types.NamespacedName, text string, inputs any,
	ask func(context.Context) (T, error)) (answer T, _ error) {
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

// work asks the question of an object, and wakes the object.
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

// share asks a question once for all objects of a namespace with the same question.
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
