package controller_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/e2e/catalog/peer"
)

// remote makes a RemoteMCPServer at http://<name>.example.
func (w *world) remote(name string, edit ...func(*kagent.RemoteMCPServer)) *kagent.RemoteMCPServer {
	w.Helper()
	s := &kagent.RemoteMCPServer{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	s.Spec.URL, s.Spec.Description = "http://"+name+".example/mcp", "Tools for tests"
	for _, e := range edit {
		e(s)
	}
	w.must(w.Create(w.Context(), s))
	return s
}

func (w *world) serverStatus(name string) kagent.RemoteMCPServerStatus {
	w.Helper()
	var s kagent.RemoteMCPServer
	w.must(w.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &s))
	return s.Status
}

// accepted is the condition of a server, as status: message.
func (w *world) accepted(name string) string {
	w.Helper()
	c := meta.FindStatusCondition(w.serverStatus(name).Conditions, kagent.ConditionAccepted)
	if c == nil {
		return ""
	}
	return string(c.Status) + ": " + c.Message
}

// Tools, resources and prompts are listed over both transports, through all
// pages, and a server that did not change is not written again.
func TestServersAreListed(t *testing.T) {
	for _, protocol := range []kagent.Protocol{kagent.StreamableHTTP, kagent.SSE} {
		t.Run(string(protocol), func(t *testing.T) {
			w := newWorld(t)
			server := peer.Server("Office", 7, peer.Many("office", 50)...)
			server.AddResource(&mcp.Resource{Name: "handbook", URI: "file:///handbook",
				Description: "How things are done"}, nil)
			server.AddPrompt(&mcp.Prompt{Name: "summary", Description: "Sum up"}, nil)
			handler := peer.Streamable(server)
			if protocol == kagent.SSE {
				handler = peer.SSE(server)
			}
			w.network.serve(t, "office.example:80", handler)
			w.remote("office", func(s *kagent.RemoteMCPServer) { s.Spec.Protocol = protocol })
			w.sync(servers, "office")
			if got := w.accepted("office"); got != "True: 50 tools, 1 resource, 1 prompt" {
				t.Errorf("status: %s", got)
			}
			if n := len(w.serverStatus("office").DiscoveredTools); n != 50 {
				t.Errorf("%d tools in status, want 50", n)
			}
			e := w.entry(servers, "office")
			if len(e.Items) != 52 || e.Title != "Office" || e.Description != "Tools for tests" ||
				e.Health != store.Healthy ||
				!strings.Contains(string(e.Items[0].Document), "inputSchema") {
				t.Errorf("store: %q, %d items, %s, %s", e.Title, len(e.Items), e.Health,
					e.Items[0].Document)
			}
			writes, revision := w.writes.Load(), e.Revision
			for range 5 {
				w.pass(2 * time.Minute)
				w.sync(servers, "office")
			}
			if e = w.entry(servers, "office"); w.writes.Load() != writes ||
				e.Revision != revision || !e.Fetched.Equal(w.now()) {
				t.Errorf("%d writes, revision %d after %d, fetched %s", w.writes.Load()-writes,
					e.Revision, revision, e.Fetched)
			}
		})
	}
}

// A server that changes its tools all the time is stored as it was at some
// moment, never half.
func TestToolsChangeUnderLoad(t *testing.T) {
	w := newWorld(t)
	var generation atomic.Int32
	w.network.serve(t, "busy.example:80", peerPerSession(func() *mcp.Server {
		n := generation.Add(1)
		return peer.Server("Busy", 5, peer.Many(fmt.Sprintf("g%d", n), 40)...)
	}))
	w.remote("busy")
	var group sync.WaitGroup
	stop := make(chan struct{})
	group.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			e, err := w.store.Get(t.Context(),
				store.Key{Resource: servers, Namespace: w.namespace, Name: "busy"})
			if err != nil || len(e.Items) == 0 {
				continue
			}
			want := strings.Split(e.Items[0].Name, "_")[2]
			for _, i := range e.Items {
				if strings.Split(i.Name, "_")[2] != want || len(e.Items) != 40 {
					t.Errorf("%d tools, %s among those of %s", len(e.Items), i.Name, want)
					return
				}
			}
		}
	})
	for range 25 {
		w.sync(servers, "busy")
	}
	close(stop)
	group.Wait()
	if generation.Load() < 25 {
		t.Errorf("the server was asked %d times", generation.Load())
	}
}

