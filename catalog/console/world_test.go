package console_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/console"
	"github.com/armature-dev/armature/catalog/serve"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/catalog/store/database"
	"github.com/armature-dev/armature/e2e/catalog/fleet"
	"github.com/armature-dev/armature/e2e/controlplane"
)

var _ = controlplane.Only

// shared is the one control plane of this package, with a fleet.
var (
	shared    controlplane.Shared
	furnished *fleet.Fleet
)

func TestMain(m *testing.M) {
	if text := os.Getenv(asConsole); text != "" {
		fmt.Fprintln(os.Stderr, runAsConsole(text))
		os.Exit(1)
	}
	os.Exit(shared.Main(m, func(plane *controlplane.ControlPlane) (err error) {
		for _, folder := range fleet.CRDs() {
			if err := plane.InstallCRDs(filepath.Join("../..", folder)); err != nil {
				return err
			}
		}
		furnished, err = fleet.Furnish(context.Background(), plane, now)
		return err
	}))
}

const (
	cards   = "agentcards.kagenti.io"
	remotes = "remotemcpservers.kagent.dev"
	agents  = "agents.kagent.dev"
)

// platform is the namespace of isolated runs.
const platform = "platform-builds"

// now is when tests look at the fleet.
var now = fleet.Written

// world is a console of the fleet.
type world struct {
	testing.TB
	kube    *kubernetes.Clientset
	store   store.Store
	cluster *console.Cluster
	login   *access.Login
	server  *httptest.Server
	pace    time.Duration // of open pages; 0 is as people have it
	url     string
	logged  *journal
	log     logr.Logger
}

// journal is what was logged.
type journal struct {
	mu sync.Mutex
	bytes.Buffer
}

func (j *journal) line(prefix, args string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	fmt.Fprintln(&j.Buffer, prefix, args)
}

func (j *journal) text() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.String()
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := newWorldAs(t, filepath.Join(t.TempDir(), "catalog.db"), shared.Get(t).Admin.Config)
	w.watches()
	return w
}

// watches waits until all kinds are watched.
func (w *world) watches() {
	w.Helper()
	w.eventually("the cluster is watched", func() bool {
		return w.cluster.Watches(w.cluster.Builds()) && w.cluster.Watches("configmaps") &&
			w.cluster.Watches(agents) && w.cluster.Watches("imageupdates.armature.dev")
	})
}

// newWorldAs has a console that reads with the rights of cfg, in the namespaces.
func newWorldAs(t testing.TB, address string, cfg *rest.Config, namespaces ...string) *world {
	t.Helper()
	w := worldOf(t, address, cfg, namespaces...)
	w.start()
	return w
}

// worldOf has a console that has not been started. Without an address its store is in memory, and
// without cfg it has a store alone, and that is empty.
func worldOf(t testing.TB, address string, cfg *rest.Config, namespaces ...string) *world {
	t.Helper()
	plane := shared.Get(t)
	w := &world{TB: t, logged: &journal{}, pace: 50 * time.Millisecond}
	var err error
	w.kube, err = kubernetes.NewForConfig(plane.Admin.Config)
	w.must(err)
	if w.store = store.NewMemory(); address != "" {
		w.store, err = database.Open(t.Context(), address)
		w.must(err)
	}
	ctrl.SetLogger(logr.Discard())
	w.log = logr.New(funcr.New(w.logged.line, funcr.Options{}).GetSink())
	if cfg != nil {
		w.cluster, err = console.NewCluster(cfg,
			console.ClusterOptions{Namespaces: namespaces, BuildNamespace: platform, Log: w.log})
		w.must(err)
	}
	w.login = &access.Login{Store: w.store}
	w.server = httptest.NewUnstartedServer(nil)
	w.url = "http://" + w.server.Listener.Addr().String()
	return w
}

// start the console, until the test ends.
func (w *world) start() {
	w.Helper()
	guard, err := serve.Kubernetes(shared.Get(w).Admin.Config)
	w.must(err)
	guard.Login = w.login
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	if w.cluster != nil {
		go func() { ended <- w.cluster.Run(ctx) }()
		for _, e := range catalog() {
			w.put(e)
		}
	} else {
		ended <- nil
	}
	var looks atomic.Int64 // no two looks are at the same time, as it is elsewhere
	c := &console.Console{Store: w.store, Access: guard, Cluster: w.cluster,
		Now: func() time.Time { return now.Add(time.Duration(looks.Add(1))) }, Poll: w.pace,
		Beat: 10 * w.pace, Log: w.log}
	w.server.Config.Handler = c.Handler()
	w.server.Start()
	w.Cleanup(func() {
		w.server.CloseClientConnections()
		w.server.Close()
		cancel()
		w.must(<-ended)
		w.must(w.store.Close())
	})
}

