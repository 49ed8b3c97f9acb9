package controller

import (
	"context"
	"slices"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// turns shares the workers of one kind between namespaces: each has at most a quarter of
// them at once. With servers that never answer it delays itself, and with many requests
// it does not keep those of others behind them: what has no worker leaves the queue until
// one of its namespace ends.
type turns struct {
	most int

	mu      sync.Mutex
	again   func(reconcile.Request) // adds to the queue
	working map[string]int
	waiting map[string][]reconcile.Request
}

func newTurns(workers int) *turns {
	return &turns{most: max(1, workers/4), working: map[string]int{}, waiting: map[string][]reconcile.Request{}}
}

// queue of the requests of one controller.
func (t *turns) queue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	q := workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.again = q.Add
	return q
}

// share gives a reconciler whose requests wait while their namespace has as many
// workers as it may have.
func (t *turns) share(next reconcile.Func) reconcile.Func {
	return func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		if !t.begin(request) {
			return reconcile.Result{}, nil // end adds it again
		}
		defer t.end(request)
		return next(ctx, request)
	}
}

func (t *turns) begin(request reconcile.Request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := request.Namespace
	at := slices.Index(t.waiting[n], request)
	if t.working[n] >= t.most {
		if at < 0 {
			t.waiting[n] = append(t.waiting[n], request)
		}
		return false
	}
	if at >= 0 {
		t.waiting[n] = slices.Delete(t.waiting[n], at, at+1)
	}
	t.working[n]++
	return true
}

func (t *turns) end(request reconcile.Request) {
	n := request.Namespace
	t.mu.Lock()
	if t.working[n]--; t.working[n] == 0 {
		delete(t.working, n)
	}
	var next []reconcile.Request
	if w := t.waiting[n]; len(w) > 0 {
		next, t.waiting[n] = w[:1:1], w[1:]
	}
	if len(t.waiting[n]) == 0 {
		delete(t.waiting, n)
	}
	again := t.again
	t.mu.Unlock()
	for _, r := range next {
		again(r)
	}
}
