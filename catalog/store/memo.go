package store

import (
	"context"
	"sync"
)

// memo has what every page asks for of the latest revision: counts, and with them places.
type memo struct {
	mu   sync.Mutex
	at   Position
	what map[string]any
}

// maxMemo bounds what is remembered: counts of all, and for each set of rights and filter by skill or tag.
const maxMemo = 1000

// remember asks once for each revision. What it gives is shared: do not change it.
func remember[T any](ctx context.Context, s *Store, key string, ask func() (T, error)) (v T, err error) {
	at, err := s.Position(ctx)
	if err != nil {
		return v, err
	}
	s.memo.mu.Lock()
	if s.memo.at != at || s.memo.what == nil {
		s.memo.at, s.memo.what = at, map[string]any{}
	}
	have, ok := s.memo.what[key]
	s.memo.mu.Unlock()
	if ok {
		return have.(T), nil
	}
	if v, err = ask(); err != nil {
		return v, err
	}
	s.memo.mu.Lock()
	defer s.memo.mu.Unlock()
	if s.memo.at == at && len(s.memo.what) < maxMemo {
		s.memo.what[key] = v
	}
	return v, nil
}
