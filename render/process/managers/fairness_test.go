package managers

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Namespaces with work take turns: requests are named in the order in which workers begin with
// them. Those that are begun end together, when no other can begin.
func TestNamespacesTakeTurns(t *testing.T) {
	f := NewFairness(4, 1)
	q := f.queue("test",
		workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Millisecond,
			time.Second))
	for _, name := range []string{"a/1", "a/2", "a/3", "b/1", "c/1", "b/2"} {
		namespace, name, _ := strings.Cut(name, "/")
		q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}})
	}
	var got []string
	for q.Len() > 0 {
		var begun []reconcile.Request
		for q.Len() > 0 {
			r, _ := q.Get()
			if f.begin(r) {
				begun, got = append(begun, r), append(got, r.String())
			}
			q.Done(r)
		}
		for _, r := range begun {
			f.end(r)
		}
	}
	if want := "a/1 b/1 c/1 a/2 b/2 a/3"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}
