// Package operate follows docs/operate.md on a real API server: with the shipped manifests and
// roles, the real controllers, a registry, a Git server, PostgreSQL and Prometheus. The kubelet
// and Tekton are played.
package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/apis"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest/attesttest"
	"github.com/armature-dev/armature/builds/controller/buildtest"
	"github.com/armature-dev/armature/e2e/catalog/peer"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/kubeconfig"
	"github.com/armature-dev/armature/e2e/ports"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/functions/api/keys"
)

var _ = controlplane.Only

const (
	root   = "../.."
	system = "armature-system"
	sha    = "0123456789abcdef0123456789abcdef01234567"
)

var bin string // has armature and armature-controller

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	var err error
	if bin, err = os.MkdirTemp("", "operate-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(bin)
	os.Exit(code)
}

var build = sync.OnceValue(func() error {
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin+"/", "./cmd/armature",
		"./cmd/armature-controller")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building armature: %w\n%s", err, out)
	}
	return nil
})

// world is a cluster, whose commands run in a folder of their own.
type world struct {
	*testing.T
	client.Client
	plane     *controlplane.ControlPlane
	dir, path string // path is the PATH of commands
	page      string
	programs  map[string]*program
	addresses map[string]string // of metrics by Deployment, and of the catalog
	registry  *server

	held   atomic.Bool // runs of builds whose name begins with "hold" do not end
	mu     sync.Mutex
	pushed map[types.UID]string // digests of images by run
}

// program of a Deployment, as the kubelet started it.
type program struct {
	*exec.Cmd
	of      string // the pod template
	problem bytes.Buffer
}

