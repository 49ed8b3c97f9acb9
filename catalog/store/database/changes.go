package database

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/armature-dev/armature/catalog/store"
)

// Changes returns the changes after a position, oldest first, as far as a query picks them.
// latest is the position to go on from. An entry that changed twice is there once. After a
// position that is too old, or another store's, it is ErrExpired.
func (s *Store) Changes(ctx context.Context, after store.Position,
	q store.Query) (changes []store.Change, latest store.Position, err error) {
	if latest, err = s.Position(ctx); err != nil || latest == after {
		return nil, latest, err
	}
	if !after.Known(latest) {
		return nil, latest, store.ErrExpired
	}
	args := arguments{after.Revision, latest.Revision}
	where := args.conditions(q, s.read.postgres)
	entries, err := list(ctx, s.read, scanEntry,
		"SELECT "+columns+" FROM entry WHERE entry.revision > $1 AND entry.revision <= $2 AND "+
			where+" ORDER BY entry.revision", args...)
	if err != nil {
		return nil, latest, fmt.Errorf("reading changes: %w", err)
	}
	for i := range entries {
		changes = append(changes, store.Change{Revision: entries[i].Revision, Key: entries[i].Key,
			Type: entries[i].Type, Entry: &entries[i]})
	}
	gone, err := list(ctx, s.read, func(rows *sql.Rows) (store.Change, error) {
		c := store.Change{Deleted: true}
		return c, rows.Scan(&c.Revision, &c.Resource, &c.Type, &c.Namespace, &c.Name)
	},
		"SELECT revision, resource, type, namespace, name FROM gone WHERE revision > $1 AND "+
			"revision <= $2 ORDER BY revision", after.Revision, latest.Revision)
	if err != nil {
		return nil, latest, fmt.Errorf("reading deletions: %w", err)
	}
	for _, c := range gone {
		if q.Scope.Allows(c.Key) && q.Names(c.Key, c.Type) {
			changes = append(changes, c)
		}
	}
	slices.SortStableFunc(changes, func(a, b store.Change) int {
		return int(a.Revision - b.Revision)
	})
	return changes, latest, nil
}

// Position returns the position of the store's latest change. A restarted PostgreSQL is another
// store: its last acknowledged changes may be lost, as after a fail-over to a replica that was
// behind, and their revisions are then assigned again.
func (s *Store) Position(ctx context.Context) (latest store.Position, err error) {
	id := "identity.id"
	if s.read.postgres {
		id = "identity.id || '.' || to_hex((extract(epoch FROM pg_postmaster_start_time()) * " +
			"1000)::bigint)"
	}
	if err = s.read.QueryRowContext(ctx, "SELECT "+id+", revision.latest FROM identity, revision").
		Scan(&latest.Store, &latest.Revision); err != nil {
		err = fmt.Errorf("reading the catalog's revision: %w", err)
	}
	return latest, err
}