// catalog is what the fleet's agents and servers answered.
func catalog() []store.Entry {
	schema := json.RawMessage(
		`{"name":"book_table","inputSchema":{"type":"object","required":["restaurant","guests"],"properties":{` +
			`"restaurant":{"type":"string","description":"Name of the restaurant"},"guests":{"type":"integer","minimum":1,"maximum":20,"description":"How many people come"},` +
			`"at":{"type":"string","format":"date-time"},"seating":{"type":"string","enum":["inside","outside","any"],"default":"any"},` +
			`"contact":{"type":"object","description":"Who is called when the table is ready","required":["name"],"properties":{"name":{"type":"string"},"phone":{"type":"string"}}}}},"annotations":{"destructiveHint":true}}`)
	tool := func(name, about string) store.Item {
		return store.Item{Kind: store.Tool, Name: name, Description: about,
			Document: json.RawMessage(`{"name":"` + name +
				`","inputSchema":{"type":"object","properties":{"query":{"type":"string","description":"What to look for"}}},"annotations":{"readOnlyHint":true}}`)}
	}
	agent := func(namespace, name, title, about, version string, health store.Health,
		message string, skills ...store.Item) store.Entry {
		e := store.Entry{Key: store.Key{Resource: cards, Namespace: namespace, Name: name},
			UID: "card-" + namespace + "-" + name, APIVersion: "kagenti.io/v1alpha1",
			Kind: "AgentCard", Type: store.Agent, Protocol: "a2a", Title: title, Description: about,
			Version: version, Health: health, Message: message,
			URL: "http://" + name + "." + namespace + ".svc:8081/", Provider: "Example Travel",
			Fetched: now.Add(-2 * time.Minute), Changed: now.Add(-3 * time.Hour), Items: skills,
			Document: json.RawMessage(`{"name":"` + title + `","version":"` + version +
				`","capabilities":{"streaming":true}}`)}
		for _, s := range skills {
			e.Tags = append(e.Tags, s.Tags...)
		}
		return e
	}
	skill := func(name, about string, tags ...string) store.Item {
		return store.Item{Kind: store.Skill, Name: name, Description: about, Tags: tags}
	}
	server := func(namespace, name, title, about string, health store.Health, message string,
		items ...store.Item) store.Entry {
		return store.Entry{Key: store.Key{Resource: remotes, Namespace: namespace, Name: name},
			UID: "server-" + namespace + "-" + name, APIVersion: "kagent.dev/v1alpha2",
			Kind: "RemoteMCPServer", Type: store.Server, Protocol: "mcp", Title: title,
			Description: about, Version: "1.4.0", Health: health, Message: message,
			URL:     "http://" + name + "." + namespace + ".svc:8080/mcp",
			Fetched: now.Add(-time.Minute), Changed: now.Add(-26 * time.Hour), Items: items}
	}
	weather := agent("travel", "weather", "Weather",
		"Answers questions about the weather of the next ten days, with the sources of "+
			"each forecast.", "2.1.0", store.Healthy, "",
		skill("get_forecast", "The forecast of a place for up to ten days", "weather", "forecast"),
		skill("get_climate_data", "Averages of temperature and rain of a place and month", "climate"))
	weather.Instances = []store.Instance{{Pod: "weather-0", URL: "http://10.20.0.7:8081",
		Version: "2.1.0", Status: "Success", Fetched: weather.Fetched}}
	weather.Signature, weather.SignedBy = "Valid", "travel-team"
	weather.Images = []string{"sha256:" + strings.Repeat("8", 64)}
	planner := agent("travel", "planner", "Trip Planner",
		"Plans trips by train, and asks the weather agent before it books.", "1.4.2", store.Healthy,
		"", skill("plan_trip", "Plans a trip between two places", "travel", "trains"),
		skill("book_hotel", "Books a hotel along the way", "travel"))
	planner.Instances = []store.Instance{{Pod: "planner-0", URL: "http://10.20.0.8:8081",
		Version: "1.4.2", Status: "Success", Fetched: planner.Fetched}}
	concierge := agent("travel", "concierge", "Concierge",
		"Answers guests, and books what they ask for.", "3.0.0", store.Failing,
		"no pod is ready: the last good answer is shown",
		skill("recommend", "Recommends restaurants and sights nearby", "travel", "guests"))
	concierge.Fetched, concierge.Changed = now.Add(-52*time.Minute), now.Add(-49*time.Minute)
	mail := server("office", "mail", "Mail", "Reads and sends mail.", store.Healthy, "",
		tool("send_mail", "Send a mail"), tool("search_mail", "Search the mailbox"))
	mail.ToolLock = store.ToolsDrifted
	return []store.Entry{
		weather, planner, concierge,
		agent("office", "secretary", "Secretary", "Keeps calendars and finds a slot for everybody.",
			"1.0.3", store.Healthy, "",
			skill("find_slot", "Finds a time at which everybody is free", "calendar"),
			skill("book_room", "Books a room with enough seats", "calendar", "rooms")),
		{Key: store.Key{Resource: agents, Namespace: "office", Name: "assistant"},
			UID: "agent-assistant", APIVersion: "kagent.dev/v1alpha2", Kind: "Agent",
			Type: store.Agent, Title: "Assistant", Description: "Answers mail and books rooms",
			Protocol: "a2a", Health: store.Healthy, URL: "http://assistant.office.svc:8080",
			Changed: now.Add(-30 * time.Hour),
			Items: []store.Item{skill("answer_mail", "Answers mail in the tone of its owner",
				"mail")}},
		server("office", "booking", "Booking",
			"Tables and rooms, booked for people who are hungry or tired.", store.Healthy, "",
			store.Item{Kind: store.Tool, Name: "book_table",
				Description: "Book a table in a restaurant", Document: schema},
			tool("book_list", "List what is booked"), tool("book_cancel", "Cancel a booking"),
			tool("room_find", "Find a free room"), tool("room_reserve", "Reserve a room"),
			tool("ping", "Say that the server is there")),
		mail,
		server("travel", "timetables", "Timetables", "Trains and connections of twelve railways.",
			store.Failing, "the server answers 503 Service Unavailable",
			tool("find_connection", "Find a connection between two stations")),
	}
}

