package managers

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Fairness shares the workers of one controller between namespaces: it limits how many workers a
// namespace has at the same time, so that a namespace whose servers never answer delays only
// itself. A request over the limit leaves the queue until another request of its namespace ends, so
// that requests of other namespaces do not wait behind it.
type Fairness struct {
	workers, most int

	mu      sync.Mutex
	enqueue func(reconcile.Request)
	working map[string]int
	waiting map[string][]reconcile.Request
}

// NewFairness returns the Fairness of a controller with the given number of workers. most is the
// limit for each namespace; it is at least 1.
func NewFairness(workers, most int) *Fairness {
	return &Fairness{
		workers: workers, most: max(1, most),
		working: map[string]int{}, waiting: map[string][]reconcile.Request{},
	}
}

// Options returns the options of the controller. A failed request waits for first, then twice as
// long each time, up to last.
func (f *Fairness) Options(first, last time.Duration) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: f.workers, NewQueue: f.queue, SkipNameValidation: ptr.To(true),
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
			first, last),
	}
}

func (f *Fairness) queue(
	name string, limiter workqueue.TypedRateLimiter[reconcile.Request],
) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	config := workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name}
	q := workqueue.NewTypedRateLimitingQueueWithConfig(limiter, config)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enqueue = q.Add
	return q
}

// Share returns a reconciler whose requests wait while their namespace uses all of its workers.
func (f *Fairness) Share(next reconcile.Func) reconcile.Func {
	return func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		if !f.begin(request) {
			return reconcile.Result{}, nil // end enqueues it again.
		}
		defer f.end(request)
		return next(ctx, request)
	}
}

func (f *Fairness) begin(request reconcile.Request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := request.Namespace
	at := slices.Index(f.waiting[n], request)
	if f.working[n] >= f.most {
		if at < 0 {
			f.waiting[n] = append(f.waiting[n], request)
		}
		return false
	}
	if at >= 0 {
		f.waiting[n] = slices.Delete(f.waiting[n], at, at+1)
	}
	f.working[n]++
	return true
}

func (f *Fairness) end(request reconcile.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := request.Namespace
	if f.working[n]--; f.working[n] == 0 {
		delete(f.working, n)
	}
	if w := f.waiting[n]; len(w) > 0 {
		f.enqueue(w[0]) // This does not block.
		f.waiting[n] = w[1:]
	}
	if len(f.waiting[n]) == 0 {
		delete(f.waiting, n)
	}
}
