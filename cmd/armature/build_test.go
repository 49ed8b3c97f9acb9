package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/tektoncd/pipeline/pkg/apis/pipeline"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	buildclient "github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/controller/buildtest"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/page"
	"github.com/armature-dev/armature/e2e/programs"
)

// armature runs the program, "" for this process, and returns its output and exit status.
type armature struct {
	file string
	env  []string
}

// offline is the command without the program, for tests in which nothing else runs.
func offline() *armature { return &armature{env: append(environ, "KUBECONFIG=")} }

// program is built once for all tests, with armature-fn beside it, in a folder that lives as long
// as they do.
var (
	programFolder string
	program       = sync.OnceValues(func() (string, error) {
		return filepath.Join(programFolder, "armature"), errors.Join(programs.Build(programFolder,
			"cmd/armature"), programs.Build(programFolder, "cmd/armature-fn"))
	})
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if programFolder, err = os.MkdirTemp("", "armature-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(programFolder)
		return m.Run()
	}())
}

func buildArmature(t *testing.T) *armature {
	t.Helper()
	file, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return &armature{file: file, env: append(environ, "KUBECONFIG=")}
}

func (a *armature) run(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	var got int
	var err error
	if a.file == "" {
		got, err = inProcess(t.Context(), "", a.env, &bytes.Buffer{}, &out, &errs, args...)
	} else {
		cmd := exec.CommandContext(t.Context(), a.file, args...)
		cmd.Env, cmd.Stdout, cmd.Stderr = a.env, &out, &errs
		err = cmd.Run()
		got = cmd.ProcessState.ExitCode()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("armature %s: exit status %d, want %d\n%s%s", strings.Join(args, " "), got, want,
			out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// What needs no cluster: plan, lint, install, and wrong calls.
func TestBuildOffline(t *testing.T) {
	a := offline()
	weather := filepath.Join("..", "..", "examples", "builds", "weather.yaml")
	for _, mode := range []string{"dev", "buildpack-dev", "dev-local", "dev-external", "preprod",
		"prod", "custom"} {
		out, _ := a.run(t, 0, "build", "plan", weather, "--mode", mode)
		if strings.Count(out, "\nkind: Pipeline\n") != 1 ||
			strings.Count(out, "\nkind: PipelineRun\n") != 1 || strings.Contains(out, ": null\n") {
			t.Errorf("mode %s: %s", mode, out)
		}
	}
	for format, want := range map[string]string{"": "└─", "text": "└─", "mermaid": "flowchart TD"} {
		args := []string{"build", "plan", weather, "--graph"}
		if format != "" {
			args = append(args, "-o", format)
		}
		if out, _ := a.run(t, 0, args...); !strings.Contains(out, want) {
			t.Errorf("graph -o %s: %s", format, out)
		}
	}
	mirror := func(registry string) string {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, "imageMirror: %q\n", registry), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	if out, _ := a.run(t, 0, "build", "plan", weather, "-o", "json", "--values",
		mirror("mirror.local/hub")); !json.Valid([]byte(out)) ||
		!strings.Contains(out, `"mirror.local/hub/docker.io/moby/buildkit:`) {
		t.Errorf("the mirror is not in %s", out)
	}
	a.run(t, 0, "build", "lint", "--strict")
	if out, _ := a.run(t, 0, "build", "lint", "-o", "yaml"); !strings.HasPrefix(out, "checked: ") ||
		!strings.Contains(out, "problems: []\n") {
		t.Errorf("build lint -o yaml: %s", out)
	}
	bad := t.TempDir()
	if err := os.WriteFile(filepath.Join(bad, "step.yaml"),
		[]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: scan}\ndata:\n"+
			"  task-spec.yaml: |\n    steps: []\n    nonsense: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var linted struct {
		Checked  int
		Problems []struct{ Place, Message string }
	}
	out, _ := a.run(t, 1, "build", "lint", bad, "-o", "json")
	if err := json.Unmarshal([]byte(out), &linted); err != nil || linted.Checked != 1 ||
		len(linted.Problems) == 0 || !strings.Contains(linted.Problems[0].Place, "scan") {
		t.Errorf("build lint -o json: %v: %s", err, out)
	}
	for _, mode := range []string{"cluster", "namespaced"} {
		if out, _ := a.run(t, 0, "install", "--scope", mode); !strings.Contains(out,
			"kind: CustomResourceDefinition") {
			t.Errorf("install %s: %s", mode, out)
		}
	}
	if out, _ := a.run(t, 0, "install", "--image-mirror",
		"mirror.example.com/steps"); !strings.Contains(out,
		"- --image-mirror=mirror.example.com/steps\n") {
		t.Error("install does not give the controller the mirror")
	}
	if out, _ := a.run(t, 0, "install", "--api-group", "agent.rossoctl.dev"); !strings.Contains(out,
		"agentbuilds.agent.rossoctl.dev") || strings.Contains(out, "agent.kagenti.dev") {
		t.Error("install does not rename the group everywhere")
	}

	bad = filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad,
		[]byte("apiVersion: agent.kagenti.dev/v1alpha1\nkind: AgentBuild\nmetadata: {name: x}\n"+
			"spec:\n  source: {}\n  sourse: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs := a.run(t, 1, "build", "plan", bad)
	if out != "" ||
		!strings.Contains(errs, "bad.yaml:6: spec.sourse: is not a known field\n  hint: ") {
		t.Errorf("stdout %q, stderr %q", out, errs)
	}
	a.run(t, 1, "build", "plan", "nowhere.yaml")
	if out, errs := a.run(t, 1, "build", "plan", weather, "--values",
		mirror("https://bad mirror")); out != "" || strings.Count(errs, "the image mirror") != 1 {
		t.Errorf("a bad mirror: stdout %q, stderr %q", out, errs)
	}
	pins := filepath.Join(t.TempDir(), "pins")
	if err := os.WriteFile(pins, []byte("docker.io/alpine/git:v2.49.1: latest\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs := a.run(t, 1, "build", "plan", weather, "--image-pins",
		pins); !strings.Contains(errs, "is not a sha256 digest") {
		t.Errorf("bad pins: %s", errs)
	}
	// A folder that holds nothing was not meant, and a List is what kubectl prints.
	for _, wrong := range []string{t.TempDir(), "nowhere", weather} {
		for _, args := range [][]string{{"build", "lint", wrong},
			{"build", "plan", weather, "--templates", wrong}} {
			if out, errs := a.run(t, 1, args...); out != "" || strings.Count(errs, "hint: ") != 1 {
				t.Errorf("%v: stdout %q, stderr %q", args, out, errs)
			}
		}
	}
	const template = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n" +
		"  metadata: {name: pipeline-template-own}\n  data:\n    %s: |\n" +
		"      steps:\n      - {name: own-clone, configMap: github-clone-step, " +
		"defaultParameters: [{name: revison, value: x}]}\n"
	list := t.TempDir()
	if err := os.WriteFile(filepath.Join(list, "all.yaml"),
		fmt.Appendf(nil, template, "template.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, errs := a.run(t, 0, "build", "plan", weather, "--mode", "own", "--templates", list,
		"--values", mirror("mirror.local/hub/")); !strings.Contains(out, "name: own-clone") ||
		!strings.Contains(out, "image: mirror.local/hub/docker.io/") ||
		!strings.Contains(errs, `no parameter "revison"`) {
		t.Errorf("a template in a List: stdout %s, stderr %s", out, errs)
	}
	if _, errs := a.run(t, 1, "build", "lint", "--strict", list); !strings.Contains(errs,
		`no parameter "revison"`) {
		t.Errorf("lint: %s", errs)
	}
	if err := os.WriteFile(filepath.Join(list, "all.yaml"),
		fmt.Appendf(nil, template, "template.yml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs := a.run(t, 1, "build", "lint", list); !strings.Contains(errs,
		"has neither the key template.yaml nor template.json") {
		t.Errorf("lint of a wrong key: %s", errs)
	}
	for _, complete := range []struct{ args, want string }{{"build plan x --mode", "dev-local"},
		{"build list -o", "yaml"}, {"build plan x --graph -o", "mermaid"},
		{"install --scope", "namespaced"}} {
		if out, _ := a.run(t, 0,
			append(append([]string{"__complete"}, strings.Fields(complete.args)...),
				"")...); !strings.Contains(out, complete.want+"\n") {
			t.Errorf("completion of %s: %s", complete.args, out)
		}
	}
	for _, args := range [][]string{{"build"}, {"build", "plan"},
		{"build", "plan", weather, "-o", "xml"}, {"build", "plan", weather, "-o", "mermaid"},
		{"build", "plan", weather, "--graph", "-o", "yaml"}, {"build", "plan", weather, "--grph"},
		{"build", "lint", "-o", "xml"}, {"install", "--scope", "both"},
		{"install", "--watch-namespaces", "a"}, {"install", "--namespace", "Bad_NS"},
		{"install", "--scope", "namespaced",
			"--watch-namespaces", "a,,b"}, {"install", "--image", "a b"},
		{"install", "--image-mirror", "https://mirror"}, {"install", "--api-group", "Bad Group"},
		{"build", "nonsense"}} {
		if out, errs := a.run(t, 2, args...); out != "" || errs == "" {
			t.Errorf("%v: stdout %q, stderr %q", args, out, errs)
		}
	}
}

// What a plan prints is read off the composed objects, which share parts with each
// other and with the build: none is changed.
func TestBuildPlanChangesNothing(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "examples", "builds", "weather.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	library, err := manifest.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range manifest.ShippedModes() {
		for _, objects := range []bool{false, true} {
			builds, err := manifest.Builds("weather.yaml", data, api.DefaultGroup)
			if err != nil {
				t.Fatal(err)
			}
			b := builds[0]
			b.Spec.Mode = mode
			out, err := library.Compose(b, compose.Settings{PipelineObjects: objects})
			if err != nil {
				t.Fatal(err)
			}
			build, pipeline, run := b.DeepCopy(), out.Pipeline.DeepCopy(), out.Run.DeepCopy()
			sent, err := out.RunJSON()
			if err != nil {
				t.Fatal(err)
			}
			if err := buildclient.Write(io.Discard, "mermaid",
				[]buildclient.Pipeline{buildclient.PipelineOf("weather", &out.Pipeline.Spec)}); err != nil {
				t.Fatal(err)
			}
			if err := cli.PrintObjects(io.Discard, "json", manifest.Objects(out)...); err != nil {
				t.Fatal(err)
			}
			for _, pair := range [][2]any{{build, b.AgentBuild}, {pipeline, out.Pipeline},
				{run, out.Run}} {
				if !reflect.DeepEqual(pair[0], pair[1]) {
					t.Errorf("mode %s: the %T was changed", mode, pair[1])
				}
			}
			// The run that is sent takes its pipeline from a text, which is the same.
			var text tektonv1.PipelineRun
			if err := json.Unmarshal(sent, &text); err != nil {
				t.Fatal(err)
			}
			if got, want := text.Spec.PipelineSpec, out.Pipeline.Spec; !objects &&
				!equality.Semantic.DeepEqual(*got, want) {
				t.Errorf("mode %s: the run is sent with another pipeline", mode)
			}
		}
	}
}

// buildCluster is a control plane with the CRDs and the namespace team1.
func buildCluster(t *testing.T) (client.Client, *armature) {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	plane := controlplane.Start(t)
	c, err := buildtest.Install(plane)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team1"}}); err != nil {
		t.Fatal(err)
	}
	a := buildArmature(t)
	a.env = append(environ, "KUBECONFIG="+plane.Admin.Kubeconfig)
	return c, a
}

// What asks a cluster: run, list, describe, logs, cancel, rerun.
func TestBuildCluster(t *testing.T) {
	c, a := buildCluster(t)
	weather := filepath.Join("..", "..", "examples", "builds", "weather.yaml")
	get := func() *api.AgentBuild {
		b := &api.AgentBuild{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "team1", Name: "weather"},
			b); err != nil {
			t.Fatal(err)
		}
		return b
	}

	if out, errs := a.run(t, 1, "build", "run", weather, "-n", "team2"); out != "" ||
		!strings.Contains(errs,
			`weather.yaml:3: metadata.namespace: is "team1", but --namespace is "team2"`+"\n  hint: ") {
		t.Errorf("a namespace that is not the file's: stdout %q, stderr %q", out, errs)
	}
	a.run(t, 0, "build", "run", weather, "-n", "team1")
	a.run(t, 0, "build", "run", weather) // applying twice is not a change
	if b := get(); b.Generation != 1 || b.Spec.Source.SourceSubfolder != "a2a/weather_service" {
		t.Errorf("generation %d: %+v", b.Generation, b.Spec.Source)
	}
	a.run(t, 0, "build", "cancel", "weather", "-n", "team1")
	if !get().Spec.Cancel {
		t.Error("cancel did nothing")
	}
	a.run(t, 0, "build", "rerun", "weather", "-n", "team1")
	if b := get(); b.Spec.Cancel || b.Annotations["agent.kagenti.dev/rerun"] == "" {
		t.Errorf("rerun: cancel %v, annotations %v", b.Spec.Cancel, b.Annotations)
	}

	if out, _ := a.run(t, 0, "__complete", "build", "describe", "-n", "team1",
		""); !strings.Contains(out, "weather\n") {
		t.Errorf("completion of a name: %s", out)
	}

	b := get()
	code := int32(137)
	b.Status = api.AgentBuildStatus{Phase: api.PhaseFailed,
		Message: "task kaniko-build, step build-and-push, exit code 137: out of memory",
		FailureDetails: &api.FailureDetails{Reason: "StepOutOfMemory", Task: "kaniko-build",
			Step: "build-and-push", ExitCode: &code, LogTail: []string{"Killed"}},
		Tasks: []api.TaskStatus{{Name: "kaniko-build", State: "Failed", Reason: "Failed"}}}
	if err := c.Status().Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	out, _ := a.run(t, 0, "build", "describe", "weather", "-n", "team1")
	for _, want := range []string{"StepOutOfMemory", "build-and-push", "137", "kaniko-build", "Killed"} {
		if !strings.Contains(out, want) {
			t.Errorf("describe does not say %s:\n%s", want, out)
		}
	}
	b.Status.Message = "task buildkit-build, step build: Dockerfile:4: RUN make all: make: *** " +
		"No rule to make target 'all'.  Stop."
	b.Status.FailureDetails = &api.FailureDetails{Reason: "DockerfileFailed",
		Task: "buildkit-build", Step: "build"}
	if err := c.Status().Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	out, _ = a.run(t, 0, "build", "describe", "weather", "-n", "team1")
	page.Shown(t, "docs/builds.md", "armature build describe weather -n team1", out)
	b.Status.FailureDetails.Reason = "StepOutOfMemory"
	// The report of a kept run contains its skipped tasks. The tasks of a cancelled
	// run are not reported as failed.
	pr := &tektonv1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "team1",
		Name: "weather-1"},
		Spec: tektonv1.PipelineRunSpec{PipelineRef: &tektonv1.PipelineRef{Name: "none"}}}
	tr := &tektonv1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: "team1",
		Name:   "weather-1-clone",
		Labels: map[string]string{pipeline.PipelineRunLabelKey: "weather-1"}},
		Spec: tektonv1.TaskRunSpec{TaskRef: &tektonv1.TaskRef{Name: "none"}}}
	for _, o := range []client.Object{pr, tr} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	pr.Status.ChildReferences = []tektonv1.ChildStatusReference{{Name: tr.Name,
		PipelineTaskName: "github-clone"}}
	tr.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded,
		Status: corev1.ConditionFalse, Reason: tektonv1.TaskRunReasonCancelled.String()})
	b.Status.PipelineRunName = pr.Name
	b.Status.Tasks = append(b.Status.Tasks,
		api.TaskStatus{Name: "buildpack-build", State: "Skipped"})
	for _, o := range []client.Object{pr, tr, b} {
		if err := c.Status().Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if out, _ := a.run(t, 0, "build", "describe", "weather", "-n", "team1"); !strings.Contains(out,
		"buildpack-build  Skipped") {
		t.Errorf("describe of a run that is kept:\n%s", out)
	}
	tasks := b.Status.Tasks
	b.Status.Tasks = nil
	if err := c.Status().Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if out, _ := a.run(t, 0, "build", "describe", "weather", "-n", "team1"); !strings.Contains(out,
		"github-clone  Cancelled") {
		t.Errorf("describe of a run that is stopped:\n%s", out)
	}
	b.Status.PipelineRunName, b.Status.Tasks = "", tasks
	if err := c.Status().Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if out, _ := a.run(t, 0, "build", "list", "-A"); !strings.Contains(out, "team1") ||
		!strings.Contains(out, "Failed") {
		t.Errorf("list: %s", out)
	}
	for _, format := range []string{"json", "yaml"} {
		if out, _ := a.run(t, 0, "build", "list", "-n", "team1", "-o",
			format); !strings.Contains(out, "StepOutOfMemory") ||
			!strings.Contains(out, "AgentBuildList") {
			t.Errorf("list -o %s: %s", format, out)
		}
	}
	// A cluster without the CRD differs from one without builds.
	for _, args := range [][]string{{"build", "list"}, {"build", "describe", "weather"}} {
		if _, errs := a.run(t, 1,
			append(args, "--api-group", "agent.example.com")...); !strings.Contains(errs,
			"the cluster has no AgentBuild of agent.example.com\n  hint: `armature install") {
			t.Errorf("%v without the CRD: %s", args, errs)
		}
	}
	if _, errs := a.run(t, 1, "build", "run", weather, "--wait", "--timeout",
		"1s"); !strings.Contains(errs, "did not finish in time\n  hint: ") {
		t.Errorf("a wait that is too short: %s", errs)
	}
	if _, errs := a.run(t, 1, "build", "logs", "weather", "-n", "team1"); !strings.Contains(errs,
		"has no run") {
		t.Errorf("logs: %s", errs)
	}
	if _, errs := a.run(t, 1, "build", "describe", "nowhere", "-n",
		"team1"); !strings.Contains(errs, `"nowhere" not found`) ||
		!strings.Contains(errs,
			"hint: it may have been deleted, with its runs; namespace team1 has ") {
		t.Errorf("describe: %s", errs)
	}
}

