// Package install compares the three ways to install Armature: `armature
// install`, the kustomize bases and the Helm chart.
package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/armature-dev/armature/e2e/programs"
)

var _ = programs.Only

const root = "../.."

// armature builds the program once for a test, as the release of that version; of
// none where it is empty.
func armature(t *testing.T, release string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "armature")
	build := exec.Command("go", "build", "-ldflags",
		"-X github.com/armature-dev/armature/render/version.described="+release, "-o", path,
		"./cmd/armature")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building armature: %v\n%s", err, out)
	}
	return path
}

// objects that a command prints, by kind, namespace and name.
func objects(t *testing.T, name string, args ...string) map[string]map[string]any {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var problem bytes.Buffer
	cmd.Dir, cmd.Stderr = root, &problem
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", filepath.Base(name), args, err, &problem)
	}
	found := map[string]map[string]any{}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096)
	for {
		u := unstructured.Unstructured{}
		if err := decoder.Decode(&u.Object); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatalf("%s %v: %v", filepath.Base(name), args, err)
		}
		if len(u.Object) == 0 {
			continue
		}
		key := u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
		if found[key] != nil {
			t.Errorf("%s prints %s twice", filepath.Base(name), key)
		}
		found[key] = u.Object
	}
}

// compare objects, where Helm's differ as the chart says: the Namespace is made
// before, and CRDs stay.
func compare(t *testing.T, want, got map[string]map[string]any) {
	t.Helper()
	expected := map[string]map[string]any{}
	for key, object := range want {
		if strings.HasPrefix(key, "Namespace ") &&
			object["metadata"].(map[string]any)["labels"].(map[string]any)["pod-security."+
				"kubernetes.io/enforce"] == "restricted" {
			continue
		}
		u := unstructured.Unstructured{Object: object}
		if u.GetKind() == "CustomResourceDefinition" {
			annotations := u.GetAnnotations()
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations["helm.sh/resource-policy"] = "keep"
			u.SetAnnotations(annotations)
		}
		expected[key] = u.Object
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(expected)),
		slices.Sorted(maps.Keys(got))); diff != "" {
		t.Fatalf("the chart has other objects than `armature install` (-install +chart):\n%s", diff)
	}
	for key := range expected {
		if diff := cmp.Diff(expected[key], got[key]); diff != "" {
			t.Errorf("%s (-install +chart):\n%s", key, diff)
		}
	}
}

// template is a command of Helm's that prints the objects of a chart.
func template(t *testing.T, chart, namespace, values string) []string {
	t.Helper()
	// which Helm splits at commas
	return []string{"template", "armature", chart, "--namespace", namespace, "--values",
		strconv.Quote(valuesFile(t, values))}
}

