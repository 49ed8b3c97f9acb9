package integrations

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/programs"
)

const hookJob = `apiVersion: batch/v1
kind: Job
metadata:
  name: migrate
  labels:
    kagenti.io/inject: enabled
  annotations:
    "helm.sh/hook": pre-install,pre-upgrade
    "helm.sh/hook-delete-policy": before-hook-creation
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: migrate
        image: example/migrate:v1
`

// chart makes a chart whose templates are the manifests in a folder.
func chart(t *testing.T, manifestFolder string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "templates"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "Chart.yaml", "apiVersion: v2\nname: web\nversion: 0.1.0\n")
	for _, name := range manifests(t, manifestFolder) {
		write(t, dir, "templates/"+name, strings.ReplaceAll(read(t, manifestFolder, name), "{{",
			`{{ "{{" }}`))
	}
	return dir
}

// engines are Helm 3 and 4 with what `armature init --for helm` writes as their
// post-renderer: each makes a command for env of Helm's own arguments. A release has a
// configuration, or "" for that of init.
func engines(t *testing.T, configuration string) map[string]func(args ...string) []string {
	t.Helper()
	for _, home := range []string{"HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"} {
		t.Setenv(home, t.TempDir())
	}
	plugins := t.TempDir()
	folder := filepath.Join(plugins, "armature")
	if configuration != "" {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, folder, "armature.yaml", configuration)
	}
	initFor(t, folder, "helm")
	helm3, helm4 := programs.Peer(t, "helm3"), programs.Peer(t, "helm4")
	return map[string]func(...string) []string{
		"helm-3": func(args ...string) []string {
			return slices.Concat([]string{helm3}, args,
				[]string{"--post-renderer", filepath.Join(folder, "post-render.sh")})
		},
		"helm-4": func(args ...string) []string {
			return slices.Concat([]string{"HELM_PLUGINS=" + plugins, helm4}, args,
				[]string{"--post-renderer", "armature"})
		},
	}
}

// template returns the output of an engine for a chart: manifests, and hooks in the order in which
// Helm runs them.
func template(t *testing.T, engine func(...string) []string,
	chart string) (manifest string, hooks []string) {
	t.Helper()
	out := must(t, "", "", "env", engine("template", "armature", chart)...)
	for _, books := range []string{"postrenderer.helm.sh", "armature.dev/consumed"} {
		if strings.Contains(out, books) {
			t.Errorf("%s is left in the release:\n%s", books, out)
		}
	}
	for document := range strings.SplitSeq("\n"+out, "\n---\n") {
		if strings.Contains(document, "helm.sh/hook") {
			hooks = append(hooks, document)
		} else {
			manifest += "---\n" + document + "\n"
		}
	}
	return manifest, hooks
}

// Helm installs the objects of `helm template | armature render -`, hooks and notes too.
func TestHelm(t *testing.T) {
	helm := programs.Peer(t, "helm4")
	plain := chart(t, examples(t, "weather-agent"))
	want := objects(t, must(t, "", must(t, "", "", helm, "template", "armature", plain), "armature",
		"render", "-"))

	full := chart(t, examples(t, "weather-agent"))
	write(t, full, "templates/hook.yaml", hookJob)
	write(t, full, "templates/local.yaml",
		strings.Replace(daemonSet[strings.Index(daemonSet, "---\n")+4:], "  name: unconcerned\n",
			"  name: local\n  annotations:\n    config.kubernetes.io/local-config: \"true\"\n", 1))
	write(t, full, "templates/config.yaml",
		"apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\nmetadata:\n"+
			"  name: armature\nspec: {}\n")
	all := objects(t, must(t, "", must(t, "", "", helm, "template", "armature", full), "armature",
		"render", "-"))

	for name, engine := range engines(t, "") {
		t.Run(name, func(t *testing.T) {
			manifest, inOrder := template(t, engine, full)
			if diff := cmp.Diff(want, objects(t, manifest)); diff != "" {
				t.Errorf("the manifest (-helm template | armature render - +%s):\n%s", name, diff)
			}
			if strings.Contains(manifest, "kind: RenderConfig") ||
				strings.Contains(manifest, "name: local") {
				t.Errorf("Helm would apply local configuration:\n%s", manifest)
			}
			got := objects(t, strings.Join(inOrder, "\n---\n"))
			if name == "helm-3" { // which passes none of them
				if diff := cmp.Diff(objects(t, hookJob), got); diff != "" {
					t.Errorf("hooks (-template +%s):\n%s", name, diff)
				}
				return
			}
			hooks := maps.Clone(all)
			maps.DeleteFunc(hooks, func(id string, _ any) bool {
				return !strings.Contains(id, "migrate")
			})
			if len(hooks) != 3 {
				t.Fatalf(
					"%d objects of the hook; want the Job, its ServiceAccount and its ConfigMap",
					len(hooks))
			}
			if diff := cmp.Diff(hooks, got); diff != "" {
				t.Errorf("hooks (-helm template | armature render - +%s):\n%s", name, diff)
			}
			// Helm runs hooks one after the other: the Job needs its ConfigMap.
			if last := inOrder[len(inOrder)-1]; !strings.Contains(last, "kind: Job") {
				t.Errorf("the last hook is not the Job:\n%s", last)
			}
		})
	}
}

