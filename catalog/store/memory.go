package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Memory is a store that ends with the process, for one person on one machine: each query reads all
// entries.
type Memory struct {
	mu       sync.RWMutex
	latest   Position
	byKey    map[Key]*record
	byUID    map[string]*record
	sessions map[string]Session
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{latest: Position{Store: rand.Text()}, byKey: map[Key]*record{},
		byUID: map[string]*record{}, sessions: map[string]Session{}}
}

// record is an entry; the first of its items is the entry itself.
type record struct {
	Row
	revision int64
	items    []item
}

// item is something that a search finds, with its words.
type item struct {
	kind, name               string
	body                     []byte
	names, tags, description []string
}

func newItem(i Item) (item, error) {
	body, err := json.Marshal(i)
	return item{i.Kind, i.Name, body, folded(i.Names()), folded(strings.Join(i.Tags, " ")),
		folded(i.Description)}, err
}

// folded returns the words of a text in lower case without marks.
func folded(text string) []string {
	text = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) {
			return -1
		}
		return r
	}, norm.NFD.String(strings.ToLower(text)))
	return strings.FieldsFunc(text, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsNumber(r)
	})
}

// Put implements Store.
func (m *Memory) Put(_ context.Context, e Entry, items bool) (changed bool, err error) {
	row, err := NewRow(e, items)
	if err != nil {
		return false, err
	}
	next := &record{Row: row}
	found := []Item{Self(e)}
	if items {
		found = append(found, e.Items...)
	}
	for _, one := range found {
		i, err := newItem(one)
		if err != nil {
			return false, fmt.Errorf("item %s of %s/%s: %w", one.Name, e.Namespace, e.Name, err)
		}
		next.items = append(next.items, i)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.byUID[e.UID]; old != nil {
		if old.Entry.Generation > e.Generation ||
			old.Hash == next.Hash && (!items || old.ItemsHash == next.ItemsHash) {
			old.touch(e.Fetched)
			return false, nil
		}
		if !items {
			next.ItemsHash, next.items = old.ItemsHash, append(next.items, old.items[1:]...)
		}
	} else if old := m.byKey[e.Key]; old != nil { // created again under the same name
		delete(m.byUID, old.Entry.UID)
	}
	m.latest.Revision++
	next.revision = m.latest.Revision
	m.byKey[e.Key], m.byUID[e.UID] = next, next
	return true, nil
}

// touch notes that the source confirmed an unchanged entry, to the minute.
func (r *record) touch(at time.Time) {
	if !at.IsZero() && r.Fetched <= at.Add(-time.Minute).UnixMilli() {
		r.Fetched = at.UnixMilli()
	}
}

// Sweep implements Store.
func (m *Memory) Sweep(_ context.Context, resource string,
	current func() (map[string]bool, error)) (deleted int, err error) {
	m.mu.RLock()
	var uids []string
	for uid, r := range m.byUID {
		if r.Entry.Resource == resource {
			uids = append(uids, uid)
		}
	}
	m.mu.RUnlock()
	keep, err := current()
	if err != nil {
		return 0, fmt.Errorf("sweeping %s: %w", resource, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range uids {
		if r := m.byUID[uid]; r != nil && !keep[uid] {
			m.latest.Revision++
			delete(m.byKey, r.Entry.Key)
			delete(m.byUID, uid)
			deleted++
		}
	}
	return deleted, nil
}

// has reports whether a query picks an entry.
func (q Query) has(r *record) bool {
	return q.Scope.Allows(r.Entry.Key) && q.Names(r.Entry.Key, r.Entry.Type) &&
		(q.Health == "" || q.Health == r.Entry.Health) &&
		(!q.Drifted || r.Entry.ToolLock == ToolsDrifted) &&
		(q.Skill == "" || slices.ContainsFunc(r.items[1:],
			func(i item) bool { return i.kind == Skill && each(q.Skill, exactly, i.names) })) &&
		(q.Tag == "" || each(q.Tag, exactly, r.items[0].tags))
}

// each reports whether a text has words, and each of them matches one of among.
func each(text string, is func(word, of string) bool, among ...[]string) bool {
	words := folded(strings.Join(Words(text), " "))
	for _, w := range words {
		if !slices.ContainsFunc(among, func(in []string) bool {
			return slices.ContainsFunc(in, func(of string) bool { return is(w, of) })
		}) {
			return false
		}
	}
	return len(words) > 0
}

func exactly(word, of string) bool { return word == of }

// begins reports whether of begins with a word. A word of one letter has to match the whole,
// because it begins too many words.
func begins(word, of string) bool {
	return word == of || utf8.RuneCountInString(word) > 1 && strings.HasPrefix(of, word)
}

func (k Key) compare(other Key) int {
	return cmp.Or(strings.Compare(k.Namespace, other.Namespace),
		strings.Compare(k.Name, other.Name), strings.Compare(k.Resource, other.Resource))
}

// picked returns the entries of a query, by namespace and name.
func (m *Memory) picked(q Query) (out []*record) {
	for _, r := range m.byKey {
		if q.has(r) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *record) int { return a.Entry.Key.compare(b.Entry.Key) })
	return out
}

// List implements Store.
func (m *Memory) List(ctx context.Context, q Query) ([]Entry, error) {
	entries, _, err := m.Page(ctx, q)
	return entries, err
}

// Page implements Store.
func (m *Memory) Page(_ context.Context, q Query) (entries []Entry, total int, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := m.picked(q)
	total = len(all)
	if q.Latest {
		slices.SortFunc(all, func(a, b *record) int { return cmp.Compare(b.revision, a.revision) })
	}
	if q.After != (Key{}) {
		all = slices.DeleteFunc(all, func(r *record) bool {
			return r.Entry.Key.compare(q.After) <= 0
		})
	}
	for _, r := range all[:min(len(all), q.Most())] {
		e, err := Decode(r.Body, r.Fetched, r.revision)
		if err != nil {
			return nil, 0, fmt.Errorf("listing the catalog: %w", err)
		}
		entries = append(entries, e)
	}
	return entries, total, nil
}

// Get implements Store.
func (m *Memory) Get(_ context.Context, key Key) (e Entry, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	r := m.byKey[key]
	if r == nil {
		return e, ErrNotFound
	}
	e, err = Decode(r.Body, r.Fetched, r.revision)
	for _, one := range r.items[1:] {
		var i Item
		if err == nil {
			err = json.Unmarshal(one.body, &i)
			e.Items = append(e.Items, i)
		}
	}
	return e, err
}

// Search implements Store.
func (m *Memory) Search(_ context.Context, q Query) (hits []Hit, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	type match struct {
		of       *record
		position int
		score    float64
	}
	var matches []match
	for _, r := range m.picked(q) {
		for n, i := range r.items {
			score := 0.0
			switch {
			case q.Kind != "" && q.Kind != i.kind:
			case each(q.Text, begins, i.names):
				score = 3
			case each(q.Text, begins, i.names, i.tags):
				score = 2
			case each(q.Text, begins, i.names, i.tags, i.description):
				score = 1
			}
			if score == 0 {
				continue
			}
			if strings.EqualFold(i.name, strings.TrimSpace(q.Text)) {
				score++
			}
			matches = append(matches, match{r, n, score})
		}
	}
	slices.SortStableFunc(matches, func(a, b match) int {
		length := func(m match) int { return utf8.RuneCountInString(m.of.items[m.position].name) }
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(length(a), length(b)))
	})
	for _, f := range matches[:min(len(matches), q.Most())] {
		h := Hit{Score: f.score}
		if h.Entry, err = Decode(f.of.Body, f.of.Fetched, f.of.revision); err == nil && f.position > 0 {
			h.Item = &Item{}
			err = json.Unmarshal(f.of.items[f.position].body, h.Item)
		}
		if err != nil {
			return nil, fmt.Errorf("searching the catalog: %w", err)
		}
		h.Entry.Document, h.Entry.Instances = nil, nil
		hits = append(hits, h)
	}
	return hits, nil
}

// Groups implements Store.
func (m *Memory) Groups(context.Context) (groups []Group, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	by := map[Group]int{}
	for _, r := range m.byKey {
		by[Group{Resource: r.Entry.Resource, Namespace: r.Entry.Namespace, Type: r.Entry.Type,
			Health: r.Entry.Health, ToolLock: r.Entry.ToolLock}]++
	}
	for g, n := range by {
		g.Entries = n
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(strings.Compare(a.Resource, b.Resource),
			strings.Compare(a.Namespace, b.Namespace))
	})
	return groups, nil
}

// Position implements Store.
func (m *Memory) Position(context.Context) (Position, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.latest, nil
}

// BeginSession implements Store.
func (m *Memory) BeginSession(_ context.Context, secret string, v Session, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.sessions, func(_ string, s Session) bool { return !s.Expires.After(now) })
	for len(m.sessions) >= MaxOwnSessions { // all are of one person
		delete(m.sessions, slices.MinFunc(slices.Collect(maps.Keys(m.sessions)),
			func(a, b string) int {
				return m.sessions[a].Expires.Compare(m.sessions[b].Expires)
			}))
	}
	m.sessions[secret] = v
	return nil
}

// FindSession implements Store.
func (m *Memory) FindSession(_ context.Context, secret string, now time.Time) (Session, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if s, ok := m.sessions[secret]; ok && s.Expires.After(now) {
		return s, nil
	}
	return Session{}, ErrNotFound
}

// EndSession implements Store.
func (m *Memory) EndSession(_ context.Context, secret string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sessions, secret)
	return nil
}

// Close implements Store.
func (m *Memory) Close() error { return nil }
