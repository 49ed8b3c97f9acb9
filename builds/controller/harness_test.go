package controller_test

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"knative.dev/pkg/apis"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller"
	"github.com/armature-dev/armature/builds/controller/buildtest"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/templates"
)

// systemNamespace is where the controllers of all tests look for templates.
const systemNamespace = "armature-system"

// sha is a commit that needs no Git server.
const sha = "0123456789abcdef0123456789abcdef01234567"

// shared is the one control plane of this package.
var shared controlplane.Shared

// Its tests wait for an API server more than they compute: more run at once than there are
// processors, unless -parallel sets another number.
func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0)))
	}
	var err error
	if kmsFolder, err = os.MkdirTemp("", "armature-kms-"); err == nil {
		err = os.Setenv("PATH", kmsFolder+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	if err != nil {
		panic(err)
	}
	code := shared.Main(m, furnish)
	for _, folder := range []string{programFolder, kmsFolder} {
		if folder != "" {
			_ = os.RemoveAll(folder)
		}
	}
	os.Exit(code)
}

// furnish installs the CRDs of AgentBuild and Tekton, and the shipped templates.
func furnish(plane *controlplane.ControlPlane) error {
	c, err := buildtest.Install(plane)
	if err != nil {
		return err
	}
	ctx := context.Background()
	if err := c.Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}}); err != nil {
		return err
	}
	if err := c.Create(ctx, attestKey.secret()); err != nil {
		return err
	}
	for _, cm := range shippedConfigMaps() {
		cm.Namespace = systemNamespace
		if err := c.Create(ctx, cm); err != nil {
			return err
		}
	}
	return nil
}

func shippedConfigMaps() []*corev1.ConfigMap {
	var out []*corev1.ConfigMap
	for _, dir := range []string{"modes", "steps"} {
		entries, err := fs.ReadDir(templates.Files, dir)
		if err != nil {
			panic(err)
		}
		for _, e := range entries {
			data, err := templates.Files.ReadFile(dir + "/" + e.Name())
			if err != nil {
				panic(err)
			}
			cm := &corev1.ConfigMap{}
			if e.Name() == "kustomization.yaml" {
				continue
			}
			if err := yaml.UnmarshalStrict(data, cm); err != nil {
				panic(fmt.Sprintf("%s: %v", e.Name(), err))
			}
			out = append(out, cm)
		}
	}
	return out
}

// world is one test's namespace on the shared API server, with its controllers.
type world struct {
	testing.TB
	client.Client
	namespace string
	config    *rest.Config
	writes    *writeCounter
	options   controller.Options
}

var worlds atomic.Int32

// newWorld makes a namespace for a test, and one for isolated runs. No controller runs yet.
func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, shared.Get(t))
}

func newWorldOn(t testing.TB, plane *controlplane.ControlPlane) *world {
	t.Helper()
	if test, ok := t.(*testing.T); ok {
		test.Parallel()
	}
	c, err := buildtest.Client(plane.Admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, Client: c, namespace: fmt.Sprintf("team%d", worlds.Add(1)),
		writes: &writeCounter{by: map[string]int{}}}
	w.config = rest.CopyConfig(plane.Admin.Config)
	w.config.Wrap(w.writes.wrap)
	w.options = controller.Options{
		Options: process.Options{
			Namespace: systemNamespace, Namespaces: []string{w.namespace}, MetricsAddress: "0",
			HealthAddress: "0", QPS: 1000, Log: logr.Discard(),
		},
		LogLines: 20, Dial: (&net.Dialer{}).DialContext,
	}
	w.must(c.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
	isolated := w.namespace + "-isolated"
	w.options.Settings.BuildNamespace = isolated
	w.must(c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: isolated}}))
	w.must(c.Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: isolated,
			Name: compose.BuildAccount}}))
	return w
}

// start a controller; stop ends it and waits.
func (w *world) start() (stop func()) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	config, options := w.config, w.options
	go func() { done <- controller.Run(ctx, config, options) }()
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

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// newBuild is a build of one commit; edit changes it before it is made.
func (w *world) newBuild(name string, edit ...func(*api.AgentBuild)) *api.AgentBuild {
	b := &api.AgentBuild{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: api.AgentBuildSpec{
			Source: api.SourceSpec{SourceRepository: "github.com/org/" + name + ".git",
				SourceRevision: sha},
			BuildOutput: &api.BuildOutput{Image: name, ImageTag: "v1",
				ImageRegistry: "registry.local:5000"},
		},
	}
	for _, e := range edit {
		e(b)
	}
	return b
}

