package apply_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/apply"
)

// far connects to the API server from so far away that a round trip takes delay.
func (w *world) far(delay time.Duration) *apply.Cluster {
	w.Helper()
	config := rest.CopyConfig(shared.Get(w.TB).Admin.Config)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.Cleanup(func() { listener.Close() })
	server, err := url.Parse(config.Host)
	w.must(err)
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			remote, err := net.Dial("tcp", server.Host)
			if err != nil {
				near.Close()
				continue
			}
			go later(remote, near, delay/2)
			go later(near, remote, delay/2)
		}
	}()
	config.TLSClientConfig.ServerName = "127.0.0.1"
	config.Host = "https://" + listener.Addr().String()
	c, err := apply.Connect(config)
	w.must(err)
	return c
}

// later copies what it reads, each piece after a delay, without holding up the next.
func later(to, from net.Conn, delay time.Duration) {
	type piece struct {
		data []byte
		at   time.Time
	}
	pieces := make(chan piece, 1024)
	go func() {
		defer close(pieces)
		for {
			data := make([]byte, 32<<10)
			n, err := from.Read(data)
			if n > 0 {
				pieces <- piece{data[:n], time.Now().Add(delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	defer to.Close()
	defer from.Close()
	for p := range pieces {
		time.Sleep(time.Until(p.at))
		if _, err := to.Write(p.data); err != nil {
			go func() {
				for range pieces {
				}
			}()
			return
		}
	}
}

// version is a package whose versions share some objects and have some of their own.
func version(name string) []string {
	out := []string{
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: always}, data: {key: same}}"}
	for i := range 5 {
		out = append(out,
			configMap(fmt.Sprintf("common%d", i), name),
			configMap(fmt.Sprintf("only-%s%d", name, i), name),
			fmt.Sprintf(
				"{apiVersion: v1, kind: Secret, metadata: {name: common%d}, stringData: {key: %q}}",
				i, name),
			fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: only-%s%d}, "+
				"stringData: {key: %q}}", name, i, name))
	}
	return out
}

// isVersion says what differs between the cluster and one of the versions.
func (w *world) isVersion(names ...string) string {
	w.Helper()
	have := make(map[string]string)
	for _, kind := range []string{"ConfigMap", "Secret"} {
		list, err := w.Resource(resourceOf("v1", kind)).Namespace(w.Package.Namespace).List(
			w.Context(), metav1.ListOptions{LabelSelector: keys.LabelName + "=weather"})
		w.must(err)
		for _, u := range list.Items {
			have[kind+" "+u.GetName()] = fmt.Sprint(field(&u, "data"))
		}
	}
	inventory := w.inventory()
	for _, name := range names {
		want := make(map[string]string)
		for _, text := range version(name) {
			o := w.read(text)[0]
			value := fmt.Sprint(field(o.Unstructured, "data"))
			if o.GetKind() == "Secret" {
				value = "map[key:" + encoded(field(o.Unstructured, "stringData", "key").(string)) + "]"
			}
			want[o.GetKind()+" "+o.GetName()] = value
		}
		if maps.Equal(want, have) && slices.Equal(inventory, slices.Sorted(maps.Keys(want))) {
			return ""
		}
	}
	return fmt.Sprintf("the cluster has\n%v\nthe inventory\n%v\nbut should have one of %v", have,
		inventory, names)
}

// Fifty times, two or three apply versions of a package at the same time, far from the API server,
// the later ones at another point of the first. All succeed, one after the other, and what is there
// in the end is one version: nothing of it is missing, and nothing else is left.
func TestConcurrentWriters(t *testing.T) {
	for range 5 {
		t.Run("", func(t *testing.T) {
			w := newWorld(t)
			writers := map[string]*apply.Cluster{"a": w.far(50 * time.Millisecond),
				"b": w.far(50 * time.Millisecond), "c": w.far(50 * time.Millisecond)}
			for round := range 10 {
				names := []string{"a", "b", "c"}[:2+round%2]
				var all sync.WaitGroup
				for i, name := range names {
					objects := w.read(version(name)...)
					all.Go(func() {
						// into the middle of the first
						time.Sleep(time.Duration(i*(round+1)) * 100 * time.Millisecond)
						plan, err := writers[name].Apply(t.Context(), w.Package, objects, apply.Options{})
						if err != nil {
							t.Errorf("round %d: %s: %v\n%s", round, name, err, show(plan))
						}
					})
				}
				all.Wait()
				if differs := w.isVersion(names...); differs != "" {
					t.Fatalf("round %d: %s", round, differs)
				}
			}
		})
	}
}

// One that deletes and one that applies do not mix either: all is there, or nothing.
func TestConcurrentDelete(t *testing.T) {
	w := newWorld(t)
	applies, deletes := w.far(50*time.Millisecond), w.far(50*time.Millisecond)
	for range 5 {
		w.apply(apply.Options{}, version("a")...)
		objects := w.read(version("b")...)
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := applies.Apply(t.Context(), w.Package, objects,
				apply.Options{}); err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			if _, err := deletes.Delete(t.Context(), w.Package, apply.Options{}); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		if v, err := w.Inventory(t.Context(), w.Package); err != nil || v.Exists() {
			if differs := w.isVersion("b"); differs != "" {
				t.Fatalf("%v %s", err, differs)
			}
		} else if w.get("v1", "Secret", "common0") != nil ||
			w.get("v1", "ConfigMap", "only-b0") != nil ||
			w.get("v1", "ConfigMap", "only-a0") != nil {
			t.Fatal("the inventory is gone, but not all objects")
		}
	}
}

// Who comes while another applies waits, and plans again; where that takes too long
// it ends, and has written nothing.
func TestLeaseIsHeld(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, configMap("one", "a"))
	w.hold("somebody")
	w.refused(apply.Options{Timeout: time.Second},
		"somebody is applying or deleting "+w.Package.String()+
			", and was not done after 1s: nothing was written", configMap("one", "b"))
	before := w.writes.leases
	w.apply(apply.Options{Timeout: time.Second}, configMap("one", "a")) // a no-op needs no lease
	if n := w.writes.leases - before; n != 0 {
		t.Errorf("a no-op wrote the lease %d times", n)
	}
	if _, err := w.Delete(t.Context(), w.Package,
		apply.Options{Timeout: time.Second}); err == nil ||
		!strings.Contains(err.Error(), "somebody is applying") {
		t.Errorf("delete: %v", err)
	}
	if w.get("v1", "ConfigMap", "one") == nil {
		t.Error("deleted in the middle of another apply")
	}

	messages := make(chan string, 1000)
	done := make(chan error, 1)
	go func() {
		_, err := w.Apply(t.Context(), w.Package, w.read(configMap("one", "c")),
			apply.Options{Tell: func(s string) { messages <- s }})
		done <- err
	}()
	if s := <-messages; !strings.Contains(s, "waiting: somebody is applying or deleting") {
		t.Errorf("got %q", s)
	}
	w.hold("")
	w.must(<-done)
	if got := field(w.get("v1", "ConfigMap", "one"), "data", "key"); got != "c" {
		t.Errorf("key is %v", got)
	}
	if who := w.holder(); who != "" {
		t.Errorf("not released by %v", who)
	}
}

// hold makes somebody the holder of the package's lease; "" releases it.
func (w *world) hold(who string) {
	w.Helper()
	holder := "null"
	if who != "" {
		holder = fmt.Sprintf("%q", who)
	}
	w.patch("coordination.k8s.io/v1", "Lease", "armature-weather", "somebody",
		fmt.Sprintf(`{"spec":{"holderIdentity":%s,"leaseDurationSeconds":3600}}`, holder))
}

// holder of the package's lease; "" where it is free.
func (w *world) holder() string {
	w.Helper()
	who, _ := field(w.get("coordination.k8s.io/v1", "Lease", "armature-weather"), "spec",
		"holderIdentity").(string)
	return who
}

// Somebody applied between the plan and the lease: the plan is made again, and what
// it deletes then is asked about again.
func TestPlanIsMadeAgain(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, configMap("one", "a"), configMap("two", "a"))
	asked := 0
	opt := apply.Options{Confirm: func(p *apply.Plan) error {
		if asked++; asked == 1 {
			w.apply(apply.Options{}, configMap("one", "a"), configMap("two", "a"),
				configMap("three", "a"))
		} else if got := len(p.Destructive()); got != 2 {
			t.Errorf("asked again about %d objects, want 2", got)
		}
		return nil
	}}
	w.expect(w.apply(opt, configMap("one", "b")), "change ConfigMap NS/one",
		"prune ConfigMap NS/two", "prune ConfigMap NS/three")
	if asked != 2 {
		t.Errorf("asked %d times, want 2", asked)
	}
	if got := w.inventory(); !slices.Equal(got, []string{"ConfigMap one"}) {
		t.Errorf("inventory %v", got)
	}
}

