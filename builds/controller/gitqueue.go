package controller

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/functions/krm"
)

// Git servers and registries are strangers, so no reconcile waits for one. A question is queued
// by its build's namespace, namespaces take turns, and when the answer is there
// its builds are woken. A server that is slow or hostile delays the builds of the
// namespaces that ask it. Those of others wait only when so many namespaces ask
// such servers that they hold all of gitRunning, and then for their turn.

// resolver asks Git servers for commits.
type resolver struct {
	questions[resolved]
	dial Dial
}

// questions of one kind, with answers of type T. Many builds of a namespace that ask
// the same at the same moment ask once.
type questions[T any] struct {
	// wake a build whose answer is there.
	wake func(types.NamespacedName)
	// within is what a question may take; zero means gitTimeout.
	within time.Duration
	// most and mostOfOne bound the questions at once, of all and of one namespace; zero
	// means gitRunning and gitRunningOfOne.
	most, mostOfOne int
	// over ends the questions under way; nil never does.
	over context.Context

	mu      sync.Mutex // never held while a server is asked
	calls   map[string]*inquiry[T]
	waiting map[string][]*inquiry[T] // by namespace, in order
	turns   []string                 // namespaces that wait, the next first
	running map[string]int           // by namespace
	total   int
	failing map[types.NamespacedName]time.Duration // how long a build waits to ask again
}

// inquiry is one question.
type inquiry[T any] struct {
	question, namespace string
	ask                 func(context.Context) (T, error)
	asked               time.Time
	answered            time.Time // zero until then
	answer              T
	err                 error
	builds              map[types.NamespacedName]bool // that did not read the answer yet
}

const (
	// gitRunning and gitRunningOfOne bound the questions at once: of all, and of
	// one namespace.
	gitRunning      = 12
	gitRunningOfOne = 3
	// answerKeeps is how long an answer serves other builds of the same burst.
	answerKeeps = 2 * time.Second
	// answerWaits is how long an answer waits for a build that asked.
	answerWaits = time.Minute
	// gitRecheck is when a build first looks whether its answer has arrived, to
	// report that it waits. Each wait after that is twice as long, so that the
	// builds of a slow server do not keep the reconcile workers busy.
	gitRecheck = 5 * time.Second
	// The wait of a build whose Git server failed, doubled each time.
	firstGitRetry, lastGitRetry = time.Second, time.Minute
)

// notYet says that there is no answer for now.
type notYet struct {
	waited time.Duration // for an answer
	again  time.Duration // to look again
	cause  error         // why the server gave none; nil while it is asked
}

func (e *notYet) Error() string {
	if e.cause != nil {
		return e.cause.Error()
	}
	return "the server has not answered yet"
}

// get the answer to a question of a build. The error is a *krm.Finding
// when the user must act, and a *notYet when the build is to look again. With
// fresh no earlier answer serves but one that the build itself asked for.
func (g *questions[T]) get(build types.NamespacedName, question string, fresh bool, ask func(context.Context) (T, error)) (T, error) {
	var none T
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forgetAnswers()
	question = build.Namespace + "\n" + question
	call := g.calls[question]
	stale := call != nil && !call.answered.IsZero() && !call.builds[build] && (fresh || call.err != nil || time.Since(call.answered) > answerKeeps)
	if call == nil || stale {
		call = &inquiry[T]{question: question, namespace: build.Namespace, ask: ask, asked: time.Now(), builds: map[types.NamespacedName]bool{}}
		g.enqueue(call)
	}
	if call.answered.IsZero() {
		call.builds[build] = true
		waited := time.Since(call.asked)
		return none, &notYet{waited: waited, again: max(gitRecheck, waited)}
	}
	delete(call.builds, build)
	if call.err == nil || errors.As(call.err, new(*krm.Finding)) {
		delete(g.failing, build)
		return call.answer, call.err
	}
	wait := min(max(firstGitRetry, 2*g.failing[build]), lastGitRetry)
	g.failing[build] = wait
	return none, &notYet{again: wait, cause: call.err}
}

// forget a build that is gone.
func (g *questions[T]) forget(build types.NamespacedName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.failing, build)
}

// forgetAnswers that nobody waits for any more.
func (g *questions[T]) forgetAnswers() {
	for question, call := range g.calls {
		if age := time.Since(call.answered); !call.answered.IsZero() && (age > answerWaits || age > answerKeeps && len(call.builds) == 0) {
			delete(g.calls, question)
		}
	}
}

// enqueue a question behind the others of its namespace.
func (g *questions[T]) enqueue(call *inquiry[T]) {
	if g.calls == nil {
		g.calls, g.waiting, g.running, g.failing = map[string]*inquiry[T]{}, map[string][]*inquiry[T]{}, map[string]int{}, map[types.NamespacedName]time.Duration{}
	}
	g.calls[call.question] = call
	if len(g.waiting[call.namespace]) == 0 {
		g.turns = append(g.turns, call.namespace)
	}
	g.waiting[call.namespace] = append(g.waiting[call.namespace], call)
	g.dispatch()
}

// dispatch what may run now, a question of each namespace in turn.
func (g *questions[T]) dispatch() {
	for g.total < cmp.Or(g.most, gitRunning) {
		i := slices.IndexFunc(g.turns, func(namespace string) bool {
			return g.running[namespace] < cmp.Or(g.mostOfOne, gitRunningOfOne)
		})
		if i < 0 {
			return
		}
		namespace := g.turns[i]
		g.turns = slices.Delete(g.turns, i, i+1)
		call := g.waiting[namespace][0]
		if g.waiting[namespace] = g.waiting[namespace][1:]; len(g.waiting[namespace]) > 0 {
			g.turns = append(g.turns, namespace)
		} else {
			delete(g.waiting, namespace)
		}
		g.running[namespace]++
		g.total++
		go g.run(call)
	}
}

// run one question, and wake its builds.
func (g *questions[T]) run(call *inquiry[T]) {
	ctx := g.over
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(g.within, gitTimeout))
	answer, err := call.ask(ctx)
	cancel()
	g.mu.Lock()
	call.answer, call.err, call.answered = answer, err, time.Now()
	if g.running[call.namespace]--; g.running[call.namespace] == 0 {
		delete(g.running, call.namespace)
	}
	g.total--
	g.dispatch()
	builds := slices.Collect(maps.Keys(call.builds))
	g.mu.Unlock()
	for _, build := range builds {
		g.wake(build)
	}
}
