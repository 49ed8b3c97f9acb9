package controller_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/controller"
	"github.com/armature-dev/armature/catalog/kinds"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/e2e/catalog/peer"
	"github.com/armature-dev/armature/render/process"
)

// neighbour is another namespace of the same catalog.
func (w *world) neighbour(name string) *world {
	w.Helper()
	other := &world{TB: w.TB, Client: w.Client, config: w.config,
		namespace: w.namespace + "-" + name, store: w.store, network: w.network, r: w.r, logTo: w.logTo}
	w.must(w.Create(w.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other.namespace}}))
	return other
}

// A namespace whose servers never answer delays itself alone, and when they
// answer at last each of them is listed.
func TestSilentServersDelayTheirOwnNamespace(t *testing.T) {
	w := newWorld(t)
	quiet := w.neighbour("quiet")
	var hanging, most atomic.Int32
	answer := make(chan struct{})
	good := peer.Streamable(peer.Server("Office", 0, peer.Many("office", 2)...))
	silent := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		select {
		case <-answer:
			good.ServeHTTP(rw, r)
			return
		default:
		}
		n := hanging.Add(1)
		defer hanging.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		<-answer
		rw.WriteHeader(http.StatusServiceUnavailable)
	})
	for i := range 12 {
		name := fmt.Sprintf("silent-%d", i)
		w.network.serve(t, name+".example:80", silent)
		w.remote(name, func(s *kagent.RemoteMCPServer) {
			s.Spec.Timeout = metav1.Duration{Duration: 5 * time.Minute}
		})
	}
	w.network.serve(t, "office.example:80", good)
	release := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(release) // before the servers end, which wait for their handlers
	w.startWith(
		controller.Options{
			Options: process.Options{Namespaces: []string{w.namespace, quiet.namespace}}, Concurrency: 8})
	w.eventually("silent servers are asked", func() string {
		if hanging.Load() == 0 {
			return "none is"
		}
		return ""
	})
	quiet.remote("office")
	w.eventually("the neighbour's server is listed", func() string {
		if got := quiet.accepted("office"); got != "True: 2 tools" {
			return "its status is " + got
		}
		return ""
	})
	if n := most.Load(); n > 2 {
		t.Errorf("%d of 8 workers wait for one namespace, want 2", n)
	}
	release()
	w.eventually("the silent ones are listed", func() string {
		for i := range 12 {
			if got := w.accepted(fmt.Sprintf("silent-%d", i)); got != "True: 2 tools" {
				return fmt.Sprintf("silent-%d is %s", i, got)
			}
		}
		return ""
	})
}

// How long a server may be waited for is bounded, whatever a tenant writes.
func TestTimeoutIsBounded(t *testing.T) {
	for want, set := range map[time.Duration]time.Duration{30 * time.Second: 0,
		10 * time.Second: 10 * time.Second, time.Minute: 5 * time.Minute} {
		s := &kagent.RemoteMCPServer{}
		s.Spec.URL = "http://office.example/mcp"
		if set > 0 {
			s.Spec.Timeout, s.Spec.SseReadTimeout =
				metav1.Duration{Duration: set}, metav1.Duration{Duration: set}
		}
		if at, err := ask.RemoteEndpoint(t.Context(), nil, s); err != nil ||
			max(at.Timeout, at.Silence) != want {
			t.Errorf("with %s it is %+v, want %s (%v)", set, at, want, err)
		}
	}
}

// What all servers together send is bounded, however many send at once. Those
// that do not fit are reported in status, and a small answer always fits.
func TestLargeAnswersShareMemory(t *testing.T) {
	w := newWorld(t)
	meter := &meter{dial: w.network.dial}
	w.r.Dial = meter.dialing
	huge := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or it would not see that the client is gone
		rw.Header().Set("Content-Type", "application/json")
		chunk := []byte(strings.Repeat(" ", 1<<20))
		for range 2 { // less than one answer may have
			if _, err := rw.Write(chunk); err != nil {
				return
			}
		}
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	})
	w.network.serve(t, "huge.example:80", huge)
	w.network.serve(t, "office.example:80",
		peer.Streamable(peer.Server("Office", 0, peer.Many("office", 2)...)))
	remotes := kindOf(t, servers)
	var group sync.WaitGroup
	var tenants []*world
	var asks []func()
	for i := range 4 {
		tenant := w.neighbour(fmt.Sprint(i))
		tenants = append(tenants, tenant)
		for j := range 2 {
			name := fmt.Sprintf("huge-%d", j)
			tenant.remote(name, func(s *kagent.RemoteMCPServer) {
				s.Spec.URL, s.Spec.Timeout =
					"http://huge.example/mcp", metav1.Duration{Duration: 15 * time.Second}
			})
			asks = append(asks, func() {
				_, err := w.r.Reconcile(t.Context(), remotes,
					reconcile.Request{NamespacedName: client.ObjectKey{Namespace: tenant.namespace,
						Name: name}})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	for _, ask := range asks {
		group.Go(ask)
	}
	w.eventually("answers fill the memory", func() string {
		if n := meter.most.Load(); n < 4<<20 { // which take 12 times as much
			return fmt.Sprintf("%d bytes are read", n)
		}
		return ""
	})
	w.remote("office")
	w.sync(servers, "office")
	if got := w.accepted("office"); got != "True: 2 tools" {
		t.Errorf("a small server beside large ones: %s", got)
	}
	group.Wait()
	// What is read and not yet counted is a read of each connection.
	if most := meter.most.Load(); most > 8<<20 {
		t.Errorf("%d MiB were held at once, want 64 / 12", most>>20)
	}
	var statuses []string
	for _, tenant := range tenants {
		for j := range 2 {
			statuses = append(statuses, tenant.accepted(fmt.Sprintf("huge-%d", j)))
		}
	}
	if !slices.Contains(statuses, "False: too many large answers are held in memory") {
		t.Errorf("no status says that there was no memory: %q", statuses)
	}
	// All of it is given back.
	w.remote("last", func(s *kagent.RemoteMCPServer) { s.Spec.URL = "http://large.example/mcp" })
	w.network.serve(t, "large.example:80",
		peer.Streamable(peer.Server("Large", 0, peer.Many("large", 2000)...)))
	w.sync(servers, "last")
	if got := w.accepted("last"); got != "True: 2000 tools" {
		t.Errorf("a large server afterwards: %s", got)
	}
	if e := w.entry(servers, "last"); e.Health != store.Healthy {
		t.Errorf("%s: %s", e.Health, e.Message)
	}
}

func kindOf(t *testing.T, resource string) kinds.Kind {
	for _, k := range kinds.All() {
		if k.Resource == resource {
			return k
		}
	}
	t.Fatalf("no kind %s", resource)
	return kinds.Kind{}
}

// meter counts the bytes that open connections have read.
type meter struct {
	dial       ask.Dial
	open, most atomic.Int64
}

func (m *meter) dialing(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := m.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &meteredConn{Conn: c, meter: m}, nil
}

type meteredConn struct {
	net.Conn
	meter *meter
	read  atomic.Int64
	once  sync.Once
}

func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	now := c.meter.open.Add(int64(n))
	for old := c.meter.most.Load(); now > old &&
		!c.meter.most.CompareAndSwap(old, now); old = c.meter.most.Load() {
	}
	return n, err
}

func (c *meteredConn) Close() error {
	c.once.Do(func() { c.meter.open.Add(-c.read.Load()) })
	return c.Conn.Close()
}
