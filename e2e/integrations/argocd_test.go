package integrations

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// plugin starts Argo CD's plugin server with the plugin.yaml that init writes,
// and gives its socket.
func plugin(t *testing.T) string {
	t.Helper()
	// A short path: sockets may have no longer one than about a hundred characters.
	dir, err := os.MkdirTemp("", "cmp-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, dir, "", "armature", "init", "--for", "argocd")
	server := exec.Command(argocd(t), "--config-dir-path", dir, "--logformat", "text")
	server.Env = append(os.Environ(), "ARGOCD_PLUGINSOCKFILEPATH="+dir, "ARGOCD_CMP_WORKDIR="+dir)
	var log strings.Builder
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	socket := filepath.Join(dir, "armature-v1.sock")
	for range 200 {
		if _, err := os.Stat(socket); err == nil {
			return socket
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the plugin server made no socket within ten seconds")
	return ""
}

type answer struct {
	Supported  bool     `json:"supported"`
	Parameters []string `json:"parameters"`
	Manifests  []string `json:"manifests"`
}

// ask sends a repository to the plugin server as the repo-server does.
func ask(t *testing.T, socket, repository, application string, parameters ...string) (a answer) {
	t.Helper()
	out := must(t, "", "", argocd(t), append([]string{"ask", socket, repository, application}, parameters...)...)
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestArgoCD(t *testing.T) {
	socket := plugin(t)
	repository, err := filepath.Abs(filepath.Join(root, "examples"))
	if err != nil {
		t.Fatal(err)
	}
	app := filepath.Join(repository, "argocd", "app")
	a := ask(t, socket, repository, app)
	if !a.Supported || len(a.Manifests) != 3 {
		t.Errorf("supported %v, %d manifests; want true and 3", a.Supported, len(a.Manifests))
	}
	if diff := cmp.Diff([]string{"profile", "sidecars", "rollout"}, a.Parameters); diff != "" {
		t.Errorf("announced parameters: %s", diff)
	}
	if !slices.ContainsFunc(a.Manifests, func(m string) bool { return strings.Contains(m, "armature.dev/config-hash") }) {
		t.Error("rollout: hash of the application's armature.yaml had no effect")
	}
	a = ask(t, socket, repository, app, "rollout=none")
	if slices.ContainsFunc(a.Manifests, func(m string) bool { return strings.Contains(m, "armature.dev/config-hash") }) {
		t.Error("the parameter rollout=none had no effect")
	}
	if a := ask(t, socket, repository, filepath.Join(repository, "memory-agent")); a.Supported {
		t.Error("the plugin takes a folder without armature.yaml")
	}
	if output := mustFail(t, "", "", argocd(t), "ask", socket, repository, app, "colour=red"); !strings.Contains(output, "colour") {
		t.Errorf("an unknown parameter: %s", output)
	}
	empty := t.TempDir()
	write(t, empty, "armature.yaml", "apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\nmetadata:\n  name: armature\nspec: {}\n")
	if output := mustFail(t, "", "", argocd(t), "ask", socket, empty, empty); !strings.Contains(output, "holds no manifests") {
		t.Errorf("a folder without manifests: %s", output)
	}
}
