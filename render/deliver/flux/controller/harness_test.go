package controller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/deliver/flux/controller"
	"github.com/armature-dev/armature/render/process"
)

// shared is the one control plane of this package.
var shared controlplane.Shared

// crdFolders have the CRDs of RenderedSource and of Flux's sources.
func crdFolders() ([]string, error) {
	folder, err := fluxCRDs("github.com/fluxcd/source-controller@v1.9.6")
	return []string{filepath.Join("..", "..", "..", "..", "templates", "crds", "sources"), folder}, err
}

// fluxCRDs is the folder with the CRDs of a module that e2e/flux pins.
func fluxCRDs(module string) (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Dir = filepath.Join("..", "..", "..", "..", "e2e", "flux")
	out, err := cmd.Output()
	var found struct{ Dir, Error string }
	if decoded := json.Unmarshal(out, &found); err == nil {
		err = decoded
	}
	if err != nil || found.Dir == "" {
		return "", fmt.Errorf("downloading %s for its CRDs: %v %s", module, err, found.Error)
	}
	return filepath.Join(found.Dir, "config", "crd", "bases"), nil
}

// asController makes the test binary a controller, which a test can kill.
const asController = "ARMATURE_TEST_SOURCES"

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	if text := os.Getenv(asController); text != "" {
		var o controller.Options
		err := json.Unmarshal([]byte(text), &o)
		if err == nil {
			o.Log = logr.Discard()
			cfg, load := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
			if err = load; err == nil {
				err = controller.Run(context.Background(), cfg, o)
			}
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(shared.Main(m, func(plane *controlplane.ControlPlane) error {
		folders, err := crdFolders()
		if err != nil {
			return err
		}
		return plane.InstallCRDs(folders...)
	}))
}

// world is one test's namespace, with a host that serves archives of sources.
type world struct {
	testing.TB
	client.Client
	plane     *controlplane.ControlPlane
	namespace string
	dir       string // of the controller's archives
	host      *httptest.Server
	requests  atomic.Int32 // to host

	mu       sync.Mutex
	archives map[string][]byte
}

var worlds atomic.Int32

func newWorld(t testing.TB, plane *controlplane.ControlPlane) *world {
	t.Helper()
	w := &world{TB: t, plane: plane, namespace: fmt.Sprintf("team%d", worlds.Add(1)),
		dir: t.TempDir(), archives: map[string][]byte{}}
	w.host = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.requests.Add(1)
		w.mu.Lock()
		data, ok := w.archives[r.URL.Path]
		w.mu.Unlock()
		switch path.Base(r.URL.Path) {
		case "redirect":
			http.Redirect(rw, r, "http://169.254.169.254/latest", http.StatusFound)
		case "declared-gib":
			rw.Header().Set("Content-Length", fmt.Sprint(1<<30))
			rw.WriteHeader(http.StatusOK)
		case "endless":
			for chunk := make([]byte, 1<<20); ; {
				if _, err := rw.Write(chunk); err != nil {
					return
				}
			}
		default:
			if !ok {
				http.NotFound(rw, r)
				return
			}
			rw.Write(data)
		}
	}))
	t.Cleanup(w.host.Close)
	scheme, err := controller.Scheme()
	w.must(err)
	w.Client, err = client.New(plane.Admin.Config, client.Options{Scheme: scheme})
	w.must(err)
	w.must(w.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) options() controller.Options {
	return controller.Options{
		Options: process.Options{Namespace: w.namespace, Namespaces: []string{w.namespace},
			MetricsAddress: "0", HealthAddress: "0", Log: logr.Discard()},
		Dir: w.dir, Address: "127.0.0.1:0", Hosts: []string{"127.0.0.1"},
	}
}

// start a controller, which the result ends.
func (w *world) start() (stop func()) {
	w.Helper()
	return w.startWith(w.options())
}

func (w *world) startWith(o controller.Options) (stop func()) {
	w.Helper()
	return w.startAs(w.plane.Admin.Config, o)
}

func (w *world) startAs(cfg *rest.Config, o controller.Options) (stop func()) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- controller.Run(ctx, cfg, o) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.Error(err)
		}
	})
	w.Cleanup(stop)
	return stop
}

