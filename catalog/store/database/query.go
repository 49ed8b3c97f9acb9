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

// lookup returns store.Scope.Allows for many entries.
func lookup(s store.Scope) func(resource, namespace string) bool {
	names := map[[2]string]bool{}
	for resource, n := range s {
		for _, name := range n.Names {
			names[[2]string{resource, name}] = true
		}
	}
	return func(resource, namespace string) bool {
		return s["*"].All || s[resource].All || names[[2]string{resource, namespace}] ||
			names[[2]string{"*", namespace}]
	}
}

// within returns a scope as a condition on entry. It covers much of the store or little: SQLite
// has no statistics, and would sort all of it rather than read an index in the order of the answer.
// The plus keeps it from that.
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
		kinds                [2]string // of the items that are looked at
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

// List lists the entries that a query picks, by namespace and name, without items. More are there
// when the answer is as long as the limit.
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

// group is how many entries of a resource, a namespace and a type are in a state.
type group struct {
	resource, namespace string
	of                  store.Type
	health              store.Health
	lock                store.ToolLock
	entries             int
}

// groups returns the groups of all entries, by resource and namespace. They are read once for
// each revision, for whoever asks, and shared: do not change them.
func (s *Store) groups(ctx context.Context) ([]group, error) {
	out, err := s.memo.remember(ctx, s, func() ([]group, error) {
		return list(ctx, s.read, func(rows *sql.Rows) (g group, err error) {
			return g, rows.Scan(&g.resource, &g.namespace, &g.of, &g.health, &g.lock, &g.entries)
		},
			"SELECT resource, namespace, type, health, tool_lock, COUNT(*) FROM entry GROUP BY "+
				"resource, namespace, type, health, tool_lock ORDER BY resource, namespace")
	})
	if err != nil {
		return nil, fmt.Errorf("counting the catalog: %w", err)
	}
	return out, nil
}

// Places returns the namespaces with entries of a type, by resource.
func (s *Store) Places(ctx context.Context, of store.Type) (map[string][]string, error) {
	groups, err := s.groups(ctx)
	out := map[string][]string{}
	for _, g := range groups {
		if of != "" && of != g.of {
			continue
		}
		if in := out[g.resource]; len(in) == 0 || in[len(in)-1] != g.namespace {
			out[g.resource] = append(in, g.namespace)
		}
	}
	return out, err
}

// Tally counts the entries that a query picks, by health; Skill and Tag do not matter.
func (s *Store) Tally(ctx context.Context, q store.Query) (map[store.Health]int, error) {
	groups, err := s.groups(ctx)
	allows := lookup(q.Scope)
	out := map[store.Health]int{}
	for _, g := range groups {
		if q.Names(store.Key{Resource: g.resource, Namespace: g.namespace}, g.of) &&
			(q.Health == "" || q.Health == g.health) &&
			(!q.Drifted || g.lock == store.ToolsDrifted) && allows(g.resource, g.namespace) {
			out[g.health] += g.entries
		}
	}
	return out, err
}

// Page returns List with how many entries the query picks, on this page and all others.
func (s *Store) Page(ctx context.Context,
	q store.Query) (entries []store.Entry, total int, err error) {
	if q.Skill == "" && q.Tag == "" {
		tally, err := s.Tally(ctx, q)
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

// Counts returns the counts of entries, and how many items they have together.
func (s *Store) Counts(ctx context.Context) (counts []store.Count, items int, err error) {
	counts, err = list(ctx, s.read, func(rows *sql.Rows) (c store.Count, err error) {
		return c, rows.Scan(&c.Resource, &c.Health, &c.Entries)
	},
		"SELECT resource, health, COUNT(*) FROM entry GROUP BY resource, health ORDER BY "+
			"resource, health")
	if err == nil {
		err = s.read.QueryRowContext(ctx, "SELECT COUNT(*) FROM item WHERE position >= 0").Scan(&items)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("counting the catalog: %w", err)
	}
	return counts, items, nil
}

func scanEntry(rows *sql.Rows) (store.Entry, error) { return scanEntryAnd(rows) }

// scanEntryAnd reads the columns of an entry, and what is after them.
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
