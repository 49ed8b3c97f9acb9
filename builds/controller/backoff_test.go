package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/builds/controller/library"
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
	r := &Reconciler{starter: starter{client: down{}, library: &library.Library{}}}
	r.waits = workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](time.Minute,
		time.Hour)
	r.waits.When(key)
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err == nil {
		t.Fatal("the read did not fail")
	}
	if wait := r.waits.When(key); wait != 2*time.Minute {
		t.Errorf("the next wait is %v", wait)
	}
}
