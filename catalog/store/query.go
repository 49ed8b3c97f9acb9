package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Scope is what somebody may see: by resource the namespaces, or All. Its zero
// value sees nothing.
type Scope map[string]Namespaces

// Namespaces of a resource that somebody may list.
type Namespaces struct {
	All   bool
	Names []string
}

// Everything is the scope of all that a store has, for callers that no rights
// limit.
func Everything() Scope { return Scope{"*": {All: true}} }

// Allows reports whether the scope covers an entry.
func (s Scope) Allows(key Key) bool {
	for _, resource := range []string{"*", key.Resource} {
		n := s[resource]
		if n.All || slices.Contains(n.Names, key.Namespace) {
			return true
		}
	}
	return false
}

// where is the scope as a condition on entry.
func (s Scope) where() (string, []any) {
	if s["*"].All {
		return "TRUE", nil
	}
	var parts []string
	var args []any
	for _, resource := range slices.Sorted(maps.Keys(s)) {
		n := s[resource]
		switch {
		case n.All:
			parts, args = append(parts, "entry.resource = ?"), append(args, resource)
		case len(n.Names) > 0:
			parts = append(parts, "entry.resource = ? AND entry.namespace IN (?"+strings.Repeat(", ?", len(n.Names)-1)+")")
			args = append(args, resource)
			for _, name := range n.Names {
				args = append(args, name)
			}
		}
	}
	if len(parts) == 0 {
		return "FALSE", nil
	}
	return "(" + strings.Join(parts, " OR ") + ")", args
}

// Query picks entries or items.
type Query struct {
	// Scope of the caller; nothing is found outside.
	Scope Scope
	// Type, Resource, Namespace and Health that an entry has to have; empty is any.
	Type      Type
	Resource  string
	Namespace string
	Health    Health
	// Kind of the item, for Search: tool, skill, agent, …; empty is any.
	Kind string
	// Text to search for: every word, or the beginning of one.
	Text string
	// Limit of the answer; zero is 100, and 1000 the most.
	Limit int
	// After is the key that the answer before this one ended with.
	After Key
}

func (q Query) limit() int {
	if q.Limit <= 0 {
		return 100
	}
	return min(q.Limit, 1000)
}

func (q Query) where() (string, []any) {
	text, args := q.Scope.where()
	for _, c := range []struct{ column, value string }{
		{"entry.type", string(q.Type)}, {"entry.resource", q.Resource}, {"entry.namespace", q.Namespace}, {"entry.health", string(q.Health)},
	} {
		if c.value != "" {
			text, args = text+" AND "+c.column+" = ?", append(args, c.value)
		}
	}
	return text, args
}

const columns = "entry.body, entry.fetched, entry.revision"

// List the entries that a query picks, by namespace and name, without items.
// More are there when the answer is as long as the limit.
func (s *Store) List(ctx context.Context, q Query) ([]Entry, error) {
	where, args := q.where()
	if q.After != (Key{}) {
		where += " AND (entry.namespace, entry.name, entry.resource) > (?, ?, ?)"
		args = append(args, q.After.Namespace, q.After.Name, q.After.Resource)
	}
	rows, err := s.read.QueryContext(ctx, s.bind("SELECT "+columns+" FROM entry WHERE "+where+" ORDER BY entry.namespace, entry.name, entry.resource LIMIT ?"), append(args, q.limit())...)
	if err != nil {
		return nil, fmt.Errorf("listing the catalog: %w", err)
	}
	return scan(rows, scanEntry)
}

// Get one entry with its items, or ErrNotFound.
func (s *Store) Get(ctx context.Context, key Key) (Entry, error) { return s.entry(ctx, key, true) }

// Summary gives one entry without its items, or ErrNotFound.
func (s *Store) Summary(ctx context.Context, key Key) (Entry, error) {
	return s.entry(ctx, key, false)
}

func (s *Store) entry(ctx context.Context, key Key, items bool) (Entry, error) {
	e, err := s.get(ctx, key, items)
	if err != nil && !errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("reading %s %s/%s from the catalog: %w", key.Resource, key.Namespace, key.Name, err)
	}
	return e, err
}

