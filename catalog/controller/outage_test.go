package controller_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr/funcr"

	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/catalog/store/database"
	"github.com/armature-dev/armature/e2e/catalog/peer"
	pg "github.com/armature-dev/armature/e2e/catalog/postgres"
)

// The controller outlives its PostgreSQL, from before the start on, says so, and
// goes on when it is back.
func TestPostgresOutage(t *testing.T) {
	server := pg.Own(t)
	w := newWorld(t)
	address, err := server.Database()
	w.must(err)
	w.must(server.Stop())
	w.store, err = database.Open(t.Context(), address)
	w.must(err)
	t.Cleanup(func() { w.must(w.store.Close()) })
	logged := w.listen()
	w.pod("weather", "weather-1", weather("1"))
	w.card("weather")
	w.start()
	w.eventually("the log says what is not followed", func() string {
		if text := logged.String(); !strings.Contains(text, "this kind cannot be watched") {
			return text
		}
		return ""
	})
	stored := func(name string) {
		t.Helper()
		w.eventually(name+" is stored", func() string {
			e, err := w.store.Get(t.Context(),
				store.Key{Resource: cards, Namespace: w.namespace, Name: name})
			if err != nil {
				return err.Error()
			}
			if e.Health != store.Healthy {
				return string(e.Health) + " " + e.Message
			}
			return ""
		})
	}
	w.must(server.Start())
	stored("weather")
	w.must(server.Stop())
	w.pod("travel", "travel-1", weather("1"))
	w.card("travel")
	w.eventually("what cannot be stored is tried", func() string {
		if text := logged.String(); !strings.Contains(text, `"name"="travel"`) {
			return text
		}
		return ""
	})
	w.must(server.Start())
	stored("travel")
}

// A kind that cannot be listed, or swept, keeps no other from being followed,
// and is followed when it can be.
func TestOneKindCannotBeFollowed(t *testing.T) {
	for what, broken := range map[string]func(r *http.Request) bool{
		"listed": func(*http.Request) bool { return true },
		// the list of all, not the look at whether it may be listed
		"swept": func(r *http.Request) bool {
			return strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") &&
				r.URL.Query().Get("limit") == ""
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			var healed, refused atomic.Bool
			w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					if healed.Load() || r.Method != http.MethodGet ||
						!strings.HasSuffix(r.URL.Path, "/remotemcpservers") || !broken(r) {
						return next.RoundTrip(r)
					}
					refused.Store(true)
					return &http.Response{StatusCode: http.StatusForbidden, Status: "403 Forbidden",
						Header: http.Header{"Content-Type": {"text/plain"}},
						Body:   io.NopCloser(strings.NewReader("no")), Request: r}, nil
				})
			})
			_, err := w.store.Put(t.Context(),
				store.Entry{Key: store.Key{Resource: servers, Namespace: w.namespace,
					Name: "vanished"}, UID: "old", Type: store.Server}, true)
			w.must(err)
			w.network.serve(t, "office.example:80",
				peer.Streamable(peer.Server("Office", 0, peer.Many("office", 3)...)))
			w.remote("office")
			w.pod("weather", "weather-1", weather("1"))
			w.card("weather")
			w.start()
			w.eventually("the other kinds are followed", func() string {
				if !refused.Load() {
					return "nothing was refused"
				}
				if phase := w.status("weather").Phase; phase != "Active" {
					return "the card is " + string(phase)
				}
				return ""
			})
			healed.Store(true)
			w.eventually("the kind is followed and swept", func() string {
				if got := w.accepted("office"); got != "True: 3 tools" {
					return got
				}
				if _, err := w.store.Get(t.Context(), store.Key{Resource: servers,
					Namespace: w.namespace, Name: "vanished"}); err == nil {
					return "what vanished is there"
				}
				return ""
			})
		})
	}
}

// Requests to agents, servers and Kubernetes name the program and its version.
func TestUserAgent(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	agents := map[string]string{}
	note := func(who string, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		agents[who] = r.UserAgent()
	}
	noting := func(who string, next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			note(who, r)
			next.ServeHTTP(rw, r)
		})
	}
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			note("Kubernetes", r)
			return next.RoundTrip(r)
		})
	})
	w.network.serve(t, "office.example:80",
		noting("server", peer.Streamable(peer.Server("Office", 0, peer.Many("office", 3)...))))
	w.remote("office")
	w.pod("weather", "weather-1", noting("agent", weather("1")))
	w.card("weather")
	w.start()
	w.eventually("all are asked", func() string {
		return map[bool]string{false: "not yet"}[w.accepted("office") == "True: 3 tools" &&
			w.status("weather").Phase == "Active"]
	})
	mu.Lock()
	defer mu.Unlock()
	for _, who := range []string{"Kubernetes", "server", "agent"} {
		if got := agents[who]; !regexp.MustCompile(`^armature-catalog/\S+ `).MatchString(got) ||
			got != ask.UserAgent() {
			t.Errorf("%s gets %q", who, got)
		}
	}
}

// listen to what the controller logs.
func (w *world) listen() *journal {
	logged := &journal{}
	w.logTo = funcr.New(func(prefix, args string) { logged.add(prefix + " " + args) }, funcr.Options{})
	return logged
}
