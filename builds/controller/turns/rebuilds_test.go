package turns

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A tenant that changes its template a thousand times, or has a thousand builds that
// wait, delays another one by one turn.
func TestRebuildsTakeTurns(t *testing.T) {
	for name, ask := range map[string]func(q *Rebuilds, now time.Time){
		"toggled": func(q *Rebuilds, now time.Time) {
			for range 1000 {
				q.MayStart(named("hostile", 0), now)
				q.Leave(named("hostile", 0))
			}
			q.MayStart(named("hostile", 0), now)
		},
		"many": func(q *Rebuilds, now time.Time) {
			for i := range 1000 {
				q.MayStart(named("hostile", i), now)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			q, now := NewRebuilds(10, func(types.NamespacedName) {}), time.Now()
			ask(q, now)
			for i := range 3 {
				if q.MayStart(named("good", i), now) {
					t.Fatal("a build may start although the rate is used up")
				}
			}
			for i := range 3 {
				now = now.Add(12 * time.Second) // two turns
				if !q.MayStart(named("good", i), now) {
					t.Errorf("build %d does not have its turn", i)
				}
			}
		})
	}
}

// A build keeps its turn until it leaves, and is woken when it comes.
func TestRebuildsWake(t *testing.T) {
	woken := make(chan types.NamespacedName, 10)
	q, now := NewRebuilds(600, func(build types.NamespacedName) { woken <- build }), time.Now()
	started := 0
	for i := range 610 {
		if q.MayStart(named("team", i), now) {
			started++
		}
	}
	if started != 600 {
		t.Fatalf("%d builds start at once", started)
	}
	q.Leave(named("team", 605))
	var got []types.NamespacedName
	for range 9 {
		select {
		case build := <-woken:
			got = append(got, build)
			for range 2 {
				if !q.MayStart(build, now) {
					t.Errorf("%s is woken and may not start", build)
				}
			}
		case <-time.After(time.Minute):
			t.Fatalf("only %v are woken", got)
		}
	}
	if slices.Contains(got, named("team", 605)) {
		t.Errorf("one that left is woken: %v", got)
	}
	for i := range 610 {
		q.Leave(named("team", i))
	}
	if len(q.known) != 0 || q.waiting.Len() != 0 {
		t.Errorf("left behind: %v", q.known)
	}
}
