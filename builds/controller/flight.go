package controller

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// flights are questions to a server that many builds share. A question goes on
// by itself, with a deadline of its own: a reconcile waits for it a moment, and
// once it turns out to be slow no other does, so that one slow answer delays
// nobody but those who need it. They are reconciled again, later each time.
type flights struct {
	mu   sync.Mutex // never held while a server is asked
	open map[string]*flight
}

type flight struct {
	done   chan struct{}
	begun  time.Time
	answer any
	err    error
}

const (
	// patience of a reconcile with one question.
	patience = time.Second
	// flightTimeout bounds a question.
	flightTimeout = 30 * time.Second
)

// fly asks, or joins who asked the same already.
func fly[T any](ctx context.Context, f *flights, question string, ask func(context.Context) (T, error)) (T, error) {
	f.mu.Lock()
	call, shared := f.open[question]
	if !shared {
		call = &flight{done: make(chan struct{}), begun: time.Now()}
		if f.open == nil {
			f.open = map[string]*flight{}
		}
		f.open[question] = call
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flightTimeout)
			defer cancel()
			call.answer, call.err = ask(ctx)
			f.mu.Lock()
			delete(f.open, question)
			f.mu.Unlock()
			close(call.done)
		}()
	}
	f.mu.Unlock()
	var none T
	select {
	case <-call.done:
		if call.err != nil {
			return none, call.err
		}
		return call.answer.(T), nil
	case <-time.After(patience - time.Since(call.begun)):
		return none, fmt.Errorf("no answer within %s; it is waited for", patience)
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