func (w *world) create(name string, edit ...func(*api.AgentBuild)) *api.AgentBuild {
	w.Helper()
	b := w.newBuild(name, edit...)
	w.must(w.Client.Create(w.Context(), b))
	return b
}

// change a build as a user would, against its newest version.
func (w *world) change(b *api.AgentBuild, edit func(*api.AgentBuild)) {
	w.Helper()
	fresh := w.build(b.Name)
	before := fresh.DeepCopy()
	edit(fresh)
	w.must(w.Patch(w.Context(), fresh, client.MergeFrom(before)))
}

func (w *world) build(name string) *api.AgentBuild {
	w.Helper()
	b := &api.AgentBuild{}
	w.must(w.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, b))
	return b
}

// runs of the namespace and those that are isolated, oldest attempt first.
func (w *world) runs() []tektonv1.PipelineRun {
	w.Helper()
	var list tektonv1.PipelineRunList
	w.must(w.List(w.Context(), &list, client.InNamespace(w.namespace)))
	if isolated := w.options.Settings.BuildNamespace; isolated != "" {
		var more tektonv1.PipelineRunList
		w.must(w.List(w.Context(), &more, client.InNamespace(isolated)))
		list.Items = append(list.Items, more.Items...)
	}
	return list.Items
}

// eventually waits for check to answer "".
func (w *world) eventually(what string, check func() string) {
	w.Helper()
	w.within(3*time.Minute, what, check)
}

// within waits that long for check to answer "".
func (w *world) within(limit time.Duration, what string, check func() string) {
	w.Helper()
	var last string
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(
		20 * time.Millisecond) {
		if last = check(); last == "" {
			return
		}
	}
	w.Fatalf("%s: %s", what, last)
}

// never fails when check answers something within a while.
func (w *world) never(what string, check func() string) {
	w.Helper()
	for deadline := time.Now().Add(1500 * time.Millisecond); time.Now().Before(
		deadline); time.Sleep(50 * time.Millisecond) {
		if got := check(); got != "" {
			w.Fatalf("%s: %s", what, got)
		}
	}
}

// phase waits until the build is in a phase, with its generation observed.
func (w *world) phase(name string, want api.Phase) *api.AgentBuild {
	w.Helper()
	var b *api.AgentBuild
	w.eventually(fmt.Sprintf("build %s becomes %s", name, want), func() string {
		b = w.build(name)
		if b.Status.Phase != want || b.Status.ObservedGeneration != b.Generation {
			return fmt.Sprintf("phase %q, generation %d of %d: %s", b.Status.Phase,
				b.Status.ObservedGeneration, b.Generation, b.Status.Message)
		}
		return ""
	})
	return b
}

// run waits for the n-th run (from 1) of the namespace and returns the newest.
func (w *world) run(n int) *tektonv1.PipelineRun {
	w.Helper()
	var newest *tektonv1.PipelineRun
	w.eventually(fmt.Sprintf("run %d exists", n), func() string {
		runs := w.runs()
		if len(runs) != n {
			return fmt.Sprintf("%d runs", len(runs))
		}
		for i := range runs {
			if newest == nil || newest.CreationTimestamp.Before(&runs[i].CreationTimestamp) ||
				newest.Status.CompletionTime != nil {
				newest = &runs[i]
			}
		}
		return ""
	})
	return newest
}

const digest = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

// succeed ends a run as Tekton would.
func (w *world) succeed(run *tektonv1.PipelineRun) {
	w.Helper()
	w.finish(run, corev1.ConditionTrue, "Completed",
		"Tasks Completed: 4 (Failed: 0, Cancelled 0), Skipped: 1",
		func(s *tektonv1.PipelineRunStatus) {
			s.Results = []tektonv1.PipelineRunResult{
				{Name: "kaniko-build-IMAGE_URL",
					Value: *tektonv1.NewStructuredValues(run.Annotations[keys.AnnotationImage])},
				{Name: "kaniko-build-IMAGE_DIGEST", Value: *tektonv1.NewStructuredValues(digest)},
				{Name: "CHAINS-GIT_COMMIT",
					Value: *tektonv1.NewStructuredValues(run.Annotations[keys.AnnotationCommit])},
			}
			s.SkippedTasks = []tektonv1.SkippedTask{{Name: "buildpack-build",
				Reason: tektonv1.WhenExpressionsSkip}}
		})
}

func (w *world) fail(run *tektonv1.PipelineRun) {
	w.Helper()
	w.finish(run, corev1.ConditionFalse, "Failed",
		"Tasks Completed: 2 (Failed: 1, Cancelled 0), Skipped: 2")
}