// A process that is killed in the middle leaves its lease. It is taken over when it
// has expired, not before, and the work is finished.
func TestTakeOver(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, version("a")...)
	if !w.applyAndDie(version("b"), 12, true) {
		t.Fatal("it was not killed")
	}
	holder := w.holder()
	if holder == "" {
		t.Fatal("the lease is free after a kill")
	}
	waited := false
	w.apply(apply.Options{Tell: func(s string) { waited = waited || strings.Contains(s, holder) }},
		version("c")...)
	if differs := w.isVersion("c"); differs != "" {
		t.Error(differs)
	}
	if !waited {
		t.Error("taken over without waiting")
	}
}

// A holder that was stalled until another took over stops before its next write.
func TestLostLease(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, version("a")...)
	config := rest.CopyConfig(shared.Get(t).Admin.Config)
	const lasts = 6 * time.Second
	var lock sync.Mutex
	var stolen time.Time
	var late []string
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodPatch || r.URL.Query().Get("dryRun") != "" {
				return next.RoundTrip(r)
			}
			lock.Lock()
			switch {
			case stolen.IsZero():
				w.hold("somebody")
				stolen = time.Now()
			case time.Since(stolen) > lasts && r.Context().Err() == nil:
				late = append(late, r.Method+" "+r.URL.Path)
			}
			lock.Unlock()
			<-r.Context().Done() // until the lease has run out
			return nil, r.Context().Err()
		})
	})
	c, err := apply.Connect(config)
	w.must(err)
	c.LeaseFor(lasts)
	_, err = c.Apply(t.Context(), w.Package, w.read(version("b")...), apply.Options{})
	if err == nil || !strings.Contains(err.Error(), "the lease is lost") {
		t.Errorf("error %v", err)
	}
	lock.Lock()
	defer lock.Unlock()
	if len(late) > 0 {
		t.Errorf("wrote without the lease: %v", late)
	}
	if got := w.holder(); got != "somebody" {
		t.Errorf("the lease is %v's", got)
	}
}

