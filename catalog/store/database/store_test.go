package database_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/catalog/store/database"
)

// each runs a test on SQLite, a real PostgreSQL and the store in memory.
func each(t *testing.T, test func(t *testing.T, open func() store.Store)) {
	t.Helper()
	for name, address := range map[string]func(t *testing.T) string{
		"sqlite": func(t *testing.T) string {
			return filepath.Join(t.TempDir(), "catalog ?#.db")
		},
		"postgres": postgres,
	} {
		t.Run(name, func(t *testing.T) {
			at := address(t)
			test(t, func() store.Store { return open(t, at) })
		})
	}
	t.Run("memory", func(t *testing.T) {
		s := store.NewMemory()
		test(t, func() store.Store { return s })
	})
}

// followed runs a test on the databases.
func followed(t *testing.T, test func(t *testing.T, open func() store.Followed)) {
	t.Helper()
	each(t, func(t *testing.T, open func() store.Store) {
		if _, ok := open().(store.Followed); ok {
			test(t, func() store.Followed { return open().(store.Followed) })
		}
	})
}

func open(t testing.TB, address string) *database.Store {
	t.Helper()
	s, err := database.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

const (
	cards   = "agentcards.kagenti.io"
	servers = "remotemcpservers.kagent.dev"
)

func agent(namespace, name string, generation int64) store.Entry {
	return store.Entry{
		Key: store.Key{Resource: cards, Namespace: namespace, Name: name},
		UID: "uid-" + namespace + "-" + name, APIVersion: "kagenti.io/v1alpha1", Kind: "AgentCard",
		Type: store.Agent, Generation: generation, Title: "Weather Intelligence Agent",
		Description: "Weather forecasts, now and in the past",
		Tags:        []string{"weather", "forecast"}, Health: store.Healthy,
		Fetched: time.Date(2026, 1, 13, 16, 10, 0, 0, time.UTC),
		Items: []store.Item{
			{Kind: store.Skill, Name: "get_forecast",
				Description: "Get weather forecast for location"},
			{Kind: store.Skill, Name: "getClimateData", Description: "Historical records",
				Document: json.RawMessage(`{"id":"climate"}`)},
		},
	}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// What is stored comes back, also for a process that starts later.
func TestReplaceThenGet(t *testing.T) {
	each(t, func(t *testing.T, open func() store.Store) {
		want := agent("team1", "weather", 1)
		if changed := must[bool](t)(open().Put(t.Context(), want, true)); !changed {
			t.Error("the first write changed nothing")
		}
		s := open()
		got := must[store.Entry](t)(s.Get(t.Context(), want.Key))
		want.Revision, want.Counts = 1, map[string]int{store.Skill: 2}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if _, err := s.Get(t.Context(), store.Key{Resource: cards, Namespace: "team1",
			Name: "other"}); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("an entry that is not there: %v", err)
		}
	})
}

// The same content is neither a change nor a write: the revision stays. Only the
// time of the answer moves on, by the minute.
func TestSameContentWritesNothing(t *testing.T) {
	each(t, func(t *testing.T, open func() store.Store) {
		s := open()
		e := agent("team1", "weather", 1)
		must[bool](t)(s.Put(t.Context(), e, true))
		for _, later := range []time.Duration{30 * time.Second, 61 * time.Second} {
			e.Fetched = e.Fetched.Truncate(time.Hour).Add(10*time.Minute + later)
			if must[bool](t)(s.Put(t.Context(), e, true)) {
				t.Error("the same content counts as a change")
			}
		}
		got := must[store.Entry](t)(s.Get(t.Context(), e.Key))
		if got.Revision != 1 || !got.Fetched.Equal(e.Fetched) {
			t.Errorf("revision %d, want 1; fetched %s, want %s", got.Revision, got.Fetched, e.Fetched)
		}
	})
}

// An older generation never overwrites a newer one.
func TestOlderGenerationIsIgnored(t *testing.T) {
	each(t, func(t *testing.T, open func() store.Store) {
		s := open()
		newer, older := agent("team1", "weather", 2), agent("team1", "weather", 1)
		older.Title, older.Items = "Old", nil
		must[bool](t)(s.Put(t.Context(), newer, true))
		if must[bool](t)(s.Put(t.Context(), older, true)) {
			t.Error("the older generation was written")
		}
		got := must[store.Entry](t)(s.Get(t.Context(), newer.Key))
		if got.Title != newer.Title || len(got.Items) != 2 {
			t.Errorf("got %q with %d items", got.Title, len(got.Items))
		}
	})
}

// Put without items changes an entry and keeps its items: a server that fails keeps its tools.
func TestUpsertKeepsItems(t *testing.T) {
	each(t, func(t *testing.T, open func() store.Store) {
		s := open()
		e := agent("team1", "weather", 1)
		must[bool](t)(s.Put(t.Context(), e, true))
		failing := must[store.Entry](t)(s.Get(t.Context(), e.Key))
		failing.Health, failing.Message, failing.Items = store.Failing, "HTTP status 500", nil
		if !must[bool](t)(s.Put(t.Context(), failing, false)) {
			t.Error("health did not change")
		}
		got := must[store.Entry](t)(s.Get(t.Context(), e.Key))
		if len(got.Items) != 2 || got.Health != store.Failing || got.Counts[store.Skill] != 2 {
			t.Errorf("got %s, %d items, counts %v", got.Health, len(got.Items), got.Counts)
		}
		if hits := must[[]store.Hit](t)(s.Search(t.Context(),
			store.Query{Scope: store.Everything(), Text: "climate"})); len(hits) != 1 {
			t.Errorf("%d hits for a skill of a failing agent, want 1", len(hits))
		}
	})
}

// An object that was made again under its name replaces the one before.
func TestRecreatedObject(t *testing.T) {
	each(t, func(t *testing.T, open func() store.Store) {
		s := open()
		e := agent("team1", "weather", 5)
		must[bool](t)(s.Put(t.Context(), e, true))
		e.UID, e.Generation, e.Items = "another", 1, nil
		must[bool](t)(s.Put(t.Context(), e, true))
		got := must[store.Entry](t)(s.Get(t.Context(), e.Key))
		if got.UID != "another" || len(got.Items) != 0 {
			t.Errorf("got UID %s with %d items", got.UID, len(got.Items))
		}
	})
}

// Replacing items is all or nothing for every reader, and for two writers at
// once the result is one of theirs.
func TestReplaceIsAtomic(t *testing.T) {
	each(t, func(t *testing.T, open func() store.Store) {
		s := open()
		version := func(v int) store.Entry {
			e := agent("team1", "weather", 1)
			e.Version, e.Items = fmt.Sprint(v), nil
			for i := range 20 {
				e.Items = append(e.Items,
					store.Item{Kind: store.Tool, Name: fmt.Sprintf("v%d-tool%d", v, i)})
			}
			return e
		}
		must[bool](t)(s.Put(t.Context(), version(0), true))
		var group sync.WaitGroup
		for writer := range 2 {
			group.Go(func() {
				for i := range 20 {
					if _, err := s.Put(t.Context(), version(1+2*i+writer), true); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for range 100 {
			got := must[store.Entry](t)(s.Get(t.Context(), version(0).Key))
			if len(got.Items) != 20 {
				t.Fatalf("%d items, want 20", len(got.Items))
			}
			for i, item := range got.Items {
				if want := fmt.Sprintf("v%s-tool%d", got.Version, i); item.Name != want {
					t.Fatalf("version %s has item %s, want %s", got.Version, item.Name, want)
				}
			}
		}
		group.Wait()
	})
}

func TestDeleteAndSweep(t *testing.T) {
	each(t, func(t *testing.T, open func() store.Store) {
		s := open()
		for _, name := range []string{"a", "b", "c"} {
			must[bool](t)(s.Put(t.Context(), agent("team1", name, 1), true))
		}
		other := agent("team1", "a", 1)
		other.Resource, other.UID = servers, "server"
		must[bool](t)(s.Put(t.Context(), other, true))
		want := 2
		if s, ok := s.(store.Followed); ok {
			want = 1
			if err := s.Delete(t.Context(),
				store.Key{Resource: cards, Namespace: "team1", Name: "a"}); err != nil {
				t.Fatal(err)
			}
		}
		if n := must[int](t)(s.Sweep(t.Context(), cards, func() (map[string]bool, error) {
			return map[string]bool{"uid-team1-c": true}, nil
		})); n != want {
			t.Errorf("%d swept, want %d", n, want)
		}
		var names []string
		for _, e := range must[[]store.Entry](t)(s.List(t.Context(),
			store.Query{Scope: store.Everything()})) {
			names = append(names, e.Resource+" "+e.Name)
		}
		if diff := cmp.Diff([]string{servers + " a", cards + " c"}, names); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if hits := must[[]store.Hit](t)(s.Search(t.Context(), store.Query{Scope: store.Everything(),
			Text: "weather", Kind: "agent"})); len(hits) != 2 {
			t.Errorf("%d hits, want 2: a deleted entry is still found", len(hits))
		}
	})
}

// Lists go page by page, and each filter holds.
func TestList(t *testing.T) {
	each(t, func(t *testing.T, open func() store.Store) {
		s := open()
		for _, namespace := range []string{"team1", "team2"} {
			for i := range 5 {
				e := agent(namespace, fmt.Sprintf("a%d", i), 1)
				if i == 0 {
					e.Health = store.Failing
				}
				must[bool](t)(s.Put(t.Context(), e, true))
			}
		}
		count := func(q store.Query) int {
			q.Scope = store.Everything()
			return len(must[[]store.Entry](t)(s.List(t.Context(), q)))
		}
		for _, c := range []struct {
			q    store.Query
			want int
		}{
			{store.Query{}, 10}, {store.Query{Namespace: "team1"}, 5},
			{store.Query{Health: store.Failing}, 2}, {store.Query{Type: store.Server}, 0},
			{store.Query{Type: store.Agent, Resource: cards}, 10},
		} {
			if got := count(c.q); got != c.want {
				t.Errorf("%+v: %d entries, want %d", c.q, got, c.want)
			}
		}
		var names []string
		q := store.Query{Scope: store.Everything(), Limit: 4}
		for {
			page := must[[]store.Entry](t)(s.List(t.Context(), q))
			for _, e := range page {
				names = append(names, e.Namespace+"/"+e.Name)
			}
			if len(page) < q.Limit {
				break
			}
			q.After = page[len(page)-1].Key
		}
		if len(names) != 10 || names[0] != "team1/a0" || names[9] != "team2/a4" {
			t.Errorf("pages: %v", names)
		}
	})
}

// Who may see one namespace sees that one alone, and who may see nothing sees nothing.
func TestScope(t *testing.T) {
	each(t, func(t *testing.T, open func() store.Store) {
		s := open()
		for _, namespace := range []string{"team1", "team2", "team3"} {
			must[bool](t)(s.Put(t.Context(), agent(namespace, "weather", 1), true))
		}
		for _, c := range []struct {
			scope store.Scope
			want  int
		}{
			{nil, 0}, {store.Scope{}, 0}, {store.Scope{servers: {All: true}}, 0},
			{store.Scope{cards: {}}, 0}, {store.Scope{cards: {Names: []string{"team2"}}}, 1},
			{store.Scope{cards: {Names: []string{"team1", "team3"}}, servers: {All: true}}, 2},
			{store.Scope{cards: {All: true}}, 3}, {store.Everything(), 3},
		} {
			q := store.Query{Scope: c.scope, Text: "intelligence"}
			listed := must[[]store.Entry](t)(s.List(t.Context(), q))
			found := must[[]store.Hit](t)(s.Search(t.Context(), q))
			if len(listed) != c.want || len(found) != c.want {
				t.Errorf("%v: %d listed, %d found, want %d", c.scope, len(listed), len(found), c.want)
			}
			if s, ok := s.(store.Followed); ok {
				changes, _, err := s.Changes(t.Context(), store.Position{}, q)
				if err != nil || len(changes) != c.want {
					t.Errorf("%v: %d changes, want %d: %v", c.scope, len(changes), c.want, err)
				}
			}
		}
	})
}

func TestSearch(t *testing.T) {
	each(t, func(t *testing.T, open func() store.Store) {
		s := open()
		must[bool](t)(s.Put(t.Context(), agent("team1", "weather", 1), true))
		e := agent("team1", "travel", 1)
		e.Title, e.Description, e.Tags =
			"Réservations", "Books a hotel where the weather is good", []string{"trip"}
		e.Items = []store.Item{{Kind: store.Tool, Name: "book_hotel",
			Description: "Reserve a room"}}
		must[bool](t)(s.Put(t.Context(), e, true))
		for text, want := range map[string]string{
			"forecast":            "weather/get_forecast weather/", // the name's match first
			"fore":                "weather/get_forecast weather/",
			"climate":             "weather/getClimateData",
			"hotel book":          "travel/book_hotel travel/",
			"trip":                "travel/",
			"weather good":        "travel/",
			"RESERVE":             "travel/book_hotel",
			`"'; DROP TABLE () *`: "",
			"weather OR hotel":    "", // three words that all have to be there
			"":                    "",
			"-":                   "",
		} {
			got := ""
			for i, h := range must[[]store.Hit](t)(s.Search(t.Context(),
				store.Query{Scope: store.Everything(), Text: text})) {
				if i > 0 {
					got += " "
				}
				got += h.Entry.Name + "/"
				if h.Item != nil {
					got += h.Item.Name
				}
			}
			if got != want {
				t.Errorf("%q finds %q, want %q", text, got, want)
			}
		}
		if hits := must[[]store.Hit](t)(s.Search(t.Context(),
			store.Query{Scope: store.Everything(), Text: "hotel", Kind: store.Tool})); len(hits) !=
			1 || hits[0].Item.Name != "book_hotel" {
			t.Errorf("tools about hotels: %+v", hits)
		}
	})
}

// A watcher that goes on from the last revision misses nothing and sees no
// change twice.
func TestChanges(t *testing.T) {
	followed(t, func(t *testing.T, open func() store.Followed) {
		s := open()
		q := store.Query{Scope: store.Everything()}
		a, b := agent("team1", "a", 1), agent("team1", "b", 1)
		must[bool](t)(s.Put(t.Context(), a, true))
		must[bool](t)(s.Put(t.Context(), b, true))
		_, latest, err := s.Changes(t.Context(), store.Position{}, q)
		if err != nil {
			t.Fatal(err)
		}
		a.Title = "New"
		must[bool](t)(s.Put(t.Context(), a, true))
		must[bool](t)(s.Put(t.Context(), a, true))
		if err := s.Delete(t.Context(), b.Key); err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(t.Context(), b.Key); err != nil {
			t.Fatal(err)
		}
		changes, after, err := s.Changes(t.Context(), latest, q)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range changes {
			got = append(got, fmt.Sprint(c.Name, " ", c.Deleted))
		}
		if diff := cmp.Diff([]string{"a false", "b true"}, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if more, _, err := s.Changes(t.Context(), after, q); err != nil || len(more) != 0 {
			t.Errorf("then %v, %v", more, err)
		}
	})
}

// A position is one store's alone: of a store that was lost, or in a future that
// never came, it is expired.
func TestPositionOfAnotherStore(t *testing.T) {
	followed(t, func(t *testing.T, open func() store.Followed) {
		s := open()
		q := store.Query{Scope: store.Everything()}
		must[bool](t)(s.Put(t.Context(), agent("team1", "a", 1), true))
		at := must[store.Position](t)(s.Position(t.Context()))
		if again := must[store.Position](t)(open().Position(t.Context())); again != at || at.Store == "" {
			t.Errorf("the store is at %s, opened again at %s", at, again)
		}
		if parsed, err := store.ParsePosition(at.String()); err != nil || parsed != at {
			t.Errorf("%s is read as %s, %v", at, parsed, err)
		}
		for _, other := range []store.Position{{Store: "lost", Revision: at.Revision},
			{Store: "lost"}, {Store: at.Store, Revision: at.Revision + 1},
			{Revision: at.Revision + 1}} {
			if _, _, err := s.Changes(t.Context(), other, q); !errors.Is(err, store.ErrExpired) {
				t.Errorf("after %s: %v", other, err)
			}
		}
		if _, _, err := s.Changes(t.Context(), store.Position{Revision: at.Revision}, q); err != nil {
			t.Errorf("after a position of an older program: %v", err)
		}
	})
	for _, text := range []string{"", "-1", "x", "a-", "a-b"} {
		if p, err := store.ParsePosition(text); err == nil {
			t.Errorf("%q is read as %v", text, p)
		}
	}
}

// A store of a newer program is refused, not damaged.
func TestNewerSchema(t *testing.T) {
	each(t, func(t *testing.T, open func() store.Store) {
		s, ok := open().(*database.Store)
		if !ok {
			return // it has no schema
		}
		if err := s.SetSchemaVersion(t.Context(), 99); err != nil {
			t.Fatal(err)
		}
		if err := s.Migrate(t.Context()); err == nil {
			t.Error("a newer schema was accepted")
		}
	})
}

// What a search is narrowed to is found, however many others match better.
func TestSearchWithin(t *testing.T) {
	each(t, func(t *testing.T, open func() store.Store) {
		s := open()
		for i := range 150 {
			must[bool](t)(s.Put(t.Context(), agent("crowd", fmt.Sprintf("weather-%d", i), 1), true))
		}
		few := agent("few", "weather", 1)
		few.Health = store.Failing
		must[bool](t)(s.Put(t.Context(), few, true))
		crowd := store.Scope{cards: {Names: []string{"few"}}}
		for i := range 300 { // more than the index is asked for
			crowd[cards] = store.Namespaces{Names: append(crowd[cards].Names, fmt.Sprintf("empty-%d", i))}
		}
		for name, q := range map[string]store.Query{
			"namespace": {Scope: store.Everything(), Namespace: "few"},
			"health":    {Scope: store.Everything(), Health: store.Failing},
			"scope":     {Scope: crowd},
			"everything": {Scope: store.Everything(), Namespace: "few", Type: store.Agent,
				Resource: cards, Health: store.Failing},
		} {
			q.Text, q.Kind = "weather", string(store.Agent)
			hits := must[[]store.Hit](t)(s.Search(t.Context(), q))
			if len(hits) != 1 || hits[0].Entry.Namespace != "few" {
				t.Errorf("%s: %d hits", name, len(hits))
			}
		}
	})
}