// All builds of a file are applied before the first is waited for. A run that is
// tried again is not the end of the wait; another failure is, and a deletion, also
// one that comes before the build is waited for.
func TestBuildWait(t *testing.T) {
	c, a := buildCluster(t)
	t.Run("deleted while waited for", func(t *testing.T) { testBuildWait(t, c, a, "", false) })
	t.Run("deleted before", func(t *testing.T) { testBuildWait(t, c, a, "early-", true) })
}

func testBuildWait(t *testing.T, c client.Client, a *armature, prefix string, early bool) {
	file := filepath.Join(t.TempDir(), "builds.yaml")
	const text = `apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: %s}
spec:
  source: {sourceRepository: github.com/org/agent}
  buildOutput: {imageRegistry: registry.local, image: agent, imageTag: v1}
  retries: {limit: 1, after: [Any]}
---
`
	names := []string{prefix + "first", prefix + "second", prefix + "third"}
	var all []byte
	for _, name := range names {
		all = fmt.Appendf(all, text, name)
	}
	if err := os.WriteFile(file, all, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out, errs controlplane.Output
	cmd := exec.CommandContext(ctx, a.file, "build", "run", file, "-n", "team1", "--wait")
	cmd.Env, cmd.Stdout, cmd.Stderr = a.env, &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			if ctx.Err() != nil {
				t.Fatalf("%s\nstdout:\n%s\nstderr:\n%s", what, out.String(), errs.String())
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	set := func(name string, status api.AgentBuildStatus) {
		t.Helper()
		b := &api.AgentBuild{}
		until(name+" is not there", func() bool {
			return c.Get(ctx, client.ObjectKey{Namespace: "team1", Name: name}, b) == nil
		})
		status.ObservedGeneration = b.Generation
		status.Conditions = []metav1.Condition{{Type: api.ConditionRunExists,
			Status: metav1.ConditionTrue, Reason: "Created", LastTransitionTime: metav1.Now()}}
		b.Status = status
		if err := c.Status().Update(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	until("the third build waits for the first", func() bool {
		return c.Get(ctx, client.ObjectKey{Namespace: "team1", Name: names[2]}, &api.AgentBuild{}) == nil
	})
	remove := func() {
		t.Helper()
		if err := c.Delete(ctx,
			&api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1",
				Name: names[2]}}); err != nil {
			t.Fatal(err)
		}
	}
	if early {
		remove()
	}
	set(names[0], api.AgentBuildStatus{Phase: api.PhaseFailed, LastRunPhase: api.PhaseFailed,
		Attempt: 1, Message: "to be tried again"})
	until("the first failure is not reported",
		func() bool { return strings.Contains(out.String(), "to be tried again") })
	set(names[0], api.AgentBuildStatus{Phase: api.PhaseFailed, LastRunPhase: api.PhaseFailed,
		Attempt: 2, Message: "no more"})
	set(names[1], api.AgentBuildStatus{Phase: api.PhaseSucceeded, LastRunPhase: api.PhaseSucceeded,
		Attempt: 1, Message: "built it"})
	until("the second build is not waited for",
		func() bool { return strings.Contains(out.String(), "built it") })
	if !early {
		remove()
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v: exit status %d\n%s", err, cmd.ProcessState.ExitCode(), errs.String())
	}
	for _, want := range []string{names[0] + " was not built\n  hint: ", names[2] + " was deleted"} {
		if !strings.Contains(errs.String(), want) {
			t.Errorf("stderr does not say %q: %s", want, errs.String())
		}
	}
}
