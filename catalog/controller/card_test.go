package controller_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/kinds"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/e2e/catalog/peer"
)

// A card that changes changes status and store; one that does not is not
// written again.
func TestCardChanges(t *testing.T) {
	w := newWorld(t)
	agent := switching(weather("1.0.0"))
	w.pod("weather", "weather-1", agent)
	w.card("weather", func(c *api.AgentCard) {
		c.Spec.Metadata = &api.CardMetadata{Name: "unused", Description: "unused",
			Tags: []string{"production"}}
	})
	w.sync(cards, "weather")
	first := w.status("weather")
	e := w.entry(cards, "weather")
	if first.Cards[0].FetchStatus != "Success" ||
		!strings.Contains(string(first.Cards[0].Card.Raw), "get_forecast") ||
		first.LastSyncTime == nil || first.ObservedGeneration != 1 {
		t.Fatalf("status: %+v", first)
	}
	if e.Title != "Weather" || e.Tags[0] != "production" || len(e.Items) != 2 ||
		e.Items[0].Kind != store.Skill || !e.Fetched.Equal(begin) {
		t.Fatalf("store: %+v", e)
	}
	writes := w.writes.Load()
	for range 20 {
		w.pass(30 * time.Second)
		if next := w.sync(cards, "weather"); next < 30*time.Second || next > 33*time.Second {
			t.Fatalf("next sync in %s, want 30s and up to a tenth more", next)
		}
	}
	if n := w.writes.Load() - writes; n != 0 {
		t.Errorf("%d writes to the API server while nothing changed", n)
	}
	if e := w.entry(cards, "weather"); w.now().Sub(e.Fetched) > time.Minute {
		t.Errorf("fetched %s ago, although it answered just now", w.now().Sub(e.Fetched))
	}
	agent.set(weather("2.0.0"))
	w.pass(30 * time.Second)
	w.sync(cards, "weather")
	if n := w.writes.Load() - writes; n != 1 {
		t.Errorf("%d writes for a change, want 1", n)
	}
	if got := w.entry(cards, "weather").Version; got != "2.0.0" {
		t.Errorf("store: version %s", got)
	}
	if s := w.status("weather"); !strings.Contains(string(s.Cards[0].Card.Raw), "2.0.0") ||
		!s.LastSyncTime.Time.Equal(w.now()) {
		t.Errorf("status: %+v", s)
	}
}

// Both well-known paths of a card are asked, a path of one's own alone, and the
// example of source 001 is a valid card.
func TestWellKnownPaths(t *testing.T) {
	w := newWorld(t)
	const minimal = `{"name": "Weather Intelligence Agent", "version": "2.1.0",
		"capabilities": {"streaming": true, "batchProcessing": true},
		"skills": [{"name": "get_forecast", "description": "Get weather forecast"}]}`
	at := func(path string) http.Handler {
		mux := http.NewServeMux()
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, minimal)
		})
		return mux
	}
	for name, c := range map[string]struct{ served, asked, want string }{
		"new":       {"/.well-known/agent-card.json", "", "Active"},
		"old":       {"/.well-known/agent.json", "", "Active"},
		"own":       {"/card", "/card", "Active"},
		"elsewhere": {"/.well-known/agent.json", "/card", "Failed"},
	} {
		w.pod(name, name+"-1", at(c.served))
		w.card(name, func(card *api.AgentCard) {
			card.Spec.Endpoint = &api.CardEndpoint{Path: c.asked}
		})
		w.sync(cards, name)
		if s := w.status(name); string(s.Phase) != c.want {
			t.Errorf("%s: %s: %s", name, s.Phase, s.Message)
		} else if c.want == "Active" &&
			!strings.Contains(string(s.Cards[0].Card.Raw), "batchProcessing") {
			t.Errorf("%s: the card lost a field: %s", name, s.Cards[0].Card.Raw)
		}
	}
}

// The published group has its card in status.card.
func TestPublishedGroup(t *testing.T) {
	w := newWorld(t)
	w.pod("weather", "weather-1", weather("1"))
	c := &kinds.AgentCard{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "weather"}}
	c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "weather"}}
	w.must(w.Create(t.Context(), c))
	w.sync("agentcards.agent.kagenti.dev", "weather")
	w.must(w.Get(t.Context(), client.ObjectKeyFromObject(c), c))
	if c.Status.Phase != api.PhaseActive || c.Status.Protocol != "a2a" || c.Status.Card == nil {
		t.Errorf("status: %+v", c.Status)
	}
	writes := w.writes.Load()
	w.sync("agentcards.agent.kagenti.dev", "weather")
	if n := w.writes.Load() - writes; n != 0 {
		t.Errorf("%d writes while nothing changed", n)
	}
}