// A holder that may not renew the lease any more ends with the right that it lacks, once
// the lease has run out.
func TestLeaseWithdrawn(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, version("a")...)
	config := rest.CopyConfig(shared.Get(t).Admin.Config)
	var withdrawn atomic.Bool
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			switch {
			case strings.Contains(r.URL.Path, "/leases") && withdrawn.Load():
				return forbidden(r), nil
			case r.Method != http.MethodPatch || r.URL.Query().Get("dryRun") != "":
				return next.RoundTrip(r)
			}
			withdrawn.Store(true)
			<-r.Context().Done() // until the lease has run out
			return nil, r.Context().Err()
		})
	})
	c, err := apply.Connect(config)
	w.must(err)
	c.LeaseFor(3 * time.Second)
	_, err = c.Apply(t.Context(), w.Package, w.read(version("b")...), apply.Options{})
	if err == nil ||
		!strings.Contains(err.Error(), "update and delete on leases.coordination.k8s.io") {
		t.Errorf("error %v", err)
	}
}

// A holder that is interrupted releases the lease.
func TestInterruptReleases(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, version("a")...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := w.Apply(ctx, w.Package, w.read(version("b")...), apply.Options{Tell: func(s string) {
		if strings.HasPrefix(s, "applying") {
			cancel()
		}
	}})
	if err == nil {
		t.Error("not interrupted")
	}
	if got := w.holder(); got != "" {
		t.Errorf("the lease is %v's", got)
	}
}

// Without the right to leases nothing is written, and the right is named.
func TestLeaseForbidden(t *testing.T) {
	w := newWorld(t)
	config := rest.CopyConfig(shared.Get(t).Admin.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.Contains(r.URL.Path, "/leases") {
				return forbidden(r), nil
			}
			return next.RoundTrip(r)
		})
	})
	config.Wrap(w.writes.wrap)
	var err error
	w.Cluster, err = apply.Connect(config)
	w.must(err)
	w.refused(apply.Options{}, "leases.coordination.k8s.io", configMap("one", "a"))
}

func forbidden(r *http.Request) *http.Response {
	return &http.Response{StatusCode: http.StatusForbidden,
		Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(
			strings.NewReader(
				`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"Forbidden","code":403}`))}
}
