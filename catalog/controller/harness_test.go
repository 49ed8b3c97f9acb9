package controller_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/controller"
	"github.com/armature-dev/armature/catalog/kinds"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/catalog/store/database"
	"github.com/armature-dev/armature/e2e/catalog/peer"
	"github.com/armature-dev/armature/e2e/controlplane"
)

// shared is the one control plane of this package.
var shared controlplane.Shared

func TestMain(m *testing.M) {
	if text := os.Getenv(asCatalog); text != "" {
		fmt.Fprintln(os.Stderr, runAsCatalog(text))
		os.Exit(1)
	}
	ctrl.SetLogger(funcr.New(func(_, text string) { runtimeErrors.add(text) },
		funcr.Options{Verbosity: -1}))
	os.Exit(shared.Main(m, func(plane *controlplane.ControlPlane) error {
		return plane.InstallCRDs(filepath.Join("..", "..", "templates", "crds", "catalog"), "testdata")
	}))
}

// runtimeErrors are what controller-runtime has logged as errors, in all tests.
var runtimeErrors journal

// journal keeps lines that several goroutines write.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.text.WriteString(line + "\n")
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// world is one test's namespace on the shared API server, with a store, a clock
// and a network of its own.
type world struct {
	testing.TB
	client.Client
	config    *rest.Config
	namespace string
	store     store.Followed
	network   *network
	writes    atomic.Int32 // to the API server, by the controller
	clock     atomic.Int64 // seconds since begin
	r         *controller.Reconciler
	logTo     logr.Logger
}

var worlds atomic.Int32

// begin is when each test's clock starts.
var begin = time.Date(2026, 1, 13, 16, 10, 0, 0, time.UTC)

func newWorld(t *testing.T) *world {
	t.Helper()
	plane := shared.Get(t)
	t.Parallel()
	w := &world{TB: t, namespace: fmt.Sprintf("team%d", worlds.Add(1)),
		network: &network{at: map[string]string{}}}
	scheme, err := controller.Scheme()
	w.must(err)
	w.Client, err = client.New(plane.Admin.Config, client.Options{Scheme: scheme})
	w.must(err)
	w.config = rest.CopyConfig(plane.Admin.Config)
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events") &&
				!strings.Contains(r.URL.Path, "/leases") {
				w.writes.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	counted, err := client.New(w.config, client.Options{Scheme: scheme})
	w.must(err)
	w.store, err = database.Open(t.Context(), filepath.Join(t.TempDir(), "catalog.db"))
	w.must(err)
	t.Cleanup(func() { w.must(w.store.Close()) })
	w.logTo = logr.Discard()
	w.r = (&controller.Reconciler{
		Asker: kinds.Asker{Client: counted, Live: counted, Store: w.store, Dial: w.network.dial,
			CardTimeout: 30 * time.Second, Now: w.now},
	}).Init()
	w.must(w.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
	return w
}

func (w *world) now() time.Time { return begin.Add(time.Duration(w.clock.Load()) * time.Second) }

// pass lets time pass.
func (w *world) pass(d time.Duration) { w.clock.Add(int64(d / time.Second)) }

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// start the whole controller; it ends with the test.
func (w *world) start() (stop func()) {
	w.Helper()
	return w.startWith(controller.Options{})
}

// startWith the options that are not a world's own.
func (w *world) startWith(o controller.Options) (stop func()) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	o.Store, o.Namespace, o.MetricsAddress, o.HealthAddress =
		w.store, w.namespace, "0", cmp.Or(o.HealthAddress, "0")
	o.Dial, o.ServerPeriod, o.Log = w.network.dial, time.Second, w.logTo
	if o.Namespaces == nil {
		o.Namespaces = []string{w.namespace}
	}
	go func() { done <- controller.Run(ctx, w.config, o) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.Errorf("controller: %v", err)
			}
		})
	}
	w.Cleanup(stop)
	return stop
}