// peerPerSession serves each session by a server of its own.
func peerPerSession(make func() *mcp.Server) http.Handler {
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return make() },
		&mcp.StreamableHTTPOptions{DisableLocalhostProtection: true})
}

// Headers come from Secrets and ConfigMaps. A missing one is reported by name,
// and the server is not queried without it.
func TestHeaders(t *testing.T) {
	w := newWorld(t)
	var asked atomic.Int32
	inner := peer.Streamable(peer.Server("Office", 0, peer.Many("office", 2)...))
	w.network.serve(t, "office.example:80",
		http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			if r.Header.Get("Authorization") != "Bearer s3cret-token" ||
				r.Header.Get("X-Tenant") != "team" || r.Header.Get("X-Plain") != "plain" {
				rw.WriteHeader(http.StatusUnauthorized)
				return
			}
			inner.ServeHTTP(rw, r)
		}))
	w.remote("office", func(s *kagent.RemoteMCPServer) {
		s.Spec.HeadersFrom = []kagent.ValueRef{
			{Name: "Authorization",
				ValueFrom: kagent.ValueSource{Type: "Secret", Name: "login", Key: "header"}},
			{Name: "X-Tenant",
				ValueFrom: kagent.ValueSource{Type: "ConfigMap", Name: "tenant", Key: "name"}},
			{Name: "X-Plain", Value: "plain"},
		}
	})
	step := func(want string) {
		t.Helper()
		w.sync(servers, "office")
		if got := w.accepted("office"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	step("False: Secret login is missing")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "login"}}
	w.must(w.Create(t.Context(), secret))
	step("False: Secret login has no key header")
	secret.StringData = map[string]string{"header": "Bearer s3cret-token\n"}
	w.must(w.Update(t.Context(), secret))
	step("False: ConfigMap tenant is missing")
	if n := asked.Load(); n != 0 {
		t.Errorf("the server was asked %d times without its headers", n)
	}
	w.must(w.Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "tenant"},
			Data: map[string]string{"name": "team"}}))
	step("True: 2 tools")
	secret.StringData = map[string]string{"header": "Bearer wrong"}
	w.must(w.Update(t.Context(), secret))
	step("False: HTTP status 401 Unauthorized")
	if n := len(w.entry(servers, "office").Items); n != 2 {
		t.Errorf("%d tools left of the last good answer, want 2", n)
	}
}

