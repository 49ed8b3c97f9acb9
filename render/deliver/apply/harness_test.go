package apply_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/render/deliver/apply"
)

// shared is the one control plane of this package.
var shared controlplane.Shared

func TestMain(m *testing.M) {
	if os.Getenv(childFile) != "" {
		os.Exit(child())
	}
	os.Exit(shared.Main(m, func(*controlplane.ControlPlane) error { return nil }))
}

// world is one test's namespace on the shared API server.
type world struct {
	testing.TB
	dynamic.Interface
	*apply.Cluster
	apply.Package
	writes *writes
}

var worlds atomic.Int32

// newWorld creates a namespace for a test, which is the package's too.
func newWorld(t testing.TB) *world {
	t.Helper()
	plane := shared.Get(t)
	if test, ok := t.(*testing.T); ok {
		test.Parallel()
	}
	w := &world{TB: t, writes: &writes{},
		Package: apply.Package{Namespace: fmt.Sprintf("team%d", worlds.Add(1)), Name: "weather"}}
	var err error
	w.Interface, err = dynamic.NewForConfig(plane.Admin.Config)
	w.must(err)
	w.Cluster = w.connect()
	w.create(fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", w.Package.Namespace))
	return w
}

// connect counts what is written through the connection.
func (w *world) connect() *apply.Cluster {
	config := rest.CopyConfig(shared.Get(w.TB).Admin.Config)
	config.Wrap(w.writes.wrap)
	c, err := apply.Connect(config)
	w.must(err)
	return c
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// read decodes manifests, with NS replaced by the test's namespace.
func (w *world) read(manifests ...string) []apply.Object {
	w.Helper()
	text := strings.ReplaceAll(strings.Join(manifests, "\n---\n"), "NS", w.Package.Namespace)
	objects, err := apply.Read("app.yaml", []byte(text))
	w.must(err)
	return objects
}

// apply manifests, which has to work.
func (w *world) apply(opt apply.Options, manifests ...string) *apply.Plan {
	w.Helper()
	plan, err := w.Apply(w.Context(), w.Package, w.read(manifests...), opt)
	if err != nil {
		w.Fatalf("%v\n%s", err, show(plan))
	}
	return plan
}

// refused applies manifests, which has to fail with these words and no write.
func (w *world) refused(opt apply.Options, words string, manifests ...string) *apply.Plan {
	w.Helper()
	before := w.writes.count()
	plan, err := w.Apply(w.Context(), w.Package, w.read(manifests...), opt)
	if err == nil {
		w.Fatalf("applied:\n%s", show(plan))
	}
	if text := err.Error() + "\n" + show(plan); !strings.Contains(text, words) {
		w.Errorf("does not say %q:\n%s", words, text)
	}
	if n := w.writes.count() - before; n != 0 {
		w.Errorf("%d writes, want none", n)
	}
	return plan
}

func show(p *apply.Plan) string {
	if p == nil {
		return ""
	}
	var b strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "%s %s %s\n", s.Action, s.Title(), s.Reason)
	}
	return b.String()
}

// expect compares a plan with lines of "action Kind namespace/name".
func (w *world) expect(p *apply.Plan, lines ...string) {
	w.Helper()
	var got []string
	for _, s := range p.Steps {
		got = append(got, fmt.Sprintf("%s %s", s.Action, s.Title()))
	}
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], "NS", w.Package.Namespace)
	}
	slices.Sort(got)
	slices.Sort(lines)
	if !slices.Equal(got, lines) {
		w.Errorf("got\n%s\nwant\n  %s", show(p), strings.Join(lines, "\n  "))
	}
}

func resourceOf(apiVersion, kind string) schema.GroupVersionResource {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		panic(err)
	}
	plural := strings.ToLower(kind) + "s"
	if strings.HasSuffix(kind, "y") {
		plural = strings.TrimSuffix(strings.ToLower(kind), "y") + "ies"
	}
	return gv.WithResource(plural)
}

func (w *world) in(apiVersion, kind, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return w.Resource(resourceOf(apiVersion, kind))
	}
	return w.Resource(resourceOf(apiVersion, kind)).Namespace(namespace)
}

// create makes an object as somebody else.
func (w *world) create(manifest string) *unstructured.Unstructured {
	w.Helper()
	o := w.read(manifest)[0]
	u, err := w.in(o.GetAPIVersion(), o.GetKind(), o.GetNamespace()).Create(w.Context(),
		o.Unstructured, metav1.CreateOptions{FieldManager: "somebody"})
	w.must(err)
	return u
}

// get an object of the test's namespace; nil where there is none.
func (w *world) get(apiVersion, kind, name string) *unstructured.Unstructured {
	w.Helper()
	namespace := w.Package.Namespace
	if kind == "Namespace" || kind == "CustomResourceDefinition" ||
		strings.HasPrefix(kind, "Cluster") {
		namespace = ""
	}
	u, err := w.in(apiVersion, kind, namespace).Get(w.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	w.must(err)
	return u
}

// patch an object of the test's namespace as another field manager.
func (w *world) patch(apiVersion, kind, name, manager, patch string,
	subresource ...string) *unstructured.Unstructured {
	w.Helper()
	u, err := w.in(apiVersion, kind, w.Package.Namespace).Patch(w.Context(), name,
		types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: manager}, subresource...)
	w.must(err)
	return u
}

func (w *world) remove(apiVersion, kind, name string) {
	w.Helper()
	w.must(w.in(apiVersion, kind, w.Package.Namespace).Delete(w.Context(), name, metav1.DeleteOptions{}))
}

// encoded is a value as a Secret has it.
func encoded(value string) string { return base64.StdEncoding.EncodeToString([]byte(value)) }

// field reads a field by its path.
func field(u *unstructured.Unstructured, path ...string) any {
	if u == nil {
		return "no object"
	}
	v, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
	return v
}

// inventory lists what the package's inventory has, as "Kind name".
func (w *world) inventory() []string {
	w.Helper()
	v, err := w.Inventory(w.Context(), w.Package)
	w.must(err)
	var out []string
	for _, e := range v.Sorted() {
		out = append(out, e.GroupKind.Kind+" "+e.Name)
	}
	slices.Sort(out)
	return out
}

// eventually waits for a condition, which says what is missing until it is "".
func (w *world) eventually(condition func() string) {
	w.Helper()
	last := ""
	for range 600 {
		if last = condition(); last == "" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.Fatal(last)
}

// writes counts requests that write, dry runs, which do not, and those to leases.
type writes struct {
	lock    sync.Mutex
	all     []string
	dryRuns int
	leases  int
}

func (c *writes) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		c.lock.Lock()
		switch {
		case r.Method == http.MethodGet:
		case r.URL.Query().Get("dryRun") != "":
			c.dryRuns++
		case strings.Contains(r.URL.Path, "/leases"):
			c.leases++
		default:
			c.all = append(c.all, r.Method+" "+r.URL.Path)
		}
		c.lock.Unlock()
		return next.RoundTrip(r)
	})
}

func (c *writes) count() int { return len(c.since(0)) }

func (c *writes) since(n int) []string {
	c.lock.Lock()
	defer c.lock.Unlock()
	return slices.Clone(c.all[n:])
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// web is a Deployment, configMap a ConfigMap, for tests that need any.
const web = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - name: web
          image: nginx:1
          ports: [{containerPort: 80}]
          resources: {limits: {cpu: 1000m, memory: 1Gi}}
          env: [{name: MODE, value: fast}]
`

func configMap(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {key: %q}\n",
		name, value)
}