func (w *world) put(e store.Entry) {
	w.Helper()
	_, err := w.store.Put(w.Context(), e, true)
	w.must(err)
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) eventually(what string, is func() bool) {
	w.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("%s: not within a minute\n%s", what, w.logged.text())
		}
	}
}

var accounts atomic.Int32

// everything is what the role of a person who may see the fleet lists.
var everything = []rbacv1.PolicyRule{
	{APIGroups: []string{"kagenti.io", "kagent.dev", "agent.kagenti.dev", "armature.dev", "apps",
		"networking.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"list"}},
	{APIGroups: []string{""},
		Resources: []string{"pods", "configmaps", "services", "serviceaccounts"},
		Verbs:     []string{"list"}},
}

// owner is the role of a person whose builds these are.
var owner = append([]rbacv1.PolicyRule{patches, logs}, append(runs, everything...)...)

// token of an account of this test that may list the fleet in the namespaces, or
// everywhere for "*".
func (w *world) token(namespaces ...string) string {
	w.Helper()
	return w.tokenFor(everything, namespaces...)
}

func (w *world) tokenFor(rules []rbacv1.PolicyRule, namespaces ...string) string {
	w.Helper()
	name := fmt.Sprintf("anna-%d", accounts.Add(1))
	account, err := shared.Get(w).ServiceAccount(w.Context(), "default", name)
	w.must(err)
	w.grant(rbacv1.Subject{Kind: "ServiceAccount", Namespace: "default", Name: name}, name, rules,
		namespaces...)
	return account.Config.BearerToken
}

// grant rights by roles of a name.
func (w *world) grant(subject rbacv1.Subject, name string, rules []rbacv1.PolicyRule,
	namespaces ...string) {
	w.Helper()
	ctx, subjects := w.Context(), []rbacv1.Subject{subject}
	var err error
	for _, ns := range namespaces {
		if ns == "*" {
			_, err = w.kube.RbacV1().ClusterRoles().Create(ctx,
				&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
				metav1.CreateOptions{})
			w.must(err)
			_, err = w.kube.RbacV1().ClusterRoleBindings().Create(ctx,
				&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
					Subjects: subjects,
					RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
						Name: name}}, metav1.CreateOptions{})
			w.must(err)
			continue
		}
		meta := metav1.ObjectMeta{Namespace: ns, Name: name}
		_, err = w.kube.RbacV1().Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules},
			metav1.CreateOptions{})
		w.must(err)
		_, err = w.kube.RbacV1().RoleBindings(ns).Create(ctx,
			&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}},
			metav1.CreateOptions{})
		w.must(err)
	}
}

// namespace for a test alone.
func (w *world) namespace(name string) {
	w.Helper()
	_, err := w.kube.CoreV1().Namespaces().Create(w.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	w.must(err)
}

// get a page with a token; "" sends none.
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

// bearer returns an edit of a request that adds a token, and headers in pairs.
func bearer(token string, headers ...string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer "+token)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
}

// cookie returns an edit of a request that adds a session, and headers in pairs.
func cookie(session string, headers ...string) func(*http.Request) {
	return func(r *http.Request) {
		bearer("", headers...)(r)
		r.Header.Del("Authorization")
		r.AddCookie(&http.Cookie{Name: access.Cookie, Value: session})
	}
}
