// Package answers bounds the memory that answers of servers take, by what they become once
// they are decoded: each answer, those of one namespace, and all together.
package answers

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	freeAnswer  = 128 << 10        // of one answer, before it counts: nearly all take less
	answerStep  = 256 << 10        // what one takes at a time
	maxPatience = 10 * time.Second // for others to end
)

var (
	// ErrTooLarge is the refusal of an answer that is beyond the limits of bytes, memory,
	// depth or items.
	ErrTooLarge = errors.New("the answer is too large")
	// ErrBusy is the refusal to read another answer until others are done.
	ErrBusy = errors.New("too many large answers are held in memory")
)

// Budget bounds what all servers together may send us at once.
type Budget struct {
	all          *semaphore.Weighted
	maxNamespace int64

	mu sync.Mutex
	by map[string]int64 // memory taken, by namespace
}

// NewBudget returns a budget of memory for all answers together and for those of one namespace. It
// counts from the first byte of an answer until its content is stored.
func NewBudget(all, namespace int64) *Budget {
	return &Budget{all: semaphore.NewWeighted(all), maxNamespace: namespace, by: map[string]int64{}}
}

// Share is what one reader takes of the budget.
type Share struct {
	*Budget
	namespace string

	mu              sync.Mutex
	read            int64
	requested, held int64 // taken or being taken, and taken
	ended           bool
}

// Share of a namespace. It is to be released.
func (b *Budget) Share(namespace string) *Share {
	return &Share{Budget: b, namespace: namespace, read: -freeAnswer}
}

// Add notes memory that reading and decoding take. It waits for it, and fails with ErrBusy
// when others hold too much of it for too long, or the namespace holds its part.
func (s *Share) Add(ctx context.Context, n int64) error {
	s.mu.Lock()
	s.read += n
	missing := max(0, (s.read-s.requested+answerStep-1)/answerStep*answerStep)
	s.requested += missing // another read of the same answer does not take it again
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
	case s.ended: // while it waited
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
	if end, ok := ctx.Deadline(); ok { // so that the reason is ours, and not that it took too long
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

// Settle returns the memory that decoding took when decoding is over.
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

// give takes memory off the namespace's account.
func (s *Share) give(n int64) {
	s.Budget.mu.Lock()
	defer s.Budget.mu.Unlock()
	if s.by[s.namespace] -= n; s.by[s.namespace] == 0 {
		delete(s.by, s.namespace)
	}
}

// Release returns all memory when nothing that was read is needed any more. Later reads, by a
// connection that is about to close, are refused.
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