// A release fails where it cannot be rendered, and nothing of it gets out.
func TestHelmFails(t *testing.T) {
	bad := examples(t, "memory-agent")
	write(t, bad, "cr.yaml",
		"apiVersion: kagenti.io/v1alpha1\nkind: TokenExchange\nmetadata:\n  name: lost\nspec:\n"+
			"  targetRef: {kind: Deployment, name: nowhere}\n")
	broken := chart(t, bad)
	for name, engine := range engines(t, "") {
		want := "web/templates/cr.yaml: TokenExchange lost: "
		if name == "helm-4" { // which shows nothing that a plugin reports
			want = `plugin "armature" exited with error`
		}
		r := command("", "", "env", engine("template", "armature", broken)...)
		if r.err == nil || r.stdout != "" || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: %v, standard output %q; want none, and an error that says %q\n%s", name,
				r.err, r.stdout, want, r.stderr)
		}
	}
	// As docs/hosts.md says where to see what Helm 4 does not show.
	plain := must(t, "", "", programs.Peer(t, "helm4"), "template", "armature", broken)
	if output := mustFail(t, "", plain, "armature-fn", "helm", "."); !strings.Contains(output,
		"TokenExchange lost") {
		t.Errorf("helm template | armature-fn helm . reports\n%s", output)
	}
	for _, arguments := range [][]string{{"helm"}, {"helm", "a", "b"},
		{"helm", filepath.Join(bad, "gone")}, {"helm", filepath.Join(bad, "cr.yaml")}} {
		mustFail(t, "", plain, "armature-fn", arguments...)
	}
}

// A chart whose values turn everything off is a release without objects.
func TestHelmWithoutObjects(t *testing.T) {
	off := chart(t, t.TempDir())
	write(t, off, "templates/off.yaml", "{{ if .Values.on }}\n"+hookJob+"{{ end }}\n")
	for name, engine := range engines(t, "") {
		if manifest, _ := template(t, engine, off); len(objects(t, manifest)) > 0 {
			t.Errorf("%s: %v", name, manifest)
		}
	}
}

// Two hosts that have a plugin.yaml would overwrite each other.
func TestInitForHostsWithTheSameFile(t *testing.T) {
	dir := t.TempDir()
	output := mustFail(t, dir, "", "armature", "init", "--for", "argocd,helm")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 ||
		!strings.Contains(output, "argocd and helm both have a plugin.yaml") {
		t.Errorf("%v, wrote %v\n%s", err, entries, output)
	}
}

// What Helm installs is in the cluster, an upgrade changes it, and one without the opt-in
// takes away what was generated.
func TestHelmOnACluster(t *testing.T) {
	plane := controlplane.Start(t)
	c, err := client.New(plane.Admin.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	plain := chart(t, examples(t, "weather-agent"))
	write(t, plain, "templates/NOTES.txt", "Call {{ .Release.Name }}.\n")
	deployment := read(t, plain, "templates/deployment.yaml")
	for name, engine := range engines(t, "") {
		t.Run(name, func(t *testing.T) {
			step := func(verb, text string) (containers, configMaps int, image string) {
				t.Helper()
				write(t, plain, "templates/deployment.yaml", text)
				made := must(t, "", "", "env",
					engine(verb, "armature", plain, "--kubeconfig", plane.Admin.Kubeconfig,
						"--create-namespace", "--namespace", name, "--output", "json")...)
				var release struct{ Info struct{ Notes string } }
				if err := json.Unmarshal([]byte(made), &release); err != nil ||
					release.Info.Notes != "Call armature.\n" {
					t.Errorf("notes %q, %v", release.Info.Notes, err)
				}
				var d appsv1.Deployment
				if err := c.Get(t.Context(),
					client.ObjectKey{Namespace: name, Name: "weather-agent"}, &d); err != nil {
					t.Fatal(err)
				}
				var list corev1.ConfigMapList
				if err := c.List(t.Context(), &list, client.InNamespace(name)); err != nil {
					t.Fatal(err)
				}
				for _, cm := range list.Items {
					if strings.Contains(cm.Name, "weather-agent") {
						configMaps++
					}
				}
				pod := d.Spec.Template.Spec
				return len(pod.InitContainers) +
					len(pod.Containers), configMaps, pod.Containers[len(pod.Containers)-1].Image
			}
			// The card's ConfigMap is the AgentCard's, whether the Deployment opts in or not.
			if containers, configMaps, image := step("install", deployment); containers != 3 ||
				configMaps != 3 || !strings.HasSuffix(image, ":v1") {
				t.Errorf("installed %d containers, %d ConfigMaps, image %s; want 3, 3 and v1",
					containers, configMaps, image)
			}
			if containers, configMaps, image := step("upgrade",
				strings.Replace(deployment, "weather-agent:v1", "weather-agent:v2",
					1)); containers != 3 || configMaps != 3 || !strings.HasSuffix(image, ":v2") {
				t.Errorf("upgraded to %d containers, %d ConfigMaps, image %s; want 3, 3 and v2",
					containers, configMaps, image)
			}
			for _, file := range []string{"token-exchange.yaml", "agent-trace.yaml", "agent-card.yaml"} {
				write(t, plain, "templates/"+file, "")
			}
			if containers, configMaps, _ := step("upgrade",
				strings.Replace(deployment, "kagenti.io/inject: enabled",
					"kagenti.io/inject: disabled", 1)); containers != 1 || configMaps != 0 {
				t.Errorf("without the opt-in %d containers, %d ConfigMaps; want 1 and 0",
					containers, configMaps)
			}
			for _, file := range []string{"token-exchange.yaml", "agent-trace.yaml", "agent-card.yaml"} {
				write(t, plain, "templates/"+file, read(t, root, "examples/weather-agent", file))
			}
		})
	}
}
