package turns

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// Group shares requests to the API server that many builds need. A request runs
// by itself, with a deadline of its own: a reconcile waits for it a moment, and
// once it turns out to be slow no other does, so that one slow answer delays
// only the builds that need it. They are reconciled again, later each time.
// The zero value is ready.
type Group struct {
	requests singleflight.Group
	begun    sync.Map // key -> when the request under way began
}

const (
	// Patience of a reconcile with one request.
	Patience = time.Second
	// groupTimeout bounds a request.
	groupTimeout = 30 * time.Second
)

// Do sends a request, or waits for the one of the same key that is under way.
func Do[T any](ctx context.Context, g *Group, key string, ask func(context.Context) (T, error)) (none T, _ error) {
	answered := g.requests.DoChan(key, func() (any, error) {
		g.begun.Store(key, time.Now())
		defer g.begun.Delete(key)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), groupTimeout)
		defer cancel()
		return ask(ctx)
	})
	patience := Patience
	if begun, ok := g.begun.Load(key); ok {
		patience -= time.Since(begun.(time.Time))
	}
	select {
	case answer := <-answered:
		if answer.Err != nil {
			return none, answer.Err
		}
		return answer.Val.(T), nil
	case <-time.After(patience):
		return none, fmt.Errorf("no answer within %s; still waiting", Patience)
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