// newWorld starts a cluster with Tekton and the registry, and installs Armature with values of
// the chart.
func newWorld(t *testing.T, values string) *world {
	t.Helper()
	path := bin
	for _, name := range []string{"kubectl", "cosign3"} {
		path += string(os.PathListSeparator) + filepath.Dir(programs.Peer(t, name))
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "operate.md"))
	must(t, err)
	w := &world{T: t, plane: controlplane.Start(t), dir: t.TempDir(),
		path: "PATH=" + path + string(os.PathListSeparator) + os.Getenv("PATH"), page: string(page),
		programs: map[string]*program{}, addresses: map[string]string{},
		pushed: map[types.UID]string{}}
	must(t, build())
	w.registry = newServer(t, registry.New(registry.Logger(log.New(io.Discard, "", 0)),
		registry.WithReferrersSupport(true)))
	tekton, err := controlplane.ModuleDir("github.com/tektoncd/pipeline")
	must(t, err)
	must(t, w.plane.InstallCRDs(filepath.Join(tekton, "config", "300-crds")))
	w.Client, err = buildtest.Client(w.plane.Admin.Config)
	must(t, err)
	for _, name := range []string{"armature-controller", "armature-catalog", "catalog"} {
		port, err := ports.Free()
		must(t, err)
		w.addresses[name] = "127.0.0.1:" + port
	}
	w.programs["armature-controller"], w.programs["armature-catalog"] = &program{}, &program{}
	must(t, os.WriteFile(filepath.Join(w.dir, "values.yaml"), []byte(values), 0o600))
	w.sh("for name in armature-system team1 team2 tekton-pipelines; do kubectl create namespace " +
		"$name; done")
	w.sh("kubectl create deployment tekton-pipelines-controller -n tekton-pipelines --image=tekton")
	t.Cleanup(func() {
		for name := range w.programs {
			w.end(name)
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.tekton(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return w
}

// install Armature, without what Prometheus's operator is for, and run it.
func (w *world) install() {
	w.Helper()
	w.sh("COSIGN_PASSWORD=secret cosign generate-key-pair k8s://" + system + "/armature-attest-key")
	w.sh("armature install --values values.yaml --image=registry.local/controller:v1 | kubectl " +
		"apply --server-side -f -")
	w.kubelet()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sh runs commands, which have to succeed, and returns what they print.
func (w *world) sh(commands string) string {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir, cmd.Env = w.dir, append(os.Environ(), w.path, "KUBECONFIG="+w.plane.Admin.Kubeconfig,
		"COSIGN_PASSWORD=secret")
	var problem bytes.Buffer
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		w.Fatalf("%s\n%v\n%s%s", commands, err, out, &problem)
	}
	return string(out)
}

var blocks = regexp.MustCompile("(?ms)^```\n(.*?)^```$")

// scale the controllers.
func (w *world) scale(replicas string) {
	w.Helper()
	w.sh("kubectl scale deployment armature-controller armature-catalog -n armature-system " +
		"--replicas=" + replicas)
	w.kubelet()
}

// follow runs the block of the page that has a line with a beginning, and then the kubelet.
func (w *world) follow(begin string) {
	w.Helper()
	for _, block := range blocks.FindAllStringSubmatch(w.page, -1) {
		if strings.HasPrefix(block[1], begin) || strings.Contains(block[1], "\n"+begin) {
			w.sh(block[1])
			w.kubelet()
			return
		}
	}
	w.Fatalf("docs/operate.md has no block of commands with %q", begin)
}

// followLine runs one line of a block of the page, and then the kubelet.
func (w *world) followLine(line string) {
	w.Helper()
	if !strings.Contains(w.page, "\n"+line) {
		w.Fatalf("docs/operate.md has no line %q", line)
	}
	w.sh(line)
	w.kubelet()
}

// kubelet starts, restarts and ends the programs of Deployments.
func (w *world) kubelet() {
	w.Helper()
	for name, p := range w.programs {
		var d appsv1.Deployment
		must(w.T, w.Get(w.Context(), client.ObjectKey{Namespace: system, Name: name}, &d))
		of, err := json.Marshal(d.Spec.Template)
		must(w.T, err)
		if p.Cmd != nil && *d.Spec.Replicas > 0 && p.of == string(of) {
			continue
		}
		w.end(name)
		if *d.Spec.Replicas > 0 {
			w.start(name, d.Spec.Template.Spec.Containers[0].Args)
			w.programs[name].of = string(of)
		}
	}
}

// start the program of a Deployment, with the rights of its account.
func (w *world) start(name string, args []string) {
	w.Helper()
	account, err := w.plane.ServiceAccount(w.Context(), system, name)
	must(w.T, err)
	config := filepath.Join(w.dir, name+".kubeconfig")
	must(w.T, kubeconfig.Write(config, account.Config))
	args = append(slices.Clone(args), "--health-address=0", "--log-level=error",
		"--metrics-address="+w.addresses[name])
	if name == "armature-catalog" {
		address := filepath.Join(w.T.TempDir(), "catalog.db") // on an emptyDir
		if at := slices.Index(args, "--catalog-store-file=/etc/catalog/address"); at >= 0 {
			var secret corev1.Secret
			must(w.T,
				w.Get(w.Context(), client.ObjectKey{Namespace: system, Name: "catalog-postgres"},
					&secret))
			address = filepath.Join(filepath.Dir(address), "address")
			must(w.T, os.WriteFile(address, secret.Data["address"], 0o600))
			args[at] = "--catalog-store-file=" + address
		} else {
			args = append(args, "--catalog-store="+address)
		}
		args = append(args, "--catalog-address="+w.addresses["catalog"], "--catalog-plain-http",
			"--catalog-allow-network=127.0.0.0/8", "--catalog-server-period=1s")
	} else {
		args = append(args, "--webhook-address=")
	}
	p := &program{Cmd: exec.Command(filepath.Join(bin, "armature-controller"), args...)}
	p.Env = append(os.Environ(), "KUBECONFIG="+config, "POD_NAMESPACE="+system)
	p.Stderr = &p.problem
	must(w.T, p.Start())
	w.programs[name] = p
}

// end a program as a kubelet does.
func (w *world) end(name string) {
	w.Helper()
	p := w.programs[name]
	if p == nil || p.Cmd == nil {
		return
	}
	_ = p.Process.Signal(syscall.SIGTERM)
	if err := p.Wait(); err != nil || strings.Contains(p.problem.String(), "forbidden") {
		w.Errorf("%s: %v\n%s", name, err, &p.problem)
	}
	w.programs[name] = &program{}
}

// server is one that a test stops and starts again, at the same address with the same data.
type server struct {
	*testing.T
	handler http.Handler
	address string
	running *http.Server
	delay   atomic.Int64 // of the references of Git repositories, in nanoseconds
}

func newServer(t *testing.T, handler http.Handler) *server {
	t.Helper()
	port, err := ports.Free()
	must(t, err)
	s := &server{T: t, handler: handler, address: "127.0.0.1:" + port}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *server) start() {
	s.Helper()
	listener, err := net.Listen("tcp", s.address)
	must(s.T, err)
	s.running = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/info/refs") {
				time.Sleep(time.Duration(s.delay.Load()))
			}
			s.handler.ServeHTTP(w, r)
		})}
	go s.running.Serve(listener)
}

