package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// down is a cache that cannot be read.
type down struct{ client.Client }

func (down) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("connection refused")
}

// A failed read says nothing about a build, so the wait before the next look goes
// on doubling.
func TestFailedReadKeepsTheBackoff(t *testing.T) {
	key := types.NamespacedName{Namespace: "team1", Name: "weather"}
	r := &Reconciler{Client: down{}, rebuilds: newRebuilds(1)}
	r.waits.Store(key, time.Minute)
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err == nil {
		t.Fatal("the read did not fail")
	}
	if wait, ok := r.waits.Load(key); !ok || wait != time.Minute {
		t.Errorf("the wait is %v", wait)
	}
}

// Each build has its turn, which it keeps; who leaves may queue again.
func TestTurns(t *testing.T) {
	q := newRebuilds(2)
	now := time.Unix(1000, 0)
	build := func(name string) types.NamespacedName { return types.NamespacedName{Name: name} }
	for i, want := range []time.Duration{0, 0, 30 * time.Second, time.Minute} {
		if got := q.turn(build(string(rune('a'+i))), now).Round(time.Second); got != want {
			t.Errorf("build %d waits %s, want %s", i, got, want)
		}
	}
	if got := q.turn(build("d"), now.Add(50*time.Second)).Round(time.Second); got != 10*time.Second {
		t.Errorf("asked again it waits %s", got)
	}
	if got := q.turn(build("d"), now.Add(2*time.Minute)); got != 0 {
		t.Errorf("overdue it waits %s", got)
	}
	q.leave(build("d"))
	if len(q.due) != 3 {
		t.Errorf("%d builds are queued", len(q.due))
	}
}