// A certificate is trusted when the Secret says so, for the name it was made for.
func TestServerCertificate(t *testing.T) {
	w := newWorld(t)
	server := httptest.NewTLSServer(peer.Streamable(peer.Server("Office", 0, peer.Many("office", 2)...)))
	t.Cleanup(server.Close)
	w.network.lead("example.com:443", server)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	w.must(w.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "ca"},
			Data: map[string][]byte{"ca.crt": ca, "bad": []byte("x")}}))
	for name, c := range map[string]struct {
		tls  kagent.TLS
		want string
	}{
		"untrusted": {kagent.TLS{},
			"False: its TLS certificate is not trusted: signed by an unknown authority"},
		"trusted": {kagent.TLS{CACertSecretRef: "ca"}, "True: 2 tools"},
		"misnamed": {kagent.TLS{CACertSecretRef: "ca", ServerName: "other.test"},
			"False: its TLS certificate is not trusted: made for another name"},
		"no-ca": {kagent.TLS{CACertSecretRef: "none"}, "False: Secret none is missing"},
		"bad-ca": {kagent.TLS{CACertSecretRef: "ca", CACertSecretKey: "bad"},
			"False: Secret ca holds no certificate under bad"},
	} {
		w.remote(name, func(s *kagent.RemoteMCPServer) {
			s.Spec.URL, s.Spec.TLS =
				"https://example.com/mcp", c.tls
		})
		w.sync(servers, name)
		if got := w.accepted(name); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// hang until the client goes, which a server only sees after it read the request.
func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// Whatever a tool server does, status says so in words of ours, and its tools of
// the last good answer stay.
func TestHostileServers(t *testing.T) {
	for _, c := range []struct {
		name   string
		server http.Handler
		sse    bool
		want   string
	}{
		{"hangs", http.HandlerFunc(hang), false, "it did not answer in time"},
		{"hangs-sse", http.HandlerFunc(hang), true, "it did not answer in time"},
		{"500",
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "s3cret-token", 500)
			}), false, "HTTP status 500 Internal Server Error"},
		{"rubbish", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, "s3cret-token")
		}), false, "it does not follow the MCP protocol"},
		{"html",
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, "<html>s3cret-token")
			}), false, "it does not follow the MCP protocol"},
		{"too-large", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			chunk := []byte(strings.Repeat("a", 1<<20))
			for range 40 {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}), false, "the answer is too large"},
		{"redirects", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusTemporaryRedirect)
		}), false, "it redirects to another host"},
		{"sse-endpoint-elsewhere", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "event: endpoint\ndata: http://attacker.example/steal\n\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}), true, "it redirects to another host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			good := peer.Server("Office", 0, peer.Many("office", 3)...)
			server := switching(peer.Streamable(good))
			if c.sse {
				server.set(peer.SSE(good))
			}
			stolen := atomic.Bool{}
			w.network.serve(t, "attacker.example:80",
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Store(true) }))
			w.network.serve(t, "office.example:80", server)
			w.must(w.Create(t.Context(),
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "login"},
					StringData: map[string]string{"header": "Bearer s3cret-token"}}))
			w.remote("office", func(s *kagent.RemoteMCPServer) {
				s.Spec.Timeout = metav1.Duration{Duration: 3 * time.Second}
				s.Spec.HeadersFrom = []kagent.ValueRef{{Name: "Authorization",
					ValueFrom: kagent.ValueSource{Type: "Secret", Name: "login", Key: "header"}}}
				if c.sse {
					s.Spec.Protocol = kagent.SSE
				}
			})
			w.sync(servers, "office")
			if got := w.accepted("office"); got != "True: 3 tools" {
				t.Fatalf("at first: %s", got)
			}
			server.set(c.server)
			w.pass(time.Hour)
			w.sync(servers, "office")
			if got := w.accepted("office"); got != "False: "+c.want {
				t.Errorf("status: %q, want %q", got, c.want)
			}
			e := w.entry(servers, "office")
			if len(e.Items) != 3 || e.Counts[store.Tool] != 3 || e.Health != store.Failing ||
				e.Message != c.want || len(w.serverStatus("office").DiscoveredTools) != 3 {
				t.Errorf("store: %d items, %s %q", len(e.Items), e.Health, e.Message)
			}
			if age := w.now().Sub(e.Fetched); age != time.Hour {
				t.Errorf("the store says that the last good answer came %s ago", age)
			}
			if stolen.Load() {
				t.Error("another host was asked")
			}
		})
	}
}

// A server that lists more than anybody can use is refused as a whole.
func TestTooManyTools(t *testing.T) {
	w := newWorld(t)
	server := peer.Server("Endless", 1, peer.Many("endless", 1)...)
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			result, err := next(ctx, method, r)
			if list, ok := result.(*mcp.ListToolsResult); ok {
				for len(list.Tools) < 10001 {
					list.Tools = append(list.Tools, list.Tools[0])
				}
			}
			return result, err
		}
	})
	w.network.serve(t, "endless.example:80", peer.Streamable(server))
	w.remote("endless")
	w.sync(servers, "endless")
	if got := w.accepted("endless"); got != "False: the answer is too large" {
		t.Error(got)
	}
}

// A server that runs in the cluster is asked at its Service, and the conditions
// that kagent wrote stay.
func TestMCPServer(t *testing.T) {
	w := newWorld(t)
	w.network.serve(t, "office."+w.namespace+".svc:8080",
		peer.Streamable(peer.Server("Office", 0, peer.Many("office", 3)...)))
	s := &kagent.MCPServer{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "office"}}
	s.Spec.Deployment.Port, s.Spec.TransportType = 8080, "stdio"
	w.must(w.Create(t.Context(), s))
	s.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Ready",
		LastTransitionTime: metav1.Now()}}
	w.must(w.Status().Update(t.Context(), s))
	w.sync("mcpservers.kagent.dev", "office")
	w.must(w.Get(t.Context(), client.ObjectKeyFromObject(s), s))
	if len(s.Status.Conditions) != 2 ||
		!meta.IsStatusConditionTrue(s.Status.Conditions, api.ConditionDiscovered) {
		t.Errorf("conditions: %+v", s.Status.Conditions)
	}
	if e := w.entry("mcpservers.kagent.dev", "office"); len(e.Items) != 3 || e.Type != store.Server {
		t.Errorf("store: %+v", e)
	}
}

