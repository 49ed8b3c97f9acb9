package turns

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Group shares requests to the API server that many builds need. A request runs
// by itself, with a deadline of its own: a reconcile waits for it a moment, and
// once it turns out to be slow no other does, so that one slow answer delays
// only the builds that need it. They are reconciled again, later each time.
// The zero value is ready.
type Group struct {
	mu    sync.Mutex // never held while a server is asked
	calls map[string]*call
}

type call struct {
	done   chan struct{}
	begun  time.Time
	answer any
	err    error
}

const (
	// Patience of a reconcile with one request.
	Patience = time.Second
	// groupTimeout bounds a request.
	groupTimeout = 30 * time.Second
)

// Do sends a request, or waits for the one of the same key that is under way.
func Do[T any](ctx context.Context, g *Group, key string, ask func(context.Context) (T, error)) (T, error) {
	g.mu.Lock()
	c, shared := g.calls[key]
	if !shared {
		c = &call{done: make(chan struct{}), begun: time.Now()}
		if g.calls == nil {
			g.calls = map[string]*call{}
		}
		g.calls[key] = c
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), groupTimeout)
			defer cancel()
			c.answer, c.err = ask(ctx)
			g.mu.Lock()
			delete(g.calls, key)
			g.mu.Unlock()
			close(c.done)
		}()
	}
	g.mu.Unlock()
	var none T
	select {
	case <-c.done:
		if c.err != nil {
			return none, c.err
		}
		return c.answer.(T), nil
	case <-time.After(Patience - time.Since(c.begun)):
		return none, fmt.Errorf("no answer within %s; still waiting", Patience)
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
