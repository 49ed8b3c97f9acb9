// Package upgrade upgrades, downgrades and upgrades an installation: from the last release
// to the working tree, on a real API server. Tekton, Flux and the pods are played.
package upgrade

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fluxcd/pkg/ssa/utils"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/apis"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/buildtest"
	"github.com/armature-dev/armature/e2e/catalog/peer"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/kubeconfig"
	"github.com/armature-dev/armature/e2e/ports"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/archive"
)

var _ = controlplane.Only

// released is what the working tree is compared with where Git has no tag of a release.
const released = "6da5b30f32730f0d7adfa5fe0df8a555ffc18dd6"

const (
	root   = "../.."
	digest = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	system = "armature-system"
	team   = "team1"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// run a program that has to succeed.
func run(t *testing.T, program string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	var problem bytes.Buffer
	cmd.Dir, cmd.Stderr = root, &problem
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(program), strings.Join(args, " "), err, out, &problem)
	}
	return out
}

// lastRelease is the newest tag of a release before this commit, or released. A shallow clone
// has neither.
func lastRelease(t *testing.T) string {
	t.Helper()
	describe := exec.Command("git", "describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "HEAD^")
	describe.Dir = root
	tag, err := describe.Output()
	commit := strings.TrimSpace(string(tag))
	if err != nil {
		commit = released
	}
	there := exec.Command("git", "cat-file", "-e", commit+"^{tree}")
	there.Dir = root
	if out, err := there.CombinedOutput(); err != nil {
		if strings.TrimSpace(string(run(t, "git", "rev-parse", "--is-shallow-repository"))) == "true" {
			fmt.Fprintf(os.Stderr,
				"SKIPPED %s: a shallow clone has no %s, the last release\n"+
					"  hint: `git fetch --unshallow --tags` brings it\n", t.Name(), commit)
			t.SkipNow()
		}
		t.Fatalf("this clone lacks %s, the last release: %v %s\n  hint: `git fetch --unshallow "+
			"--tags` brings it", commit, err, out)
	}
	return commit
}

// build compiles the programs of a commit, or of the working tree for "", and returns their
// folder. A commit is laid over the working tree, so that Go compiles only what differs.
// All programs report the same version, which rendered workloads have in an annotation.
func build(t *testing.T, commit string) string {
	t.Helper()
	dir := t.TempDir()
	args := []string{"build", "-buildvcs=false", "-ldflags",
		"-s -w -X github.com/armature-dev/armature/render/version.described=v0.0.1", "-o", dir + "/"}
	if commit != "" {
		tree := t.TempDir()
		run(t, "bash", "-euo", "pipefail", "-c", `git archive "$1" | tar -x -C "$2"`, "bash",
			commit, tree)
		overlay := map[string]string{}
		for _, names := range [][]byte{run(t, "git", "diff", "--name-only", "--no-renames", commit),
			run(t, "git", "ls-files", "--others", "--exclude-standard")} {
			for file := range strings.Lines(string(names)) {
				file = strings.TrimSpace(file)
				here, err := filepath.Abs(filepath.Join(root, file))
				if err != nil {
					t.Fatal(err)
				}
				overlay[here] = "" // which the commit does not have
				if before := filepath.Join(tree, file); exists(before) {
					overlay[here] = before
				}
			}
		}
		text, err := json.Marshal(map[string]any{"Replace": overlay})
		must(t, err)
		file := filepath.Join(tree, ".overlay.json")
		must(t, os.WriteFile(file, text, 0o644))
		args = append(args, "-overlay", file)
	}
	run(t, "go", append(args, "./cmd/armature", "./cmd/armature-controller")...)
	return dir
}

func exists(file string) bool {
	info, err := os.Lstat(file)
	return err == nil && info.Mode().IsRegular()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rendered are the outputs of all examples that render, by folder.
func rendered(t *testing.T, bin string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	must(t, filepath.WalkDir(filepath.Join(root, "examples"),
		func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "armature"), "render", path)
			if out, err := cmd.Output(); err == nil {
				all[strings.TrimPrefix(path, root+"/")] = string(out)
			}
			return nil
		}))
	if len(all) < 10 {
		t.Fatalf("%d examples render", len(all))
	}
	return all
}

func TestUpgrade(t *testing.T) {
	plane, commit := controlplane.Start(t), lastRelease(t)
	before, after := build(t, commit), build(t, "")
	t.Run("Bytes", func(t *testing.T) { bytesStay(t, commit, before, after) })
	t.Run("Cluster", func(t *testing.T) { clusterStays(t, plane, before, after) })
}

