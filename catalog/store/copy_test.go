package store_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/armature-dev/armature/catalog/store"
	pg "github.com/armature-dev/armature/e2e/catalog/postgres"
)

// follow a store until the test ends.
func follow(t *testing.T, s *store.Store, follow func(context.Context, func(error)) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- follow(ctx, func(err error) { t.Log("following:", err) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func eventually(t *testing.T, what string, check func() string) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if last = check(); last == "" {
			return
		}
	}
	t.Fatalf("%s: %s", what, last)
}

// caughtUp waits until the copy is at the store's position.
func caughtUp(t *testing.T, s *store.Store) *store.Copy {
	t.Helper()
	latest := must[store.Position](t)(s.Position(t.Context()))
	var c *store.Copy
	eventually(t, "the copy is at "+latest.String(), func() string {
		var away bool
		if c, away = s.Copy(); c == nil || away {
			return fmt.Sprint("no copy, or the store is away: ", away)
		}
		if at := must[store.Position](t)(c.Store.Position(t.Context())); at != latest {
			return "it is at " + at.String()
		}
		return ""
	})
	return c
}

// all that a store answers.
func all(t *testing.T, s *store.Store, after store.Position) map[string]any {
	t.Helper()
	q := store.Query{Scope: store.Everything()}
	out := map[string]any{
		"list": must[[]store.Entry](t)(s.List(t.Context(), q)), "places": must[map[string][]string](t)(s.Places(t.Context())),
	}
	var found []string
	for _, h := range must[[]store.Hit](t)(s.Search(t.Context(), store.Query{Scope: q.Scope, Text: "weather", Namespace: "team2"})) {
		name := h.Entry.Namespace + "/" + h.Entry.Name
		if h.Item != nil {
			name += "/" + h.Item.Name
		}
		found = append(found, name)
	}
	slices.Sort(found) // among the equal ones the databases have orders of their own
	out["found"] = found
	for _, e := range out["list"].([]store.Entry) {
		out["entry "+e.Namespace+"/"+e.Name] = must[store.Entry](t)(s.Get(t.Context(), e.Key))
	}
	changes, latest, err := s.Changes(t.Context(), after, q)
	if err != nil {
		t.Fatal(err)
	}
	out["changes"], out["position"] = changes, latest.String()
	return out
}

// The copy answers as the store does, whatever happened there; it is there while
// the store is away, and follows what was started in its place.
func TestCopy(t *testing.T) {
	server := pg.Own(t)
	s := open(t, must[string](t)(server.Database()))
	if c, _ := s.Copy(); c != nil {
		t.Fatal("a copy that nobody made")
	}
	a, b := agent("team1", "a", 1), agent("team2", "b", 1)
	must[bool](t)(s.Replace(t.Context(), a))
	must[bool](t)(s.Replace(t.Context(), b))
	if err := s.Delete(t.Context(), b.Key); err != nil {
		t.Fatal(err)
	}
	follow(t, s, s.Follow)
	same := func(what string) {
		t.Helper()
		c := caughtUp(t, s)
		start := store.Position{}
		if diff := cmp.Diff(all(t, s, start), all(t, c.Store, start), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: -store +copy:\n%s", what, diff)
		}
	}
	same("what was there before, and a deletion")
	b.UID = "another"
	must[bool](t)(s.Replace(t.Context(), b))
	a.Title, a.Items = "New", a.Items[:1]
	must[bool](t)(s.Replace(t.Context(), a))
	same("one made again, and one changed")
	for i := range 600 { // more than a page
		must[bool](t)(s.Replace(t.Context(), agent("many", fmt.Sprint("weather-", i), 1)))
	}
	if err := s.Delete(t.Context(), a.Key); err != nil {
		t.Fatal(err)
	}
	same("many, and one that is gone")
	before := must[store.Position](t)(s.Position(t.Context()))
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store is away", func() string {
		c, away := s.Copy()
		if !away {
			return "it is not"
		}
		if got := must[store.Entry](t)(c.Store.Get(t.Context(), b.Key)); got.UID != "another" || !strings.Contains(c.String(), c.AsOf.UTC().Format(time.RFC3339)) {
			return fmt.Sprintf("%s says %+v", c, got)
		}
		return ""
	})
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("it can answer, and is not ready: %v", err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a position of before is expired", func() string {
		if _, _, err := s.Changes(t.Context(), before, store.Query{Scope: store.Everything()}); err != store.ErrExpired {
			return fmt.Sprint(err)
		}
		return ""
	})
	if err := s.Delete(t.Context(), b.Key); err != nil {
		t.Fatal(err)
	}
	same("after it was away")
}