func (s *server) stop() { _ = s.running.Close() }

// agent registers one that the catalog finds.
func (w *world) agent() {
	w.Helper()
	s := httptest.NewServer(peer.Agent(peer.Card("weather", "Forecasts.", "1.0", "forecast")))
	w.Cleanup(s.Close)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "weather-0",
		Labels: map[string]string{"app": "weather"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "weather:v1"}}}}
	must(w.T, w.Create(w.Context(), pod))
	pod.Status = corev1.PodStatus{PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	must(w.T, w.Status().Update(w.Context(), pod))
	must(w.T,
		os.WriteFile(filepath.Join(w.dir, "card.yaml"),
			[]byte("apiVersion: kagenti.io/v1alpha1\nkind: AgentCard\n"+
				"metadata: {name: weather, namespace: team1}\n"+
				"spec: {selector: {matchLabels: {app: weather}}, endpoint: {port: "+port+"}}\n"), 0o600))
	w.sh("kubectl apply -f card.yaml")
	w.sh("kubectl create serviceaccount reader -n default; kubectl create clusterrolebinding " +
		"reader --clusterrole=cluster-admin --serviceaccount=default:reader; kubectl create " +
		"token reader -n default > token")
}

// listed waits until the catalog serves the agent.
func (w *world) listed() {
	w.Helper()
	w.eventually("the catalog lists the agent", func() string {
		cmd := exec.CommandContext(w.Context(), filepath.Join(bin, "armature"), "catalog", "list",
			"-A", "--health", "Healthy", "--server", "http://"+w.addresses["catalog"],
			"--token-file", filepath.Join(w.dir, "token"))
		if out, err := cmd.CombinedOutput(); err != nil ||
			!strings.Contains(string(out), "weather") {
			return fmt.Sprintf("%v %s", err, out)
		}
		return ""
	})
}

// eventually waits until what is asked for is so: "" is yes, all else says why not.
func (w *world) eventually(what string, ask func() string) {
	w.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		why := ask()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			for name, p := range w.programs {
				w.Logf("%s:\n%s", name, &p.problem)
			}
			w.Fatalf("%s: %s", what, why)
		}
	}
}

// order a build of one commit in a mode that is attested; edit changes it.
func (w *world) order(namespace, name string, edit ...func(*api.AgentBuild)) {
	w.Helper()
	b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: api.AgentBuildSpec{Mode: "prod",
			Source: api.SourceSpec{SourceRepository: "github.com/org/" + name + ".git",
				SourceRevision: sha},
			BuildOutput: &api.BuildOutput{Image: name, ImageTag: "v1",
				ImageRegistry: w.registry.address}}}
	for _, e := range edit {
		e(b)
	}
	must(w.T, w.Create(w.Context(), b))
}

// built waits until builds of a namespace have their image, of their first run.
func (w *world) built(namespace string, names ...string) {
	w.Helper()
	for _, name := range names {
		b := w.phase(namespace, name, api.PhaseSucceeded)
		if b.Status.RunNumber != 1 || b.Status.BuiltImage == "" {
			w.Errorf("build %s has run %d and image %q", name, b.Status.RunNumber, b.Status.BuiltImage)
		}
	}
}

