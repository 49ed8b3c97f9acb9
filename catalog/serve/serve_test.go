package serve_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/armature-dev/armature/catalog/serve"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/catalog/store/database"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/functions/multi"
)

var _ = controlplane.Only

// shared is the one control plane of this package.
var shared controlplane.Shared

func TestMain(m *testing.M) {
	os.Exit(shared.Main(m, func(*controlplane.ControlPlane) error { return nil }))
}

// world is a catalog that serves, with tokens of callers.
type world struct {
	testing.TB
	kube   *kubernetes.Clientset
	store  store.Followed
	url    string
	file   string // of the store
	logged *journal
	// onError is called when an error is logged.
	onError func()
	prefix  string // of this test's namespaces
}

var worlds atomic.Int32

const (
	cards   = "agentcards.kagenti.io"
	servers = "remotemcpservers.kagent.dev"
)

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldIn(t, filepath.Join(t.TempDir(), "catalog.db"))
}

// newWorldIn the store at an address.
func newWorldIn(t *testing.T, address string) *world {
	t.Helper()
	plane := shared.Get(t)
	w := &world{TB: t, prefix: fmt.Sprintf("t%d-", worlds.Add(1)), logged: &journal{}, file: address}
	kube, err := kubernetes.NewForConfig(plane.Admin.Config)
	w.must(err)
	w.kube = kube
	w.store, err = database.Open(t.Context(), w.file)
	w.must(err)
	guard, err := serve.Kubernetes(plane.Admin.Config)
	w.must(err)
	s := &serve.Server{Store: w.store, Access: guard, Poll: 20 * time.Millisecond,
		Beat: 300 * time.Millisecond}
	s.Log = logr.New(sink{w})
	server := httptest.NewServer(s.Handler())
	w.url = server.URL
	t.Cleanup(func() { server.CloseClientConnections(); server.Close(); w.must(w.store.Close()) })
	for _, ns := range []string{"team1", "team2"} {
		w.must2(kube.CoreV1().Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.prefix + ns}},
			metav1.CreateOptions{}))
		w.put(ns, "weather", cards, store.Agent, store.Item{Kind: store.Skill, Name: "get_forecast",
			Description: "Get weather forecast"})
		w.put(ns, "office", servers, store.Server,
			store.Item{Kind: store.Tool, Name: "book_room",
				Description: "Book a room with good weather",
				Document:    json.RawMessage(`{"inputSchema":{"type":"object"}}`)})
	}
	return w
}

var now = time.Date(2026, 1, 13, 17, 10, 0, 0, time.UTC)

func (w *world) put(ns, name, resource string, kind store.Type, items ...store.Item) {
	w.Helper()
	_, err := w.store.Put(w.Context(), store.Entry{
		Key: store.Key{Resource: resource, Namespace: w.prefix + ns, Name: name},
		UID: resource + w.prefix + ns + name, Kind: "Kind", APIVersion: "v1", Type: kind,
		Title: "Title of " + name, Description: "The " + name + " of " + ns, Health: store.Healthy,
		Fetched: now.Add(-time.Hour), URL: "http://" + name + ".example/", Items: items,
		Builds: []store.Build{{Namespace: w.prefix + ns, Name: "weather-build",
			Image: "registry.example/a@sha256:0", Commit: "0123456",
			Repository: "github.com/org/weather.git"}},
		Instances: []store.Instance{{Pod: "weather-1", URL: "http://10.0.0.1:8081",
			Status: "Success"}},
	}, true)
	w.must(err)
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// sql runs a statement on the store's file.
func (w *world) sql(statement string) (_ sql.Result, err error) {
	w.Helper()
	db, err := sql.Open("sqlite", "file:"+w.file)
	w.must(err)
	defer func() { err = multi.Errors(err, db.Close()) }()
	return db.ExecContext(w.Context(), statement)
}

func (w *world) must2(_ any, err error) { w.Helper(); w.must(err) }

// token of a ServiceAccount that may list the catalog's kinds in the namespaces,
// or everywhere for "*".
func (w *world) token(name string, namespaces ...string) string {
	w.Helper()
	ctx := w.Context()
	home := w.prefix + "team1"
	w.must2(w.kube.CoreV1().ServiceAccounts(home).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: home, Name: name}}
	rules := []rbacv1.PolicyRule{{APIGroups: []string{"kagenti.io", "kagent.dev"},
		Resources: []string{"agentcards", "remotemcpservers"}, Verbs: []string{"list"}}}
	for _, ns := range namespaces {
		if ns == "*" {
			meta := metav1.ObjectMeta{Name: w.prefix + name}
			w.must2(w.kube.RbacV1().ClusterRoles().Create(ctx,
				&rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}))
			w.must2(w.kube.RbacV1().ClusterRoleBindings().Create(ctx,
				&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects,
					RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
						Name: meta.Name}}, metav1.CreateOptions{}))
			continue
		}
		meta := metav1.ObjectMeta{Namespace: w.prefix + ns, Name: name}
		w.must2(w.kube.RbacV1().Roles(meta.Namespace).Create(ctx,
			&rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}))
		w.must2(w.kube.RbacV1().RoleBindings(meta.Namespace).Create(ctx,
			&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}},
			metav1.CreateOptions{}))
	}
	request, err := w.kube.CoreV1().ServiceAccounts(home).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	w.must(err)
	return request.Status.Token
}