func (s *Store) get(ctx context.Context, key Key, items bool) (e Entry, err error) {
	// One transaction, so that an entry is never shown with another one's items.
	tx, err := s.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: s.postgres, Isolation: map[bool]sql.IsolationLevel{true: sql.LevelRepeatableRead}[s.postgres]})
	if err != nil {
		return e, err
	}
	defer func() {
		if end := tx.Rollback(); err == nil {
			err = end
		}
	}()
	rows, err := tx.QueryContext(ctx, s.bind("SELECT "+columns+" FROM entry WHERE resource = ? AND namespace = ? AND name = ?"), key.Resource, key.Namespace, key.Name)
	if err != nil {
		return e, err
	}
	found, err := scan(rows, scanEntry)
	if err != nil {
		return e, err
	}
	if len(found) == 0 {
		return e, ErrNotFound
	}
	if e = found[0]; !items {
		return e, nil
	}
	if rows, err = tx.QueryContext(ctx, s.bind("SELECT body FROM item WHERE uid = ? AND position >= 0 ORDER BY position"), e.UID); err != nil {
		return e, err
	}
	e.Items, err = scan(rows, scanItem)
	return e, err
}

// Hit is one thing that a search found: an entry, or an item of it.
type Hit struct {
	Entry Entry   `json:"entry"`
	Item  *Item   `json:"item,omitempty"`
	Score float64 `json:"score"`
}

// ranked bounds how many matches of each rank are looked at: a word that more
// things than this have in common says little about any of them.
const ranked = 100

// Search for words in names, titles, descriptions, tags and skills, best match
// first: what is named so, then what has the words in its names, its tags, its
// description.
func (s *Store) Search(ctx context.Context, q Query) ([]Hit, error) {
	words := searchWords(q.Text)
	if len(words) == 0 || len(q.Scope) == 0 {
		return nil, nil
	}
	find := s.findSQLite
	if s.postgres {
		find = s.findPostgres
	}
	rows, err := find(ctx, q, words)
	if err != nil {
		return nil, fmt.Errorf("searching the catalog: %w", err)
	}
	hits, err := scan(rows, scanHit)
	if err != nil {
		return nil, fmt.Errorf("searching the catalog: %w", err)
	}
	return hits, nil
}

// findSQLite asks for each rank by itself: bm25 would count all matches of each
// word, which takes ten times as long where thousands match.
func (s *Store) findSQLite(ctx context.Context, q Query, words []string) (*sql.Rows, error) {
	where, args := q.where()
	// What the index does not know has to hold before matches are counted, or
	// those of others would leave no room.
	picked, picks := "", []any(nil)
	if !q.indexed() {
		picked, picks = " CROSS JOIN item ON item.id = words.rowid CROSS JOIN entry ON entry.uid = item.uid AND "+where, args
	}
	rank := "SELECT * FROM (SELECT words.rowid AS id, %d AS score FROM words" + picked + " WHERE words MATCH ? LIMIT ?)"
	limit := max(ranked, q.limit())
	values := []any{strings.TrimSpace(strings.ToLower(q.Text))}
	for _, match := range q.matches(words) {
		values = append(append(values, picks...), match, limit)
	}
	values = append(append(values, args...), q.limit())
	const order = "score DESC, LENGTH(item.name), entry.namespace, entry.name, item.position"
	// Bodies are read of what is answered alone.
	return s.read.QueryContext(ctx, `
SELECT `+columns+`, item.position, item.body, best.score AS score FROM (
  SELECT item.id AS id, found.score + (LOWER(item.name) = ?) AS score FROM (
    SELECT id, MAX(score) AS score FROM (`+fmt.Sprintf(rank+" UNION ALL "+rank+" UNION ALL "+rank, 3, 2, 1)+`) GROUP BY id
  ) AS found JOIN item ON item.id = found.id JOIN entry ON entry.uid = item.uid
  WHERE `+where+` ORDER BY `+order+` LIMIT ?
) AS best JOIN item ON item.id = best.id JOIN entry ON entry.uid = item.uid ORDER BY `+order, values...)
}

// indexed reports whether SQLite's search index alone knows what q asks for.
func (q Query) indexed() bool {
	return q.Type == "" && q.Resource == "" && q.Namespace == "" && q.Health == "" && (q.Scope.tokens() != nil || q.Scope["*"].All)
}

