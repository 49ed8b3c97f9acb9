package library

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/armature-dev/armature/render/process"
)

// group shares requests to the API server that many builds need. A request has a deadline of its
// own, and continues if its caller stops waiting. All callers together wait at most patience for
// it, so that a slow answer delays only the builds that need it, which are retried with backoff.
// The zero value is ready.
type group struct {
	requests singleflight.Group
	begun    sync.Map // when the request under way of each key began
}

const (
	// patience is how long reconciles wait for one request.
	patience = time.Second
	// groupTimeout bounds a request.
	groupTimeout = 30 * time.Second
)

// do sends a request, or waits for the request of the same key that is under way.
func do[T any](ctx context.Context, g *group, key string,
	ask func(context.Context) (T, error)) (none T, _ error) {
	answered := g.requests.DoChan(key, func() (any, error) {
		g.begun.Store(key, time.Now())
		defer g.begun.Delete(key)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), groupTimeout)
		defer cancel()
		return process.Guard(ctx, ask)
	})
	left := patience
	if begun, ok := g.begun.Load(key); ok {
		left -= time.Since(begun.(time.Time))
	}
	select {
	case answer := <-answered:
		if answer.Err != nil {
			return none, answer.Err
		}
		return answer.Val.(T), nil
	case <-time.After(left):
		return none, fmt.Errorf("no answer within %s; still waiting", patience)
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