// ask with a token; empty sends none.
func (w *world) ask(token, path string) (int, string) {
	w.Helper()
	request, err := http.NewRequestWithContext(w.Context(), http.MethodGet, w.url+path, nil)
	w.must(err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	body, err := io.ReadAll(response.Body)
	w.must(multi.Errors(err, response.Body.Close()))
	return response.StatusCode, string(body)
}

// Each caller sees what they may list, through every door: API, MCP and watch.
func TestEachSeesTheirOwn(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		token string
		sees  []string
	}{
		"nobody":  {w.token("nobody"), nil},
		"reader1": {w.token("reader1", "team1"), []string{"team1"}},
		"reader2": {w.token("reader2", "team2"), []string{"team2"}},
		"all":     {w.token("all", "*"), []string{"team1", "team2"}},
	} {
		texts := map[string]string{}
		for _, path := range []string{"/api/v1/entries", "/api/v1/search?q=weather"} {
			status, body := w.ask(c.token, path)
			if status != http.StatusOK {
				t.Errorf("%s: %s answers %d: %s", name, path, status, body)
			}
			texts[path] = body
		}
		texts["mcp"] = w.mcp(c.token, "search_catalog", map[string]any{"text": "weather"}) +
			w.mcp(c.token, "list_agents", nil)
		texts["watch"] = w.watch(c.token)
		for door, text := range texts {
			for _, ns := range []string{"team1", "team2"} {
				want := strings.Contains(strings.Join(c.sees, " "), ns)
				if got := strings.Contains(text, w.prefix+ns); got != want {
					t.Errorf("%s through %s sees %s: %v, want %v\n%s", name, door, ns, got, want, text)
				}
			}
		}
		for _, ns := range []string{"team1", "team2"} {
			want := http.StatusNotFound
			if strings.Contains(strings.Join(c.sees, " "), ns) {
				want = http.StatusOK
			}
			for _, path := range []string{"/api/v1/entries/" + cards + "/" + w.prefix + ns + "/weather"} {
				if status, body := w.ask(c.token, path); status != want {
					t.Errorf("%s: %s answers %d, want %d: %s", name, path, status, want, body)
				}
			}
			if got := w.mcp(c.token, "get_entry",
				map[string]any{"resource": cards, "namespace": w.prefix + ns,
					"name": "weather"}); strings.Contains(got, "Title of") != (want == http.StatusOK) {
				t.Errorf("%s: get_entry of %s: %s", name, ns, got)
			}
		}
	}
}

