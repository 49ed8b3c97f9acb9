package turns

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/functions/finding"
)

// Questions asks servers that are not trusted to answer soon, such as Git servers and
// registries, so that no reconcile waits for one. A question is queued by its build's
// namespace, namespaces take turns, and when the answer has arrived its builds are woken.
// A server that is slow or hostile delays the builds of the namespaces that ask it.
// Builds of other namespaces wait only when so many namespaces ask such servers that they
// hold all of Most, and then for their turn.
//
// Many builds of a namespace that ask the same at the same moment ask once.
type Questions[T any] struct {
	// Wake a build whose answer has arrived.
	Wake func(types.NamespacedName)
	// Timeout of one question.
	Timeout time.Duration
	// Most and MostOfOne bound the questions at once, of all and of one namespace.
	Most, MostOfOne int
	// Over ends the questions under way; nil never does.
	Over context.Context
	// Observe is told how each question ended; it may be nil.
	Observe Observe

	mu      sync.Mutex // never held while a server is asked
	calls   map[questionKey]*inquiry[T]
	last    map[types.NamespacedName]*inquiry[T] // what a build asked last
	waiting Queue[*inquiry[T]]
	running map[string]int // by namespace
	total   int
	failing map[types.NamespacedName]time.Duration // how long a build waits to ask again
}

// Observe is called with the error of a question to a server, which may be nil, and with how long it
// took.
type Observe func(err error, took time.Duration)

// questionKey is the digest of a question and the namespace that asks.
type questionKey [sha256.Size]byte

// inquiry is one question.
type inquiry[T any] struct {
	question  questionKey
	namespace string
	ask       func(context.Context) (T, error) // nil once it is answered
	asked     time.Time
	begun     bool      // the server is asked
	answered  time.Time // zero until then
	answer    T
	err       error
	builds    map[types.NamespacedName]bool // that did not read the answer yet
}

const (
	// answerKeeps is how long an answer is reused for other builds of the same burst.
	answerKeeps = 2 * time.Second
	// answerWaits is how long an answer is kept for the build that asked.
	answerWaits = time.Minute
	// recheck is when a build first looks whether its answer has arrived, to
	// report that it waits. Each wait after that is twice as long, so that the
	// builds of a slow server do not keep the reconcile workers busy.
	recheck = 5 * time.Second
	// The wait of a build whose server failed, doubled each time.
	firstRetry, lastRetry = time.Second, time.Minute
)

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

// Get the answer to a question of a build. The error is a *finding.Finding
// when the user must act, and a *NotYet when the build is to look again. With
// fresh set, only an answer that the build itself asked for is used. A build has one
// question: another one replaces it. What ask refers to is kept until it was called.
func (q *Questions[T]) Get(build types.NamespacedName, question string, fresh bool, ask func(context.Context) (T, error)) (T, error) {
	var none T
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forgetAnswers()
	key := sha256.Sum256([]byte(build.Namespace + "\n" + question))
	call := q.calls[key]
	stale := call != nil && !call.answered.IsZero() && !call.builds[build] && (fresh || call.err != nil || time.Since(call.answered) > answerKeeps)
	if call == nil || stale {
		call = &inquiry[T]{question: key, namespace: build.Namespace, ask: ask, asked: time.Now(), builds: map[types.NamespacedName]bool{}}
		q.enqueue(build, call)
	}
	q.leave(build, call)
	if call.answered.IsZero() {
		call.builds[build], q.last[build] = true, call
		waited := time.Since(call.asked)
		return none, &NotYet{Waited: waited, Again: max(recheck, waited)}
	}
	q.leave(build, nil)
	if call.err == nil || errors.As(call.err, new(*finding.Finding)) {
		delete(q.failing, build)
		return call.answer, call.err
	}
	wait := min(max(firstRetry, 2*q.failing[build]), lastRetry)
	q.failing[build] = wait
	return none, &NotYet{Again: wait, Cause: call.err}
}

// Forget a build that is gone.
func (q *Questions[T]) Forget(build types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.failing, build)
	q.leave(build, nil)
}

// leave the question that a build asked before, for another one or none. It is not asked
// any more where nobody else waits for its answer.
func (q *Questions[T]) leave(build types.NamespacedName, next *inquiry[T]) {
	before := q.last[build]
	if before == nil || before == next {
		return
	}
	delete(q.last, build)
	if delete(before.builds, build); len(before.builds) == 0 && !before.begun {
		q.waiting.Remove(before.namespace, before)
		if q.calls[before.question] == before {
			delete(q.calls, before.question)
		}
	}
}

// forgetAnswers that nobody waits for any more.
func (q *Questions[T]) forgetAnswers() {
	for question, call := range q.calls {
		if age := time.Since(call.answered); !call.answered.IsZero() && (age > answerWaits || age > answerKeeps && len(call.builds) == 0) {
			delete(q.calls, question)
		}
	}
}

// enqueue a question behind the others of its namespace, or in the position of the one
// that it replaces.
func (q *Questions[T]) enqueue(build types.NamespacedName, call *inquiry[T]) {
	if q.calls == nil {
		q.calls, q.last = map[questionKey]*inquiry[T]{}, map[types.NamespacedName]*inquiry[T]{}
		q.running, q.failing = map[string]int{}, map[types.NamespacedName]time.Duration{}
	}
	q.calls[call.question] = call
	if before := q.last[build]; before == nil || len(before.builds) > 1 || !q.waiting.Replace(call.namespace, before, call) {
		q.waiting.Add(call.namespace, call)
	}
	q.dispatch()
}

// dispatch what may run now, a question of each namespace in turn.
func (q *Questions[T]) dispatch() {
	for q.total < q.Most {
		call, ok := q.waiting.Next(func(namespace string) bool {
			return q.running[namespace] < q.MostOfOne
		})
		if !ok {
			return
		}
		call.begun = true
		q.running[call.namespace]++
		q.total++
		go q.run(call)
	}
}

// run one question, and wake its builds.
func (q *Questions[T]) run(call *inquiry[T]) {
	ctx := q.Over
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, q.Timeout)
	begun := time.Now()
	answer, err := call.ask(ctx)
	cancel()
	if q.Observe != nil {
		q.Observe(err, time.Since(begun))
	}
	q.mu.Lock()
	call.answer, call.err, call.answered, call.ask = answer, err, time.Now(), nil
	if q.running[call.namespace]--; q.running[call.namespace] == 0 {
		delete(q.running, call.namespace)
	}
	q.total--
	q.dispatch()
	builds := slices.Collect(maps.Keys(call.builds))
	q.mu.Unlock()
	for _, build := range builds {
		q.Wake(build)
	}
}