// Whatever a server does, status says what, in words of ours, and the last good
// card survives with its time in status and store.
func TestHostileAgents(t *testing.T) {
	plain := func(status int, text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, text)
		})
	}
	redirect := func(to string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, to, http.StatusFound)
		})
	}
	for _, c := range []struct {
		name  string
		agent http.Handler
		want  string
	}{
		{"hangs", http.HandlerFunc(hang), "it did not answer in time"},
		{"drips", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				fmt.Fprint(w, " ")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(50 * time.Millisecond)
			}
		}), "it did not answer in time"},
		{"10-megabytes", plain(200, `{"name":"`+strings.Repeat("a", 10<<20)+`"}`),
			"the answer is too large"},
		{"endless-header", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("a", 200<<10))
		}), "the connection failed or was interrupted"},
		{"rubbish", plain(200, "\x00\xff<html>token=s3cret"),
			"not a valid agent card: it is not a JSON object"},
		{"list", plain(200, `[]`), "not a valid agent card: it is not a JSON object"},
		{"nameless", plain(200, `{"version":"1"}`), "not a valid agent card: it has no name"},
		{"wrong-types", plain(200, `{"name":"a","skills":"s3cret"}`),
			"not a valid agent card: its fields are not those of A2A"},
		{"deep", plain(200, `{"name":`+strings.Repeat("[", 500000)), "the answer is too large"},
		{"500", plain(500, "s3cret"), "HTTP status 500 Internal Server Error"},
		{"401", plain(401, "s3cret"), "HTTP status 401 Unauthorized"},
		{"redirect-to-metadata", redirect("http://169.254.169.254/latest/meta-data"),
			"it redirects to another host"},
		{"redirect-to-other-port", redirect("http://10.7.0.1:6443/"),
			"it redirects to another host"},
		{"redirect-to-file", redirect("file:///etc/passwd"), "it redirects to another host"},
		{"redirect-loop", redirect("/.well-known/agent-card.json"), "it redirects too often"},
		{"closes",
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				panic(http.ErrAbortHandler)
			}), "the connection failed or was interrupted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			agent := switching(weather("1.0.0"))
			w.pod("weather", "weather-1", agent)
			w.card("weather")
			w.sync(cards, "weather")
			w.pass(10 * time.Minute)
			w.sync(cards, "weather")
			good := w.status("weather")
			agent.set(c.agent)
			w.pass(30 * time.Second)
			w.sync(cards, "weather")
			s, e := w.status("weather"), w.entry(cards, "weather")
			if s.Phase != api.PhaseFailed || s.SyncErrors != 1 || s.Message != c.want ||
				s.Cards[0].FetchStatus != c.want {
				t.Errorf("status: %s, %d errors, %q, pod %q; want %q", s.Phase, s.SyncErrors,
					s.Message, s.Cards[0].FetchStatus, c.want)
			}
			if string(s.Cards[0].Card.Raw) != string(good.Cards[0].Card.Raw) {
				t.Error("the last good card is gone from status")
			}
			if age := w.now().Sub(s.Cards[0].LastFetchTime.Time); age < 30*time.Second ||
				age > 90*time.Second {
				t.Errorf("status says that the last good card came %s ago, want 30s to the minute", age)
			}
			if e.Health != store.Failing || e.Message != c.want || e.Title != "Weather" ||
				len(e.Items) != 2 {
				t.Errorf("store: %s %q, %q with %d items", e.Health, e.Message, e.Title, len(e.Items))
			}
			if age := w.now().Sub(e.Fetched); age < 30*time.Second || age > 90*time.Second {
				t.Errorf("the store says that the last good card came %s ago", age)
			}
			agent.set(weather("1.0.1"))
			w.sync(cards, "weather")
			if e := w.entry(cards, "weather"); e.Health != store.Healthy || e.Version != "1.0.1" {
				t.Errorf("afterwards: %s %s", e.Health, e.Version)
			}
		})
	}
}

// An untrusted certificate is refused; one that the catalog is configured to
// trust is accepted.
func TestAgentCertificate(t *testing.T) {
	w := newWorld(t)
	server := httptest.NewTLSServer(weather("1"))
	t.Cleanup(server.Close)
	server.TLS.MinVersion = tls.VersionTLS12
	pod := w.pod("weather", "weather-1", nil)
	w.network.lead(pod.Status.PodIP+":8081", server)
	w.card("weather", func(c *api.AgentCard) {
		c.Spec.Endpoint = &api.CardEndpoint{Scheme: "https"}
	})
	w.sync(cards, "weather")
	if s := w.status("weather"); s.Phase != api.PhaseFailed ||
		!strings.HasPrefix(s.Message, "its TLS certificate is not trusted: ") {
		t.Errorf("%s: %s", s.Phase, s.Message)
	}
}