// A store that is not followed is ready only where it answers.
func TestReady(t *testing.T) {
	server := pg.Own(t)
	s := open(t, must[string](t)(server.Database()))
	if err := s.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(t.Context()); err == nil {
		t.Error("ready without a store")
	}
}

// What the copy has no room for is counted, and comes when there is room.
func TestCopyHasALimit(t *testing.T) {
	s := open(t, postgres(t))
	const limit = 1 << 20
	large := func(i int) store.Entry {
		e := agent("team1", fmt.Sprint("weather-", i), 1)
		e.Items[0].Description = strings.Repeat(fmt.Sprint("weather", i, " "), 4000)
		return e
	}
	for i := range 40 {
		must[bool](t)(s.Replace(t.Context(), large(i)))
	}
	must[bool](t)(s.Replace(t.Context(), agent("team2", "small", 1)))
	follow(t, s, func(ctx context.Context, report func(error)) error { return s.FollowWithin(ctx, limit, report) })
	c := caughtUp(t, s)
	there := len(must[[]store.Entry](t)(c.Store.List(t.Context(), store.Query{Scope: store.Everything()})))
	if c.Missing == 0 || there == 0 || there+c.Missing != 41 || !strings.Contains(c.String(), fmt.Sprint("without ", c.Missing)) {
		t.Errorf("%d entries are there, %d are not: %s", there, c.Missing, c)
	}
	for i := range 40 {
		if err := s.Delete(t.Context(), large(i).Key); err != nil {
			t.Fatal(err)
		}
	}
	must[bool](t)(s.Replace(t.Context(), large(40)))
	c = caughtUp(t, s)
	left := must[[]store.Entry](t)(c.Store.List(t.Context(), store.Query{Scope: store.Everything()}))
	if c.Missing != 0 || len(left) > 2 || len(left) == 0 || left[0].Name != "weather-40" {
		t.Errorf("%d are not there, those that are: %+v", c.Missing, left)
	}
}

// A store that takes questions and does not answer is away.
func TestCopyOfAStoreThatHangs(t *testing.T) {
	server := pg.Own(t)
	address, err := url.Parse(must[string](t)(server.Database()))
	if err != nil {
		t.Fatal(err)
	}
	between := hold(t, address.Query().Get("host"))
	q := address.Query()
	q.Set("host", between.dir)
	address.RawQuery = q.Encode()
	s := open(t, address.String())
	must[bool](t)(s.Replace(t.Context(), agent("team1", "weather", 1)))
	follow(t, s, s.Follow)
	caughtUp(t, s)
	between.mu.Lock() // nothing comes through
	held := true
	t.Cleanup(func() {
		if held {
			between.mu.Unlock()
		}
	})
	eventually(t, "the store is away", func() string { _, away := s.Copy(); return map[bool]string{false: "it is not"}[away] })
	between.mu.Unlock()
	held = false
	eventually(t, "the store is back", func() string { _, away := s.Copy(); return map[bool]string{true: "it is away"}[away] })
}

// held leads connections to PostgreSQL while nobody holds mu.
type held struct {
	mu  sync.Mutex
	dir string
}

func hold(t *testing.T, to string) *held {
	t.Helper()
	const socket = ".s.PGSQL.5432"
	h := &held{dir: t.TempDir()}
	listener, err := net.Listen("unix", filepath.Join(h.dir, socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	lead := func(to, from net.Conn) {
		defer func() { _ = to.Close() }()
		part := make([]byte, 4096)
		for {
			n, err := from.Read(part)
			h.mu.Lock()
			if n > 0 {
				_, err = to.Write(part[:n])
			}
			h.mu.Unlock()
			if err != nil {
				return
			}
		}
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // the test has ended
			}
			behind, err := net.Dial("unix", filepath.Join(to, socket))
			if err != nil {
				_ = client.Close()
				continue
			}
			go lead(behind, client)
			go lead(client, behind)
		}
	}()
	return h
}
