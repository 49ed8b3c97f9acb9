package apply_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/apply"
)

// kills is how many applies die half-way in TestKill.
const kills = 50

// The environment of a process that applies and is killed.
const (
	childHost    = "APPLY_TEST_HOST"
	childFile    = "APPLY_TEST_FILE"
	childPackage = "APPLY_TEST_PACKAGE"
)

// child is the process: the test's own program, started again.
func child() int {
	text, err := os.ReadFile(os.Getenv(childFile))
	if err != nil {
		panic(err)
	}
	objects, err := apply.Read("app.yaml", text)
	if err != nil {
		panic(err)
	}
	c, err := apply.Connect(&rest.Config{Host: os.Getenv(childHost)})
	if err != nil {
		panic(err)
	}
	c.LeaseFor(3 * time.Second)
	namespace, name, _ := strings.Cut(os.Getenv(childPackage), "/")
	if _, err := c.Apply(context.Background(), apply.Package{Namespace: namespace, Name: name},
		objects, apply.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Fifty processes are killed at a random write of theirs, which the API server
// did or did not get. The next apply, of the same package or of another version
// of it, converges: all that the package has is there, nothing else that the
// dead process made is, the inventory knows all of it, and a further apply
// writes nothing.
func TestKill(t *testing.T) {
	w := newWorld(t)
	home := w.Package.Namespace
	w.create(fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s-second}}", home))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w.apply(apply.Options{}, variant(random)...)

	for killed := 0; killed < kills; {
		broken := variant(random)
		plan, err := w.Plan(t.Context(), w.Package, w.read(broken...), apply.Options{})
		w.must(err)
		writes := len(plan.Steps) - plan.Count(apply.Unchanged) + 4
		if !w.applyAndDie(broken, 1+random.IntN(writes), random.IntN(2) == 0) {
			continue // it was done before
		}
		killed++
		w.expire()
		next := broken
		if random.IntN(2) == 0 {
			next = variant(random)
		}
		w.settled()
		w.apply(apply.Options{}, next...)
		w.settled()
		if !strings.Contains(strings.Join(next, ""), crdOfKill) &&
			slices.Contains(w.inventory(), "CustomResourceDefinition "+crdOfKill) {
			w.apply(apply.Options{}, next...) // the CRD, which is gone by now, took its time
		}
		w.converged(next)
	}
}

// Ctrl-C ends an apply between two requests. The next one finishes the work.
func TestInterrupt(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	opt := apply.Options{Wait: true, Tell: func(string) { cancel() }}
	_, err := w.Apply(ctx, w.Package, w.read(web, configMap("settings", "a")), opt)
	if err == nil ||
		!strings.Contains(err.Error(), "interrupted: the next apply finishes the work") {
		t.Errorf("error %v", err)
	}
	w.apply(apply.Options{}, web, configMap("settings", "a"))
	if w.get("apps/v1", "Deployment", "web") == nil ||
		!slices.Equal(w.inventory(), []string{"ConfigMap settings", "Deployment web"}) {
		t.Errorf("not finished: %v", w.inventory())
	}
}

// variant is a random version of a package: some of many objects, with random
// content, and a namespace, a CRD with instances and chains of dependencies among them.
func variant(random *rand.Rand) []string {
	out := []string{configMap("always", fmt.Sprint(random.IntN(5)))}
	if random.IntN(2) == 0 {
		out = append(out, crd("kill.example.com", "v1", "Gizmo"),
			"{apiVersion: kill.example.com/v1, kind: Gizmo, metadata: {name: one}, spec: {size: 1}}")
	}
	last := "always"
	for i := range 12 {
		if random.IntN(2) == 0 {
			name, metadata := fmt.Sprintf("settings%d", i), ""
			if random.IntN(3) == 0 {
				metadata = dependsOn("/namespaces/NS/ConfigMap/" + last)
			}
			out = append(out, configMap(name+metadata, fmt.Sprint(random.IntN(3))))
			last = name
		}
		if random.IntN(2) == 0 {
			out = append(out, strings.ReplaceAll(web, "name: web", fmt.Sprintf("name: web%d", i)))
		}
		if random.IntN(3) == 0 {
			out = append(out,
				fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: web%d, namespace: "+
					"NS-second}, spec: {ports: [{port: %d}]}}", i, 80+random.IntN(3)))
		}
	}
	return out
}

