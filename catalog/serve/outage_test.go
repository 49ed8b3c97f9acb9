package serve_test

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/armature-dev/armature/catalog/store"
	pg "github.com/armature-dev/armature/e2e/catalog/postgres"
)

// While PostgreSQL is unavailable, callers of every interface get its last content,
// as far as they may see it, with a warning. When it is back, earlier watches
// begin again.
func TestStoreIsAway(t *testing.T) {
	server := pg.Own(t)
	address, err := server.Database()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorldIn(t, address)
	everyone, reader := w.token("all", "*"), w.token("reader1", "team1")
	w.followStore()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	lines := w.stream(ctx, everyone, "?type=agent", "")
	first := until(t, lines, "event: synced")
	id := ""
	for _, line := range strings.Split(first, "\n") {
		if text, ok := strings.CutPrefix(line, "id: "); ok {
			id = text
		}
	}
	weather := "/" + cards + "/" + w.prefix + "team1/weather"
	if _, h, body := w.get(everyone, "/api/v1/entries"); h.Get("Warning") != "" || h.Get("Age") != "" {
		t.Errorf("with the store there: %v %s", h, body)
	}

	w.must(server.Stop())
	until(t, lines, ": the store")
	for _, path := range []string{"/api/v1/entries", "/api/v1/search?q=weather", "/", "/?q=weather"} {
		for token, sees := range map[string]int{everyone: 2, reader: 1} {
			status, h, body := w.get(token, path)
			age, err := strconv.Atoi(h.Get("Age"))
			if status != http.StatusOK || err != nil || age < 0 || !strings.HasPrefix(h.Get("Warning"), `299 - "the catalog's store does not answer; this is what it held at 2`) {
				t.Errorf("%s answers %d %v %s", path, status, h, body)
			}
			for i, team := range []string{"team1", "team2"} {
				if got := strings.Contains(body, w.prefix+team); got != (i < sees) {
					t.Errorf("%s shows %s to who sees %d: %v\n%s", path, team, sees, got, body)
				}
			}
			if !strings.HasPrefix(path, "/api") && !strings.Contains(body, "store does not answer") {
				t.Errorf("the page %s does not say that it is old: %s", path, body)
			}
		}
	}
	if status, h, body := w.get(reader, "/api/v1/entries"+weather); status != http.StatusOK || h.Get("Warning") == "" || !strings.Contains(body, "get_forecast") {
		t.Errorf("an entry: %d %v %s", status, h, body)
	}
	if status, _, body := w.get(reader, "/entries"+weather); status != http.StatusOK || !strings.Contains(body, "store does not answer") || !strings.Contains(body, "get_forecast") {
		t.Errorf("its page: %d %s", status, body)
	}
	if status, _, body := w.get(reader, "/api/v1/entries"+strings.Replace(weather, "team1", "team2", 1)); status != http.StatusNotFound {
		t.Errorf("an entry that the caller may not see: %d %s", status, body)
	}
	if status, _, _ := w.get("", "/api/v1/entries"); status != http.StatusUnauthorized {
		t.Errorf("nobody gets %d", status)
	}
	for tool, arguments := range map[string]map[string]any{
		"search_catalog": {"text": "weather"}, "list_agents": nil, "get_entry": {"resource": cards, "namespace": w.prefix + "team1", "name": "weather"},
	} {
		if got := w.mcp(reader, tool, arguments); !strings.Contains(got, `"stale":"the catalog's store does not answer`) || !strings.Contains(got, "Title of weather") {
			t.Errorf("%s answers %s", tool, got)
		}
	}
	if got := until(t, w.stream(ctx, reader, "?type=agent", ""), "event: synced"); strings.Count(got, "event: updated") != 1 {
		t.Errorf("a watch that begins meanwhile gets %s", got)
	}
	if got := until(t, w.stream(ctx, everyone, "?type=agent", id), ": the store"); strings.Contains(got, "event:") {
		t.Errorf("a watch that resumes meanwhile gets %s", got)
	}

	w.must(server.Start())
	got := until(t, lines, "event: resync")
	got += until(t, lines, "event: synced")
	if strings.Count(got, "event: updated") != 2 {
		t.Errorf("a watch over the whole time gets %s", got)
	}
	if got := until(t, w.stream(ctx, everyone, "?type=agent", id), "event: synced"); !strings.HasPrefix(got, "event: resync\n") || strings.Count(got, "event: updated") != 2 {
		t.Errorf("a watch that resumes after %s gets %s", id, got)
	}
	w.put("team1", "travel", cards, store.Agent)
	w.eventually("the store is asked again", func() string {
		if _, h, body := w.get(reader, "/api/v1/entries"); h.Get("Warning") != "" || !strings.Contains(body, "travel") {
			return body
		}
		return ""
	})
}

// followStore until the test ends, from when its copy is whole.
func (w *world) followStore() {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.store.Follow(ctx, func(err error) { w.logged.add("following", err) }) }()
	w.Cleanup(func() { cancel(); w.must(<-done) })
	w.eventually("there is a copy", func() string {
		if c, _ := w.store.Copy(); c == nil {
			return "none yet"
		}
		return ""
	})
}

func (w *world) eventually(what string, check func() string) {
	w.Helper()
	var last string
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if last = check(); last == "" {
			return
		}
	}
	w.Fatalf("%s: %s", what, last)
}

// get with the header that is answered.
func (w *world) get(token, path string) (int, http.Header, string) {
	w.Helper()
	request, err := http.NewRequestWithContext(w.Context(), http.MethodGet, w.url+path, nil)
	w.must(err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	body, err := io.ReadAll(response.Body)
	w.must(err)
	w.must(response.Body.Close())
	return response.StatusCode, response.Header, string(body)
}
