package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/krm"
)

// asked is a resolver whose questions the test answers.
type asked struct {
	*resolver
	woken chan types.NamespacedName

	mu      sync.Mutex
	running map[string]int
	most    map[string]int // at once, by namespace; "" is all
	begun   int
}

func newAsked() *asked {
	a := &asked{woken: make(chan types.NamespacedName, 1000), running: map[string]int{}, most: map[string]int{}}
	a.resolver = &resolver{questions: questions[resolved]{wake: func(build types.NamespacedName) { a.woken <- build }}}
	return a
}

// until blocks a question until the channel is closed.
func (a *asked) until(namespace string, over chan struct{}, answer resolved, err error) func(context.Context) (resolved, error) {
	return func(context.Context) (resolved, error) {
		count := func(n int) {
			a.mu.Lock()
			defer a.mu.Unlock()
			for _, key := range []string{namespace, ""} {
				a.running[key] += n
				a.most[key] = max(a.most[key], a.running[key])
			}
			a.begun += max(n, 0)
		}
		count(1)
		<-over
		count(-1)
		return answer, err
	}
}

func (a *asked) wakes(t *testing.T) types.NamespacedName {
	t.Helper()
	select {
	case build := <-a.woken:
		return build
	case <-time.After(time.Minute):
		t.Fatal("nobody is woken")
	}
	return types.NamespacedName{}
}

func named(namespace string, i int) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: fmt.Sprint("b", i)}
}

// A namespace whose servers never answer holds only its own builds, and no more
// of the whole than its share.
func TestGitServersOfOneNamespaceDelayNoOther(t *testing.T) {
	a := newAsked()
	never := make(chan struct{})
	const many = 100
	for i := range many {
		for _, hostile := range []string{"hostile1", "hostile2", "hostile3"} {
			var later *notYet
			if _, err := a.get(named(hostile, i), fmt.Sprint(i), false, a.until(hostile, never, resolved{}, nil)); !errors.As(err, &later) {
				t.Fatal(err)
			}
		}
	}
	over := make(chan struct{})
	close(over)
	for i := range 20 {
		build, want := named("good", i), fmt.Sprint("commit", i)
		if _, err := a.get(build, want, false, a.until("good", over, resolved{commit: want}, nil)); err == nil {
			t.Fatal("it was answered while it was asked")
		}
		if got := a.wakes(t); got != build {
			t.Fatalf("%s is woken, want %s", got, build)
		}
		if got, err := a.get(build, want, false, nil); err != nil || got.commit != want {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	close(never)
	for range 3 * many {
		a.wakes(t)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun != 3*many+20 || a.most["hostile1"] > gitRunningOfOne || a.most[""] > gitRunning || a.most["hostile1"] == 0 {
		t.Errorf("%d questions; at once %v", a.begun, a.most)
	}
	a.resolver.mu.Lock()
	defer a.resolver.mu.Unlock()
	if a.total != 0 || len(a.resolver.running) != 0 || len(a.waiting) != 0 || len(a.turns) != 0 {
		t.Errorf("left behind: %d running, %v, %v", a.total, a.waiting, a.turns)
	}
}

// Builds that ask the same at once share one answer; a rerun asks again, and takes
// the answer that it asked for itself.
func TestGitAnswersAreShared(t *testing.T) {
	a := newAsked()
	over := make(chan struct{})
	for i := range 5 {
		if _, err := a.get(named("team", i), "q", false, a.until("team", over, resolved{commit: "one"}, nil)); err == nil {
			t.Fatal("no answer was there")
		}
	}
	close(over)
	for range 5 {
		if got, err := a.get(a.wakes(t), "q", false, nil); err != nil || got.commit != "one" {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if a.begun != 1 {
		t.Fatalf("%d questions", a.begun)
	}
	if _, err := a.get(named("team", 0), "q", true, a.until("team", over, resolved{commit: "two"}, nil)); err == nil {
		t.Fatal("an earlier answer serves a rerun")
	}
	if got, err := a.get(a.wakes(t), "q", true, nil); err != nil || got.commit != "two" {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := a.get(named("other", 0), "q", false, a.until("other", over, resolved{commit: "three"}, nil)); err == nil {
		t.Fatal("a namespace was given another one's answer")
	}
}

// A failing server is asked again after a wait that doubles, although each
// reconcile succeeds. What the user must fix is reported at once.
func TestGitFailuresWaitLonger(t *testing.T) {
	a, over := newAsked(), make(chan struct{})
	close(over)
	build, down := named("team", 0), errors.New("503")
	ask := func(err error) error {
		t.Helper()
		if _, first := a.get(build, "q", false, a.until("team", over, resolved{commit: "c"}, err)); first == nil {
			t.Fatal("no answer was there")
		}
		_, err = a.get(a.wakes(t), "q", false, nil)
		return err
	}
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		var later *notYet
		if err := ask(down); !errors.As(err, &later) || later.again != want || !errors.Is(later.cause, down) {
			t.Fatalf("%v: %+v, want %s", err, later, want)
		}
	}
	var problem *krm.Finding
	if err := ask(krm.Place{}.Fault(api.ReasonRevisionNotFound, "no such revision", "")); !errors.As(err, &problem) {
		t.Fatal(err)
	}
	if len(a.failing) != 0 {
		t.Error("the wait is not forgotten")
	}
}

// A build whose question goes unanswered looks again ever more rarely, so that many
// of them leave the reconcile workers to others.
func TestGitRecheckDoubles(t *testing.T) {
	a, never := newAsked(), make(chan struct{})
	defer close(never)
	for _, waited := range []time.Duration{0, 20 * time.Second, time.Hour} {
		if call := a.calls["team\nq"]; call != nil {
			call.asked = time.Now().Add(-waited)
		}
		var later *notYet
		if _, err := a.get(named("team", 0), "q", false, a.until("team", never, resolved{}, nil)); !errors.As(err, &later) || later.again < max(gitRecheck, waited) {
			t.Fatalf("after %s: %+v, %v", waited, later, err)
		}
	}
}
