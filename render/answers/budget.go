// Package answers bounds the memory of servers' answers, by the size that they have after decoding:
// of each answer, of those of one namespace, and of all together.
package answers

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	freeAnswer  = 128 << 10        // of each answer, not counted: most need less
	answerStep  = 256 << 10        // granularity of the budget
	maxPatience = 10 * time.Second // how long to wait for memory
)

var (
	// ErrTooLarge means that an answer exceeds the limits of bytes, memory, depth or items.
	ErrTooLarge = errors.New("the answer is too large")
	// ErrBusy means that other answers use the budget.
	ErrBusy = errors.New("too many large answers are held in memory")
)

// Budget limits the memory for the answers of all servers.
type Budget struct {
	all          *semaphore.Weighted
	maxNamespace int64

	mu sync.Mutex
	by map[string]int64 // memory taken, by namespace
}

// NewBudget returns a budget of memory for all answers, and for those of one namespace. Memory
// counts from the first byte of an answer until its content is stored.
func NewBudget(all, namespace int64) *Budget {
	return &Budget{all: semaphore.NewWeighted(all), maxNamespace: namespace, by: map[string]int64{}}
}

// Share is the part of the budget that one reader uses.
type Share struct {
	*Budget
	namespace string

	mu              sync.Mutex
	read            int64
	requested, held int64 // taken or being taken, and taken
	ended           bool
}

// Share returns a share for a reader in a namespace. The caller must release it.
func (b *Budget) Share(namespace string) *Share {
	return &Share{Budget: b, namespace: namespace, read: -freeAnswer}
}

// Add acquires memory for reading and decoding. It waits for it, and returns ErrBusy if other
// readers keep too much of it for too long, or if the namespace uses its part.
func (s *Share) Add(ctx context.Context, n int64) error {
	s.mu.Lock()
	s.read += n
	missing := max(0, (s.read-s.requested+answerStep-1)/answerStep*answerStep)
	s.requested += missing // a parallel read of the same answer does not acquire it again
	ended := s.ended
	s.mu.Unlock()
	if missing == 0 && !ended {
		return nil
	}
	if ended {
		return context.Canceled
	}
	err := s.take(ctx, missing)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.requested -= missing
	case s.ended: // released while waiting
		s.give(missing)
		s.all.Release(missing)
		err = context.Canceled
	default:
		s.held += missing
	}
	return err
}

func (s *Share) take(ctx context.Context, n int64) error {
	s.Budget.mu.Lock()
	if s.by[s.namespace]+n > s.maxNamespace+answerStep {
		s.Budget.mu.Unlock()
		return ErrBusy
	}
	s.by[s.namespace] += n
	s.Budget.mu.Unlock()
	patience := maxPatience
	if end, ok := ctx.Deadline(); ok { // so that the error is ErrBusy, not a timeout
		patience = min(patience, time.Until(end)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if s.all.Acquire(ctx, n) != nil {
		s.give(n)
		return ErrBusy
	}
	return nil
}

// Settle returns the memory for decoding when that has ended.
func (s *Share) Settle(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read -= n
	surplus := min(s.held, (s.requested-max(0, s.read))/answerStep*answerStep)
	if surplus > 0 {
		s.requested -= surplus
		s.held -= surplus
		s.give(surplus)
		s.all.Release(surplus)
	}
}

// give returns memory to the namespace.
func (s *Share) give(n int64) {
	s.Budget.mu.Lock()
	defer s.Budget.mu.Unlock()
	if s.by[s.namespace] -= n; s.by[s.namespace] == 0 {
		delete(s.by, s.namespace)
	}
}

// Release returns all memory when the content is no longer needed. It refuses later reads by a
// connection that is about to close.
func (s *Share) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.held > 0 {
		s.give(s.held)
		s.all.Release(s.held)
		s.held = 0
	}
}