// What is rendered and locked has the bytes of the last release. The examples that have
// others are in testdata/renders.txt, which UPDATE=1 writes; the changelog says why.
func bytesStay(t *testing.T, commit, before, after string) {
	is, differ :=
		rendered(t, after),
		"# Examples that render to other bytes than in the last release: see CHANGELOG.md.\n"
	for folder, was := range rendered(t, before) {
		if is[folder] != was {
			t.Logf("%s (-last release +now):\n%s", folder, cmp.Diff(was, is[folder]))
			differ += folder + "\n"
		}
	}
	lines := strings.SplitAfter(differ, "\n")
	slices.Sort(lines[1:])
	differ = strings.Join(lines, "")
	if os.Getenv("UPDATE") != "" {
		must(t, os.WriteFile("testdata/renders.txt", []byte(differ), 0o644))
	}
	if want, err := os.ReadFile("testdata/renders.txt"); err != nil || string(want) != differ {
		t.Errorf(
			"renders differ from those of %s: name them in CHANGELOG.md, then UPDATE=1 (%v)\n%s",
			commit, err, differ)
	}

	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	image := strings.TrimPrefix(server.URL, "http://") + "/agent:v1"
	ref, err := name.ParseReference(image)
	must(t, err)
	must(t, remote.Write(ref, empty.Image))
	dir := t.TempDir()
	must(t,
		os.WriteFile(filepath.Join(dir, "agent.yaml"),
			[]byte("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: agent}\nspec:\n"+
				"  selector: {matchLabels: {app: agent}}\n"+
				"  template: {metadata: {labels: {app: agent}}, spec: {containers: [{name: "+
				"agent, image: \""+
				image+"\"}]}}\n"), 0o644))
	var locks []string
	for _, bin := range []string{before, after, before} {
		run(t, filepath.Join(bin, "armature"), "pin", dir, "--insecure-registry")
		lock, err := os.ReadFile(filepath.Join(dir, "armature.lock"))
		must(t, err)
		locks = append(locks,
			string(lock)+string(run(t, filepath.Join(bin, "armature"), "render", dir)))
	}
	if !strings.Contains(locks[0], "@sha256:") || locks[1] != locks[0] || locks[2] != locks[0] {
		t.Errorf("the lock is not the same:\n%s\n%s\n%s", locks[0], cmp.Diff(locks[0], locks[1]),
			cmp.Diff(locks[1], locks[2]))
	}
}

// world is the API server, with what the test plays.
type world struct {
	*testing.T
	client.Client
	plane *controlplane.ControlPlane
	store string // the folder of the catalog and of the archives of RenderedSources
	token string // of a reader of the catalog
	agent string // the port of an agent
	marks int    // builds that showed that a version works
}

// Upgrading, downgrading and upgrading again loses nothing and builds nothing again: runs,
// images, published packages, inventories and the catalog stay as they are, and builds
// that were running end under the next version. Each version works with its own rights.
func clusterStays(t *testing.T, plane *controlplane.ControlPlane, before, after string) {
	w := &world{T: t, plane: plane, store: t.TempDir()}
	w.furnish()

	stop := w.install(before)
	for _, name := range []string{"done", "failed", "running-1", "running-2", "running-3"} {
		w.build(team, name)
	}
	w.finish("done", corev1.ConditionTrue)
	w.finish("failed", corev1.ConditionFalse)
	w.phase("done", api.PhaseSucceeded)
	w.phase("failed", api.PhaseFailed)
	run(t, filepath.Join(before, "armature"), "apply", "examples/weather-agent", "--kubeconfig",
		w.plane.Admin.Kubeconfig, "-n", team, "--timeout", "0", "--yes")

	names, err := os.ReadFile("testdata/renders.txt")
	must(t, err)
	same := !strings.Contains(string(names), "examples/weather-agent\n")
	for n, bin := range []string{after, before, after} {
		direction := []string{"upgrade", "downgrade", "second upgrade"}[n]
		was := w.snapshot(same)
		stop()
		stop = w.install(bin)
		run(t, filepath.Join(bin, "armature"), "apply", "examples/weather-agent", "--kubeconfig",
			w.plane.Admin.Kubeconfig, "-n", team, "--timeout", "0", "--yes")
		if diff := cmp.Diff(was, w.snapshot(same)); diff != "" {
			t.Fatalf("the %s changes (-before +after):\n%s", direction, diff)
		}
		running := fmt.Sprintf("running-%d", n+1)
		w.finish(running, corev1.ConditionTrue)
		if b := w.phase(running,
			api.PhaseSucceeded); b.Status.BuiltImage != "registry.local:5000/"+running+":v1@"+
			digest || b.Status.RunNumber != 1 {
			t.Errorf("after the %s, build %s has run %d and image %q", direction, running,
				b.Status.RunNumber, b.Status.BuiltImage)
		}
	}
	stop()
}