// sync reconciles one object once, and returns when it is due next.
func (w *world) sync(resource, name string) time.Duration {
	w.Helper()
	for _, k := range kinds.All() {
		if k.Resource == resource {
			result, err := w.r.Reconcile(w.Context(), k,
				reconcile.Request{NamespacedName: client.ObjectKey{Namespace: w.namespace, Name: name}})
			w.must(err)
			return result.RequeueAfter
		}
	}
	w.Fatalf("no kind %s", resource)
	return 0
}

const (
	cards   = "agentcards.kagenti.io"
	servers = "remotemcpservers.kagent.dev"
)

func (w *world) entry(resource, name string) store.Entry {
	w.Helper()
	e, err := w.store.Get(w.Context(),
		store.Key{Resource: resource, Namespace: w.namespace, Name: name})
	w.must(err)
	return e
}

// card makes an AgentCard for the pods labelled app: name.
func (w *world) card(name string, edit ...func(*api.AgentCard)) *api.AgentCard {
	w.Helper()
	c := &api.AgentCard{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	for _, e := range edit {
		e(c)
	}
	w.must(w.Create(w.Context(), c))
	return c
}

func (w *world) status(name string) api.AgentCardStatus {
	w.Helper()
	var c api.AgentCard
	w.must(w.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &c))
	return c.Status
}

var addresses atomic.Int32

// pod makes a ready pod labelled app: app, whose port 8081 is served by handler;
// nil refuses connections.
func (w *world) pod(app, name string, handler http.Handler) *corev1.Pod {
	w.Helper()
	n := addresses.Add(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name,
			Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
	}
	w.must(w.Create(w.Context(), pod))
	pod.Status.PodIP = fmt.Sprintf("10.7.%d.%d", n/250, n%250+1)
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", Image: "agent",
		ImageID: "registry.example/agent@sha256:" + strings.Repeat("a", 64)}}
	if handler != nil {
		w.network.serve(w, pod.Status.PodIP+":8081", handler)
	}
	w.ready(pod, true)
	return pod
}

func (w *world) ready(pod *corev1.Pod, ready bool) {
	w.Helper()
	state := corev1.ConditionFalse
	if ready {
		state = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: state}}
	w.must(w.Status().Update(w.Context(), pod))
}

// remove a pod at once: no kubelet is here to say that it ended.
func (w *world) remove(pod *corev1.Pod) {
	w.Helper()
	w.must(w.Delete(w.Context(), pod, client.GracePeriodSeconds(0)))
}

func (w *world) eventually(what string, check func() string) {
	w.Helper()
	var last string
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(
		20 * time.Millisecond) {
		if last = check(); last == "" {
			return
		}
	}
	w.Fatalf("%s: %s", what, last)
}

// network leads addresses of a cluster to servers of the test.
type network struct {
	mu sync.Mutex
	at map[string]string
}

func (n *network) dial(ctx context.Context, network, address string) (net.Conn, error) {
	n.mu.Lock()
	to, ok := n.at[address]
	n.mu.Unlock()
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: network,
			Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	var d net.Dialer
	return d.DialContext(ctx, network, to)
}

func (n *network) serve(t testing.TB, address string, handler http.Handler) *httptest.Server {
	server := httptest.NewServer(handler)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	n.lead(address, server)
	return server
}

func (n *network) lead(address string, server *httptest.Server) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[address] = server.Listener.Addr().String()
}

// switchable is a server that a test exchanges while it runs.
type switchable struct{ now atomic.Pointer[http.Handler] }

func (s *switchable) set(h http.Handler) { s.now.Store(&h) }

func (s *switchable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	(*s.now.Load()).ServeHTTP(w, r)
}

func switching(h http.Handler) *switchable {
	s := &switchable{}
	s.set(h)
	return s
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func weather(version string) http.Handler {
	return peer.Agent(peer.Card("Weather", "Forecasts", version, "get_forecast", "get_climate_data"))
}