// applyAndDie runs an apply in a process of its own, behind a proxy that kills it
// at its nth write: before the API server gets it, or after. It says whether the
// process was killed.
func (w *world) applyAndDie(manifests []string, n int, before bool) bool {
	w.Helper()
	file := filepath.Join(w.TempDir(), "app.yaml")
	w.must(os.WriteFile(file,
		[]byte(strings.ReplaceAll(strings.Join(manifests, "\n---\n"), "NS", w.Package.Namespace)), 0o600))
	program, err := os.Executable()
	w.must(err)
	process := exec.CommandContext(w.Context(), program)
	var stderr strings.Builder
	process.Stderr = &stderr

	target, err := url.Parse(shared.Get(w.TB).Admin.Config.Host)
	w.must(err)
	transport, err := rest.TransportFor(shared.Get(w.TB).Admin.Config)
	w.must(err)
	proxy := &httputil.ReverseProxy{Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	proxy.ErrorHandler = func(rw http.ResponseWriter, _ *http.Request, _ error) {
		rw.WriteHeader(http.StatusBadGateway)
	}
	var lock sync.Mutex
	var underWay sync.WaitGroup
	seen, killed := 0, false
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		underWay.Add(1)
		defer underWay.Done()
		now := false
		if r.Method != http.MethodGet && r.URL.Query().Get("dryRun") == "" {
			lock.Lock()
			seen++
			now = seen == n
			killed = killed || now
			lock.Unlock()
		}
		if now && before {
			_ = process.Process.Kill()
			return
		}
		proxy.ServeHTTP(rw, r.WithContext(context.WithoutCancel(r.Context())))
		if now {
			_ = process.Process.Kill()
		}
	}))
	process.Env = append(os.Environ(), childHost+"="+server.URL, childFile+"="+file,
		childPackage+"="+w.Package.String())
	w.must(process.Start())
	err = process.Wait()
	underWay.Wait()
	server.Close()
	if !killed && err != nil {
		w.Fatalf("the process failed by itself: %v\n%s", err, stderr.String())
	}
	return killed && err != nil
}

const crdOfKill = "gizmos.kill.example.com"

// expire lets the time pass that a killed process's lease lasts.
func (w *world) expire() {
	w.Helper()
	if l := w.get("coordination.k8s.io/v1", "Lease", "armature-weather"); l != nil && w.holder() != "" {
		w.hold("")
	}
}

// settled waits until a CRD that was pruned is gone, which takes a moment.
func (w *world) settled() {
	w.eventually(func() string {
		if u := w.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", crdOfKill); u != nil &&
			u.GetDeletionTimestamp() != nil {
			return "the CRD is still there"
		}
		return ""
	})
}

// converged compares the cluster with the package.
func (w *world) converged(manifests []string) {
	w.Helper()
	want := make(map[string]string)
	for _, o := range w.read(manifests...) {
		content, err := json.Marshal([]any{o.Object["data"],
			field(o.Unstructured, "spec", "ports", "0")})
		w.must(err)
		if o.GetKind() == "Service" {
			ports := field(o.Unstructured, "spec", "ports").([]any)
			content = fmt.Append(nil, ports[0].(map[string]any)["port"])
		}
		want[o.GetKind()+" "+o.GetName()] = string(content)
	}
	have := make(map[string]string)
	for apiVersion, kinds := range map[string][]string{"v1": {"ConfigMap", "Service"},
		"apps/v1": {"Deployment"}, "kill.example.com/v1": {"Gizmo"},
		"apiextensions.k8s.io/v1": {"CustomResourceDefinition"}} {
		for _, kind := range kinds {
			list, err := w.Resource(resourceOf(apiVersion, kind)).List(w.Context(),
				metav1.ListOptions{LabelSelector: keys.LabelNamespace + "=" + w.Package.Namespace})
			if err != nil && kind != "Gizmo" { // its CRD may be gone
				w.Fatal(err)
			}
			if err != nil {
				continue
			}
			for _, u := range list.Items {
				content, err := json.Marshal([]any{u.Object["data"], nil})
				w.must(err)
				if kind == "Service" {
					content = fmt.Append(nil,
						field(&u, "spec", "ports").([]any)[0].(map[string]any)["port"])
				}
				have[kind+" "+u.GetName()] = string(content)
			}
		}
	}
	if !maps.Equal(want, have) {
		w.Fatalf("the cluster has\n%v\nwant\n%v", have, want)
	}
	inventory := w.inventory()
	if names := slices.Sorted(maps.Keys(want)); !slices.Equal(inventory, names) {
		w.Fatalf("the inventory has\n%v\nwant\n%v", inventory, names)
	}
	before := w.writes.count()
	w.apply(apply.Options{}, manifests...)
	if all := w.writes.since(before); len(all) != 0 {
		w.Fatalf("a further apply wrote %v", all)
	}
}