func (w *world) finish(run *tektonv1.PipelineRun, state corev1.ConditionStatus,
	reason, message string, edit ...func(*tektonv1.PipelineRunStatus)) {
	w.Helper()
	// the controller may write just now
	w.must(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		fresh := &tektonv1.PipelineRun{}
		if err := w.Get(w.Context(), client.ObjectKeyFromObject(run), fresh); err != nil {
			return err
		}
		now := metav1.Now()
		if fresh.Status.StartTime == nil {
			fresh.Status.StartTime = &now
		}
		fresh.Status.CompletionTime = &now
		fresh.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: state,
			Reason: reason, Message: message})
		for _, e := range edit {
			e(&fresh.Status)
		}
		return w.Status().Update(w.Context(), fresh)
	}))
}

// begin a run as Tekton would.
func (w *world) begin(run *tektonv1.PipelineRun) {
	w.Helper()
	fresh := &tektonv1.PipelineRun{}
	w.must(w.Get(w.Context(), client.ObjectKeyFromObject(run), fresh))
	now := metav1.Now()
	fresh.Status.StartTime = &now
	fresh.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded,
		Status: corev1.ConditionUnknown, Reason: "Running", Message: "Tasks Completed: 0"})
	w.must(w.Status().Update(w.Context(), fresh))
}

func condition(b *api.AgentBuild, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(b.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// writeCounter counts the requests of a controller that change something.
type writeCounter struct {
	mu  sync.Mutex
	by  map[string]int
	all []string // in order
	// runs are the moments at which the API server confirmed a run
	runs []time.Time
}

// runsCreated reports whether n runs were confirmed, and when the n-th was.
func (c *writeCounter) runsCreated(n int) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.runs) < n {
		return time.Time{}, false
	}
	return c.runs[n-1], true
}

// until counts the writes up to and with the n-th of a kind, events apart.
func (c *writeCounter) until(kind string, n int) (count int, all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, write := range c.all {
		if write != "POST events" {
			count++
		}
		if write == kind {
			if n--; n == 0 {
				break
			}
		}
	}
	return count, append(all, c.all...)
}

func (c *writeCounter) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		write := r.Method + " " + lastParts(r.URL.Path)
		if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/leases") {
			c.mu.Lock()
			c.by[write]++
			c.all = append(c.all, write)
			c.mu.Unlock()
		}
		response, err := next.RoundTrip(r)
		if write == "POST pipelineruns" && err == nil && response.StatusCode == http.StatusCreated {
			c.mu.Lock()
			c.runs = append(c.runs, time.Now())
			c.mu.Unlock()
		}
		return response, err
	})
}

// lastParts of a path without names: agentbuilds, agentbuilds/status, events.
func lastParts(path string) string {
	for _, resource := range []string{"pipelineruns", "pipelines", "agentbuilds", "events",
		"serviceaccounts", "persistentvolumeclaims"} {
		if strings.Contains(path, "/"+resource) {
			if strings.HasSuffix(path, "/status") {
				return resource + "/status"
			}
			return resource
		}
	}
	return path
}

func (c *writeCounter) total() (n int, by map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	by = map[string]int{}
	for k, v := range c.by {
		by[k] = v
		n += v
	}
	return n, by
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// own makes a ConfigMap in the test's namespace.
func (w *world) own(name, key, text string) {
	w.Helper()
	w.must(w.Client.Create(w.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
			Data: map[string]string{key: text}}))
}

// hostsOfTests are those that a login is for.
var hostsOfTests = map[string]string{"tekton.dev/git-0": "127.0.0.1",
	"tekton.dev/git-1": "https://github.com"}

// login makes a Secret that is labelled for its purpose.
func (w *world) login(name string, purpose compose.Purpose, data map[string]string) {
	w.Helper()
	w.must(w.Client.Create(w.Context(), &corev1.Secret{StringData: data,
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Annotations: hostsOfTests,
			Labels: map[string]string{keys.LabelCredentials: string(purpose)}}}))
}

func (w *world) rewrite(name, key, text string) {
	w.Helper()
	w.must(w.Update(w.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
			Data: map[string]string{key: text}}))
}

// probe is a run that only a dry run makes.
func (w *world) probe() *tektonv1.PipelineRun {
	return &tektonv1.PipelineRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "probe"},
		Spec:       tektonv1.PipelineRunSpec{PipelineRef: &tektonv1.PipelineRef{Name: "none"}},
	}
}
