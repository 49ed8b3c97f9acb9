package build

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
)

// files of an archive in the notation of txtar.
func files(text string) map[string][]byte {
	out := map[string][]byte{}
	for _, f := range txtar.Parse([]byte(text)).Files {
		out[f.Name] = f.Data
	}
	return out
}

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels:
    app: web
    kagenti.io/inject: enabled
    kagenti.io/type: agent
spec:
  selector:
    matchLabels:
      app: web
  template:
    metadata:
      labels:
        app: web
    spec:
      containers:
      - name: web
        image: registry.example/web@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
        ports:
        - containerPort: 8000
`

const config = `apiVersion: armature.dev/v1alpha1
kind: RenderConfig
metadata:
  name: armature
  annotations:
    config.kubernetes.io/local-config: "true"
    config.kubernetes.io/function: |
      exec:
        path: armature-fn
spec:
  profile: kagenti-published
`

const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\ndata:\n" +
	"  key: value\n"

// A folder without a kustomization yields the files that the engine renders.
func TestPlainFolder(t *testing.T) {
	in := files("-- apps/web/deploy.yaml --\n" + deployment + "-- apps/web/armature.yaml --\n" + config +
		"-- apps/web/sub/settings.yaml --\n" + configMap +
		"-- apps/web/README.md --\nhello\n-- apps/web/.github/x.yaml --\na: b\n" +
		"-- apps/other/deploy.yaml --\n: [\n")
	r := Run(in, Options{Path: "apps/web"})
	if finding.Failed(r.Findings) {
		t.Fatal(r.Findings)
	}
	if diff := cmp.Diff([]string{"deploy.yaml", "sub/settings.yaml"},
		slices.Sorted(maps.Keys(r.Files))); diff != "" {
		t.Error(diff)
	}
	config, _ := render.ReadConfig([]byte(config), "armature.yaml")
	want, err := render.Run(
		render.Source{Files: []render.File{{Path: "deploy.yaml", Data: []byte(deployment)},
			{Path: "sub/settings.yaml", Data: []byte(configMap)}}},
		render.Options{Config: config, ObjectsOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range want.Files {
		if diff := cmp.Diff(string(f.Data), string(r.Files[f.Path])); diff != "" {
			t.Errorf("%s is not what the engine gives: %s", f.Path, diff)
		}
	}
	if r.Stats.Workloads != 1 || r.Objects < 2 {
		t.Errorf("%d workloads and %d objects, want 1 and at least 2", r.Stats.Workloads, r.Objects)
	}
}

// A kustomization is built, then rendered, with the configuration that is one of
// its transformers elsewhere.
func TestKustomization(t *testing.T) {
	in := files(
		"-- base/kustomization.yaml --\nresources: [deploy.yaml]\n-- base/deploy.yaml --\n" + deployment +
			"-- prod/kustomization.yaml --\nnamePrefix: prod-\nresources: [../base]\n" +
			"transformers: [armature.yaml]\nconfigMapGenerator:\n- name: settings\n" +
			"  literals: [url=https://example.com]\n-- prod/armature.yaml --\n" + config)
	r := Run(in, Options{Path: "prod"})
	if finding.Failed(r.Findings) {
		t.Fatal(r.Findings)
	}
	text := string(r.Files["deployment_prod-web_apps.yaml"])
	for _, want := range []string{"name: prod-web", "name: envoy-proxy", "armature.dev/injected"} {
		if !strings.Contains(text, want) {
			t.Errorf("the Deployment lacks %q:\n%s", want, text)
		}
	}
	for name, data := range r.Files {
		if strings.Contains(string(data), "config.kubernetes.io/origin") ||
			strings.Contains(string(data), "RenderConfig") {
			t.Errorf("%s has something of the build left in it:\n%s", name, data)
		}
	}
	again := Run(in, Options{Path: "./prod/"})
	if diff := cmp.Diff(r.Files, again.Files); diff != "" {
		t.Errorf("another render differs: %s", diff)
	}
}

// Objects that are for tools stay in their package, wherever they are.
func TestLocalConfig(t *testing.T) {
	local := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: local\n  annotations:\n" +
		"    config.kubernetes.io/local-config: \"true\"\n"
	item := "  " + strings.ReplaceAll(strings.TrimSpace(local), "\n", "\n  ")
	in := files("-- alone.yaml --\n" + local + "-- several.yaml --\n" + local + "---\n" + configMap +
		"-- list.yaml --\napiVersion: v1\nkind: List\nitems:\n- " + strings.TrimSpace(item) +
		"\n- {apiVersion: v1, kind: Namespace, metadata: {name: kept}}\n")
	r := Run(in, Options{})
	if finding.Failed(r.Findings) {
		t.Fatal(r.Findings)
	}
	all := ""
	for _, data := range r.Files {
		all += string(data)
	}
	if strings.Contains(all, "local") || !strings.Contains(all, "settings") ||
		!strings.Contains(all, "kept") || r.Objects != 2 || len(r.Files) != 2 {
		t.Errorf("%d objects:\n%s", r.Objects, all)
	}
}

// Each package is refused with the place of the problem, and yields no file.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct{ in, path, config, want string }{
		"empty": {in: "-- app/README.md --\nhello\n", path: "app",
			want: "no Kubernetes object is left"},
		"only local": {in: "-- armature.yaml --\n" + config,
			want: "no Kubernetes object is left"},
		"no folder": {in: "-- a.yaml --\n" + configMap, path: "app",
			want: "the source has no folder app"},
		"outside": {in: "-- a.yaml --\n" + configMap, path: "../x", want: "leads out"},
		"no config": {in: "-- a.yaml --\n" + configMap, config: "fleet.yaml",
			want: "fleet.yaml: the source does not have this file"},
		"unknown field": {
			in: "-- a.yaml --\n" + configMap +
				"-- armature.yaml --\napiVersion: armature.dev/v1alpha1\nkind: RenderConfig\n" +
				"metadata: {name: a}\nspec:\n  colour: red\n",
			want: "armature.yaml:5: RenderConfig a: spec.colour"},
		"syntax": {
			in:   "-- app/a.yaml --\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x\n",
			path: "app", want: "app/a.yaml:"},
		"syntax in base": {
			in: "-- k/kustomization.yaml --\nresources: [a.yaml]\n-- k/a.yaml --\napiVersion: v1\n" +
				"kind: ConfigMap\nmetadata:\n  name: x\n   y: z\n", path: "k", want: "k/a.yaml:5"},
		"helm chart": {in: "-- Chart.yaml --\nname: x\n-- templates/a.yaml --\n" + configMap,
			want: "Chart.yaml: a Helm chart is not rendered here"},
		"kustomization": {in: "-- app/prod/kustomization.yaml --\nresources: []\n", path: "app",
			want: "app/prod/kustomization.yaml: the folder above it has no kustomization"},
		"remote base": {in: "-- kustomization.yaml --\nresources: ['https://github.com/o/r']\n",
			want: "remote base"},
		"GitHub base": {
			in: "-- kustomization.yaml --\nresources: [GitHub.com/o/r]\n" +
				"-- GitHub.com/o/r/kustomization.yaml --\nresources: []\n", want: "remote base"},
		"SSH base": {in: "-- kustomization.yaml --\ncomponents: ['git@host:o/r']\n",
			want: "remote base"},
		"remote in base": {
			in: "-- p/kustomization.yaml --\nresources: [../b]\n-- b/kustomization.yml --\n" +
				"resources: ['ssh://host/o/r']\n", path: "p",
			want: "b/kustomization.yml: \"ssh://host/o/r\" is a remote base"},
		"remote folder": {
			in: "-- kustomization.yaml --\nresources: ['https://x/y']\n-- https:/x/y --\n" +
				configMap, want: "remote base"},
		"remote file": {
			in: "-- kustomization.yaml --\nconfigMapGenerator: [{name: a, files: " +
				"['k=https://x/y']}]\n", want: "is not fetched"},
		"remote patch": {in: "-- kustomization.yaml --\npatches: [{path: 'HTTP://x/y'}]\n",
			want: "is not fetched"},
		"remote openapi": {in: "-- kustomization.yaml --\nopenapi: {path: 'https://x/y'}\n",
			want: "is not fetched"},
		"remote plugin": {
			in: "-- kustomization.yaml --\ntransformers: [t.yaml]\n-- t.yaml --\n" +
				"apiVersion: builtin\nkind: PatchTransformer\nmetadata: {name: t}\n" +
				"path: &a https://x/y\n", want: "t.yaml: \"https://x/y\" is not fetched"},
		"inline plugin": {
			in: "-- kustomization.yaml --\ngenerators:\n- '{apiVersion: builtin, kind: " +
				"ConfigMapGenerator, metadata: {name: t}, files: [\"k=https://x\"]}'\n",
			want: "\"k=https://x\" is not fetched"},
		"plugin folder": {
			in: "-- kustomization.yaml --\ntransformers: [t]\n-- t/kustomization.yaml --\n" +
				"resources: []\n", want: "neither a file of the source nor a configuration"},
		"plugin with a list of annotations": {
			in: "-- kustomization.yaml --\ntransformers: [t.yaml]\n-- t.yaml --\napiVersion: builtin\n" +
				"kind: PatchTransformer\nmetadata: {name: t, annotations: [a]}\n",
			want: "expected MappingNode but got SequenceNode"},
		"function": {
			in: "-- b/kustomization.yaml --\ntransformers: [armature.yaml]\n-- b/armature.yaml --\n" +
				config + "-- kustomization.yaml --\nresources: [b]\n",
			want: "functions do not run here"},
		"helm in overlay": {in: "-- kustomization.yaml --\nhelmCharts: [{name: x}]\n",
			want: "helmCharts are not rendered"},
		"cycle": {
			in: "-- a/kustomization.yaml --\nresources: [../b]\n-- b/kustomization.yaml --\n" +
				"resources: [../a]\n", path: "a", want: "its own base: a → b → a"},
		"own base": {in: "-- kustomization.yaml --\nresources: [.]\n", want: "its own base"},
		"above": {in: "-- a/kustomization.yaml --\nresources: [../../x]\n", path: "a",
			want: "neither a file"},
		"missing": {in: "-- kustomization.yaml --\nresources: [a.yaml]\n",
			want: `"a.yaml"`},
		"broken": {in: "-- kustomization.yaml --\nresources: [a.yaml\nnamespace: x\n",
			want: "kustomization.yaml:"},
		"outside root": {
			in:   "-- a/kustomization.yaml --\nresources: [../b.yaml]\n-- b.yaml --\n" + configMap,
			path: "a", want: "a/kustomization.yaml: accumulating resources"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Run(files(c.in), Options{Path: c.path, Config: c.config})
			if !finding.Failed(r.Findings) || r.Files != nil || r.Objects != 0 {
				t.Fatalf("not refused: %v, %d files", r.Findings, len(r.Files))
			}
			all := ""
			for _, f := range r.Findings {
				all += f.String() + "\n"
			}
			if !strings.Contains(all, c.want) {
				t.Errorf("findings lack %q:\n%s", c.want, all)
			}
		})
	}
}

// Bases that double in number with each level are refused before they are built.
func TestExponentialBases(t *testing.T) {
	in := map[string][]byte{"l30/kustomization.yaml": []byte("resources: [a.yaml]\n"),
		"l30/a.yaml": []byte(configMap)}
	for i := range 20 {
		level := func(n int) string { return "l" + string(rune('a'+n)) }
		for _, side := range []string{"x", "z"} {
			next := "[../../" + level(i+1) + "/x, ../../" + level(i+1) + "/z]"
			if i == 19 {
				next = "[../../l30]"
			}
			in[level(i)+"/"+side+"/kustomization.yaml"] = []byte("namePrefix: p" + side +
				"\nresources: " + next + "\n")
		}
	}
	begun := time.Now()
	r := Run(in, Options{Path: "la/x"})
	if !finding.Failed(r.Findings) ||
		!strings.Contains(r.Findings[0].Message, "more than 500 bases") {
		t.Errorf("%.300v", r.Findings)
	}
	t.Log(time.Since(begun))
}

// A finding on what kustomize made has the file and line of its author.
func TestPlaceInKustomization(t *testing.T) {
	wrong := strings.Replace(deployment, "kagenti.io/inject: enabled", "kagenti.io/inject: perhaps", 1)
	in := files("-- base/kustomization.yaml --\nresources: [all.yaml]\n-- base/all.yaml --\n" +
		configMap + "---\n" + wrong +
		"-- prod/kustomization.yaml --\nnamePrefix: prod-\nresources: [../base]\n")
	r := Run(in, Options{Path: "prod"})
	line := 1 + strings.Count((configMap + "---\n" + wrong)[:strings.Index(configMap+"---\n"+wrong,
		"kagenti.io/inject")], "\n")
	for _, f := range r.Findings {
		if f.File == "base/all.yaml" && f.Line == line {
			return
		}
	}
	t.Errorf("no finding at base/all.yaml:%d: %v", line, r.Findings)
}

// Objects of Flux and of this controller may be in a package themselves: they are
// for a cluster.
func TestRenderedSourceInPackage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "templates", "wiring", "flux",
		"flux.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	r := Run(map[string][]byte{"flux.yaml": text}, Options{})
	if finding.Failed(r.Findings) || r.Objects != 3 {
		t.Errorf("%d objects, want 3: %v", r.Objects, r.Findings)
	}
}

// The examples render as in Git.
func TestExamples(t *testing.T) {
	in := map[string][]byte{}
	root := filepath.Join("..", "..", "..", "..", "examples")
	for _, folder := range []string{"weather-agent", "weather-agent-prod", "kustomize"} {
		found, err := filepath.Glob(filepath.Join(root, folder, "*"))
		if err != nil || len(found) == 0 {
			t.Fatal(folder, err)
		}
		for _, f := range found {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			in[folder+"/"+filepath.Base(f)] = data
		}
	}
	for _, folder := range []string{"weather-agent", "weather-agent-prod", "kustomize"} {
		r := Run(in, Options{Path: folder})
		if finding.Failed(r.Findings) || r.Stats.Workloads == 0 {
			t.Errorf("%s: %d workloads, %v", folder, r.Stats.Workloads, r.Findings)
		}
	}
}