// kagent's Agents are in the catalog where their CRD is installed, and all kinds
// share one reconciler; what vanished while nobody watched is swept.
func TestAllKindsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.must(func() error {
		_, err := w.store.Put(t.Context(),
			store.Entry{Key: store.Key{Resource: cards, Namespace: w.namespace, Name: "vanished"},
				UID: "old", Type: store.Agent}, true)
		return err
	}())
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kagent.dev/v1alpha2", "kind": "Agent",
		"metadata": map[string]any{"namespace": w.namespace, "name": "helper"},
		"spec": map[string]any{"description": "Helps with Kubernetes",
			"declarative": map[string]any{
				"a2aConfig": map[string]any{
					"skills": []any{map[string]any{"id": "debug", "name": "Debug pods",
						"description": "Finds out why", "tags": []any{"kubernetes"}}}}}},
	}}
	w.must(w.Create(t.Context(), u))
	w.pod("weather", "weather-1", weather("1"))
	w.card("weather")
	w.network.serve(t, "office.example:80",
		peer.Streamable(peer.Server("Office", 0, peer.Many("office", 3)...)))
	w.remote("office")
	w.start()
	w.eventually("all are there", func() string {
		list, err := w.store.List(t.Context(), store.Query{Scope: store.Everything()})
		var got []string
		for _, e := range list {
			got = append(got, fmt.Sprintf("%s/%s %v", e.Resource, e.Name, len(e.Counts)))
		}
		if want := "agents.kagent.dev/helper 1, remotemcpservers.kagent.dev/office 1, " +
			"agentcards.kagenti.io/weather 1"; strings.Join(got, ", ") != want {
			return fmt.Sprint(got, err)
		}
		return ""
	})
	hits, err := w.store.Search(t.Context(), store.Query{Scope: store.Everything(), Text: "debug"})
	if err != nil || len(hits) != 1 || hits[0].Entry.Name != "helper" {
		t.Errorf("searching a skill: %+v, %v", hits, err)
	}
}

// No value of a Secret gets into status or store, though the server sends back
// whatever it was sent.
func TestServerEchoesSecrets(t *testing.T) {
	w := newWorld(t)
	const secret = `s3cret/"tok\en`
	w.network.serve(t, "echo.example:80",
		mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server {
			got := r.Header.Get("Authorization")
			s := mcp.NewServer(&mcp.Implementation{Name: got, Title: got, Version: got},
				&mcp.ServerOptions{Instructions: got})
			s.AddTool(&mcp.Tool{Name: "tool", Title: got, Description: "you sent " + got,
				InputSchema: map[string]any{"type": "object", "description": got}},
				nil)
			return s
		}, &mcp.StreamableHTTPOptions{DisableLocalhostProtection: true}))
	w.must(w.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "login"},
			StringData: map[string]string{"header": "Bearer " + secret}}))
	w.remote("echo", func(s *kagent.RemoteMCPServer) {
		s.Spec.Description = ""
		s.Spec.HeadersFrom = []kagent.ValueRef{{Name: "Authorization",
			ValueFrom: kagent.ValueSource{Type: "Secret", Name: "login", Key: "header"}}}
	})
	w.sync(servers, "echo")
	if got := w.accepted("echo"); got != "True: 1 tool" {
		t.Fatal(got)
	}
	e := w.entry(servers, "echo")
	for what, text := range map[string]string{"status": fmt.Sprintf("%+v", w.serverStatus("echo")),
		"store": fmt.Sprintf("%+v", e), "document": string(e.Items[0].Document)} {
		if strings.Contains(text, "s3cret") {
			t.Errorf("%s: %s", what, text)
		}
	}
	if !strings.Contains(e.Items[0].Description, "[redacted]") {
		t.Errorf("the server did not echo: %q", e.Items[0].Description)
	}
}

func TestRemoteMCPServerRules(t *testing.T) {
	w := newWorld(t)
	for want, spec := range map[string]kagent.RemoteMCPServerSpec{
		"must be an http or https URL": {URL: "file:///etc/passwd"},
		"no user or password":          {URL: "https://me:secret@example.com/mcp"},
		"either value or valueFrom": {URL: "https://example.com/mcp",
			HeadersFrom: []kagent.ValueRef{{Name: "a"}}},
		"Unsupported value": {URL: "https://example.com/mcp", Protocol: "GOPHER"},
	} {
		err := w.Create(t.Context(),
			&kagent.RemoteMCPServer{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace,
				GenerateName: "a"}, Spec: spec})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}
