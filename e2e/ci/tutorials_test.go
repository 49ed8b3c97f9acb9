package ci

import (
	"encoding/json"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/page"
	"github.com/armature-dev/armature/e2e/programs"
)

// play runs the commands of a page of the documentation in an empty folder, and returns the folder
// and all that the commands print. The variables are added to the environment.
func play(t *testing.T, name string, replacements, variables map[string]string) (dir, out string) {
	t.Helper()
	file := filepath.Join(root, "docs", filepath.FromSlash(name))
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	script, err := page.Script(string(text), replacements)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	dir = t.TempDir()
	env := map[string]string{
		"PATH":            bin + ":" + os.Getenv("PATH"),
		"GIT_AUTHOR_NAME": "dev", "GIT_AUTHOR_EMAIL": "dev@example.com",
		"GIT_COMMITTER_NAME": "dev", "GIT_COMMITTER_EMAIL": "dev@example.com",
	}
	maps.Copy(env, variables)
	out, err = shell(t, dir, env, "bash", "-c", script)
	if err != nil {
		t.Fatalf("%s: %v\n%s", file, err, out)
	}
	return dir, out
}

// TestGettingStarted plays the pages that need nothing but the command line, and compares what
// they print.
func TestGettingStarted(t *testing.T) {
	for name, replacements := range map[string]map[string]string{
		"getting-started.md": {"command line": ":"},
		"../README.md":       nil,
	} {
		_, out := play(t, name, replacements, nil)
		missing, err := page.Missing(read(t, filepath.Join(root, "docs", name)), out)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range missing {
			t.Errorf("%s, not printed: %s\n%s", name, line, out)
		}
	}
}

// TestBuildAndRun plays the commands of the tutorials of builds and runs that need no cluster.
func TestBuildAndRun(t *testing.T) {
	places := "export REPOSITORY=https://git.example.com/hello-agent.git " +
		"REGISTRY=registry.example.com/demo BASE=docker.io/library/busybox:1.37.0"
	replacements := map[string]string{"places": places, "build": ":"}
	for _, name := range []string{"cluster", "wait for tekton", "controller",
		"wait for the controller", "local build", "push"} {
		replacements[name] = ":"
	}
	if _, out := play(t, "tutorials/build.md", replacements, nil); !strings.Contains(out,
		"buildkit-build") {
		t.Errorf("build.md prints no pipeline:\n%s", out)
	}
	replacements = map[string]string{}
	for _, name := range []string{"spire", "run", "identity", "change", "restart", "clean", "end"} {
		replacements[name] = ":"
	}
	image := map[string]string{"IMAGE": "registry.example.com/demo/hello@sha256:" +
		strings.Repeat("a", 64)}
	dir, out := play(t, "tutorials/run.md", replacements, image)
	if !strings.Contains(out, "+        - name: authbridge-proxy") {
		t.Errorf("run.md renders no sidecar:\n%s", out)
	}
	text := read(t, filepath.Join(dir, "rendered", "hello.yaml"))
	for _, lacking := range []string{"NET_ADMIN", "secretKeyRef"} {
		if strings.Contains(text, lacking) {
			t.Errorf("the agent needs %s:\n%s", lacking, text)
		}
	}
}