func valuesFile(t *testing.T, values string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// The chart, rendered by Helm, has the objects of `armature
// install`, whatever namespace and values are chosen.
func TestHelmChart(t *testing.T) {
	helm, program := programs.Peer(t, "helm4"), armature(t, "")
	for name, c := range map[string]struct {
		namespace, values string
	}{
		"defaults": {"armature-system", "{}"},
		"settings": {"platform",
			"{image: registry.example/controller:v9, imageMirror: mirror.local/hub, " +
				"plainHTTPHosts: ['git.local:3000', other.local], gitAllowNetwork: " +
				"[169.254.20.0/24, 'fe80::/64'], maxRunning: 8, maxRunningPerNamespace: 2, " +
				"catalog: {enabled: true}}"},
		"key of a KMS": {"platform",
			"{attestKey: 'awskms:///alias/attest', queueName: builds}"},
		"keyless": {"platform",
			"{keyless: {fulcioURL: 'https://fulcio.example', timestampURL: " +
				"'https://tsa.example/api/v1/timestamp', trustedRoot: sigstore}}"},
		"shards": {"platform",
			"{shards: [a, b], sources: {enabled: true}, catalog: {enabled: true, " +
				"storeSecret: postgres}}"},
		"isolated elsewhere": {"platform", "{buildNamespace: isolated}"},
		"isolated, with settings": {"platform",
			`{buildNamespace: isolated, queueName: builds, buildRuntimeClass: gvisor, maxIsolatedPerNamespace: 'runs=2,cpu=4', catalog: {enabled: true}, buildEgress: [
			{to: [{ipBlock: {cidr: 10.0.8.0/24}}, {ipBlock: {cidr: 128.0.0.0/1, except: [169.254.0.0/16, 168.63.129.16/32, 192.0.0.0/24]}}, {ipBlock: {cidr: '2606:4700::/32'}}], ports: [{port: 443}]},
			{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}, {ipBlock: {cidr: 169.254.20.10/32}}], ports: [{port: 53, protocol: UDP}]}]}`},
		"isolated, with a catalog": {"platform",
			"{buildNamespace: isolated, catalog: {enabled: true, storeSecret: postgres}}"},
		"isolated, namespaced": {"platform",
			"{buildNamespace: isolated, mode: namespaced, watch: [team1]}"},
		"namespaced": {"platform", "{mode: namespaced}"},
		"namespaced for others": {"platform",
			"{mode: namespaced, watch: [team1, platform, team2, team1]}"},
		"namespaced with the catalog": {"platform",
			"{mode: namespaced, watch: [team1], catalog: {enabled: true}}"},
		"with monitoring": {"platform",
			"{monitoring: {enabled: true, labels: {release: prometheus}}}"},
		"with sources": {"platform", "{sources: {enabled: true}}"},
		"namespaced, everything": {"platform",
			"{mode: namespaced, watch: [team1], sources: {enabled: true}, catalog: {enabled: " +
				"true, storeSecret: postgres}}"},
		"an API group": {"armature-system",
			"{apiGroup: builds.example.com, catalog: {enabled: true}}"},
		"an API group, namespaced": {"armature-system",
			"{apiGroup: builds.example.com, mode: namespaced, watch: [team1], imageMirror: " +
				"mirror.local}"},
		"PostgreSQL": {"armature-system",
			"{catalog: {enabled: true, storeSecret: postgres}}"},
		"PostgreSQL, namespaced": {"platform",
			"{mode: namespaced, catalog: {enabled: true, storeSecret: postgres}}"},
		"some CRDs": {"armature-system",
			"{catalog: {enabled: true, crds: [kagenti.io, agent.kagenti.dev]}}"},
		"no CRDs": {"armature-system", "{catalog: {enabled: true, crds: []}}"},
	} {
		t.Run(name, func(t *testing.T) {
			want := objects(t, program, "install", "--namespace", c.namespace, "--values",
				valuesFile(t, c.values))
			if len(want) < 30 {
				t.Fatalf("`armature install` prints %d objects", len(want))
			}
			if strings.Contains(c.values, "sources") &&
				want["NetworkPolicy "+c.namespace+"/armature-sources"] == nil {
				t.Error("nothing limits who reads the archives of RenderedSources")
			}
			rule := unstructured.Unstructured{
				Object: want["PrometheusRule "+c.namespace+"/armature"]}
			if strings.Contains(c.values, "monitoring") &&
				rule.GetLabels()["release"] != "prometheus" {
				t.Errorf("the rules have the labels %v", rule.GetLabels())
			}
			compare(t, want,
				objects(t, helm, template(t, "templates/chart", c.namespace, c.values)...))
		})
	}
	for values, want := range map[string]string{
		"{imgae: x}":                                    "imgae",
		"{mode: both}":                                  "mode",
		"{watch: [team1]}":                              "watch goes with mode namespaced",
		"{mode: namespaced, watch: [A_b]}":              "watch",
		"{catalog: {storeSecret: pg}}":                  "storeSecret goes with catalog.enabled",
		"{catalog: {crds: [example.com]}}":              "crds",
		"{maxRunning: -1}":                              "maxRunning",
		"{queueName: Team_A}":                           "queueName",
		"{shards: [A]}":                                 "shards",
		"{shards: [a, a]}":                              "shards",
		"{shards: [metrics]}":                           "shards",
		"{shards: [a], maxRunning: 1}":                  "shards go without maxRunning",
		"{shards: [a], catalog: {enabled: true}}":       "set catalog.storeSecret",
		"{buildNamespace: default}":                     "buildNamespace is a namespace of its own",
		"{mode: namespaced, buildRuntimeClass: gvisor}": "go with buildNamespace",
		"{maxIsolatedPerNamespace: few}":                "maxIsolatedPerNamespace",
		"{buildNamespace: a, buildEgress: [{ports: " +
			"[{port: 443}]}]}": "to",
		"{buildNamespace: a, buildEgress: [{to: [{ipBlock: {cidr: " +
			"0.0.0.0/0}}]}]}": "169.254.0.0/16, where clouds",
		"{buildNamespace: a, buildEgress: [{to: [{ipBlock: {cidr: " +
			"169.254.169.254/32}}]}]}": "169.254.0.0/16, where clouds",
		"{buildNamespace: a, buildEgress: [{to: [{ipBlock: {cidr: 100.64.0.0/10}}], ports: " +
			"[{port: 53}, {port: 80}]}]}": "100.100.100.200/32, where clouds",
		"{buildNamespace: a, buildEgress: [{to: [{ipBlock: {cidr: " +
			"'fd00:ec2::254/128'}}]}]}": "fd00:ec2::/32, where clouds",
		"{buildNamespace: a, buildEgress: [{to: [{ipBlock: {cidr: 'fc00::/7', except: " +
			"['fe80::/10']}}]}]}": "fd00:ec2::/32, where clouds",
		"{buildNamespace: a, buildEgress: [{to: [{ipBlock: {cidr: " +
			"'::/0'}}]}]}": "fe80::/10, where clouds",
		"{attest: nobody}":                    "attest",
		"{attestKey: '../x://a'}":             "attestKey",
		"{keyless: {fulcioURL: fulcio}}":      "fulcioURL",
		"{keyless: {fulcioURL: 'https://f'}}": "go together",
		"{attestKey: a, keyless: {fulcioURL: 'https://f', timestampURL: 'https://t', " +
			"trustedRoot: r}}": "set only one of the two",
		"{apiGroup: Builds}":            "apiGroup",
		"{gitAllowNetwork: [10.0.0.1]}": "gitAllowNetwork",
	} {
		if out, err := exec.CommandContext(t.Context(), helm,
			template(t, root+"/templates/chart", "default", values)...).CombinedOutput(); err ==
			nil || !strings.Contains(string(out), want) {
			t.Errorf("values %s: %v, want an error that names %q\n%s", values, err, want, out)
		}
	}
}

// A release installs its own image, by `armature install` and by the chart that is
// packaged with its version.
func TestReleaseImage(t *testing.T) {
	helm, program := programs.Peer(t, "helm4"), armature(t, "v7.8.9")
	want := objects(t, program, "install", "--catalog")
	for _, name := range []string{"armature-controller", "armature-catalog"} {
		deployment := unstructured.Unstructured{Object: want["Deployment armature-system/"+name]}
		containers, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template",
			"spec", "containers")
		if err != nil || len(containers) != 1 ||
			containers[0].(map[string]any)["image"] !=
				"ghcr.io/armature-dev/armature-controller:v7.8.9" {
			t.Errorf("Deployment %s: %v, containers %v", name, err, containers)
		}
	}
	compare(t, want,
		objects(t, helm,
			template(t, chartOf(t, "v7.8.9"), "armature-system", "{catalog: {enabled: true}}")...))

	build, err := os.ReadFile(filepath.Join(root, "examples/builds/weather.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	planned := exec.CommandContext(t.Context(), program, "build", "plan", "-")
	planned.Stdin = bytes.NewReader(build)
	plan, err := planned.Output()
	if err != nil || !strings.Contains(string(plan),
		"image: ghcr.io/armature-dev/armature-controller:v7.8.9\n") {
		t.Errorf("build plan: %v\n%s", err, plan)
	}

	cmd := exec.CommandContext(t.Context(), program, "install")
	var problem bytes.Buffer
	cmd.Stderr = &problem
	if err := cmd.Run(); err != nil || problem.Len() > 0 {
		t.Errorf("a release's install: %v, standard error %q", err, &problem)
	}
}

// chartOf copies the chart as `helm package --app-version` does: with that version,
// and files in place of links.
func chartOf(t *testing.T, version string) string {
	t.Helper()
	chart := t.TempDir()
	copyFolder := func(from, to string) {
		if err := os.CopyFS(filepath.Join(chart, to),
			os.DirFS(filepath.Join(root, "templates", from))); err != nil {
			t.Fatal(err)
		}
	}
	copyFolder("chart/templates", "templates")
	for _, folder := range []string{"crds", "install", "modes", "steps"} {
		copyFolder(folder, "files/"+folder)
	}
	for _, file := range []string{"Chart.yaml", "values.yaml", "values.schema.json"} {
		text, err := os.ReadFile(filepath.Join(root, "templates/chart", file))
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.ReplaceAll(text, []byte("appVersion: 0.0.0"), []byte("appVersion: "+version))
		if err := os.WriteFile(filepath.Join(chart, file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return chart
}

// The kustomize bases have the objects of `armature install`, and an overlay that names
// another image those of `armature install --image`.
func TestKustomizeBases(t *testing.T) {
	kustomize, program := programs.Peer(t, "kustomize"), armature(t, "")
	for mode, base := range map[string]string{"cluster": "isolated", "namespaced": "namespaced"} {
		want := objects(t, program, "install", "--scope", mode, "--catalog", "--sources", "--monitoring")
		got := objects(t, kustomize, "build", "templates/install/"+base)
		maps.Copy(got, objects(t, kustomize, "build", "templates/install/catalog/"+base))
		maps.Copy(got, objects(t, kustomize, "build", "templates/install/sources/"+mode))
		maps.Copy(got, objects(t, kustomize, "build", "templates/install/monitoring"))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-install +kustomize):\n%s", mode, diff)
		}

		want = objects(t, program, "install", "--scope", mode, "--catalog", "--image",
			"registry.example:5000/platform/controller:v9")
		got = objects(t, kustomize, "build",
			overlay(t, `resources: [BASE/`+base+`, BASE/catalog/`+base+`]
images: [{name: ghcr.io/armature-dev/armature-controller, newName: registry.example:5000/platform/controller, newTag: v9}]
`))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s with another image (-install +kustomize):\n%s", mode, diff)
		}
		for key, object := range got {
			if text := fmt.Sprint(object); strings.Contains(text,
				"armature-dev/armature-controller") {
				t.Errorf("%s names the published image", key)
			}
		}
	}
}

// overlay makes the folder of a kustomization, in which BASE is templates/install.
func overlay(t *testing.T, text string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	base, err := filepath.Abs(filepath.Join(root, "templates", "install"))
	if err != nil {
		t.Fatal(err)
	}
	if base, err = filepath.Rel(dir, base); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"),
		[]byte(strings.ReplaceAll(text, "BASE", base)), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}