// matches are the expressions of SQLite's search index for words, best rank
// first.
func (q Query) matches(words []string) (out [3]string) {
	terms := make([]string, 0, len(words))
	for _, w := range words {
		term := `"` + w + `"`
		if len([]rune(w)) > 1 { // one letter begins too many words
			term += "*"
		}
		terms = append(terms, term)
	}
	filter := ""
	if q.Kind != "" {
		filter += " AND scope : " + kindToken(q.Kind)
	}
	if tokens := q.Scope.tokens(); tokens != nil {
		filter += " AND scope : (" + strings.Join(tokens, " OR ") + ")"
	}
	for i, fields := range [...]string{"{names}", "{names tags}", "{names tags description}"} {
		out[i] = fields + " : (" + strings.Join(terms, " AND ") + ")" + filter
	}
	return out
}

func (s *Store) findPostgres(ctx context.Context, q Query, words []string) (*sql.Rows, error) {
	match, named := make([]string, 0, len(words)), make([]string, 0, len(words))
	for _, w := range words {
		prefix := ":*"
		if len([]rune(w)) == 1 {
			prefix = ":"
		}
		match = append(match, strings.TrimSuffix(w+prefix, ":"))
		named = append(named, w+prefix+"A")
	}
	where, args := q.where()
	if q.Kind != "" {
		where, args = where+" AND item.kind = ?", append(args, q.Kind)
	}
	one := "SELECT item.id, ts_rank('{0, 0.1, 0.4, 1}', item.words, to_tsquery('simple', ?)) AS score FROM item JOIN entry ON entry.uid = item.uid WHERE item.words @@ to_tsquery('simple', ?) AND " + where + " LIMIT ?"
	all := strings.Join(match, " & ")
	values := append(append([]any{all, strings.Join(named, " & ")}, args...), ranked)
	values = append(append(append(values, all, all), args...), ranked, q.limit())
	return s.read.QueryContext(ctx, s.bind(`
SELECT `+columns+`, item.position, item.body, found.score FROM (
  SELECT id, MAX(score) AS score FROM ((`+one+`) UNION ALL (`+one+`)) AS matches GROUP BY id
) AS found JOIN item ON item.id = found.id JOIN entry ON entry.uid = item.uid
ORDER BY found.score DESC, entry.namespace, entry.name, item.position LIMIT ?`), values...)
}

// searchWords are the words of a text, as both databases split them. Marks that
// mean something to either are not among them.
func searchWords(text string) []string {
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	return words[:min(len(words), 16)]
}

// scopeTokens is how many namespaces the search index is asked for at most;
// with more, rights are checked on what was found.
const scopeTokens = 200

// tokens of the scope in the search index; nil means all.
func (s Scope) tokens() (out []string) {
	if s["*"].All {
		return nil
	}
	for resource, n := range s {
		if n.All {
			out = append(out, scopeToken(resource, ""))
			continue
		}
		for _, name := range n.Names {
			out = append(out, scopeToken(resource, name))
		}
	}
	if len(out) > scopeTokens {
		return nil
	}
	slices.Sort(out)
	return out
}

// scopeToken is one word that no text contains. The "e" of a whole resource and
// the "n" of a namespace keep them apart.
func scopeToken(resource, namespace string) string {
	if namespace == "" {
		return "scope0e" + hex.EncodeToString([]byte(resource))
	}
	return "scope0n" + hex.EncodeToString([]byte(resource+"/"+namespace))
}

func kindToken(kind string) string { return "scope0k" + hex.EncodeToString([]byte(kind)) }

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
	where, args := q.where()
	rows, err := s.read.QueryContext(ctx, s.bind("SELECT "+columns+" FROM entry WHERE entry.revision > ? AND entry.revision <= ? AND "+where+" ORDER BY entry.revision"), append([]any{after.Revision, latest.Revision}, args...)...)
	if err != nil {
		return nil, latest, fmt.Errorf("reading changes: %w", err)
	}
	entries, err := scan(rows, scanEntry)
	if err != nil {
		return nil, latest, fmt.Errorf("reading changes: %w", err)
	}
	for i := range entries {
		changes = append(changes, Change{Revision: entries[i].Revision, Key: entries[i].Key, Type: entries[i].Type, Entry: &entries[i]})
	}
	gone, err := s.deletions(ctx, after.Revision, latest.Revision)
	if err != nil {
		return nil, latest, err
	}
	for _, c := range gone {
		if q.Scope.Allows(c.Key) && (q.Type == "" || q.Type == c.Type) && (q.Resource == "" || q.Resource == c.Resource) && (q.Namespace == "" || q.Namespace == c.Namespace) {
			changes = append(changes, c)
		}
	}
	slices.SortStableFunc(changes, func(a, b Change) int { return int(a.Revision - b.Revision) })
	return changes, latest, nil
}

