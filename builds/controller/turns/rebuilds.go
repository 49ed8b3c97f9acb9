package turns

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
)

// Rebuilds spreads the runs that a changed template or step starts: an upgrade of
// the shipped steps concerns every build of a cluster at once. Namespaces take turns.
type Rebuilds struct {
	wake func(types.NamespacedName)

	mu      sync.Mutex
	limiter *rate.Limiter
	waiting Queue[types.NamespacedName]
	known   map[types.NamespacedName]bool // builds that wait, and true for those that may start
	timer   *time.Timer                   // until the next may start
}

// NewRebuilds lets so many runs start a minute. wake is called with each build that may
// start now.
func NewRebuilds(perMinute int, wake func(types.NamespacedName)) *Rebuilds {
	return &Rebuilds{wake: wake, limiter: rate.NewLimiter(rate.Limit(float64(perMinute)/60), perMinute), known: map[types.NamespacedName]bool{}}
}

// MayStart reports whether it is a build's turn. One that has to wait is woken then, and
// keeps its position until it leaves.
func (q *Rebuilds) MayStart(build types.NamespacedName, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := q.known[build]; !known {
		q.known[build] = false
		q.waiting.Add(build.Namespace, build)
	}
	for _, other := range q.dispatch(now) {
		if other != build {
			go q.wake(other)
		}
	}
	return q.known[build]
}

// dispatch lets builds start as the rate allows, and sets the timer for the next one.
func (q *Rebuilds) dispatch(now time.Time) (started []types.NamespacedName) {
	for q.waiting.Len() > 0 && q.limiter.AllowN(now, 1) {
		build, _ := q.waiting.Next(func(string) bool { return true })
		q.known[build] = true
		started = append(started, build)
	}
	if q.waiting.Len() > 0 && q.timer == nil {
		missing := 1 - q.limiter.TokensAt(now)
		q.timer = time.AfterFunc(time.Duration(missing/float64(q.limiter.Limit())*float64(time.Second))+time.Millisecond, q.tick)
	}
	return started
}

func (q *Rebuilds) tick() {
	q.mu.Lock()
	q.timer = nil
	started := q.dispatch(time.Now())
	q.mu.Unlock()
	for _, build := range started {
		q.wake(build)
	}
}

// Leave: the build was started, or nothing changed for it after all.
func (q *Rebuilds) Leave(build types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.known, build)
	q.waiting.Remove(build.Namespace, build)
}
