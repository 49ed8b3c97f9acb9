package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/page"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/oci"
)

// A package from its folder into the cluster, and out of it again.
func TestApply(t *testing.T) {
	plane := controlplane.Start(t)
	c, err := kubernetes.NewForConfig(plane.Admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team1"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a := buildArmature(t)
	a.env = append(environ, "KUBECONFIG="+plane.Admin.Kubeconfig)
	folder := filepath.Join(t.TempDir(), "weather")
	if err := os.CopyFS(folder,
		os.DirFS(filepath.Join("..", "..", "examples", "weather-agent"))); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: team1}\n" +
		"data: {key: VALUE}\n"
	write("settings.yaml", settings)
	contains := func(text string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("does not say %q:\n%s", w, text)
			}
		}
	}

	// A dry run, a diff, the apply, and a second one that finds nothing to do.
	out, errs := a.run(t, 0, "apply", folder, "-n", "team1", "--dry-run")
	contains(out, "ConfigMap team1/settings would be created")
	contains(errs, "team1/weather (dry run): ")
	out, _ = a.run(t, 1, "diff", folder, "-n", "team1")
	contains(out, "+  key: VALUE", "+kind: Deployment")
	if same, _ := a.run(t, 0, "diff", folder, "-n", "team1", "--exit-code=false"); same != out {
		t.Errorf("--exit-code=false changes what is shown:\n%s", same)
	}
	if strings.Contains(out, "\033[") {
		t.Error("colours where there is no terminal")
	}
	if out, _ := a.run(t, 1, "diff", folder, "-n", "team1", "--color",
		"always"); !strings.Contains(out, "\033[32m+  key: VALUE\033[0m\n") {
		t.Errorf("no colours:\n%s", out)
	}
	out, errs = a.run(t, 0, "apply", folder, "-n", "team1", "--timeout", "0")
	contains(out, "ConfigMap team1/settings created", "Deployment team1/weather-agent created")
	contains(errs, "team1/weather: ", " created")
	deployment, err := c.AppsV1().Deployments("team1").Get(t.Context(), "weather-agent",
		metav1.GetOptions{})
	if err != nil || len(deployment.Spec.Template.Spec.InitContainers) == 0 {
		t.Errorf("it was not rendered before: %v", err)
	}
	out, errs = a.run(t, 0, "apply", folder, "-n", "team1", "--timeout", "0")
	contains(errs, "unchanged")
	if out != "" || strings.Contains(errs, "created") {
		t.Errorf("a second apply did something:\n%s%s", out, errs)
	}
	if out, _ := a.run(t, 0, "diff", folder, "-n", "team1"); out != "" {
		t.Errorf("differs from itself:\n%s", out)
	}

	// What is applied, for people and programs.
	out, _ = a.run(t, 0, "status", "--packages", "-A")
	contains(out, "team1      weather", "applied")
	out, _ = a.run(t, 0, "status", "--packages", "weather", "-n", "team1")
	contains(out, "ConfigMap", "settings", "Current")
	out, _ = a.run(t, 0, "apply", folder, "-n", "team1", "--timeout", "0", "-o", "json")
	var listing struct {
		Summary map[string]int
		Objects []struct{ Action, Kind, Name string }
	}
	if err := json.Unmarshal([]byte(out), &listing); err != nil ||
		listing.Summary["unchanged"] != len(listing.Objects) || len(listing.Objects) < 5 {
		t.Errorf("%v: %s", err, out)
	}

	// A kind with a health check of its own is waited for by that.
	checks := filepath.Join(t.TempDir(), "health.yaml")
	for text, words := range map[string]string{
		"healthCheckExprs: [{apiVersion: v1, kind: ConfigMap, current: \"data.key == " +
			"'other'\"}]": "not healthy after 1s: ConfigMap team1/settings: InProgress",
		"healthCheckExprs: [{apiVersion: v1, kind: ConfigMap, " +
			"current: data.}]": "healthCheckExprs[0]: failed to parse the expression Current: ",
	} {
		if err := os.WriteFile(checks, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, errs = a.run(t, 1, "apply", folder, "-n", "team1", "--timeout", "1s", "--health-checks",
			checks)
		contains(errs, words)
	}

	// To prune is to delete: nobody is there to ask.
	if err := os.Remove(filepath.Join(folder, "settings.yaml")); err != nil {
		t.Fatal(err)
	}
	_, errs = a.run(t, 1, "apply", folder, "-n", "team1", "--timeout", "0")
	contains(errs, "prune: ConfigMap team1/settings", "pass --yes")
	interruptQuestion(t, a, "apply", folder, "-n", "team1", "--timeout", "0")
	out, _ = a.run(t, 0, "apply", folder, "-n", "team1", "--timeout", "0", "--yes")
	contains(out, "ConfigMap team1/settings pruned")
	if _, err := c.CoreV1().ConfigMaps("team1").Get(t.Context(), "settings",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("not pruned: %v", err)
	}

	// What is not rendered is refused with --rendered, and what is, is not.
	_, errs = a.run(t, 1, "apply", folder, "-n", "team1", "--rendered")
	contains(errs, "opted in, but was not rendered")
	rendered := renderTo(t, folder)
	_, errs = a.run(t, 0, "apply", rendered, "-n", "team1", "--name", "weather", "--rendered",
		"--timeout", "0")
	contains(errs, "unchanged")

	// The same as an artifact; what was never rendered is refused as one, too.
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref := "oci://" + strings.TrimPrefix(server.URL, "http://") + "/fleet/weather:v1"
	a.run(t, 0, "artifact", "push", folder, ref)
	_, errs = a.run(t, 0, "apply", ref, "-n", "team1", "--timeout", "0")
	contains(errs, "team1/weather: ", "unchanged")
	if _, err := oci.Push(t.Context(), ref,
		[]render.File{{Path: "deployment.yaml",
			Data: content(t, filepath.Join(folder, "deployment.yaml"))}}, oci.Metadata{},
		oci.Options{}); err != nil {
		t.Fatal(err)
	}
	_, errs = a.run(t, 1, "apply", ref, "-n", "team1", "--timeout", "0")
	contains(errs, "opted in, but was not rendered")
	_, errs = a.run(t, 1, "apply", folder, "-n", "team1", "--key", "missing.pub")
	contains(errs, "deployment.yaml:", "has no digest")

	// Patches are not applied by themselves: kustomize has to come first.
	write("kustomization.yaml", "resources: [deployment.yaml]\n")
	_, errs = a.run(t, 1, "apply", folder, "-n", "team1")
	contains(errs, "kustomization.yaml has to be built first")
	_, errs = a.run(t, 2, "diff", folder, "-n", "team1")
	contains(errs, "kustomization.yaml has to be built first")
	if err := os.Remove(filepath.Join(folder, "kustomization.yaml")); err != nil {
		t.Fatal(err)
	}

	// A field of another manager.
	file := filepath.Join(t.TempDir(), "app.yaml")
	web := "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n  namespace: team1\n" +
		"spec:\n  selector: {matchLabels: {app: web}}\n" +
		"  template:\n    metadata: {labels: {app: web}}\n    spec:\n      containers:\n" +
		"      - name: web\n        image: example.com/web:v1\n"
	if err := os.WriteFile(file, []byte(web), 0o600); err != nil {
		t.Fatal(err)
	}
	a.run(t, 0, "apply", file, "-n", "team1", "--timeout", "0")
	image := []byte(
		`{"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "example.com/web:v2"}]}}}}`)
	if _, err := c.AppsV1().Deployments("team1").Patch(t.Context(), "web",
		types.StrategicMergePatchType, image,
		metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
		t.Fatal(err)
	}
	out, errs = a.run(t, 1, "apply", file, "-n", "team1", "--timeout", "0")
	page.Shown(t, "docs/apply.md", "armature apply app.yaml -n team1", out+errs)
	a.run(t, 0, "delete", "app", "-n", "team1", "--yes")

	// A diff that fails is not a difference.
	a.run(t, 2, "diff", folder, "-n", "team1", "--kubeconfig", "nowhere", "--exit-code=false")

	// A mistake in the package leaves the cluster as it is.
	write("settings.yaml",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: team1}\ndatta: {}\n")
	out, errs = a.run(t, 1, "apply", folder, "-n", "team1", "--timeout", "0", "-o", "json")
	contains(errs, "settings.yaml:1: ConfigMap team1/settings: ", "datta")
	if strings.Contains(errs, "occurred") || !json.Valid([]byte(out)) {
		t.Errorf("%s%s", errs, out)
	}

	// Its line is the author's, whatever a render put before it; an object that a
	// render made has the line of what it was made for.
	write("settings.yaml", "")
	deployment2 := "# ours\n---\n" +
		strings.ReplaceAll(string(content(t, filepath.Join(folder, "deployment.yaml"))),
			"weather-agent", "second-agent")
	write("second.yaml",
		deployment2+
			"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: team1}\n"+
			"datta: {}\n")
	out, _ = a.run(t, 1, "apply", folder, "-n", "team1", "--dry-run", "-o", "json")
	var lines struct {
		Objects []struct {
			Action, Kind, Name, File string
			Line                     int
		}
	}
	if err := json.Unmarshal([]byte(out), &lines); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, o := range lines.Objects {
		if filepath.Base(o.File) == "second.yaml" {
			got[o.Kind+" "+o.Name] = fmt.Sprintf("%s %d", o.Action, o.Line)
		}
	}
	want := map[string]string{"Deployment second-agent": "create 3",
		"ConfigMap settings": fmt.Sprintf("refused %d",
			strings.Count(deployment2, "\n")+2),
		"ServiceAccount second-agent":              "create 3",
		"ConfigMap authbridge-config-second-agent": "create 3"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, name := range []string{"settings.yaml", "second.yaml"} {
		if err := os.Remove(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}

	// Out again.
	_, errs = a.run(t, 1, "delete", "weather", "-n", "team1")
	contains(errs, "pass --yes")
	out, _ = a.run(t, 0, "delete", "weather", "-n", "team1", "--yes")
	contains(out, "Deployment team1/weather-agent pruned")
	_, errs = a.run(t, 1, "delete", "weather", "-n", "team1", "--yes")
	contains(errs, "there is no inventory of a package team1/weather")
	if out, _ := a.run(t, 0, "status", "--packages", "-A", "-o",
		"yaml"); strings.TrimSpace(out) != "[]" {
		t.Errorf("left: %s", out)
	}

	for _, args := range [][]string{{"apply"}, {"apply", folder, "-o", "xml"}, {"apply", "-"},
		{"apply", folder, "--allow", "adopt=x"}, {"apply", folder, "--allow", "everything"},
		{"apply", folder, "--timeout", "-1s"}, {"diff", folder, "--color", "red"}, {"delete"},
		{"status", "--packages", "a", "b"}, {"status", "--packages", "a", "-A"},
		{"status", "--packages", "-w"}} {
		a.run(t, 2, args...)
	}
}

func content(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func renderTo(t *testing.T, folder string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "rendered")
	buildArmature(t).run(t, 0, "render", folder, "-d", to)
	return to
}
