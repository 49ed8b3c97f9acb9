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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// plugin starts Argo CD's plugin server with the plugin.yaml that init writes, and returns its
// socket.
func plugin(t *testing.T) string {
	t.Helper()
	// A short path: sockets may have no longer one than about a hundred characters.
	dir, err := os.MkdirTemp("", "cmp-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	initFor(t, dir, "argocd")
	server := exec.Command(argocd(t), "cmp-server", "--config-dir-path", dir, "--logformat", "text")
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
	out := must(t, "", "", argocd(t), append([]string{"ask", socket, repository, application},
		parameters...)...)
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// names are the kinds and names of the objects in an answer, in order.
func names(t *testing.T, a answer) (all []string) {
	t.Helper()
	for _, manifest := range a.Manifests {
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal([]byte(manifest), &o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o.Kind+" "+o.Name)
	}
	slices.Sort(all)
	return all
}

func TestArgoCD(t *testing.T) {
	socket := plugin(t)
	repository, err := filepath.Abs(filepath.Join(root, "examples"))
	if err != nil {
		t.Fatal(err)
	}
	app := filepath.Join(repository, "argocd", "app")
	a := ask(t, socket, repository, app)
	if want := []string{"ConfigMap authbridge-config-travel-agent", "Deployment travel-agent",
		"ServiceAccount travel-agent"}; !a.Supported || !slices.Equal(names(t, a), want) {
		t.Errorf("supported %v, manifests of %q; want true and %q", a.Supported, names(t, a), want)
	}
	if diff := cmp.Diff([]string{"profile", "rollout"}, a.Parameters); diff != "" {
		t.Errorf("announced parameters: %s", diff)
	}
	if !slices.ContainsFunc(a.Manifests,
		func(m string) bool { return strings.Contains(m, "armature.dev/config-hash") }) {
		t.Error("rollout: hash of the application's armature.yaml had no effect")
	}
	a = ask(t, socket, repository, app, "rollout=none")
	if slices.ContainsFunc(a.Manifests,
		func(m string) bool { return strings.Contains(m, "armature.dev/config-hash") }) {
		t.Error("the parameter rollout=none had no effect")
	}
	if a := ask(t, socket, repository, filepath.Join(repository, "memory-agent")); a.Supported {
		t.Error("the plugin takes a folder without armature.yaml")
	}
	if output := mustFail(t, "", "", argocd(t), "ask", socket, repository, app,
		"colour=red"); !strings.Contains(output, "colour") {
		t.Errorf("an unknown parameter: %s", output)
	}

	// What is for tools stays in the package, and nothing else is nothing.
	const config = "apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\nmetadata:\n" +
		"  name: armature\nspec: {}\n"
	const service = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n"
	const local = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: local\n  annotations:\n" +
		"    config.kubernetes.io/local-config: \"true\"\n"
	const list = "apiVersion: v1\nkind: List\nitems: []\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  string // the objects
	}{
		"nothing": {nil, ""},
		"comments": {map[string]string{"a.yaml": "# to do\n",
			"b.yaml": "---\n# to do\n---\n"}, ""},
		"an empty list": {map[string]string{"a.yaml": list}, ""},
		"local objects": {map[string]string{"a.yaml": local,
			"b.yaml": config + "---\n" + local}, ""},
		"a local object and another": {map[string]string{"a.yaml": local + "---\n" + service},
			"Service web"},
		"a local file and another": {map[string]string{"a.yaml": local, "b.yaml": service},
			"Service web"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "armature.yaml", config)
			for file, text := range c.files {
				write(t, dir, file, text)
			}
			if c.want == "" {
				if output := mustFail(t, "", "", argocd(t), "ask", socket, dir,
					dir); !strings.Contains(output, "holds no manifests") {
					t.Error(output)
				}
				return
			}
			if got := strings.Join(names(t, ask(t, socket, dir, dir)), " "); got != c.want {
				t.Errorf("objects %q, want %q", got, c.want)
			}
		})
	}
}
