package managers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/functions/finding"
)

// most are the workers of the tests, and mostOfOne those of one namespace.
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

func newAsked(t *testing.T, shared time.Duration) *asked {
	a := &asked{woken: make(chan types.NamespacedName, 10000), running: map[string]int{},
		most: map[string]int{}}
	a.Questions = NewQuestions[string](t.Context(), QuestionOptions{
		Name: "test", Workers: most, MostOfOne: mostOfOne, Timeout: time.Minute, Shared: shared,
		Wake: func(object types.NamespacedName) { a.woken <- object },
	})
	return a
}

// until blocks a question until the channel is closed.
func (a *asked) until(namespace string, over chan struct{}, answer string,
	err error) func(context.Context) (string, error) {
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
	case object := <-a.woken:
		return object
	case <-time.After(time.Minute):
		t.Fatal("nobody is woken")
	}
	return types.NamespacedName{}
}

// begins waits until so many questions were begun.
func (a *asked) begins(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		a.mu.Lock()
		begun := a.begun
		a.mu.Unlock()
		if begun >= n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d questions were begun", begun, n)
		}
	}
}

func named(namespace string, i int) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: fmt.Sprint("b", i)}
}

// pending asks, and expects no answer yet.
func (a *asked) pending(t *testing.T, object types.NamespacedName, text string,
	ask func(context.Context) (string, error)) *NotYet {
	t.Helper()
	var later *NotYet
	if got, err := a.Get(object, text, nil, ask); !errors.As(err, &later) {
		t.Fatalf("%q, %v: it was answered while it was asked", got, err)
	}
	return later
}