// deletions after one revision until another, oldest first.
func (s *Store) deletions(ctx context.Context, after, until int64) ([]Change, error) {
	rows, err := s.read.QueryContext(ctx, s.bind("SELECT revision, resource, type, namespace, name FROM gone WHERE revision > ? AND revision <= ? ORDER BY revision"), after, until)
	if err != nil {
		return nil, fmt.Errorf("reading deletions: %w", err)
	}
	gone, err := scan(rows, func(rows *sql.Rows) (Change, error) {
		c := Change{Deleted: true}
		return c, rows.Scan(&c.Revision, &c.Resource, &c.Type, &c.Namespace, &c.Name)
	})
	if err != nil {
		return nil, fmt.Errorf("reading deletions: %w", err)
	}
	return gone, nil
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

// Places are the namespaces with entries, by resource.
func (s *Store) Places(ctx context.Context) (map[string][]string, error) {
	rows, err := s.read.QueryContext(ctx, "SELECT DISTINCT resource, namespace FROM entry ORDER BY resource, namespace")
	if err != nil {
		return nil, fmt.Errorf("reading namespaces: %w", err)
	}
	keys, err := scan(rows, func(rows *sql.Rows) (k Key, err error) { return k, rows.Scan(&k.Resource, &k.Namespace) })
	if err != nil {
		return nil, fmt.Errorf("reading namespaces: %w", err)
	}
	out := map[string][]string{}
	for _, k := range keys {
		out[k.Resource] = append(out[k.Resource], k.Namespace)
	}
	return out, nil
}

// Count is how many entries of a resource have a health.
type Count struct {
	Resource string
	Health   Health
	Entries  int
}

// Counts of entries, and how many items they have together.
func (s *Store) Counts(ctx context.Context) (counts []Count, items int, err error) {
	rows, err := s.read.QueryContext(ctx, "SELECT resource, health, COUNT(*) FROM entry GROUP BY resource, health ORDER BY resource, health")
	if err == nil {
		counts, err = scan(rows, func(rows *sql.Rows) (c Count, err error) { return c, rows.Scan(&c.Resource, &c.Health, &c.Entries) })
	}
	if err == nil {
		err = s.read.QueryRowContext(ctx, "SELECT COUNT(*) FROM item WHERE position >= 0").Scan(&items)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("counting the catalog: %w", err)
	}
	return counts, items, nil
}

func scan[T any](rows *sql.Rows, one func(*sql.Rows) (T, error)) (out []T, err error) {
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		v, err := one(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

func scanEntry(rows *sql.Rows) (e Entry, err error) {
	var body []byte
	var fetched, revision int64
	if err := rows.Scan(&body, &fetched, &revision); err != nil {
		return e, err
	}
	return decodeEntry(body, fetched, revision)
}

func decodeEntry(body []byte, fetched, revision int64) (e Entry, err error) {
	err = json.Unmarshal(body, &e)
	e.Revision = revision
	if fetched > 0 {
		e.Fetched = time.UnixMilli(fetched).UTC()
	}
	return e, err
}

func scanItem(rows *sql.Rows) (i Item, err error) {
	var body []byte
	if err := rows.Scan(&body); err != nil {
		return i, err
	}
	return i, json.Unmarshal(body, &i)
}

func scanHit(rows *sql.Rows) (h Hit, err error) {
	var body, item []byte
	var fetched, revision int64
	var position int
	if err := rows.Scan(&body, &fetched, &revision, &position, &item, &h.Score); err != nil {
		return h, err
	}
	if h.Entry, err = decodeEntry(body, fetched, revision); err != nil {
		return h, err
	}
	h.Entry.Document, h.Entry.Instances = nil, nil
	if position >= 0 {
		h.Item = &Item{}
		err = json.Unmarshal(item, h.Item)
	}
	return h, err
}
