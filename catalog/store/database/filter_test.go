package database_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/catalog/store"
)

// A list is filtered by skill, tag and drifted tools, and counted by health.
func TestFilters(t *testing.T) {
	each(t, func(t *testing.T, open func() store.Store) {
		s := open()
		for i, c := range []struct {
			name, skill string
			tags        []string
			health      store.Health
		}{{"a", "get_forecast", []string{"weather", "EU-west"}, store.Healthy},
			{"b", "getTickets", []string{"travel"}, store.Failing},
			{"c", "book_room", []string{"travel", "weather"}, store.Healthy}} {
			e := agent("team1", c.name, 1)
			e.Tags, e.Health, e.Items =
				c.tags, c.health,
				[]store.Item{{Kind: store.Skill, Name: c.skill, Description: "forecast"}}
			if i == 2 {
				e.Type, e.ToolLock = store.Server, store.ToolsDrifted
			}
			// of the server, not of the catalog
			e.Document = json.RawMessage(`{"toolLock":"ToolsDrifted"}`)
			if _, err := s.Put(t.Context(), e, true); err != nil {
				t.Fatal(err)
			}
		}
		for name, c := range map[string]struct {
			q    store.Query
			want []string
		}{
			"all":         {store.Query{}, []string{"a", "b", "c"}},
			"skill":       {store.Query{Skill: "forecast"}, []string{"a"}},
			"words":       {store.Query{Skill: "get tickets"}, []string{"b"}},
			"tag":         {store.Query{Tag: "weather"}, []string{"a", "c"}},
			"two words":   {store.Query{Tag: "eu-west"}, []string{"a"}},
			"both":        {store.Query{Tag: "travel", Skill: "book"}, []string{"c"}},
			"of a type":   {store.Query{Tag: "weather", Type: store.Agent}, []string{"a"}},
			"half a word": {store.Query{Tag: "weath"}, nil},
			"no word":     {store.Query{Tag: `"*`}, nil},
			"hostile":     {store.Query{Skill: `") OR scope : ("x`}, nil},
			"drifted":     {store.Query{Drifted: true}, []string{"c"}},
			"failing":     {store.Query{Health: store.Failing}, []string{"b"}},
			"a place": {store.Query{Namespace: "team1", Resource: cards, Type: store.Server},
				[]string{"c"}},
			"latest": {store.Query{Latest: true}, []string{"c", "b", "a"}},
			"in scope": {store.Query{Latest: true,
				Scope: store.Scope{cards: {Names: []string{"team1"}}, "others": {All: true}}},
				[]string{"c", "b", "a"}},
			"a resource": {store.Query{Tag: "weather", Scope: store.Scope{cards: {All: true}}},
				[]string{"a", "c"}},
			"out of scope": {store.Query{Tag: "weather",
				Scope: store.Scope{cards: {Names: []string{"team2"}}}}, nil},
			"without scope": {store.Query{Tag: "weather", Scope: store.Scope{}}, nil},
		} {
			if c.q.Scope == nil {
				c.q.Scope = store.Everything()
			}
			entries, err := s.List(t.Context(), c.q)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var got []string
			for _, e := range entries {
				got = append(got, e.Name)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
			if c.q.Latest { // a page is by name
				continue
			}
			c.q.Limit = 1
			var paged []string
			for range got {
				page, total, err := s.Page(t.Context(), c.q)
				if err != nil || total != len(c.want) || len(page) != 1 {
					t.Fatalf("%s: %d of %d on a page: %v", name, len(page), total, err)
				}
				paged, c.q.After = append(paged, page[0].Name), page[0].Key
			}
			if diff := cmp.Diff(c.want, paged); diff != "" {
				t.Errorf("%s: by pages: %s", name, diff)
			}
			if page, _, err := s.Page(t.Context(), c.q); err != nil || len(page) > 0 {
				t.Errorf("%s: after the last page: %v: %v", name, page, err)
			}
		}
		tally, err := store.Tally(t.Context(), s, store.Query{Scope: store.Everything()})
		if want := (map[store.Health]int{store.Healthy: 2, store.Failing: 1}); err != nil ||
			!cmp.Equal(tally, want) {
			t.Errorf("tally %v, want %v: %v", tally, want, err)
		}
		// What is remembered ends with the next change.
		b := agent("team2", "b", 2)
		if _, err := s.Put(t.Context(), b, true); err != nil {
			t.Fatal(err)
		}
		tally, err = store.Tally(t.Context(), s, store.Query{Scope: store.Everything()})
		if err != nil || tally[store.Healthy] != 3 {
			t.Errorf("tally after a change %v: %v", tally, err)
		}
		if places, err := store.Places(t.Context(), s, ""); err != nil ||
			!cmp.Equal(places, map[string][]string{cards: {"team1", "team2"}}) {
			t.Errorf("places %v: %v", places, err)
		}
		if _, err := s.Sweep(t.Context(), cards, func() (map[string]bool, error) {
			return map[string]bool{"uid-team1-a": true, "uid-team1-b": true, "uid-team1-c": true}, nil
		}); err != nil {
			t.Fatal(err)
		}
		if places, err := store.Places(t.Context(), s, ""); err != nil ||
			!cmp.Equal(places, map[string][]string{cards: {"team1"}}) {
			t.Errorf("places after a deletion %v: %v", places, err)
		}
		tally, err = store.Tally(t.Context(), s, store.Query{Scope: store.Scope{}})
		if err != nil || len(tally) > 0 {
			t.Errorf("whoever may see nothing counts %v: %v", tally, err)
		}
		hits, err := s.Search(t.Context(), store.Query{Scope: store.Everything(), Text: "forecast",
			Tag: "travel", Health: store.Failing})
		if err != nil || len(hits) == 0 ||
			slices.ContainsFunc(hits, func(h store.Hit) bool { return h.Entry.Name != "b" }) {
			t.Errorf("a filtered search finds %v: %v", hits, err)
		}
	})
}