// A namespace whose servers never answer holds only its own builds, and no more
// of the whole than its share.
func TestServersOfOneNamespaceDelayNoOther(t *testing.T) {
	a := newAsked(t, 0)
	never := make(chan struct{})
	const many = 100
	for i := range many {
		for _, hostile := range []string{"hostile1", "hostile2", "hostile3"} {
			a.pending(t, named(hostile, i), fmt.Sprint(i), a.until(hostile, never, "", nil))
		}
	}
	a.begins(t, 3*mostOfOne)
	over := make(chan struct{})
	close(over)
	for i := range 20 {
		object, want := named("good", i), fmt.Sprint("commit", i)
		a.pending(t, object, want, a.until("good", over, want, nil))
		if got := a.wakes(t); got != object {
			t.Fatalf("%s is woken, want %s", got, object)
		}
		for range 2 { // the answer stays
			if got, err := a.Get(object, want, nil, nil); err != nil || got != want {
				t.Fatalf("%+v, %v", got, err)
			}
		}
		a.Forget(object)
	}
	close(never)
	for range 3 * many {
		object := a.wakes(t)
		a.Forget(object)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun != 3*many+20 || a.most["hostile1"] != mostOfOne || a.most[""] > most {
		t.Errorf("%d questions; at once %v", a.begun, a.most)
	}
	if len(a.of) != 0 || a.queue.Len() != 0 {
		t.Errorf("left behind: %v, %d in the queue", a.of, a.queue.Len())
	}
}

// Builds that ask the same at once share one answer; a question with a rerun in it is another
// one, and so is that of another namespace.
func TestAnswersAreShared(t *testing.T) {
	a := newAsked(t, time.Hour)
	over := make(chan struct{})
	for i := range 5 {
		a.pending(t, named("team", i), "q", a.until("team", over, "one", nil))
	}
	a.begins(t, 1)
	close(over)
	for range 5 {
		if got, err := a.Get(a.wakes(t), "q", nil, nil); err != nil || got != "one" {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if a.begun != 1 {
		t.Fatalf("%d questions", a.begun)
	}
	a.pending(t, named("team", 0), "q again", a.until("team", over, "two", nil))
	if got, err := a.Get(a.wakes(t), "q again", nil, nil); err != nil || got != "two" {
		t.Fatalf("%+v, %v", got, err)
	}
	a.pending(t, named("other", 0), "q", a.until("other", over, "three", nil))
	if got, err := a.Get(a.wakes(t), "q", nil, nil); err != nil || got != "three" {
		t.Fatalf("a namespace was given another one's answer: %+v, %v", got, err)
	}
}

// Where answers are not shared, other inputs ask again.
func TestInputsAskAgain(t *testing.T) {
	a, over, build := newAsked(t, 0), make(chan struct{}), named("team", 0)
	close(over)
	for i := range 3 {
		want := fmt.Sprint(i)
		if _, err := a.Get(build, "q", i, a.until("team", over, want, nil)); err == nil {
			t.Fatal("an answer for other inputs is used")
		}
		if got, err := a.Get(a.wakes(t), "q", i, nil); err != nil || got != want {
			t.Fatalf("%+v, %v", got, err)
		}
	}
}

// A server that fails is asked again by itself after a wait that doubles, and its builds are told
// each time. What the user must fix is reported at once.
func TestFailuresWaitLonger(t *testing.T) {
	a, build, down := newAsked(t, time.Hour), named("team", 0), errors.New("503")
	var attempts atomic.Int32
	ask := func(context.Context) (string, error) {
		if attempts.Add(1) < 4 {
			return "", down
		}
		return "", finding.Place{}.Fault("RevisionNotFound", "no such revision", "")
	}
	a.pending(t, build, "q", ask)
	last := time.Now()
	for _, least := range []time.Duration{0, firstRetry, 2 * firstRetry} {
		a.wakes(t)
		if waited := time.Since(last); waited < least-100*time.Millisecond {
			t.Errorf("it is asked again after %s, want %s", waited, least)
		}
		last = time.Now()
		if later := a.pending(t, build, "q", nil); !errors.Is(later.Cause, down) {
			t.Fatalf("%+v", later)
		}
	}
	var problem *finding.Finding
	if _, err := a.Get(a.wakes(t), "q", nil, nil); !errors.As(err, &problem) {
		t.Fatal(err)
	}
	a.Forget(build) // else another question would begin with the wait of this one
	attempts.Store(0)
	last = time.Now()
	a.pending(t, build, "q", ask)
	if a.wakes(t); time.Since(last) > firstRetry/2 {
		t.Error("the wait is not forgotten")
	}
}

// A build whose question goes unanswered looks again ever more rarely, so that many
// of them leave the reconcile workers to others.
func TestRecheckDoubles(t *testing.T) {
	a, never := newAsked(t, 0), make(chan struct{})
	defer close(never)
	for _, waited := range []time.Duration{0, 20 * time.Second, time.Hour} {
		a.Questions.mu.Lock()
		for _, s := range a.of {
			s.asked = time.Now().Add(-waited)
		}
		a.Questions.mu.Unlock()
		if later := a.pending(t, named("team", 0), "q",
			a.until("team", never, "", nil)); later.Again < max(recheck, waited) {
			t.Fatalf("after %s: %+v", waited, later)
		}
	}
}

// A build has one question: a newer one takes its place, and what it asked before is not asked.
func TestOneQuestionOfEachBuild(t *testing.T) {
	a, never := newAsked(t, 0), make(chan struct{})
	ask := func(build int, text string) {
		t.Helper()
		a.pending(t, named("team", build), text, a.until("team", never, text, nil))
	}
	for i := range mostOfOne {
		ask(i, fmt.Sprint("held", i))
	}
	a.begins(t, mostOfOne)
	for i := range 500 {
		ask(9, fmt.Sprint("question", i))
		ask(11, fmt.Sprint("question", i))
	}
	a.Forget(named("team", 11))
	a.Questions.mu.Lock()
	if len(a.of) != mostOfOne+1 || a.queue.Len() > 2 {
		t.Errorf("%d questions are known, and %d wait", len(a.of), a.queue.Len())
	}
	a.Questions.mu.Unlock()
	close(never)
	answered := map[types.NamespacedName]bool{}
	for range mostOfOne + 1 {
		answered[a.wakes(t)] = true
	}
	if got, err := a.Get(named("team", 9), "question499", nil, nil); err != nil ||
		got != "question499" || !answered[named("team", 9)] {
		t.Errorf("%+v, %v", got, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun != mostOfOne+1 {
		t.Errorf("%d questions", a.begun)
	}
}

// What is answered at a bounded rate is answered in turns: a tenant with a thousand builds that
// wait, or one that asks and forgets without end, delays another by a turn for each answer.
func TestARateIsShared(t *testing.T) {
	for _, toggles := range []bool{false, true} {
		t.Run(fmt.Sprintf("toggles=%v", toggles), func(t *testing.T) {
			woken := make(chan types.NamespacedName, 10000)
			limiter := rate.NewLimiter(50, 1)
			q := NewQuestions[int](t.Context(), QuestionOptions{
				Name: "rate", Workers: 4, MostOfOne: 1, Timeout: time.Minute,
				Wake: func(o types.NamespacedName) { woken <- o },
			})
			ask := func(o types.NamespacedName) {
				_, _ = q.Get(o, o.Name, nil,
					func(ctx context.Context) (int, error) { return 0, limiter.Wait(ctx) })
			}
			for i := range 1000 {
				if !toggles {
					ask(named("hostile", i))
					continue
				}
				ask(named("hostile", 0))
				q.Forget(named("hostile", 0))
			}
			if toggles {
				ask(named("hostile", 0))
			}
			time.Sleep(100 * time.Millisecond)
			for i := range 5 {
				ask(named("good", i))
			}
			good, hostile := 0, 0
			for deadline := time.After(time.Minute); good < 5; {
				select {
				case o := <-woken:
					if o.Namespace == "good" {
						good++
						continue
					}
					if hostile++; toggles {
						q.Forget(o)
						ask(o)
					}
				case <-deadline:
					t.Fatalf("%d of 5 had their turn, and %d of the hostile namespace", good, hostile)
				}
			}
			if hostile > 25 { // 5 before good ones asked, and as many as those have
				t.Errorf("%d of the hostile namespace had their turn before 5 of another", hostile)
			}
		})
	}
}

// A panic over what a server sent is a failure of this question, and ends no process.
func TestPanicOfQuestion(t *testing.T) {
	a, object := newAsked(t, 0), types.NamespacedName{Namespace: "team", Name: "a"}
	get := func() error {
		_, err := a.Get(object, "what", nil, func(context.Context) (string, error) {
			panic("a fault of ours")
		})
		return err
	}
	_ = get()
	<-a.woken
	var later *NotYet
	if err := get(); !errors.As(err, &later) || later.Cause == nil ||
		!strings.Contains(later.Error(), "a fault of ours") {
		t.Errorf("error %v", err)
	}
}