// The tutorial's pull request passes the action that its workflow names.
func TestGitHubTutorial(t *testing.T) {
	origin, variables := repository(t, "git@github.com:YOU/agents.git")
	dir, out := play(t, "tutorials/github-actions.md", nil, variables)
	if !strings.Contains(out, "weather-agent:v2") {
		t.Errorf("`armature diff` does not show the change:\n%s", out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "agents", ".github", "workflows", "agents.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var workflow struct {
		Jobs map[string]struct {
			Steps []struct {
				Uses string
				With map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &workflow); err != nil {
		t.Fatal(err)
	}
	steps := workflow.Jobs["check"].Steps
	if len(steps) != 2 || !strings.HasPrefix(steps[1].Uses, "armature-dev/armature@v") {
		t.Fatalf("the workflow has the steps %+v", steps)
	}
	checkout := t.TempDir()
	git(t, checkout, "clone", "--quiet", "--depth=1", "--branch=weather-v2", origin, ".")
	inputs := steps[1].With
	inputs["against"] = git(t, dir, "-C", "agents", "rev-parse", "main") // the event's
	out, summary, err := action(t, checkout, releases(t, ""), inputs)
	if err != nil || !strings.Contains(summary, "weather-agent:v2") {
		t.Errorf("%v\n%s\nsummary:\n%s", err, out, summary)
	}
}

// Argo CD's plugin server, with the plugin that the tutorial writes, renders the
// tutorial's application with its parameters. The cluster is an API server with Argo
// CD's manifests; that the repo-server rolled out is the test's word.
func TestArgoCDTutorial(t *testing.T) {
	argocd := programs.Peer(t, "argocd")
	c := newCluster(t)
	c.run("create", "namespace", "argocd")
	c.run("apply", "--server-side", "-n", "argocd", "-f",
		filepath.Join(module(t, "e2e/argocd", "github.com/argoproj/argo-cd/v3"), "manifests",
			"install.yaml"))
	patch, err := os.ReadFile(filepath.Join(root, "examples", "argocd", "repo-server.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := programs.Build(bin, "cmd/armature-fn"); err != nil {
		t.Fatal(err)
	}
	origin, variables := repository(t, "https://github.com/YOU/agents.git")
	maps.Copy(variables, c.variables)
	variables["PATCH"] = string(patch)
	c.play("argocd", "deployment/argocd-repo-server",
		`{"status": {"observedGeneration": 99, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1, "readyReplicas": 1}}`)
	dir, _ := play(t, "tutorials/argocd.md",
		map[string]string{"patch": `printf '%s' "$PATCH" > repo-server.yaml`}, variables)
	agents := filepath.Join(dir, "agents")
	if pushed, committed := git(t, dir, "ls-remote", origin, "refs/heads/main"), git(t, agents,
		"rev-parse", "main"); !strings.HasPrefix(pushed, committed) {
		t.Errorf("pushed %q, committed %s", pushed, committed)
	}
	if containers := c.run("get", "deployment", "-n", "argocd", "argocd-repo-server", "-o",
		"jsonpath={.spec.template.spec.containers[*].name}"); !strings.Contains(containers, "armature") {
		t.Errorf("the repo-server has the containers %s", containers)
	}
	if path := c.run("get", "application", "-n", "argocd", "agents", "-o",
		"jsonpath={.spec.source.path}"); path != "apps" {
		t.Errorf("the application has the path %q", path)
	}

	// A short path: sockets may have no longer one than about a hundred characters.
	sockets, err := os.MkdirTemp("", "cmp-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(sockets)
	server := exec.Command(argocd, "cmp-server", "--config-dir-path",
		filepath.Join(agents, "argocd"), "--logformat", "text")
	server.Env = append(os.Environ(), "ARGOCD_PLUGINSOCKFILEPATH="+sockets,
		"ARGOCD_CMP_WORKDIR="+sockets, "PATH="+bin+":"+os.Getenv("PATH"))
	output, err := os.Create(filepath.Join(sockets, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	server.Stdout, server.Stderr = output, output
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		server.Process.Kill()
		server.Wait()
	}()
	socket := filepath.Join(sockets, "armature-v1.sock")
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		} else if time.Now().After(deadline) {
			text, _ := os.ReadFile(output.Name())
			t.Fatalf("the plugin server makes no socket:\n%s", text)
		}
	}

	text, err := os.ReadFile(filepath.Join(agents, "argocd", "application.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var application struct {
		Spec struct {
			Source struct {
				Path   string
				Plugin struct {
					Name       string
					Parameters []struct{ Name, String string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &application); err != nil {
		t.Fatal(err)
	}
	source := application.Spec.Source
	if source.Plugin.Name != "armature-v1" {
		t.Errorf("the application takes plugin %q", source.Plugin.Name)
	}
	args := []string{"ask", socket, agents, filepath.Join(agents, source.Path)}
	for _, p := range source.Plugin.Parameters {
		args = append(args, p.Name+"="+p.String)
	}
	out, err := exec.CommandContext(t.Context(), argocd, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Supported bool
		Manifests []string
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	all := strings.Join(answer.Manifests, "\n")
	for _, want := range []string{"authbridge-proxy", "armature.dev/config-hash", "weather-agent:v1"} {
		if !answer.Supported || !strings.Contains(all, want) {
			t.Errorf("supported %v, and the manifests lack %s:\n%s", answer.Supported, want, all)
		}
	}
}

// What the tutorial pushes is what Flux takes: the tag of production is signed, and
// holds what a render of the last commit makes. The cluster is an API server with
// Flux's CRDs; that the Kustomization is ready is the test's word.
func TestFluxTutorial(t *testing.T) {
	cosign := programs.Peer(t, "cosign")
	c := newCluster(t)
	if err := c.plane.InstallCRDs(
		filepath.Join(module(t, "e2e/flux", "github.com/fluxcd/source-controller"), "config", "crd",
			"bases"),
		filepath.Join(module(t, "e2e/flux", "github.com/fluxcd/kustomize-controller"), "config",
			"crd", "bases"),
	); err != nil {
		t.Fatal(err)
	}
	c.run("create", "namespace", "flux-system")
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true),
		registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	c.variables["PATH"] = filepath.Dir(cosign) + ":" + c.variables["PATH"]
	c.play("flux-system", "kustomization/agents",
		`{"status": {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True", "reason": "ReconciliationSucceeded", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}`)
	dir, out := play(t, "tutorials/flux.md",
		map[string]string{"registry": "export REGISTRY=" + address}, c.variables)
	if key := c.run("get", "secret", "-n", "flux-system", "agents-signer", "-o",
		"go-template={{index .data \"cosign.pub\" | base64decode}}"); !strings.Contains(key,
		"PUBLIC KEY") {
		t.Errorf("the signer's key is %q", key)
	}
	if !strings.Contains(out, "weather-agent:v2") || !strings.Contains(out, "production") {
		t.Errorf("the change, or the tag, is not shown:\n%s", out)
	}
	policy := "apiVersion: armature.dev/v1alpha1\nkind: VerifyPolicy\nmetadata: {name: agents}\n" +
		"spec: {keys: [agents.pub], insecureIgnoreTlog: true}\n"
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(policy), 0o644); err != nil {
		t.Fatal(err)
	}
	armature(t, dir, "artifact", "pull", "oci://"+address+"/agents:production", "pulled",
		"--verify-policy", "policy.yaml")
	armature(t, dir, "verify", "pulled", "-c", "agents/apps/armature.yaml")
	text, err := os.ReadFile(filepath.Join(dir, "pulled", "weather.yaml"))
	if err != nil {
		entries, _ := os.ReadDir(filepath.Join(dir, "pulled"))
		t.Fatalf("%v: %v", err, entries)
	}
	if !strings.Contains(string(text), "weather-agent:v2") ||
		!strings.Contains(string(text), "authbridge-proxy") {
		t.Errorf("the artifact has\n%s", text)
	}
	flux, err := os.ReadFile(filepath.Join(dir, "agents", "flux.yaml"))
	if err != nil || !strings.Contains(string(flux), "url: oci://"+address+"/agents\n") {
		t.Errorf("flux.yaml: %v\n%s", err, flux)
	}
}
