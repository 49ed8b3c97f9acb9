package database

import (
	"context"
	"sync"

	"github.com/armature-dev/armature/catalog/store"
)

// memo caches what every page asks for, of the latest revision.
type memo struct {
	mu     sync.Mutex
	at     store.Position
	groups []group
}

// remember calls ask once for each revision.
func (m *memo) remember(ctx context.Context, s *Store,
	ask func() ([]group, error)) ([]group, error) {
	at, err := s.Position(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	have, groups := m.at, m.groups
	m.mu.Unlock()
	if have == at {
		return groups, nil
	}
	if groups, err = ask(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at, m.groups = at, groups
	return groups, nil
}