// eventually waits until what is asked for is so: "" is yes, all else says why not.
func (w *world) eventually(what string, ask func() string) {
	w.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		why := ask()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("%s: %s", what, why)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// path of a source's archive, as the source-controller lays them out.
func (w *world) path(kind, name, file string) string {
	return "/" + strings.ToLower(kind) + "/" + w.namespace + "/" + name + "/" + file
}

// serve an archive at a path of the host.
func (w *world) serve(path string, data []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.archives[path] = data
}

func pack(t testing.TB, files map[string]string) []byte {
	t.Helper()
	in := map[string][]byte{}
	for name, text := range files {
		in[name] = []byte(text)
	}
	data, err := archive.Write(in)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// repository makes a GitRepository whose artifact has files, or moves it on. What
// the source-controller does is done here: it sets the status.
func (w *world) repository(name, revision string, files map[string]string) {
	w.Helper()
	data := pack(w, files)
	path := w.path("GitRepository", name, revision+".tar.gz")
	w.serve(path, data)
	w.artifact(name, map[string]any{
		"digest": archive.Digest(data), "path": path, "url": w.host.URL + path,
		"revision": "main@sha1:" + revision, "lastUpdateTime": "2026-11-22T20:00:00Z",
		"size": int64(len(data)),
	})
}

func (w *world) artifact(name string, artifact map[string]any) {
	w.Helper()
	w.source("GitRepository", name,
		map[string]any{"url": "https://git.example/fleet", "interval": "1m"}, artifact)
}

// source makes a source of any kind with an artifact, or changes its artifact.
func (w *world) source(kind, name string, spec, artifact map[string]any) {
	w.Helper()
	o := w.object(kind, name)
	o.Object["spec"] = spec
	err := w.Create(w.Context(), o)
	if client.IgnoreAlreadyExists(err) != nil {
		w.Fatal(err)
	}
	w.eventually("setting the artifact of "+name, func() string {
		o := w.object(kind, name)
		if err := w.Get(w.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err.Error()
		}
		o.Object["status"] = map[string]any{"artifact": artifact}
		if err := w.Status().Update(w.Context(), o); err != nil {
			return err.Error()
		}
		return ""
	})
}

func (w *world) object(kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(controller.FluxSources.WithKind(kind))
	o.SetNamespace(w.namespace)
	o.SetName(name)
	return o
}

// rendered makes a RenderedSource of the GitRepository of a name.
func (w *world) rendered(name, repository string, set ...func(*api.RenderedSource)) {
	w.Helper()
	s := &api.RenderedSource{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	s.Spec.SourceRef = api.SourceReference{Kind: "GitRepository", Name: repository}
	for _, f := range set {
		f(s)
	}
	w.must(w.Create(w.Context(), s))
}

// change the spec of a RenderedSource, whatever its status is by then.
func (w *world) change(name string, set func(*api.RenderedSource)) {
	w.Helper()
	s := w.get(name)
	before := s.DeepCopy()
	set(s)
	w.must(w.Patch(w.Context(), s, client.MergeFrom(before)))
}

func (w *world) get(name string) *api.RenderedSource {
	w.Helper()
	s := &api.RenderedSource{}
	w.must(w.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, s))
	return s
}

// condition of a RenderedSource: status, reason and message.
func (w *world) condition(name, kind string) (status, reason, message string) {
	w.Helper()
	for _, c := range w.get(name).Status.Conditions {
		if c.Type == kind {
			return string(c.Status), c.Reason, c.Message
		}
	}
	return "", "", ""
}

// ready waits until a revision of the source is published.
func (w *world) ready(name, revision string) *api.RenderedSource {
	w.Helper()
	w.eventually(name+" publishes "+revision, func() string {
		s := w.get(name)
		status, reason, message := w.condition(name, "Ready")
		if status != "True" || s.Status.Artifact == nil ||
			s.Status.Artifact.OriginRevision != "main@sha1:"+revision {
			return fmt.Sprintf("Ready is %q %s: %s", status, reason, message)
		}
		return ""
	})
	return w.get(name)
}

// fails waits until a RenderedSource has a reason, and returns the message.
func (w *world) fails(name, reason string) (message string) {
	w.Helper()
	w.eventually(name+" fails with "+reason, func() string {
		status, have, text := w.condition(name, "Ready")
		message = text
		if status != "False" || have != reason {
			return fmt.Sprintf("Ready is %q %s: %s", status, have, text)
		}
		return ""
	})
	return message
}

// published is status.artifact of an ExternalArtifact, nil where it does not exist.
func (w *world) published(name string) map[string]any {
	w.Helper()
	o := w.object("ExternalArtifact", name)
	if err := w.Get(w.Context(), client.ObjectKeyFromObject(o),
		o); client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
	artifact, _, err := unstructured.NestedMap(o.Object, "status", "artifact")
	w.must(err)
	return artifact
}

// fetch what an ExternalArtifact names, and check it as Flux's consumers do.
func (w *world) fetch(artifact map[string]any) map[string][]byte {
	w.Helper()
	var data []byte
	w.eventually("fetching the archive", func() string {
		response, err := http.Get(artifact["url"].(string))
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return response.Status
		}
		if data, err = io.ReadAll(response.Body); err != nil {
			return err.Error()
		}
		return ""
	})
	files, err := archive.Open(data, artifact["digest"].(string), archive.DefaultLimits)
	w.must(err)
	return files
}

const settings = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\ndata:\n" +
	"  key: value\n"

func configMap(name, value string) string {
	return strings.ReplaceAll(strings.Replace(settings, "key: value", "key: "+value, 1),
		"name: settings", "name: "+name)
}

// process runs a controller in a process of its own, which kill ends.
func (w *world) process() (pid int, kill func()) {
	w.Helper()
	o := w.options()
	text, err := json.Marshal(map[string]any{
		"Namespace": o.Namespace, "Namespaces": o.Namespaces, "MetricsAddress": "0",
		"HealthAddress": "0", "Dir": o.Dir, "Address": o.Address, "Hosts": o.Hosts,
	})
	w.must(err)
	self, err := os.Executable()
	w.must(err)
	var log strings.Builder
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asController+"="+string(text),
		"KUBECONFIG="+w.plane.Admin.Kubeconfig)
	cmd.Stderr = &log
	w.must(cmd.Start())
	kill = sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if w.Failed() {
			w.Log(log.String())
		}
	})
	w.Cleanup(kill)
	return cmd.Process.Pid, kill
}
