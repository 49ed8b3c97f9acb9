package serve_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/armature-dev/armature/catalog/store"
	pg "github.com/armature-dev/armature/e2e/catalog/postgres"
)

// While PostgreSQL is unavailable, callers of every interface hear when to ask again. When
// it is back they get answers, and a watch goes on from the beginning.
func TestStoreIsAway(t *testing.T) {
	server := pg.Own(t)
	address, err := server.Database()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorldIn(t, address)
	everyone, reader := w.token("all", "*"), w.token("reader1", "team1")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	lines := w.stream(ctx, everyone, "?type=agent", "")
	until(t, lines, "event: synced")

	w.must(server.Stop())
	until(t, lines, ": the store")
	w.isAway(reader)
	if status, _, _ := w.get("", "/api/v1/entries"); status != http.StatusUnauthorized {
		t.Errorf("nobody gets %d", status)
	}

	w.must(server.Start())
	got := until(t, lines, "event: resync")
	got += until(t, lines, "event: synced")
	if strings.Count(got, "event: updated") != 2 {
		t.Errorf("a watch over the whole time gets %s", got)
	}
	w.put("team1", "travel", cards, store.Agent)
	w.eventually("the store is asked again", func() string {
		if status, _, body := w.get(reader, "/api/v1/entries"); status != http.StatusOK ||
			!strings.Contains(body, "travel") {
			return body
		}
		return ""
	})
}

// A store that takes questions and does not answer is away, and nobody waits for it.
func TestStoreHangs(t *testing.T) {
	server := pg.Own(t)
	text, err := server.Database()
	if err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	q := address.Query()
	between := hold(t, q.Get("host"))
	q.Set("host", between.dir)
	address.RawQuery = q.Encode()
	w := newWorldIn(t, address.String())
	reader := w.token("reader1", "team1")
	between.mu.Lock() // nothing comes through
	begun := time.Now()
	status, h, body := w.get(reader, "/api/v1/entries")
	between.mu.Unlock()
	if status != http.StatusServiceUnavailable || h.Get("Retry-After") == "" ||
		time.Since(begun) > 30*time.Second {
		t.Errorf("after %s it answers %d %v %s", time.Since(begun), status, h, body)
	}
	w.eventually("the store is back", func() string {
		if status, _, body := w.get(reader, "/api/v1/entries"); status != http.StatusOK {
			return body
		}
		return ""
	})
}

// isAway checks what each interface answers without its store.
func (w *world) isAway(token string) {
	w.Helper()
	weather := "/" + cards + "/" + w.prefix + "team1/weather"
	for _, path := range []string{"/api/v1/entries", "/api/v1/search?q=weather",
		"/api/v1/entries" + weather, "/api/v1/watch"} {
		status, h, body := w.get(token, path)
		if status != http.StatusServiceUnavailable || h.Get("Retry-After") != "5" ||
			!strings.Contains(body, "the catalog cannot answer now") {
			w.Errorf("%s answers %d %v %s", path, status, h, body)
		}
	}
	request, err := http.NewRequestWithContext(w.Context(), http.MethodPost, w.url+"/mcp",
		strings.NewReader(
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_agents"}}`))
	w.must(err)
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	w.must(response.Body.Close())
	if response.StatusCode != http.StatusServiceUnavailable ||
		response.Header.Get("Retry-After") != "5" {
		w.Errorf("MCP answers %s %v", response.Status, response.Header)
	}
}

func (w *world) eventually(what string, check func() string) {
	w.Helper()
	var last string
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); time.Sleep(
		50 * time.Millisecond) {
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