// A caller that Kubernetes does not authenticate learns nothing, and what it
// sent is not repeated anywhere.
func TestUnknownCallers(t *testing.T) {
	w := newWorld(t)
	for _, token := range []string{"", "s3cret-but-wrong", "eyJhbGciOiJub25lIn0.e30."} {
		for _, path := range []string{"/api/v1/entries", "/api/v1/search?q=weather",
			"/api/v1/watch", "/mcp"} {
			status, body := w.ask(token, path)
			if status != http.StatusUnauthorized || strings.Contains(body, "team1") ||
				token != "" && strings.Contains(body, token) {
				t.Errorf("%q at %s: %d %s", token, path, status, body)
			}
			if expired := strings.Contains(body, "has expired"); strings.HasPrefix(path, "/api/") &&
				expired != (token != "") {
				t.Errorf("%q at %s gets %s", token, path, body)
			}
		}
	}
	if strings.Contains(w.logged.String(), "s3cret") {
		t.Errorf("logged: %s", w.logged)
	}
	if status, _ := w.ask("", "/openapi.json"); status != http.StatusOK {
		t.Errorf("the OpenAPI document: %d", status)
	}
}

// The server writes nothing, and says what is wrong with a request.
func TestBadRequests(t *testing.T) {
	w := newWorld(t)
	token := w.token("all", "*")
	for path, want := range map[string]int{
		"/api/v1/entries?limit=0": 400, "/api/v1/entries?limit=x": 400,
		"/api/v1/entries?tpye=agent": 400, "/api/v1/entries?type=x": 400,
		"/api/v1/entries?health=healthy": 400, "/api/v1/search?q=x&kind=tools": 400,
		"/api/v1/entries?after=x": 400, "/api/v1/search": 400, "/api/v1/watch?revision=-1": 400,
		"/api/v1/entries/" + cards + "/none/none": 404, "/nowhere": 404,
	} {
		if status, body := w.ask(token, path); status != want {
			t.Errorf("%s answers %d, want %d: %s", path, status, want, body)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete,
		http.MethodPatch} {
		request, err := http.NewRequestWithContext(t.Context(), method, w.url+"/api/v1/entries",
			strings.NewReader("{}"))
		w.must(err)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		w.must(err)
		w.must(response.Body.Close())
		if response.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s answers %d", method, response.StatusCode)
		}
	}
}

