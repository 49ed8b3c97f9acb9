package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Change is one step of the catalog's history.
type Change struct {
	Revision int64 `json:"revision"`
	// Deleted entries have a key alone.
	Deleted bool `json:"deleted,omitempty"`
	Key
	Type  Type   `json:"type"`
	Entry *Entry `json:"entry,omitempty"`
}

// Position is a place in the history of one store. Its zero value is the beginning.
type Position struct {
	// Store is made up by each store when it is created, so that no position of
	// one that was lost means anything to the next; empty is any store's.
	Store    string
	Revision int64
}

// String is the position as ParsePosition reads it.
func (p Position) String() string {
	if p.Store == "" {
		return strconv.FormatInt(p.Revision, 10)
	}
	return p.Store + "-" + strconv.FormatInt(p.Revision, 10)
}

// ParsePosition reads what String wrote.
func ParsePosition(text string) (p Position, err error) {
	number := text
	if at := strings.LastIndexByte(text, '-'); at > 0 {
		p.Store, number = text[:at], text[at+1:]
	}
	if p.Revision, err = strconv.ParseInt(number, 10, 64); err != nil || p.Revision < 0 {
		return Position{}, fmt.Errorf("%q is not a position in the catalog", text)
	}
	return p, nil
}

// Changes after a position, oldest first, as far as a query picks them. latest
// is the position to go on from. An entry that changed twice is there once.
// After a position that is too old, or another store's, it is ErrExpired.
func (s *Store) Changes(ctx context.Context, after Position, q Query) (changes []Change, latest Position, err error) {
	if latest, err = s.Position(ctx); err != nil || latest == after {
		return nil, latest, err
	}
	switch {
	case after.Store != "" && after.Store != latest.Store, after.Revision > latest.Revision, after.Revision > 0 && after.Revision < latest.Revision-keptTombs:
		return nil, latest, ErrExpired
	}
	where, args := q.where(s.postgres)
	entries, err := list(ctx, s.reader(), scanEntry, "SELECT "+columns+" FROM entry WHERE entry.revision > ? AND entry.revision <= ? AND "+where+" ORDER BY entry.revision", append([]any{after.Revision, latest.Revision}, args...)...)
	if err != nil {
		return nil, latest, fmt.Errorf("reading changes: %w", err)
	}
	for i := range entries {
		changes = append(changes, Change{Revision: entries[i].Revision, Key: entries[i].Key, Type: entries[i].Type, Entry: &entries[i]})
	}
	gone, err := list(ctx, s.reader(), func(rows *sql.Rows) (Change, error) {
		c := Change{Deleted: true}
		return c, rows.Scan(&c.Revision, &c.Resource, &c.Type, &c.Namespace, &c.Name)
	}, "SELECT revision, resource, type, namespace, name FROM gone WHERE revision > ? AND revision <= ? ORDER BY revision", after.Revision, latest.Revision)
	if err != nil {
		return nil, latest, fmt.Errorf("reading deletions: %w", err)
	}
	for _, c := range gone {
		if q.Scope.Allows(c.Key) && (q.Type == "" || q.Type == c.Type) && (q.Resource == "" || q.Resource == c.Resource) && (q.Namespace == "" || q.Namespace == c.Namespace) {
			changes = append(changes, c)
		}
	}
	slices.SortStableFunc(changes, func(a, b Change) int { return int(a.Revision - b.Revision) })
	return changes, latest, nil
}

// Position of the store's latest change. A restarted PostgreSQL is another store:
// its last acknowledged changes may be lost, as after a fail-over to a replica that
// was behind, and their revisions are then assigned again.
func (s *Store) Position(ctx context.Context) (latest Position, err error) {
	id := "identity.id"
	if s.postgres {
		id = "identity.id || '.' || to_hex((extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint)"
	}
	if err = s.read.QueryRowContext(ctx, "SELECT "+id+", revision.latest FROM identity, revision").Scan(&latest.Store, &latest.Revision); err != nil {
		err = fmt.Errorf("reading the catalog's revision: %w", err)
	}
	return latest, err
}
