package database

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/armature-dev/armature/catalog/store"
)

// within returns a scope as a condition on entry. A scope covers much of the store or little:
// SQLite has no statistics, and would sort all of it instead of reading an index in the order of
// the answer. The plus prevents that.
func (a *arguments) within(s store.Scope, postgres bool) string {
	if s["*"].All {
		return "TRUE"
	}
	plus := "+"
	if postgres {
		plus = ""
	}
	var parts []string
	for _, resource := range slices.Sorted(maps.Keys(s)) {
		n := s[resource]
		if !n.All && len(n.Names) == 0 {
			continue
		}
		part := plus + "entry.resource = " + a.add(resource)
		if !n.All {
			var names []string
			for _, name := range n.Names {
				names = append(names, a.add(name))
			}
			part += " AND " + plus + "entry.namespace IN (" + strings.Join(names, ", ") + ")"
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "FALSE"
	}
	return "(" + strings.Join(parts, " OR ") + ")"
}

// conditions returns a query as a condition on entry.
func (a *arguments) conditions(q store.Query, postgres bool) string {
	text := a.within(q.Scope, postgres)
	for _, c := range []struct {
		words, field, weight string
		kinds                [2]string // of the items that are searched
	}{
		{q.Skill, "names", "A", [2]string{store.Skill, store.Skill}},
		{q.Tag, "tags", "B", [2]string{string(store.Agent), string(store.Server)}},
	} {
		words := store.Words(c.words)
		switch {
		case c.words == "":
		case len(words) == 0:
			text += " AND FALSE"
		case postgres:
			text += " AND entry.uid IN (SELECT uid FROM item WHERE kind IN (" + a.add(c.kinds[0]) +
				", " + a.add(c.kinds[1]) + ")" +
				" AND words @@ to_tsquery('simple', " +
				a.add(strings.Join(words, ":"+c.weight+" & ")+":"+c.weight) + "))"
		default:
			match := "{" + c.field + `} : ("` + strings.Join(words, `" AND "`) +
				`") AND scope : (` + kindToken(c.kinds[0]) + " OR " + kindToken(c.kinds[1]) + ")"
			text += " AND +entry.uid IN (SELECT item.uid FROM words CROSS JOIN item INDEXED BY " +
				"item_entry ON item.id = words.rowid WHERE words MATCH " + a.add(match) + ")"
		}
	}
	if q.Drifted {
		text += " AND entry.tool_lock = '" + string(store.ToolsDrifted) + "'"
	}
	for _, c := range []struct{ column, value string }{
		{"type", string(q.Type)}, {"resource", q.Resource}, {"namespace", q.Namespace},
		{"health", string(q.Health)},
	} {
		if c.value != "" {
			text += " AND entry." + c.column + " = " + a.add(c.value)
		}
	}
	return text
}

const columns = "entry.body, entry.fetched, entry.revision"

// List implements store.Store.
func (s *Store) List(ctx context.Context, q store.Query) ([]store.Entry, error) {
	var args arguments
	where := args.conditions(q, s.read.postgres)
	order := "entry.namespace, entry.name, entry.resource"
	if q.Latest {
		order = "entry.revision DESC"
	}
	if q.After != (store.Key{}) {
		where += " AND (entry.namespace, entry.name, entry.resource) > " + args.key(q.After)
	}
	query := "SELECT " + columns + " FROM entry WHERE " + where + " ORDER BY " + order + " LIMIT " +
		args.add(q.Most())
	entries, err := list(ctx, s.read, scanEntry, query, args...)
	if err != nil {
		return nil, fmt.Errorf("listing the catalog: %w", err)
	}
	return entries, nil
}

// key returns a key in the order of lists.
func (a *arguments) key(k store.Key) string {
	return "(" + a.add(k.Namespace) + ", " + a.add(k.Name) + ", " + a.add(k.Resource) + ")"
}

// Get returns one entry with its items, or ErrNotFound.
func (s *Store) Get(ctx context.Context, key store.Key) (store.Entry, error) {
	return s.get(ctx, key, true)
}

// Summary returns one entry without its items, or ErrNotFound.
func (s *Store) Summary(ctx context.Context, key store.Key) (store.Entry, error) {
	return s.get(ctx, key, false)
}

func (s *Store) get(ctx context.Context, key store.Key, items bool) (e store.Entry, err error) {
	// One transaction, so that an entry is never shown with another one's items.
	options := &sql.TxOptions{}
	if s.read.postgres {
		options = &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead}
	}
	err = s.read.transact(ctx, options, func(tx session) error {
		found, err := list(ctx, tx, scanEntry,
			"SELECT "+columns+" FROM entry WHERE resource = $1 AND namespace = $2 AND name = $3",
			key.Resource, key.Namespace, key.Name)
		if err == nil && len(found) == 0 {
			err = store.ErrNotFound
		}
		if err != nil {
			return err
		}
		if e = found[0]; items {
			e.Items, err = list(ctx, tx, scanItem,
				"SELECT body FROM item WHERE uid = $1 AND position >= 0 ORDER BY position", e.UID)
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return store.Entry{}, store.ErrNotFound
	}
	if err != nil {
		return store.Entry{}, fmt.Errorf("reading %s %s/%s from the catalog: %w", key.Resource,
			key.Namespace, key.Name, err)
	}
	return e, nil
}

// counted has the groups of a position.
type counted struct {
	at     store.Position
	groups []store.Group
}

// Groups counts all entries, by resource and namespace. They are read once for each revision and
// shared by all callers, who must not change them.
func (s *Store) Groups(ctx context.Context) ([]store.Group, error) {
	at, err := s.Position(ctx)
	if err != nil {
		return nil, err
	}
	if known := s.counted.Load(); known != nil && known.at == at {
		return known.groups, nil
	}
	groups, err := list(ctx, s.read, func(rows *sql.Rows) (g store.Group, err error) {
		return g, rows.Scan(&g.Resource, &g.Namespace, &g.Type, &g.Health, &g.ToolLock, &g.Entries)
	},
		"SELECT resource, namespace, type, health, tool_lock, COUNT(*) FROM entry GROUP BY "+
			"resource, namespace, type, health, tool_lock ORDER BY resource, namespace")
	if err != nil {
		return nil, fmt.Errorf("counting the catalog: %w", err)
	}
	s.counted.Store(&counted{at, groups})
	return groups, nil
}

// Page returns the entries of List, and how many the query picks, on this page and all others.
func (s *Store) Page(ctx context.Context,
	q store.Query) (entries []store.Entry, total int, err error) {
	if q.Skill == "" && q.Tag == "" {
		tally, err := store.Tally(ctx, s, q)
		for _, n := range tally {
			total += n
		}
		if err == nil {
			entries, err = s.List(ctx, q)
		}
		return entries, total, err
	}
	// What the search index found is read once, for both.
	var args arguments
	query := "WITH hit AS (SELECT entry.uid, entry.namespace, entry.name, entry.resource FROM " +
		"entry WHERE " + args.conditions(q, s.read.postgres) + `)
SELECT ` + columns + `, (SELECT COUNT(*) FROM hit)
FROM hit JOIN entry ON entry.uid = hit.uid WHERE (hit.namespace, hit.name, hit.resource) > ` + args.key(q.After) + `
ORDER BY hit.namespace, hit.name, hit.resource LIMIT ` + args.add(q.Most())
	entries, err = list(ctx, s.read, func(rows *sql.Rows) (store.Entry, error) {
		return scanEntryAnd(rows, &total)
	}, query, args...)
	if err != nil {
		return nil, 0, fmt.Errorf("listing the catalog: %w", err)
	}
	return entries, total, nil
}

// Items counts the items of all entries.
func (s *Store) Items(ctx context.Context) (items int, err error) {
	err = s.read.QueryRowContext(ctx, "SELECT COUNT(*) FROM item WHERE position >= 0").Scan(&items)
	if err != nil {
		err = fmt.Errorf("counting the catalog: %w", err)
	}
	return items, err
}

func scanEntry(rows *sql.Rows) (store.Entry, error) { return scanEntryAnd(rows) }

// scanEntryAnd reads the columns of an entry, and the columns after them.
func scanEntryAnd(rows *sql.Rows, more ...any) (e store.Entry, err error) {
	var body []byte
	var fetched, revision int64
	if err := rows.Scan(append([]any{&body, &fetched, &revision}, more...)...); err != nil {
		return e, err
	}
	return store.Decode(body, fetched, revision)
}

func scanItem(rows *sql.Rows) (i store.Item, err error) {
	var body []byte
	if err := rows.Scan(&body); err != nil {
		return i, err
	}
	return i, json.Unmarshal(body, &i)
}

// Changes implements store.Store.
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
	deletions, err := list(ctx, s.read, func(rows *sql.Rows) (store.Change, error) {
		c := store.Change{Deleted: true}
		return c, rows.Scan(&c.Revision, &c.Resource, &c.Type, &c.Namespace, &c.Name)
	},
		"SELECT revision, resource, type, namespace, name FROM gone WHERE revision > $1 AND "+
			"revision <= $2 ORDER BY revision", after.Revision, latest.Revision)
	if err != nil {
		return nil, latest, fmt.Errorf("reading deletions: %w", err)
	}
	for _, c := range deletions {
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
