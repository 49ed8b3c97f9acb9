package turns

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/finding"
)

// most and mostOfOne are the bounds of the tests.
const most, mostOfOne = 12, 3

// asked are questions whose servers are the test.
type asked struct {
	*Questions[string]
	woken chan types.NamespacedName

	mu      sync.Mutex
	running map[string]int
	most    map[string]int // at once, by namespace; "" is all
	begun   int
}

func newAsked() *asked {
	a := &asked{woken: make(chan types.NamespacedName, 1000), running: map[string]int{}, most: map[string]int{}}
	a.Questions = &Questions[string]{Wake: func(build types.NamespacedName) { a.woken <- build }, Timeout: time.Minute, Most: most, MostOfOne: mostOfOne}
	return a
}

// until blocks a question until the channel is closed.
func (a *asked) until(namespace string, over chan struct{}, answer string, err error) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
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
func TestServersOfOneNamespaceDelayNoOther(t *testing.T) {
	a := newAsked()
	never := make(chan struct{})
	const many = 100
	for i := range many {
		for _, hostile := range []string{"hostile1", "hostile2", "hostile3"} {
			var later *NotYet
			if _, err := a.Get(named(hostile, i), fmt.Sprint(i), false, a.until(hostile, never, "", nil)); !errors.As(err, &later) {
				t.Fatal(err)
			}
		}
	}
	over := make(chan struct{})
	close(over)
	for i := range 20 {
		build, want := named("good", i), fmt.Sprint("commit", i)
		if _, err := a.Get(build, want, false, a.until("good", over, want, nil)); err == nil {
			t.Fatal("it was answered while it was asked")
		}
		if got := a.wakes(t); got != build {
			t.Fatalf("%s is woken, want %s", got, build)
		}
		if got, err := a.Get(build, want, false, nil); err != nil || got != want {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	close(never)
	for range 3 * many {
		a.wakes(t)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun != 3*many+20 || a.most["hostile1"] > mostOfOne || a.most[""] > most || a.most["hostile1"] == 0 {
		t.Errorf("%d questions; at once %v", a.begun, a.most)
	}
	a.Questions.mu.Lock()
	defer a.Questions.mu.Unlock()
	if a.total != 0 || len(a.Questions.running) != 0 || a.waiting.Len() != 0 {
		t.Errorf("left behind: %d running, %v", a.total, a.waiting)
	}
}

// Builds that ask the same at once share one answer; a rerun asks again, and takes
// the answer that it asked for itself.
func TestAnswersAreShared(t *testing.T) {
	a := newAsked()
	over := make(chan struct{})
	for i := range 5 {
		if _, err := a.Get(named("team", i), "q", false, a.until("team", over, "one", nil)); err == nil {
			t.Fatal("no answer was there")
		}
	}
	close(over)
	for range 5 {
		if got, err := a.Get(a.wakes(t), "q", false, nil); err != nil || got != "one" {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if a.begun != 1 {
		t.Fatalf("%d questions", a.begun)
	}
	if _, err := a.Get(named("team", 0), "q", true, a.until("team", over, "two", nil)); err == nil {
		t.Fatal("an earlier answer serves a rerun")
	}
	if got, err := a.Get(a.wakes(t), "q", true, nil); err != nil || got != "two" {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := a.Get(named("other", 0), "q", false, a.until("other", over, "three", nil)); err == nil {
		t.Fatal("a namespace was given another one's answer")
	}
}

// A failing server is asked again after a wait that doubles, although each
// reconcile succeeds. What the user must fix is reported at once.
func TestFailuresWaitLonger(t *testing.T) {
	a, over := newAsked(), make(chan struct{})
	close(over)
	build, down := named("team", 0), errors.New("503")
	ask := func(err error) error {
		t.Helper()
		if _, first := a.Get(build, "q", false, a.until("team", over, "c", err)); first == nil {
			t.Fatal("no answer was there")
		}
		_, err = a.Get(a.wakes(t), "q", false, nil)
		return err
	}
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		var later *NotYet
		if err := ask(down); !errors.As(err, &later) || later.Again != want || !errors.Is(later.Cause, down) {
			t.Fatalf("%v: %+v, want %s", err, later, want)
		}
	}
	var problem *finding.Finding
	if err := ask(finding.Place{}.Fault(api.ReasonRevisionNotFound, "no such revision", "")); !errors.As(err, &problem) {
		t.Fatal(err)
	}
	if len(a.failing) != 0 {
		t.Error("the wait is not forgotten")
	}
}

// A build whose question goes unanswered looks again ever more rarely, so that many
// of them leave the reconcile workers to others.
func TestRecheckDoubles(t *testing.T) {
	a, never := newAsked(), make(chan struct{})
	defer close(never)
	for _, waited := range []time.Duration{0, 20 * time.Second, time.Hour} {
		for _, call := range a.calls {
			call.asked = time.Now().Add(-waited)
		}
		var later *NotYet
		if _, err := a.Get(named("team", 0), "q", false, a.until("team", never, "", nil)); !errors.As(err, &later) || later.Again < max(recheck, waited) {
			t.Fatalf("after %s: %+v, %v", waited, later, err)
		}
	}
}

// A build has one question that waits: a newer one takes its place, unless another build
// waits for the same answer.
func TestOneQuestionOfEachBuild(t *testing.T) {
	a, never := newAsked(), make(chan struct{})
	ask := func(build int, question string) {
		t.Helper()
		var later *NotYet
		if _, err := a.Get(named("team", build), question, false, a.until("team", never, question, nil)); !errors.As(err, &later) {
			t.Fatal(err)
		}
	}
	for i := range mostOfOne {
		ask(i, fmt.Sprint("held", i))
	}
	ask(10, "shared")
	ask(11, "shared")
	for i := range 500 {
		ask(9, fmt.Sprint("question", i))
		ask(11, fmt.Sprint("question", i))
	}
	a.Questions.mu.Lock()
	waiting, calls := a.waiting.Len(), len(a.calls)
	a.Questions.mu.Unlock()
	if waiting != 2 || calls != mostOfOne+2 {
		t.Errorf("%d questions wait, %d are known: want that of build 10, and the newest of 9 and 11", waiting, calls)
	}
	close(never)
	answered := map[types.NamespacedName]bool{}
	for range mostOfOne + 3 {
		answered[a.wakes(t)] = true
	}
	for build, question := range map[int]string{9: "question499", 10: "shared", 11: "question499"} {
		if got, err := a.Get(named("team", build), question, false, nil); err != nil || got != question || !answered[named("team", build)] {
			t.Errorf("build %d: %+v, %v", build, got, err)
		}
	}
	// What was answered and is not asked for any more holds nothing.
	ask(9, "another")
	ask(10, "another")
	a.Questions.mu.Lock()
	defer a.Questions.mu.Unlock()
	for _, call := range a.calls {
		if call.ask != nil && !call.answered.IsZero() || call.builds[named("team", 9)] && call.answer == "question499" {
			t.Errorf("an answered question is held for %v", call.builds)
		}
	}
}
