package controller

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
)

// rebuilds spread the runs that a changed template or step starts: an upgrade of
// the shipped steps concerns every build of a cluster at once.
type rebuilds struct {
	mu      sync.Mutex
	limiter *rate.Limiter
	due     map[types.NamespacedName]time.Time
}

// defaultRebuildRate is how many such runs start a minute.
const defaultRebuildRate = 10

func newRebuilds(perMinute int) rebuilds {
	return rebuilds{limiter: rate.NewLimiter(rate.Limit(float64(perMinute)/60), perMinute), due: map[types.NamespacedName]time.Time{}}
}

// turn is how long a build waits until it may start; zero is now. A build that
// waits keeps its turn until it leaves.
func (q *rebuilds) turn(build types.NamespacedName, now time.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	due, waits := q.due[build]
	if !waits {
		due = now.Add(q.limiter.ReserveN(now, 1).DelayFrom(now))
		q.due[build] = due
	}
	return max(0, due.Sub(now))
}

// leave the queue: the build was started, or nothing changed for it after all.
func (q *rebuilds) leave(build types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.due, build)
}