func (w *world) phase(namespace, name string, want api.Phase) *api.AgentBuild {
	w.Helper()
	b := &api.AgentBuild{}
	w.eventually(fmt.Sprintf("build %s becomes %s", name, want), func() string {
		if err := w.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: name}, b); err != nil {
			return err.Error()
		}
		if b.Status.Phase != want {
			return fmt.Sprintf("%s: %s", b.Status.Phase, b.Status.Message)
		}
		return ""
	})
	return b
}

// tekton does what Tekton's controller does, while its Deployment has a replica: runs begin and
// succeed, except those of builds whose name begins with "hang", which only a cancellation ends,
// or, while they are held, "hold".
func (w *world) tekton(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		var d appsv1.Deployment
		if err := w.Get(ctx, client.ObjectKey{Namespace: "tekton-pipelines",
			Name: "tekton-pipelines-controller"}, &d); err != nil || *d.Spec.Replicas == 0 {
			continue
		}
		var runs tektonv1.PipelineRunList
		if w.List(ctx, &runs) != nil {
			continue
		}
		for i := range runs.Items {
			// What does not work now is tried again.
			_ = w.advance(ctx, &runs.Items[i])
		}
	}
}

// advance a run.
func (w *world) advance(ctx context.Context, run *tektonv1.PipelineRun) error {
	of := run.Annotations[keys.AnnotationBuild]
	switch {
	case run.Status.CompletionTime != nil || run.DeletionTimestamp != nil:
		return nil
	case run.Status.StartTime == nil:
		run.Status.StartTime = &metav1.Time{Time: time.Now()}
		run.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded,
			Status: corev1.ConditionUnknown, Reason: "Running"})
		return w.Status().Update(ctx, run)
	case run.Spec.Status != "":
		run.Status.CompletionTime = &metav1.Time{Time: time.Now()}
		run.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded,
			Status: corev1.ConditionFalse, Reason: "Cancelled"})
		return w.Status().Update(ctx, run)
	case strings.HasPrefix(of, "hang"):
		return nil
	}
	digest, err := w.push(run)
	if err != nil || strings.HasPrefix(of, "hold") && w.held.Load() {
		return err
	}
	return w.succeed(ctx, run, digest)
}

// push the image of a run, once, with its bill of materials.
func (w *world) push(run *tektonv1.PipelineRun) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if digest := w.pushed[run.UID]; digest != "" {
		return digest, nil
	}
	ref, err := name.ParseReference(run.Annotations[keys.AnnotationImage])
	if err != nil {
		return "", err
	}
	image, err := random.Image(64, 1)
	if err != nil {
		return "", err
	}
	if err := remote.Write(ref, image); err != nil {
		return "", err
	}
	digest, err := image.Digest()
	if err != nil {
		return "", err
	}
	if err := remote.WriteLayer(ref.Context(),
		static.NewLayer(attesttest.SBOM(digest.String()), "application/spdx+json")); err != nil {
		return "", err
	}
	w.pushed[run.UID] = digest.String()
	return digest.String(), nil
}

// succeed ends a run, with its TaskRuns.
func (w *world) succeed(ctx context.Context, run *tektonv1.PipelineRun, digest string) error {
	start := *run.Status.StartTime
	for _, task := range attesttest.Succeed(run, run.Spec.PipelineSpec, digest) {
		status := task.Status
		task.UID, task.CreationTimestamp = types.UID(""), metav1.Time{}
		if err := w.Create(ctx, task); apierrors.IsAlreadyExists(err) {
			if err := w.Get(ctx, client.ObjectKeyFromObject(task), task); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		task.Status = status
		if err := w.Status().Update(ctx, task); err != nil {
			return err
		}
	}
	run.Status.StartTime = &start
	return w.Status().Update(ctx, run)
}