// A server that answers 500 for an hour is asked ever more seldom, status is
// written once, and the last good card is an hour old in the end.
func TestFailureForAnHour(t *testing.T) {
	w := newWorld(t)
	agent := switching(weather("1.0.0"))
	w.pod("weather", "weather-1", agent)
	w.card("weather")
	w.sync(cards, "weather")
	agent.set(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))
	writes := w.writes.Load()
	var waits []time.Duration
	for w.now().Before(begin.Add(time.Hour)) {
		next := w.sync(cards, "weather")
		waits = append(waits, next.Round(time.Second))
		w.pass(next)
	}
	if len(waits) > 15 || waits[0] > 6*time.Second || waits[len(waits)-1] < 10*time.Minute ||
		waits[len(waits)-1] > 12*time.Minute {
		t.Errorf("waits: %v; want 5s doubled up to 10m, with up to a fifth of jitter", waits)
	}
	if n := w.writes.Load() - writes; n != 1 {
		t.Errorf("%d writes to the API server in an hour of failure, want 1", n)
	}
	s, e := w.status("weather"), w.entry(cards, "weather")
	if s.Phase != api.PhaseFailed || !s.Cards[0].LastFetchTime.Time.Equal(begin) ||
		s.Cards[0].Card == nil {
		t.Errorf("status: %+v", s)
	}
	if age := w.now().Sub(e.Fetched); e.Fetched.IsZero() || age < time.Hour || e.Title != "Weather" {
		t.Errorf("the store says that %q answered %s ago", e.Title, age)
	}
	agent.set(weather("1.0.0"))
	if next := w.sync(cards, "weather"); next > 33*time.Second {
		t.Errorf("after it recovered the next sync is in %s", next)
	}
	if s := w.status("weather"); s.Phase != api.PhaseActive {
		t.Errorf("after it recovered: %s", s.Phase)
	}
}

// A store that was lost is filled from status, so the last good answer survives
// that as well.
func TestStoreIsRebuiltFromStatus(t *testing.T) {
	w := newWorld(t)
	agent := switching(weather("1.0.0"))
	w.pod("weather", "weather-1", agent)
	w.card("weather")
	w.sync(cards, "weather")
	key := w.entry(cards, "weather").Key
	w.must(w.store.Delete(t.Context(), key))
	agent.set(http.NotFoundHandler())
	w.pass(time.Minute)
	w.sync(cards, "weather")
	e := w.entry(cards, "weather")
	if e.Title != "Weather" || len(e.Items) != 2 || e.Health != store.Failing || !e.Fetched.Equal(begin) {
		t.Errorf("store: %+v", e)
	}
}

// What the API server refuses, it refuses with a remedy.
func TestAgentCardRules(t *testing.T) {
	w := newWorld(t)
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	for want, spec := range map[string]api.AgentCardSpec{
		"set either selector": {},
		"one of them, not both": {Selector: selector,
			TargetRef: &api.TargetRef{Kind: "Deployment", Name: "a"}},
		"give matchLabels":    {Selector: &metav1.LabelSelector{}},
		"at least one second": {Selector: selector, SyncPeriod: "10ms"},
		"must begin with /": {Selector: selector,
			Endpoint: &api.CardEndpoint{Path: "card"}},
		"Unsupported value: \"ftp\"": {Selector: selector,
			Endpoint: &api.CardEndpoint{Scheme: "ftp"}},
		"spec.endpoint.port": {Selector: selector,
			Endpoint: &api.CardEndpoint{Port: 70000}},
	} {
		err := w.Create(t.Context(),
			&api.AgentCard{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, GenerateName: "a"},
				Spec: spec})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

// Many pods with large cards still fit into one status.
func TestLargeStatus(t *testing.T) {
	w := newWorld(t)
	card := peer.Card("Large", strings.Repeat("large ", 20000), "1", "skill")
	for i := range 70 {
		w.pod("large", fmt.Sprintf("large-%02d", i), peer.Agent(card))
	}
	w.card("large")
	w.sync(cards, "large")
	s := w.status("large")
	if s.Phase != api.PhaseActive || s.DiscoveredPods != 70 || len(s.Cards) != 64 ||
		s.Cards[0].Card == nil || s.Cards[63].Card != nil {
		t.Errorf("%s, %d pods, %d cards", s.Phase, s.DiscoveredPods, len(s.Cards))
	}
}