// Pages of a list hold together by next.
func TestListPages(t *testing.T) {
	w := newWorld(t)
	token := w.token("all", "*")
	var names []string
	after := ""
	for range 10 {
		_, body := w.ask(token, "/api/v1/entries?limit=3"+after)
		var page store.EntryList
		w.must(json.Unmarshal([]byte(body), &page))
		for _, e := range page.Items {
			names = append(names, e.Namespace+"/"+e.Name)
		}
		if page.Next == "" {
			break
		}
		after = "&after=" + page.Next
	}
	want := fmt.Sprintf("%[1]steam1/office %[1]steam1/weather %[1]steam2/office %[1]steam2/weather",
		w.prefix)
	if got := strings.Join(names, " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A list by MCP goes on where a page ends: a thousand is not all.
func TestMCPListPages(t *testing.T) {
	w := newWorld(t)
	token := w.token("anna", "team1")
	for i := range 1001 {
		w.put("team1", fmt.Sprintf("agent-%04d", i), cards, store.Agent)
	}
	list := func(after string) (names []string, next string) {
		t.Helper()
		var answer struct {
			StructuredContent struct {
				Items []struct{ Name string }
				Next  string
			}
		}
		w.must(json.Unmarshal([]byte(w.mcp(token, "list_agents", map[string]any{"after": after})),
			&answer))
		for _, i := range answer.StructuredContent.Items {
			names = append(names, i.Name)
		}
		return names, answer.StructuredContent.Next
	}
	first, next := list("")
	if len(first) != 1000 || first[999] != "agent-0999" || next == "" {
		t.Fatalf("%d entries on the first page, the next is %q", len(first), next)
	}
	second, next := list(next)
	if !slices.Equal(second, []string{"agent-1000", "weather"}) || next != "" {
		t.Errorf("the second page has %v, the next is %q", second, next)
	}
	if answer := w.mcp(token, "list_agents",
		map[string]any{"after": "x"}); !strings.Contains(answer,
		"after: use the next value of the previous page") {
		t.Errorf("a wrong page: %s", answer)
	}
}

// The OpenAPI document names each path that the server answers, and each field
// that an entry has.
func TestOpenAPI(t *testing.T) {
	w := newWorld(t)
	_, body := w.ask("", "/openapi.json")
	var doc struct {
		Paths      map[string]any
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	w.must(json.Unmarshal([]byte(body), &doc))
	if len(doc.Paths) != 7 {
		t.Errorf("paths: %v", doc.Paths)
	}
	token := w.token("all", "*")
	_, body = w.ask(token, "/api/v1/entries/"+cards+"/"+w.prefix+"team1/weather")
	var entry map[string]any
	w.must(json.Unmarshal([]byte(body), &entry))
	for field := range entry {
		if _, ok := doc.Components.Schemas["Entry"].Properties[field]; !ok {
			t.Errorf("the document does not know the field %s of an entry", field)
		}
	}
}

// A watch sends what exists, what changes and what is deleted, and resumes where
// it was interrupted.
func TestWatch(t *testing.T) {
	w := newWorld(t)
	token := w.token("all", "*")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lines := w.stream(ctx, token, "?type=agent", "")
	first := until(t, lines, "event: synced")
	if n := strings.Count(first, "event: updated"); n != 2 || !strings.Contains(first, "id: ") {
		t.Fatalf("%d agents at first, want 2: %s", n, first)
	}
	w.put("team1", "weather", cards, store.Agent)
	w.must(w.store.Delete(t.Context(), store.Key{Resource: cards, Namespace: w.prefix + "team2",
		Name: "weather"}))
	then := until(t, lines, "event: deleted")
	if !strings.Contains(then, "event: updated") || strings.Contains(then, "office") {
		t.Errorf("then: %s", then)
	}
	id := ""
	for _, line := range strings.Split(then, "\n") {
		if after, ok := strings.CutPrefix(line, "id: "); ok {
			id = after
		}
	}
	w.put("team1", "travel", cards, store.Agent)
	again := until(t, w.stream(ctx, token, "?type=agent", id), "event: synced")
	if strings.Count(again, "event: updated") != 1 || !strings.Contains(again, "travel") {
		t.Errorf("after %s: %s", id, again)
	}
}

// One account opens so many watches and no more, and leaves places to others.
func TestWatchesAreBounded(t *testing.T) {
	w := newWorld(t)
	greedy, other := w.token("greedy", "*"), w.token("other", "*")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	open := func(token string) (int, context.CancelFunc) {
		ctx, stop := context.WithCancel(ctx)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/api/v1/watch", nil)
		w.must(err)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		w.must(err)
		t.Cleanup(func() { stop(); _ = response.Body.Close() })
		if response.StatusCode == http.StatusTooManyRequests &&
			response.Header.Get("Retry-After") == "" {
			t.Error("it does not say when to come back")
		}
		return response.StatusCode, stop
	}
	opened, last := 0, context.CancelFunc(nil)
	for range 200 {
		status, stop := open(greedy)
		if status != http.StatusOK {
			if status != http.StatusTooManyRequests {
				t.Fatalf("a watch too many gets %d", status)
			}
			break
		}
		opened, last = opened+1, stop
	}
	if opened != 50 {
		t.Errorf("one account has %d watches, want 50", opened)
	}
	if status, _ := open(other); status != http.StatusOK {
		t.Errorf("another account gets %d", status)
	}
	last()
	for status, deadline :=
		0, time.Now().Add(time.Minute); status != http.StatusOK; time.Sleep(20 * time.Millisecond) {
		if status, _ = open(greedy); time.Now().After(deadline) {
			t.Fatalf("after one has ended, another gets %d", status)
		}
	}
}

// A watcher that resumes from an event of a lost store, or from one that never
// existed, has to begin again.
func TestWatchAfterALostStore(t *testing.T) {
	w := newWorld(t)
	token := w.token("all", "*")
	at, err := w.store.Position(t.Context())
	w.must(err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, id := range []string{"lost-1", fmt.Sprintf("lost-%d", at.Revision),
		fmt.Sprintf("%s-%d", at.Store, at.Revision+1), fmt.Sprint(at.Revision + 100)} {
		got := until(t, w.stream(ctx, token, "?type=agent", id), "event: synced")
		if !strings.HasPrefix(got, "event: resync\n") ||
			strings.Count(got, "event: updated") != 2 ||
			!strings.Contains(got, "id: "+at.String()) {
			t.Errorf("after %s: %s", id, got)
		}
	}
}

// A stream outlives a store that does not answer for a while.
func TestWatchWaitsForTheStore(t *testing.T) {
	w := newWorld(t)
	token := w.token("all", "*")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lines := w.stream(ctx, token, "?type=agent", "")
	until(t, lines, "event: synced")
	w.must2(w.sql("ALTER TABLE identity RENAME TO lost"))
	if got := until(t, lines, ": the store"); strings.Contains(got, "resync") {
		t.Errorf("meanwhile: %s", got)
	}
	if status, body := w.ask(token, "/api/v1/watch"); status != http.StatusServiceUnavailable {
		t.Errorf("a watch that begins meanwhile gets %d %s", status, body)
	}
	w.must2(w.sql("ALTER TABLE lost RENAME TO identity"))
	w.put("team1", "travel", cards, store.Agent)
	if got := until(t, lines, "event: updated"); !strings.Contains(got, "travel") {
		t.Errorf("afterwards: %s", got)
	}
}

// A watcher's rights are asked for again however much happens meanwhile.
func TestWatchAsksForRightsAgain(t *testing.T) {
	w := newWorld(t)
	w.must2(w.kube.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.prefix + "team3"}},
		metav1.CreateOptions{}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	lines := w.stream(ctx, w.token("reader", "team1", "team3"), "?type=agent", "")
	until(t, lines, "event: synced")
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	writing.Go(func() { // team3 had no entries when the watch began
		for i := 0; ctx.Err() == nil; i++ {
			for _, ns := range []string{"team1", "team3"} {
				w.put(ns, "weather", cards, store.Agent,
					store.Item{Kind: store.Skill, Name: fmt.Sprint(i)})
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	for line := range lines {
		if strings.Contains(line, w.prefix+"team3") {
			return
		}
	}
	t.Error("an entry in a namespace of the watcher was not sent")
}

func (w *world) stream(ctx context.Context, token, query, lastID string) <-chan string {
	w.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/api/v1/watch"+query, nil)
	w.must(err)
	request.Header.Set("Authorization", "Bearer "+token)
	if lastID != "" {
		request.Header.Set("Last-Event-ID", lastID)
	}
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		defer func() { _ = response.Body.Close() }()
		scanner := bufio.NewScanner(response.Body)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
	}()
	return lines
}

func until(t testing.TB, lines <-chan string, want string) string {
	t.Helper()
	var out strings.Builder
	for line := range lines {
		out.WriteString(line + "\n")
		if strings.HasPrefix(line, want) {
			out.WriteString(<-lines + "\n")
			return out.String()
		}
	}
	t.Fatalf("no %q in %s", want, &out)
	return ""
}

func (w *world) watch(token string) string {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 30*time.Second)
	defer cancel()
	return until(w, w.stream(ctx, token, "", ""), "event: synced")
}

// mcp calls a tool with MCP's own client.
func (w *world) mcp(token, tool string, arguments map[string]any) string {
	w.Helper()
	if arguments == nil {
		arguments = map[string]any{}
	}
	var text string
	result, err := w.session(token).CallTool(w.Context(),
		&mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		text = err.Error()
	}
	answer, err := json.Marshal(result)
	w.must(err)
	return string(answer) + text
}

// session of MCP's own client; it ends with the test.
func (w *world) session(token string) *mcp.ClientSession {
	w.Helper()
	web := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
		return http.DefaultTransport.RoundTrip(r)
	})}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "v1"}, nil).Connect(
		w.Context(), &mcp.StreamableClientTransport{Endpoint: w.url + "/mcp", HTTPClient: web,
			DisableStandaloneSSE: true}, nil)
	w.must(err)
	w.Cleanup(func() { _ = session.Close() })
	return session
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// journal keeps lines that several goroutines write.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) add(line ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	fmt.Fprintln(&j.text, line...)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// sink keeps what is logged.
type sink struct{ to *world }

func (sink) Init(logr.RuntimeInfo)             {}
func (sink) Enabled(int) bool                  { return true }
func (s sink) Info(_ int, m string, kv ...any) { s.to.logged.add(m, kv) }
func (s sink) Error(err error, m string, kv ...any) {
	s.to.logged.add(err, m, kv)
	if s.to.onError != nil {
		s.to.onError()
	}
}
func (s sink) WithValues(...any) logr.LogSink { return s }
func (s sink) WithName(string) logr.LogSink   { return s }
