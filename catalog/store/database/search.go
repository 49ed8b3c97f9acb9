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

// ranked bounds how many matches of each rank are read: a word that more entries share says little
// about any of them.
const ranked = 100

// Search implements store.Store.
func (s *Store) Search(ctx context.Context, q store.Query) ([]store.Hit, error) {
	words := store.Words(q.Text)
	if len(words) == 0 || len(q.Scope) == 0 {
		return nil, nil
	}
	var args arguments
	find := args.sqliteSearch
	if s.read.postgres {
		find = args.postgresSearch
	}
	query := find(q, words)
	hits, err := list(ctx, s.read, scanHit, query, args...)
	if err != nil {
		return nil, fmt.Errorf("searching the catalog: %w", err)
	}
	return hits, nil
}

// sqliteSearch queries each rank separately: bm25 would count all matches of each word, which takes
// ten times as long if thousands match.
func (a *arguments) sqliteSearch(q store.Query, words []string) string {
	where := a.conditions(q, false)
	// Conditions that the index does not know have to apply before the limit, or matches outside of
	// the scope would fill it.
	picked := ""
	if !indexed(q) {
		picked = " CROSS JOIN item ON item.id = words.rowid CROSS JOIN entry ON entry.uid = " +
			"item.uid AND " + where
	}
	limit := a.add(max(ranked, q.Most()))
	var ranks []string
	for i, match := range matches(q, words) {
		ranks = append(ranks,
			fmt.Sprintf("SELECT * FROM (SELECT words.rowid AS id, %d AS score FROM words%s WHERE "+
				"words MATCH %s LIMIT %s)", 3-i, picked, a.add(match), limit))
	}
	const order = "score DESC, LENGTH(item.name), entry.namespace, entry.name, item.position"
	// Bodies are read only for the answer.
	return `
SELECT ` + columns + `, item.position, item.body, best.score AS score FROM (
  SELECT item.id AS id, found.score + (LOWER(item.name) = ` + a.add(strings.TrimSpace(strings.ToLower(q.Text))) + `) AS score FROM (
    SELECT id, MAX(score) AS score FROM (` + strings.Join(ranks, " UNION ALL ") + `) GROUP BY id
  ) AS found JOIN item ON item.id = found.id JOIN entry ON entry.uid = item.uid
  WHERE ` + where + ` ORDER BY ` + order + ` LIMIT ` + a.add(q.Most()) + `
) AS best JOIN item ON item.id = best.id JOIN entry ON entry.uid = item.uid ORDER BY ` + order
}

// indexed reports whether SQLite's search index alone knows what q asks for.
func indexed(q store.Query) bool {
	return q.Type == "" && q.Resource == "" && q.Namespace == "" && q.Health == "" &&
		q.Skill == "" && q.Tag == "" && (tokens(q.Scope) != nil || q.Scope["*"].All)
}

// matches returns the expressions of SQLite's search index for words, best rank first.
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

func (a *arguments) postgresSearch(q store.Query, words []string) string {
	match, named := make([]string, 0, len(words)), make([]string, 0, len(words))
	for _, w := range words {
		prefix := ":*"
		if len([]rune(w)) == 1 {
			prefix = ":"
		}
		match = append(match, strings.TrimSuffix(w+prefix, ":"))
		named = append(named, w+prefix+"A")
	}
	where := a.conditions(q, true)
	if q.Kind != "" {
		where += " AND item.kind = " + a.add(q.Kind)
	}
	all, limit := a.add(strings.Join(match, " & ")), a.add(ranked)
	rank := func(match string) string {
		return "(SELECT item.id, ts_rank('{0, 0.1, 0.4, 1}', item.words, to_tsquery('simple', " +
			all + ")) AS score FROM item JOIN entry ON entry.uid = item.uid" +
			" WHERE item.words @@ to_tsquery('simple', " + match + ") AND " + where + " LIMIT " +
			limit + ")"
	}
	return `
SELECT ` + columns + `, item.position, item.body, found.score FROM (
  SELECT id, MAX(score) AS score FROM (` + rank(a.add(strings.Join(named, " & "))) + ` UNION ALL ` + rank(all) + `) AS matches GROUP BY id
) AS found JOIN item ON item.id = found.id JOIN entry ON entry.uid = item.uid
ORDER BY found.score DESC, entry.namespace, entry.name, item.position LIMIT ` + a.add(q.Most())
}

// scopeTokens is the maximum number of namespaces in a query of the search index; with more, rights
// are checked on the matches.
const scopeTokens = 200

// tokens returns the tokens of the scope in the search index; nil means all.
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

// scopeToken returns one word that no text contains. The "e" of a whole resource and the "n" of a
// namespace keep them apart.
func scopeToken(resource, namespace string) string {
	if namespace == "" {
		return "scope0e" + hex.EncodeToString([]byte(resource))
	}
	return "scope0n" + hex.EncodeToString([]byte(resource+"/"+namespace))
}

func kindToken(kind string) string { return "scope0k" + hex.EncodeToString([]byte(kind)) }

func scanHit(rows *sql.Rows) (h store.Hit, err error) {
	var position int
	var item []byte
	if h.Entry, err = scanEntryAnd(rows, &position, &item, &h.Score); err != nil {
		return h, err
	}
	h.Entry.Document, h.Entry.Instances = nil, nil
	if position >= 0 {
		h.Item = &store.Item{}
		err = json.Unmarshal(item, h.Item)
	}
	return h, err
}
