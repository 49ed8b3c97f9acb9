package database

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/catalog/store"
)

// ranked bounds how many matches of each rank are looked at: a word that more
// things than this have in common says little about any of them.
const ranked = 100

// Search for words in names, titles, descriptions, tags and skills, best match
// first: what is named so, then what has the words in its names, its tags, its
// description.
func (s *Store) Search(ctx context.Context, q store.Query) ([]store.Hit, error) {
	words := store.Words(q.Text)
	if len(words) == 0 || len(q.Scope) == 0 {
		return nil, nil
	}
	find := sqliteSearch
	if s.postgres {
		find = postgresSearch
	}
	query, args := find(q, words)
	hits, err := list(ctx, s.reader(), scanHit, query, args...)
	if err != nil {
		return nil, fmt.Errorf("searching the catalog: %w", err)
	}
	return hits, nil
}

// sqliteSearch asks for each rank by itself: bm25 would count all matches of each
// word, which takes ten times as long where thousands match.
func sqliteSearch(q store.Query, words []string) (query string, values []any) {
	where, args := conditions(q, false)
	// What the index does not know has to hold before matches are counted, or
	// those of others would leave no room.
	picked, picks := "", []any(nil)
	if !indexed(q) {
		picked, picks = " CROSS JOIN item ON item.id = words.rowid CROSS JOIN entry ON entry.uid = item.uid AND "+where, args
	}
	rank := "SELECT * FROM (SELECT words.rowid AS id, %d AS score FROM words" + picked + " WHERE words MATCH ? LIMIT ?)"
	limit := max(ranked, q.Most())
	values = []any{strings.TrimSpace(strings.ToLower(q.Text))}
	for _, match := range matches(q, words) {
		values = append(append(values, picks...), match, limit)
	}
	values = append(append(values, args...), q.Most())
	const order = "score DESC, LENGTH(item.name), entry.namespace, entry.name, item.position"
	// Bodies are read of what is answered alone.
	return `
SELECT ` + columns + `, item.position, item.body, best.score AS score FROM (
  SELECT item.id AS id, found.score + (LOWER(item.name) = ?) AS score FROM (
    SELECT id, MAX(score) AS score FROM (` + fmt.Sprintf(rank+" UNION ALL "+rank+" UNION ALL "+rank, 3, 2, 1) + `) GROUP BY id
  ) AS found JOIN item ON item.id = found.id JOIN entry ON entry.uid = item.uid
  WHERE ` + where + ` ORDER BY ` + order + ` LIMIT ?
) AS best JOIN item ON item.id = best.id JOIN entry ON entry.uid = item.uid ORDER BY ` + order, values
}

// indexed reports whether SQLite's search index alone knows what q asks for.
func indexed(q store.Query) bool {
	return q.Type == "" && q.Resource == "" && q.Namespace == "" && q.Health == "" && q.Skill == "" && q.Tag == "" && (tokens(q.Scope) != nil || q.Scope["*"].All)
}

// matches are the expressions of SQLite's search index for words, best rank
// first.
func matches(q store.Query, words []string) (out [3]string) {
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
	if tokens := tokens(q.Scope); tokens != nil {
		filter += " AND scope : (" + strings.Join(tokens, " OR ") + ")"
	}
	for i, fields := range [...]string{"{names}", "{names tags}", "{names tags description}"} {
		out[i] = fields + " : (" + strings.Join(terms, " AND ") + ")" + filter
	}
	return out
}

func postgresSearch(q store.Query, words []string) (query string, values []any) {
	match, named := make([]string, 0, len(words)), make([]string, 0, len(words))
	for _, w := range words {
		prefix := ":*"
		if len([]rune(w)) == 1 {
			prefix = ":"
		}
		match = append(match, strings.TrimSuffix(w+prefix, ":"))
		named = append(named, w+prefix+"A")
	}
	where, args := conditions(q, true)
	if q.Kind != "" {
		where, args = where+" AND item.kind = ?", append(args, q.Kind)
	}
	one := "SELECT item.id, ts_rank('{0, 0.1, 0.4, 1}', item.words, to_tsquery('simple', ?)) AS score FROM item JOIN entry ON entry.uid = item.uid WHERE item.words @@ to_tsquery('simple', ?) AND " + where + " LIMIT ?"
	all := strings.Join(match, " & ")
	values = append(append([]any{all, strings.Join(named, " & ")}, args...), ranked)
	values = append(append(append(values, all, all), args...), ranked, q.Most())
	return `
SELECT ` + columns + `, item.position, item.body, found.score FROM (
  SELECT id, MAX(score) AS score FROM ((` + one + `) UNION ALL (` + one + `)) AS matches GROUP BY id
) AS found JOIN item ON item.id = found.id JOIN entry ON entry.uid = item.uid
ORDER BY found.score DESC, entry.namespace, entry.name, item.position LIMIT ?`, values
}

// scopeTokens is how many namespaces the search index is asked for at most;
// with more, rights are checked on what was found.
const scopeTokens = 200

// tokens of the scope in the search index; nil means all.
func tokens(s store.Scope) (out []string) {
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

func scanHit(rows *sql.Rows) (h store.Hit, err error) {
	var body, item []byte
	var fetched, revision int64
	var position int
	if err := rows.Scan(&body, &fetched, &revision, &position, &item, &h.Score); err != nil {
		return h, err
	}
	if h.Entry, err = store.Decode(body, fetched, revision); err != nil {
		return h, err
	}
	h.Entry.Document, h.Entry.Instances = nil, nil
	if position >= 0 {
		h.Item = &store.Item{}
		err = json.Unmarshal(item, h.Item)
	}
	return h, err
}
