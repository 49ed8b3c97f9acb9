package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller"
	"github.com/armature-dev/armature/e2e/controlplane"
)

// armature runs the program and gives its output and exit status.
type armature struct {
	file string
	env  []string
}

// program is built once for all tests, in a folder that lives as long as they do.
var (
	programs string
	program  = sync.OnceValues(func() (string, error) {
		file := filepath.Join(programs, "armature")
		if out, err := exec.Command("go", "build", "-o", file, ".").CombinedOutput(); err != nil {
			return "", fmt.Errorf("building armature: %w\n%s", err, out)
		}
		return file, nil
	})
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if programs, err = os.MkdirTemp("", "armature-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(programs)
		return m.Run()
	}())
}

func buildArmature(t *testing.T) *armature {
	t.Helper()
	file, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return &armature{file: file, env: append(os.Environ(), "KUBECONFIG=")}
}

func (a *armature) run(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), a.file, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = a.env, &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		t.Errorf("armature %s: exit status %d, want %d\n%s%s", strings.Join(args, " "), got, want, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// What needs no cluster: plan, lint, install, and wrong calls.
func TestBuildOffline(t *testing.T) {
	a := buildArmature(t)
	weather := filepath.Join("..", "..", "examples", "builds", "weather.yaml")
	for _, mode := range []string{"dev", "buildpack-dev", "dev-local", "dev-external", "preprod", "prod", "custom"} {
		out, _ := a.run(t, 0, "build", "plan", weather, "--mode", mode)
		if strings.Count(out, "\nkind: Pipeline\n") != 1 || strings.Count(out, "\nkind: PipelineRun\n") != 1 || strings.Contains(out, "null") {
			t.Errorf("mode %s: %s", mode, out)
		}
	}
	if out, _ := a.run(t, 0, "build", "plan", weather, "--graph"); !strings.Contains(out, "flowchart TD") || !strings.Contains(out, "└─") {
		t.Errorf("graph: %s", out)
	}
	if out, _ := a.run(t, 0, "build", "plan", weather, "-o", "json", "--image-mirror", "mirror.local/hub"); !json.Valid([]byte(out)) || !strings.Contains(out, `"mirror.local/hub/gcr.io/kaniko-project/executor:`) {
		t.Errorf("the mirror is not in %s", out)
	}
	a.run(t, 0, "build", "lint", "--strict")
	if out, _ := a.run(t, 0, "build", "lint", "-o", "yaml"); !strings.HasPrefix(out, "checked: ") || !strings.Contains(out, "problems: []\n") {
		t.Errorf("build lint -o yaml: %s", out)
	}
	bad := t.TempDir()
	if err := os.WriteFile(filepath.Join(bad, "step.yaml"), []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: scan}\ndata:\n  task-spec.yaml: |\n    steps: []\n    nonsense: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var linted struct {
		Checked  int
		Problems []struct{ Place, Message string }
	}
	out, _ := a.run(t, 1, "build", "lint", bad, "-o", "json")
	if err := json.Unmarshal([]byte(out), &linted); err != nil || linted.Checked != 1 || len(linted.Problems) == 0 || !strings.Contains(linted.Problems[0].Place, "scan") {
		t.Errorf("build lint -o json: %v: %s", err, out)
	}
	for _, mode := range []string{"cluster", "namespaced"} {
		if out, _ := a.run(t, 0, "install", "--mode", mode); !strings.Contains(out, "kind: CustomResourceDefinition") {
			t.Errorf("install %s: %s", mode, out)
		}
	}
	if out, _ := a.run(t, 0, "install", "--image-mirror", "mirror.example.com/steps"); !strings.Contains(out, "- --image-mirror=mirror.example.com/steps\n") {
		t.Error("install does not tell the controller of the mirror")
	}
	if out, _ := a.run(t, 0, "install", "--api-group", "agent.rossoctl.dev"); !strings.Contains(out, "agentbuilds.agent.rossoctl.dev") || strings.Contains(out, "agent.kagenti.dev") {
		t.Error("install does not rename the group everywhere")
	}

	bad = filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("apiVersion: agent.kagenti.dev/v1alpha1\nkind: AgentBuild\nmetadata: {name: x}\nspec:\n  source: {}\n  sourse: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs := a.run(t, 1, "build", "plan", bad)
	if out != "" || !strings.Contains(errs, "bad.yaml:6: spec.sourse: is no known field\n  hint: ") {
		t.Errorf("stdout %q, stderr %q", out, errs)
	}
	a.run(t, 1, "build", "plan", "nowhere.yaml")
	if out, errs := a.run(t, 1, "build", "plan", weather, "--image-mirror", "https://bad mirror"); out != "" || strings.Count(errs, "the image mirror") != 1 {
		t.Errorf("a bad mirror: stdout %q, stderr %q", out, errs)
	}
	pins := filepath.Join(t.TempDir(), "pins")
	if err := os.WriteFile(pins, []byte("docker.io/alpine/git:v2.49.1: latest\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs := a.run(t, 1, "build", "plan", weather, "--image-pins", pins); !strings.Contains(errs, "is no sha256 digest") {
		t.Errorf("bad pins: %s", errs)
	}
	a.run(t, 1, "build", "lint", t.TempDir())
	for _, args := range [][]string{{"build"}, {"build", "plan"}, {"build", "plan", weather, "-o", "xml"}, {"build", "plan", weather, "--grph"}, {"build", "lint", "-o", "xml"},
		{"install", "--mode", "both"}, {"install", "--watch", "a"}, {"build", "nonsense"}} {
		if out, errs := a.run(t, 2, args...); out != "" || errs == "" {
			t.Errorf("%v: stdout %q, stderr %q", args, out, errs)
		}
	}
}

// What asks a cluster: run, list, describe, logs, cancel, rerun.
func TestBuildCluster(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	plane := controlplane.Start(t)
	if err := plane.InstallCRDs(filepath.Join("..", "..", "templates", "crds")); err != nil {
		t.Fatal(err)
	}
	tekton, err := controlplane.ModuleDir("github.com/tektoncd/pipeline")
	if err != nil {
		t.Fatal(err)
	}
	if err := plane.InstallCRDs(filepath.Join(tekton, "config", "300-crds")); err != nil {
		t.Fatal(err)
	}
	scheme, err := controller.Scheme(api.DefaultGroup)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(plane.Admin.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team1"}}); err != nil {
		t.Fatal(err)
	}
	a := buildArmature(t)
	a.env = append(os.Environ(), "KUBECONFIG="+plane.Admin.Kubeconfig)
	weather := filepath.Join("..", "..", "examples", "builds", "weather.yaml")
	get := func() *api.AgentBuild {
		b := &api.AgentBuild{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "team1", Name: "weather"}, b); err != nil {
			t.Fatal(err)
		}
		return b
	}

	a.run(t, 0, "build", "run", weather)
	a.run(t, 0, "build", "run", weather) // applying twice is no change
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

	b := get()
	code := int32(137)
	b.Status = api.AgentBuildStatus{Phase: api.PhaseFailed, Message: "task kaniko-build, step build-and-push, exit code 137: out of memory",
		FailureDetails: &api.FailureDetails{Reason: api.ReasonOutOfMemory, Task: "kaniko-build", Step: "build-and-push", ExitCode: &code, LogTail: []string{"Killed"}},
		Tasks:          []api.TaskStatus{{Name: "kaniko-build", State: "Failed", Reason: "Failed"}}}
	if err := c.Status().Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	out, _ := a.run(t, 0, "build", "describe", "weather", "-n", "team1")
	for _, want := range []string{"StepOutOfMemory", "build-and-push", "137", "kaniko-build", "Killed"} {
		if !strings.Contains(out, want) {
			t.Errorf("describe does not say %s:\n%s", want, out)
		}
	}
	if out, _ := a.run(t, 0, "build", "list", "-A"); !strings.Contains(out, "team1") || !strings.Contains(out, "Failed") {
		t.Errorf("list: %s", out)
	}
	for _, format := range []string{"json", "yaml"} {
		if out, _ := a.run(t, 0, "build", "list", "-n", "team1", "-o", format); !strings.Contains(out, "StepOutOfMemory") || !strings.Contains(out, "AgentBuildList") {
			t.Errorf("list -o %s: %s", format, out)
		}
	}
	if _, errs := a.run(t, 1, "build", "logs", "weather", "-n", "team1"); !strings.Contains(errs, "has no run") {
		t.Errorf("logs: %s", errs)
	}
	if _, errs := a.run(t, 1, "build", "describe", "nowhere", "-n", "team1"); !strings.Contains(errs, `"nowhere" not found`) {
		t.Errorf("describe: %s", errs)
	}
}
