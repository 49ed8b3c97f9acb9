package forge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// askAll sends a request to each kind of server, and returns the errors by kind.
func askAll(t *testing.T, handler http.HandlerFunc) map[string]error {
	t.Helper()
	s := httptest.NewServer(handler)
	defer s.Close()
	got := make(map[string]error)
	names, _ := Names()
	for _, kind := range names {
		_, got[kind] = opened(t, kind, s.URL+"/team/apps", Credential{Token: "hunter2-token"}).
			PullRequest(t.Context(), 1)
	}
	return got
}

// What a server refuses is an error of one kind, whichever server it is, and shows neither the
// token nor what would steer a terminal.
func TestRefusals(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("asked elsewhere, with %v", r.Header)
	}))
	defer elsewhere.Close()
	for _, c := range []struct {
		status   int
		body     string
		kind     error
		contains string
	}{
		{401, "{\"message\":\n  \"Bad credentials\x1b[2J hunter2-token\"}", ErrUnauthorized,
			"401 Unauthorized"},
		{404, `{"message": "Not Found"}`, ErrNotFound, "404 Not Found"},
		{410, ``, ErrNotFound, "410 Gone"},
		{301, ``, ErrNotFound, "the repository has moved to"},
		{302, ``, ErrNotFound, "use its new URL"},
		{307, ``, ErrNotFound, "use its new URL"},
		{403, `{"message": "Repository was archived so is read-only."}`, ErrRefused, "archived"},
		{403, `{"message": "Resource not accessible by integration"}`, ErrUnauthorized,
			"not accessible"},
		{422, `{"message": "Validation Failed"}`, ErrRefused, "Validation Failed"},
		{422, `{"message": "` + strings.Repeat("x", 300-len("hunter2-tok")) + `hunter2-token"}`,
			ErrRefused, "xxx"},
		{422, `{"message": "hunter2\u002dtoken hunter2-token"}`, ErrRefused, "422"},
		{500, strings.Repeat("x", 290) + `hunter2-token`, nil, "xxx"},
		{200, `<html>`, nil, ""},
		{200, `{"title": "` + strings.Repeat("x", 8<<20) + `"}`, nil,
			"is refused: the answer is too large"},
	} {
		for kind, err := range askAll(t, func(w http.ResponseWriter, _ *http.Request) {
			if c.status/100 == 3 {
				w.Header().Set("Location", elsewhere.URL+"/api")
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}) {
			if err == nil || c.kind != nil && !errors.Is(err, c.kind) ||
				!strings.Contains(err.Error(), c.contains) {
				t.Errorf("%s, %d: %v", kind, c.status, err)
			} else if strings.Contains(err.Error(), "hunter2") ||
				strings.Contains(err.Error(), "\x1b") {
				t.Errorf("%s, %d shows %q", kind, c.status, err)
			}
		}
	}
}

// A question is asked again where a server fails or the connection breaks, but not for ever.
func TestFailingServer(t *testing.T) {
	var asked atomic.Int32
	for kind, err := range askAll(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1)%3 == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusBadGateway)
	}) {
		if err == nil {
			t.Errorf("%s: no error", kind)
		}
	}
	// net/http itself repeats one on a connection that breaks
	if n := asked.Load(); n < 9 || n > 15 {
		t.Errorf("asked %d times", n)
	}
}