// furnish makes what is there before Armature is installed.
func (w *world) furnish() {
	w.Helper()
	tekton, err := controlplane.ModuleDir("github.com/tektoncd/pipeline")
	must(w.T, err)
	download := exec.Command("go", "mod", "download", "-json",
		"github.com/fluxcd/source-controller")
	download.Dir = filepath.Join(root, "e2e", "flux")
	out, err := download.Output()
	must(w.T, err)
	var flux struct{ Dir string }
	must(w.T, json.Unmarshal(out, &flux))
	must(w.T, w.plane.InstallCRDs(filepath.Join(tekton, "config", "300-crds"),
		filepath.Join(flux.Dir, "config", "crd", "bases")))
	w.Client, err = buildtest.Client(w.plane.Admin.Config)
	must(w.T, err)
	reader, err := w.plane.ServiceAccount(w.Context(), "default", "reader")
	must(w.T, err)
	w.token = filepath.Join(w.store, "token")
	must(w.T, os.WriteFile(w.token, []byte(reader.Config.BearerToken), 0o600))

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(w.T, err)
	agent := &http.Server{
		Handler: peer.Agent(peer.Card("weather", "Forecasts.", "1.0", "forecast"))}
	go agent.Serve(listener)
	w.Cleanup(func() { agent.Close() })
	_, port, err := net.SplitHostPort(listener.Addr().String())
	must(w.T, err)
	w.agent = port

	files := make(map[string][]byte)
	sources, err := filepath.Glob(filepath.Join(root, "examples", "weather-agent", "*.yaml"))
	must(w.T, err)
	for _, file := range sources {
		if files[filepath.Base(file)], err = os.ReadFile(file); err != nil {
			w.Fatal(err)
		}
	}
	data, err := archive.Write(files)
	must(w.T, err)
	host := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = rw.Write(data)
	}))
	w.Cleanup(host.Close)
	w.apply(fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Namespace
metadata: {name: marks}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
---
apiVersion: v1
kind: Pod
metadata: {name: weather-0, namespace: %[1]s, labels: {app: weather}}
spec: {containers: [{name: agent, image: weather:v1}]}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: fleet, namespace: %[1]s}
spec: {url: https://git.example/fleet, interval: 1m}
`, team))
	w.status("v1", "Pod", "weather-0",
		`{"podIP":"127.0.0.1","podIPs":[{"ip":"127.0.0.1"}],"conditions":[{"type":"Ready","status":"True"}]}`)
	w.status("source.toolkit.fluxcd.io/v1", "GitRepository", "fleet", fmt.Sprintf(
		`{"artifact":{"digest":%q,"path":"%[2]s","url":"%[3]s%[2]s","revision":"main@sha1:aaaa","lastUpdateTime":"2026-11-22T20:00:00Z","size":%[4]d}}`,
		archive.Digest(data), "/gitrepository/"+team+"/fleet/aaaa.tar.gz", host.URL, len(data)))
}

// apply manifests as kubectl apply --server-side does.
func (w *world) apply(manifests string) {
	w.Helper()
	objects, err := utils.ReadObjects(strings.NewReader(manifests))
	must(w.T, err)
	for _, o := range objects {
		text, err := o.MarshalJSON()
		must(w.T, err)
		// a kind may have been defined just now
		w.eventually("applying "+o.GetKind()+" "+o.GetName(), func() string {
			return words(w.Patch(w.Context(), o.DeepCopy(), client.RawPatch(types.ApplyPatchType,
				text), client.FieldOwner("kubectl"), client.ForceOwnership))
		})
	}
}

func words(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (w *world) status(apiVersion, kind, name, status string) {
	w.Helper()
	must(w.T, w.Status().Patch(w.Context(), object(apiVersion, kind, name),
		client.RawPatch(types.MergePatchType, []byte(`{"status":`+status+`}`))))
}

func object(apiVersion, kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetNamespace(team)
	o.SetName(name)
	return o
}

// eventually waits until what is asked for is so: "" is yes, all else says why not.
func (w *world) eventually(what string, ask func() string) {
	w.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		why := ask()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("%s: %s", what, why)
		}
	}
}

// install a version as its users do, with its own rights, and return when it works: all
// three controllers run with the flags of their Deployments, and have done something.
func (w *world) install(bin string) (stop func()) {
	w.Helper()
	manifests := string(run(w.T, filepath.Join(bin, "armature"), "install", "--catalog",
		"--sources", "--image=registry.local/controller:v1"))
	w.apply(manifests)
	w.apply(fmt.Sprintf(`
apiVersion: kagenti.io/v1alpha1
kind: AgentCard
metadata: {name: weather, namespace: %[1]s}
spec: {selector: {matchLabels: {app: weather}}, endpoint: {port: %[2]s}}
---
apiVersion: armature.dev/v1alpha1
kind: RenderedSource
metadata: {name: weather, namespace: %[1]s}
spec: {sourceRef: {kind: GitRepository, name: fleet}}
`, team, w.agent))
	objects, err := utils.ReadObjects(strings.NewReader(manifests))
	must(w.T, err)
	var free [2]string
	for i := range free {
		free[i], err = ports.Free()
		must(w.T, err)
	}
	own := map[string][]string{
		"armature-controller": {"--webhook-address="},
		"armature-catalog": {"--catalog-store=" + filepath.Join(w.store, "catalog.db"),
			"--catalog-address=127.0.0.1:" + free[0], "--catalog-plain-http",
			"--catalog-allow-network=127.0.0.0/8", "--catalog-server-period=1s"},
		"armature-sources": {"--artifact-dir=" + w.store, "--artifact-address=127.0.0.1:" + free[1],
			"--artifact-advertised-address=127.0.0.1:1", "--source-hosts=127.0.0.1",
			"--git-allow-network=127.0.0.0/8"},
	}
	var stops []func()
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		must(w.T, err)
		args, _, err := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
		must(w.T, err)
		account, err := w.plane.ServiceAccount(w.Context(), system, o.GetName())
		must(w.T, err)
		file := filepath.Join(w.store, o.GetName()+".kubeconfig")
		must(w.T, kubeconfig.Write(file, account.Config))
		stops = append(stops, w.start(filepath.Join(bin, "armature-controller"), file,
			append(append(args, own[o.GetName()]...), "--metrics-address=0", "--health-address=0",
				"--log-level=error")))
		delete(own, o.GetName())
	}
	if len(own) > 0 {
		w.Fatalf("armature install has no Deployment of %v", slices.Sorted(maps.Keys(own)))
	}

	w.marks++
	w.build("marks", fmt.Sprintf("mark-%d", w.marks))
	w.eventually("the package is published", func() string {
		o := object("armature.dev/v1alpha1", "RenderedSource", "weather")
		if err := w.Get(w.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err.Error()
		}
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		if len(conditions) > 0 && conditions[0].(map[string]any)["status"] == "True" {
			return ""
		}
		return fmt.Sprint(o.Object["status"])
	})
	w.eventually("the catalog has the agent", func() string {
		cmd := exec.CommandContext(w.Context(), filepath.Join(bin, "armature"), "catalog", "list",
			"-A", "--health", "Healthy", "-o", "json", "--server", "http://127.0.0.1:"+free[0],
			"--token-file", w.token)
		out, err := cmd.CombinedOutput()
		if err == nil && strings.Count(string(out), `"uid"`) == 1 &&
			strings.Contains(string(out), `"weather"`) {
			return ""
		}
		return fmt.Sprintf("%v %s", err, out)
	})
	time.Sleep(2 * time.Second) // in which nothing else may happen
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// start a controller; stop ends it as a kubelet does.
func (w *world) start(program, config string, args []string) (stop func()) {
	w.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+config, "POD_NAMESPACE="+system)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	must(w.T, cmd.Start())
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || strings.Contains(problems.String(), "forbidden") {
			w.Errorf("%s %s: %v\n%s", program, strings.Join(args, " "), err, &problems)
		}
	}
	w.Cleanup(stop)
	return stop
}

// build makes an AgentBuild of one commit, which needs no Git server, and waits for its run.
func (w *world) build(namespace, name string) {
	w.Helper()
	must(w.T, w.Create(w.Context(), &api.AgentBuild{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: api.AgentBuildSpec{
			Source: api.SourceSpec{SourceRepository: "github.com/org/" + name + ".git",
				SourceRevision: "0123456789abcdef0123456789abcdef01234567"},
			BuildOutput: &api.BuildOutput{Image: name, ImageTag: "v1",
				ImageRegistry: "registry.local:5000"},
		},
	}))
	w.eventually("build "+name+" has a run", func() string {
		_, why := w.runOf(namespace, name)
		return why
	})
}

func (w *world) runOf(namespace, name string) (*tektonv1.PipelineRun, string) {
	var runs tektonv1.PipelineRunList
	if err := w.List(w.Context(), &runs, client.InNamespace(namespace)); err != nil {
		return nil, err.Error()
	}
	for i := range runs.Items {
		if runs.Items[i].Annotations[keys.AnnotationBuild] == name {
			return &runs.Items[i], ""
		}
	}
	b := &api.AgentBuild{}
	if err := w.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: name}, b); err != nil {
		return nil, err.Error()
	}
	return nil, fmt.Sprintf("%s: %s", b.Status.Phase, b.Status.Message)
}

// finish the run of a build as Tekton would.
func (w *world) finish(name string, status corev1.ConditionStatus) {
	w.Helper()
	run, why := w.runOf(team, name)
	if why != "" {
		w.Fatalf("build %s: %s", name, why)
	}
	now := metav1.Now()
	run.Status.StartTime, run.Status.CompletionTime = &now, &now
	run.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: status,
		Reason: "Ended"})
	for result, value := range map[string]string{
		"kaniko-build-IMAGE_URL":    run.Annotations[keys.AnnotationImage],
		"kaniko-build-IMAGE_DIGEST": digest,
		"CHAINS-GIT_COMMIT":         run.Annotations[keys.AnnotationCommit],
	} {
		run.Status.Results = append(run.Status.Results,
			tektonv1.PipelineRunResult{Name: result, Value: *tektonv1.NewStructuredValues(value)})
	}
	must(w.T, w.Status().Update(w.Context(), run))
}

func (w *world) phase(name string, want api.Phase) *api.AgentBuild {
	w.Helper()
	b := &api.AgentBuild{}
	w.eventually(fmt.Sprintf("build %s becomes %s", name, want), func() string {
		if err := w.Get(w.Context(), client.ObjectKey{Namespace: team, Name: name}, b); err != nil {
			return err.Error()
		}
		if b.Status.Phase != want {
			return fmt.Sprintf("%s: %s", b.Status.Phase, b.Status.Message)
		}
		return ""
	})
	return b
}

// snapshot has what a change of the version leaves as it is, by object. Where the package
// of the examples renders to the same bytes, that is also what is published and applied.
func (w *world) snapshot(same bool) map[string]string {
	w.Helper()
	kept := make(map[string]string)
	for _, k := range []schema.GroupVersionKind{
		{Group: api.DefaultGroup, Version: "v1alpha1", Kind: "AgentBuild"},
		{Group: "tekton.dev", Version: "v1", Kind: "PipelineRun"},
		{Group: "kagenti.io", Version: "v1alpha1", Kind: "AgentCard"},
		{Group: "armature.dev", Version: "v1alpha1", Kind: "RenderedSource"},
		{Group: "source.toolkit.fluxcd.io", Version: "v1", Kind: "ExternalArtifact"},
		{Group: "apps", Version: "v1", Kind: "Deployment"}, {Version: "v1", Kind: "ConfigMap"},
		{Version: "v1", Kind: "ServiceAccount"}, {Version: "v1", Kind: "Secret"},
	} {
		var list unstructured.UnstructuredList
		list.SetGroupVersionKind(k.GroupVersion().WithKind(k.Kind + "List"))
		must(w.T, w.List(w.Context(), &list, client.InNamespace(team)))
		if len(list.Items) == 0 && k.Kind != "Secret" {
			w.Errorf("there is no %s", k.Kind)
		}
		for _, o := range list.Items {
			// which the program is one of
			unstructured.RemoveNestedField(o.Object, "status", "artifact", "inputs")
			state := map[string]any{"uid": o.GetUID(), "owners": o.GetOwnerReferences()}
			fields := [][]string{{"status", "phase"}, {"status", "builtImage"},
				{"status", "runNumber"}, {"status", "conditions"}}
			if k.Kind == "AgentBuild" || k.Kind == "PipelineRun" || same {
				fields = append(fields, []string{"spec"}, []string{"data"},
					[]string{"status", "artifact"})
			}
			for _, path := range fields {
				if k.Kind == "AgentCard" && path[0] == "status" { // which has times
					continue
				}
				if value, ok, _ := unstructured.NestedFieldNoCopy(o.Object, path...); ok {
					state[strings.Join(path, ".")] = value
				}
			}
			text, err := json.Marshal(state)
			must(w.T, err)
			kept[k.Kind+" "+o.GetName()] = string(text)
		}
	}
	return kept
}