// A limit is waited for within the deadline. Later it is an error at once, for all repositories
// of the credential, and for no other one.
func TestLimits(t *testing.T) {
	for name, header := range map[string]map[string]string{
		"seconds":   {"Retry-After": "1"},
		"time":      {"Retry-After": "soon"},
		"remaining": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "soon"},
		"GitLab":    {"RateLimit-Remaining": "0", "RateLimit-Reset": "soon"},
	} {
		var asked atomic.Int32
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) == 1 {
				for k, v := range header {
					if v == "soon" && k == "Retry-After" {
						v = time.Now().Add(2 * time.Second).UTC().Format(http.TimeFormat)
					} else if v == "soon" {
						v = fmt.Sprint(time.Now().Add(2 * time.Second).Unix())
					}
					w.Header().Set(k, v)
				}
				w.WriteHeader(http.StatusForbidden)
				return
			}
			_, _ = io.WriteString(w, `{"number": 1}`)
		}))
		f := opened(t, GitHub, s.URL+"/team/apps", Credential{Token: "hunter2"})
		began := time.Now()
		if _, err := f.PullRequest(t.Context(), 1); err != nil ||
			time.Since(began) < 300*time.Millisecond || asked.Load() != 2 {
			t.Errorf("%s: %v after %s and %d requests", name, err, time.Since(began), asked.Load())
		}
		s.Close()
	}

	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Authorization"), "other") {
			_, _ = io.WriteString(w, `{"number": 1}`)
			return
		}
		asked.Add(1)
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w,
			`{"message": "You have exceeded a secondary rate limit. Please wait a few minutes."}`)
	}))
	defer s.Close()
	clients := new(Clients)
	ask := func(repository, token string) error {
		f, err := clients.Open(GitHub, s.URL+repository, Credential{Token: token})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err = f.PullRequest(ctx, 1)
		return err
	}
	began := time.Now()
	for _, repository := range []string{"/team/apps", "/team/apps", "/team/other"} {
		var limited *LimitedError
		if err := ask(repository, "hunter2"); !errors.As(err, &limited) ||
			time.Until(limited.Until) < 50*time.Second {
			t.Errorf("%s: %v", repository, err)
		}
	}
	if n := asked.Load(); n != 1 || time.Since(began) > 3*time.Second {
		t.Errorf("%d requests in %s", n, time.Since(began))
	}
	if err := ask("/team/apps", "other"); err != nil {
		t.Error(err)
	}
	// Each limit without a time is waited for longer, up to an hour, whatever the server says.
	a := clients.account(GitHub, "h", Credential{Token: "x"})
	for i, want := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, time.Hour} {
		a.until = time.Time{}
		header := http.Header{}
		if i == 3 {
			header.Set("Retry-After", "999999999")
		}
		if !a.learn(&http.Response{StatusCode: 429, Header: header}, nil) ||
			time.Until(a.until).Round(time.Minute) != want {
			t.Errorf("wait %d is %s", i, time.Until(a.until))
		}
	}
}

// GitHub allows 80 requests in a minute that create content, and 500 in an hour.
func TestWritesArePaced(t *testing.T) {
	a := new(Clients).account(GitHub, "h", Credential{Token: "x"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	n := 0
	for ; n < 100; n++ {
		if err := a.wait(ctx, "h", true); err != nil {
			if !errors.As(err, new(*LimitedError)) {
				t.Error(err)
			}
			break
		}
	}
	if n != 40 {
		t.Errorf("%d writes at once", n)
	}
	if err := a.wait(ctx, "h", false); err != nil {
		t.Errorf("a question: %v", err)
	}
}

// A server that stops in the middle, or answers without an end, ends by the deadline of ctx, and
// no more than eight requests of a credential are under way.
func TestSlowServer(t *testing.T) {
	var now, most atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "{")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer s.Close()
	f := opened(t, Gitea, s.URL+"/team/apps", Credential{Token: "hunter2"})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	ended := make(chan error)
	for range 20 {
		go func() {
			_, err := f.PullRequest(ctx, 1)
			ended <- err
		}()
	}
	for range 20 {
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	if most.Load() > maxRequests {
		t.Errorf("%d at once", most.Load())
	}
}

// A next page, or an address in an answer, on another host is not asked.
func TestOtherHost(t *testing.T) {
	r, err := http.NewRequest(http.MethodGet, "https://evil.example/", nil)
	if err != nil {
		t.Fatal(err)
	}
	tr := &transport{scheme: "https", host: "git.example",
		account: new(Clients).account(GitLab, "git.example", Credential{Token: "x"})}
	if _, err := tr.RoundTrip(r); err == nil ||
		!strings.Contains(err.Error(), "nothing was sent to it") {
		t.Error(err)
	}
}
