// Package integrations runs the same packages through every host that calls Armature,
// and compares what comes out.
package integrations

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/functions/krm"
)

const root = "../.."

var (
	bin    string // holds armature and armature-fn, and is on the PATH
	hasKpt bool
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if bin, err = os.MkdirTemp("", "integrations-"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(bin)
	build := exec.Command("go", "build", "-o", bin, "./cmd/armature", "./cmd/armature-fn")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building armature: %v\n%s", err, out)
		return 1
	}
	os.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	if _, err := exec.LookPath("kpt"); err == nil {
		hasKpt = true
	} else {
		fmt.Fprintln(os.Stderr, "\n*** kpt IS NOT ON THE PATH: it is NOT tested ***")
	}
	return m.Run()
}

func kustomize(t *testing.T) string {
	t.Helper()
	return programs.Peer(t, "kustomize")
}

func argocd(t *testing.T) string {
	t.Helper()
	return programs.Peer(t, "argocd-cmp-server")
}

func needKpt(t *testing.T) {
	t.Helper()
	if !hasKpt {
		t.Skip("kpt is not on the PATH, and cannot be built from a Go module")
	}
}

// result is what a command left behind.
type result struct {
	stdout, stderr string
	err            error
}

func command(dir, stdin, name string, args ...string) result {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return result{stdout.String(), stderr.String(), err}
}

// must runs a command that has to succeed, and gives its standard output.
func must(t *testing.T, dir, stdin, name string, args ...string) string {
	t.Helper()
	r := command(dir, stdin, name, args...)
	if r.err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(name), strings.Join(args, " "), r.err, r.stderr, r.stdout)
	}
	return r.stdout
}

// mustFail runs a command that has to fail, and gives its whole output.
func mustFail(t *testing.T, dir, stdin, name string, args ...string) string {
	t.Helper()
	r := command(dir, stdin, name, args...)
	if r.err == nil {
		t.Fatalf("%s %s: succeeded\n%s", filepath.Base(name), strings.Join(args, " "), r.stdout)
	}
	return r.stderr + r.stdout
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// workloads are the examples that hold nothing but manifests.
var workloads = []string{"weather-agent", "memory-agent", "report-job", "nightly-cronjob", "opted-out", "overcommit", "agent", "kagent"}

// examples copies examples into one folder.
func examples(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		files, err := filepath.Glob(filepath.Join(root, "examples", name, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("the example %s: %v, %d files", name, err, len(files))
		}
		for _, file := range files {
			to := filepath.Base(file)
			if len(names) > 1 {
				to = name + "-" + to
			}
			write(t, dir, to, read(t, file))
		}
	}
	return dir
}

const daemonSet = `apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: node-agent
  labels: {kagenti.io/inject: enabled} # in flow style, which goes through kyaml
spec:
  selector:
    matchLabels: {app: node-agent}
  template:
    metadata:
      labels: {app: node-agent}
    spec:
      containers:
      - {name: agent, image: "ghcr.io/example/node-agent:v1"}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: unconcerned
data:
  text: |
    kind: Deployment
`

// packages are what every host has to render alike.
func packages(t *testing.T) map[string]string {
	mixed := examples(t, workloads...)
	write(t, mixed, "daemonset.yaml", daemonSet)
	all := map[string]string{"mixed": mixed, "weather-agent-prod": examples(t, "weather-agent-prod")}
	for _, name := range workloads {
		all[name] = examples(t, name)
	}
	return all
}

// manifests lists the manifests of a package.
func manifests(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		if name := filepath.Base(f); name != "armature.yaml" && name != "kustomization.yaml" {
			names = append(names, name)
		}
	}
	return names
}

// stream joins the manifests of a package.
func stream(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	for _, name := range manifests(t, dir) {
		all = append(all, strings.TrimRight(read(t, dir, name), "\n")+"\n")
	}
	return strings.Join(all, "---\n")
}

// objects reads a stream or ResourceList, without what stays in a package and
// without the books of the hosts.
func objects(t *testing.T, text string) map[string]any {
	t.Helper()
	all := make(map[string]any)
	add := func(value any) {
		o, ok := value.(map[string]any)
		if !ok || o["kind"] == nil {
			return // comments only
		}
		metadata, _ := o["metadata"].(map[string]any)
		annotations, _ := metadata["annotations"].(map[string]any)
		if annotations[krm.LocalConfig] == "true" {
			return
		}
		krm.DropHostAnnotations(o)
		id := fmt.Sprintf("%v %v/%v", o["kind"], metadata["namespace"], metadata["name"])
		if all[id] != nil {
			t.Fatalf("%s occurs twice", id)
		}
		all[id] = o
	}
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for {
		var node yaml.Node
		if err := decoder.Decode(&node); err != nil {
			if err.Error() == "EOF" {
				return all
			}
			t.Fatalf("reading a result: %v\n%s", err, text)
		}
		data, err := yaml.NewRNode(&node).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := json.Unmarshal(data, &value); err != nil {
			t.Fatal(err)
		}
		if o, ok := value.(map[string]any); ok && o["kind"] == "ResourceList" {
			items, _ := o["items"].([]any)
			for _, item := range items {
				add(item)
			}
			continue
		}
		add(value)
	}
}

// kustomization makes a package one of kustomize, wired as init wires it.
func kustomization(t *testing.T, dir, more string) {
	t.Helper()
	resources := "resources: [" + strings.Join(manifests(t, dir), ", ") + "]"
	must(t, dir, "", "armature", "init", "--for", "kustomize")
	write(t, dir, "kustomization.yaml", strings.Replace(read(t, dir, "kustomization.yaml"), "resources: []", resources, 1)+more)
}

func buildArgs(dir string) []string {
	return []string{"build", "--enable-alpha-plugins", "--enable-exec", dir}
}

// resourceList is what a host sends, with every item's bytes as they are.
func resourceList(t *testing.T, dir, apiVersion string) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: %s\nkind: ResourceList\nitems:\n", apiVersion)
	for _, name := range manifests(t, dir) {
		for document := range strings.SplitSeq(read(t, dir, name), "\n---\n") {
			lead := "- "
			for line := range strings.Lines(strings.TrimRight(document, "\n") + "\n") {
				switch {
				case strings.HasPrefix(line, "#"):
					fmt.Fprintf(&b, "%s", line)
				case line == "\n":
					b.WriteString(line)
				default:
					b.WriteString(lead + line)
					lead = "  "
				}
			}
		}
	}
	return b.String()
}

// verifyConfig is verify as one more transformer. As a validator kustomize
// refuses it: see TestKustomizeValidators.
const verifyConfig = `apiVersion: armature.dev/v1alpha1
kind: RenderConfig
metadata:
  name: armature-verify
  annotations:
    config.kubernetes.io/function: |
      exec:
        path: armature-fn
        args: [verify]
`

func TestSameObjectsThroughEveryHost(t *testing.T) {
	hosts := map[string]func(t *testing.T, dir string) string{
		"stdin": func(t *testing.T, dir string) string {
			return must(t, dir, stream(t, dir), "armature", "render", "-")
		},
		"folder": func(t *testing.T, dir string) string {
			must(t, dir, "", "armature", "render", dir, "-o", dir+"/out")
			must(t, dir, "", "armature", "verify", dir+"/out")
			return stream(t, dir+"/out")
		},
		"kustomize-pipe": func(t *testing.T, dir string) string {
			kustomization(t, dir, "")
			write(t, dir, "kustomization.yaml", "resources: ["+strings.Join(manifests(t, dir), ", ")+"]\n")
			return must(t, dir, must(t, dir, "", kustomize(t), "build", dir), "armature", "render", "-")
		},
		"kustomize": func(t *testing.T, dir string) string {
			kustomization(t, dir, "- verify.yaml\n")
			write(t, dir, "verify.yaml", verifyConfig)
			out := must(t, dir, "", kustomize(t), buildArgs(dir)...)
			must(t, dir, out, "armature", "verify", "-c", "armature.yaml", "-")
			again := t.TempDir()
			write(t, again, "all.yaml", out)
			kustomization(t, again, "")
			if diff := cmp.Diff(out, must(t, again, "", kustomize(t), buildArgs(again)...)); diff != "" {
				t.Errorf("building what was built changes it (-first +second):\n%s", diff)
			}
			return out
		},
		"kpt-eval": func(t *testing.T, dir string) string {
			needKpt(t)
			must(t, dir, "", "kpt", "fn", "eval", dir, "--exec", "armature-fn")
			return stream(t, dir)
		},
		"kpt-render": func(t *testing.T, dir string) string {
			needKpt(t)
			must(t, dir, "", "armature", "init", "--for", "kpt")
			must(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
			first := stream(t, dir)
			must(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
			if diff := cmp.Diff(first, stream(t, dir)); diff != "" {
				t.Errorf("the second kpt fn render changes the package (-first +second):\n%s", diff)
			}
			must(t, dir, "", "armature", "verify", dir)
			return first
		},
		"list-v1": func(t *testing.T, dir string) string {
			return must(t, dir, resourceList(t, dir, "config.kubernetes.io/v1"), "armature-fn")
		},
		"list-v1beta1": func(t *testing.T, dir string) string {
			return must(t, dir, resourceList(t, dir, "config.kubernetes.io/v1beta1"), "armature-fn")
		},
		"list-json": func(t *testing.T, dir string) string {
			n, err := yaml.Parse(resourceList(t, dir, "config.kubernetes.io/v1"))
			if err != nil {
				t.Fatal(err)
			}
			data, err := n.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			return must(t, dir, string(data), "armature-fn")
		},
		"argocd": func(t *testing.T, dir string) string {
			must(t, dir, "", "armature", "init")
			answer := ask(t, plugin(t), dir, dir)
			return strings.Join(answer.Manifests, "\n---\n")
		},
	}
	for name := range packages(t) {
		t.Run(name, func(t *testing.T) {
			want := must(t, "", "", "armature", "render", packages(t)[name])
			for host, through := range hosts {
				t.Run(host, func(t *testing.T) {
					got := through(t, packages(t)[name])
					if diff := cmp.Diff(objects(t, want), objects(t, got)); diff != "" {
						t.Errorf("differs from the command line's (-command line +%s):\n%s", host, diff)
					}
				})
			}
		})
	}
}

// Where no host reads and writes the YAML, the bytes are the same.
func TestSameBytesWithoutAHost(t *testing.T) {
	for name, dir := range packages(t) {
		want := must(t, dir, "", "armature", "render", dir)
		if got := must(t, dir, "", "armature-fn", "render", "."); got != want {
			t.Errorf("%s: armature-fn render: %s", name, cmp.Diff(want, got))
		}
		if got := must(t, dir, stream(t, dir), "armature", "render", "-"); objectsOf(got) != objectsOf(want) {
			t.Errorf("%s: standard input: %s", name, cmp.Diff(objectsOf(want), objectsOf(got)))
		}
		if name == "mixed" {
			continue // flow style stays unchanged in a file only
		}
		list := must(t, dir, resourceList(t, dir, "config.kubernetes.io/v1"), "armature-fn")
		for document := range strings.SplitSeq(objectsOf(want), "\n---\n") {
			if strings.HasPrefix(document, "# armature.dev/consumed") {
				continue
			}
			var item strings.Builder
			for line := range strings.Lines(document + "\n") {
				switch {
				case strings.HasPrefix(line, "#"):
				case line == "\n" || item.Len() == 0:
					item.WriteString(line)
				default:
					item.WriteString("  " + line)
				}
			}
			if text := strings.TrimSpace(item.String()); !strings.Contains(list, text) {
				t.Errorf("%s: the ResourceList does not have\n%s", name, text)
			}
		}
	}
}

// objectsOf leaves out trailing line feeds, which a folder's files may lack.
func objectsOf(text string) string { return strings.TrimRight(text, "\n") }

func TestKustomizeSkipsFunctionsSilently(t *testing.T) {
	dir := examples(t, "weather-agent")
	kustomization(t, dir, "")
	out := must(t, dir, "", kustomize(t), "build", "--enable-alpha-plugins", dir)
	if strings.Contains(out, "proxy-init") {
		t.Fatal("kustomize runs exec functions without --enable-exec by now: say so in the documents")
	}
	output := mustFail(t, dir, out, "armature", "verify", "-c", "armature.yaml", "-")
	for _, want := range []string{"opted in, but was not rendered", "--enable-exec"} {
		if !strings.Contains(output, want) {
			t.Errorf("verify does not say %q:\n%s", want, output)
		}
	}
	if output := mustFail(t, dir, "", "armature", "verify", "-"); !strings.Contains(output, "nothing on standard input") {
		t.Errorf("verify of nothing says %s", output)
	}
}

// kustomize compares what a validator gives back with what it has in memory,
// line numbers and style included, so that even /bin/cat fails
// (kubernetes-sigs/kustomize#5036). What verify finds is shown all the same.
func TestKustomizeValidators(t *testing.T) {
	dir := examples(t, "memory-agent")
	write(t, dir, "verify.yaml", verifyConfig)
	kustomization := "resources: [statefulset.yaml]\nvalidators: [verify.yaml]\n"
	write(t, dir, "kustomization.yaml", kustomization)
	if output := mustFail(t, dir, "", kustomize(t), buildArgs(dir)...); !strings.Contains(output, "opted in, but was not rendered") {
		t.Errorf("a validator of what is not rendered: %s", output)
	}
	write(t, dir, "verify.yaml", strings.NewReplacer("armature-fn", "/bin/cat", "[verify]", "[]").Replace(verifyConfig))
	if output := mustFail(t, dir, "", kustomize(t), buildArgs(dir)...); !strings.Contains(output, "validator shouldn't modify the resource map") {
		t.Errorf("kustomize takes validators by now: say so in docs/hosts.md\n%s", output)
	}
}

func TestKustomizeRenames(t *testing.T) {
	dir := examples(t, "weather-agent")
	kustomization(t, dir, "namePrefix: dev-\nnameSuffix: -v2\nnamespace: dev\n")
	out := must(t, dir, "", kustomize(t), buildArgs(dir)...)
	must(t, dir, out, "armature", "verify", "-c", "armature.yaml", "-")
	all := objects(t, out)
	for _, id := range []string{"Deployment dev/dev-weather-agent-v2", "ConfigMap dev/dev-weather-agent-v2-token-exchange", "ConfigMap dev/dev-weather-agent-v2-trace"} {
		if all[id] == nil {
			t.Errorf("no %s", id)
		}
	}
	if !strings.Contains(out, "premium-api.external.com") {
		t.Error("the TokenExchange did not find its renamed workload")
	}
	for _, book := range []string{"kustomize.config.k8s.io/", "config.kubernetes.io/", "config.k8s.io/"} {
		if strings.Contains(out, book) {
			t.Errorf("kustomize's own annotations %s stayed in the output", book)
		}
	}

	// Two overlays of one base: each custom resource goes with its own workload.
	both := t.TempDir()
	for _, name := range []string{"base", "one", "two"} {
		if err := os.Mkdir(filepath.Join(both, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range manifests(t, dir) {
		write(t, both, "base/"+name, read(t, dir, name))
	}
	write(t, both, "base/kustomization.yaml", "resources: ["+strings.Join(manifests(t, dir), ", ")+"]\n")
	write(t, both, "one/kustomization.yaml", "resources: [../base]\nnamePrefix: one-\n")
	write(t, both, "two/kustomization.yaml", "resources: [../base]\nnamePrefix: two-\n")
	write(t, both, "armature.yaml", read(t, dir, "armature.yaml"))
	write(t, both, "kustomization.yaml", "resources: [one, two]\ntransformers: [armature.yaml]\n")
	out = must(t, both, "", kustomize(t), buildArgs(both)...)
	must(t, both, out, "armature", "verify", "-c", "armature.yaml", "-")
	if n := strings.Count(out, `- host: "premium-api.external.com"`); n != 2 {
		t.Errorf("%d of 2 routes are there", n)
	}
}

// A kustomization takes the lock under resources although its name does not end
// in .yaml, hands it to the functions, and leaves it out of what it writes.
func TestKustomizeLock(t *testing.T) {
	const image = "ghcr.io/example/node-agent:v1"
	pinned := image + "@sha256:" + strings.Repeat("5", 64)
	dir := t.TempDir()
	// Without quotes: an image is remembered with those of the file, which
	// kustomize drops on the way in.
	write(t, dir, "daemonset.yaml", strings.ReplaceAll(daemonSet, `"`+image+`"`, image))
	kustomization(t, dir, "- verify.yaml\n")
	write(t, dir, "verify.yaml", verifyConfig)
	without := must(t, dir, "", kustomize(t), buildArgs(dir)...)
	if strings.Contains(without, "@sha256:") {
		t.Fatalf("pinned without a lock:\n%s", without)
	}
	write(t, dir, "armature.lock", "apiVersion: armature.dev/v1alpha1\nkind: ImageLock\nmetadata:\n  name: images\n  annotations:\n    config.kubernetes.io/local-config: \"true\"\n"+
		"spec:\n  images:\n  - {image: "+image+", digest: "+strings.TrimPrefix(pinned, image+"@")+"}\n")
	write(t, dir, "kustomization.yaml", strings.Replace(read(t, dir, "kustomization.yaml"), "resources: [", "resources: [armature.lock, ", 1))
	out := must(t, dir, "", kustomize(t), buildArgs(dir)...)
	if !strings.Contains(out, "image: "+pinned+"\n") {
		t.Errorf("not pinned:\n%s", out)
	}
	if strings.Contains(out, "ImageLock") || strings.Contains(out, krm.LocalConfig) {
		t.Errorf("the lock leaves the package:\n%s", out)
	}
	// The folder's own render takes the same lock.
	want := objects(t, must(t, dir, "", "armature", "render", filepath.Join(dir, "daemonset.yaml")))
	if diff := cmp.Diff(want, objects(t, out)); diff != "" {
		t.Errorf("differs from the command line's (-command line +kustomize):\n%s", diff)
	}
	must(t, dir, out, "armature", "verify", "-c", "armature.yaml", "--lock", "armature.lock", "-")
}

func TestKustomizeExecPaths(t *testing.T) {
	dir := examples(t, "memory-agent")
	kustomization(t, dir, "")
	config := read(t, dir, "armature.yaml")
	if err := os.Symlink(filepath.Join(bin, "armature-fn"), filepath.Join(dir, "fn")); err != nil {
		t.Fatal(err)
	}
	want := must(t, dir, "", kustomize(t), buildArgs(dir)...)
	for _, path := range []string{"./fn", filepath.Join(bin, "armature-fn")} {
		write(t, dir, "armature.yaml", strings.Replace(config, "path: armature-fn", "path: "+path, 1))
		if got := must(t, "/", "", kustomize(t), buildArgs(dir)...); got != want {
			t.Errorf("path %s: %s", path, cmp.Diff(want, got))
		}
	}
}

func TestConfigurationThroughHosts(t *testing.T) {
	const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: armature\n  annotations:\n    config.kubernetes.io/function: |\n      exec: {path: armature-fn}\ndata:\n  sidecars: classic\n"
	classic := func(t *testing.T, out string) {
		t.Helper()
		set, ok := objects(t, out)["StatefulSet <nil>/memory-agent"].(map[string]any)
		if !ok {
			t.Fatalf("no StatefulSet:\n%s", out)
		}
		spec := set["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
		if init, containers := len(spec["initContainers"].([]any)), len(spec["containers"].([]any)); init != 1 || containers != 5 {
			t.Errorf("%d init containers and %d containers; want 1 and 5 with sidecars: classic", init, containers)
		}
	}
	t.Run("kustomize-configMap", func(t *testing.T) {
		dir := examples(t, "memory-agent")
		kustomization(t, dir, "")
		write(t, dir, "armature.yaml", configMap)
		classic(t, must(t, dir, "", kustomize(t), buildArgs(dir)...))
	})
	t.Run("kpt-configMap", func(t *testing.T) {
		needKpt(t)
		dir := examples(t, "memory-agent")
		write(t, dir, "Kptfile", "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: agents\npipeline:\n  mutators:\n  - exec: armature-fn\n    configMap:\n      sidecars: classic\n")
		must(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
		classic(t, stream(t, dir))
	})
	t.Run("kpt-configPath", func(t *testing.T) {
		needKpt(t)
		dir := examples(t, "memory-agent")
		must(t, dir, "", "armature", "init", "--for", "kpt")
		write(t, dir, "armature.yaml", read(t, dir, "armature.yaml")+"  sidecars: classic\n")
		must(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
		classic(t, stream(t, dir))
	})
	t.Run("argocd", func(t *testing.T) {
		dir := examples(t, "memory-agent")
		must(t, dir, "", "armature", "init")
		answer := ask(t, plugin(t), dir, dir, "sidecars=classic", "profile=")
		classic(t, strings.Join(answer.Manifests, "\n---\n"))
	})
}

// An error in a manifest or in the configuration fails in every host, says
// what is wrong, and lets nothing out.
func TestErrorsThroughEveryHost(t *testing.T) {
	cases := map[string]struct {
		spoil func(t *testing.T, dir string)
		want  string
	}{
		"unknown field in the configuration": {func(t *testing.T, dir string) {
			write(t, dir, "armature.yaml", read(t, dir, "armature.yaml")+"  sidecar: classic\n")
		}, "sidecar"},
		"a target that is not there": {func(t *testing.T, dir string) {
			write(t, dir, "cr.yaml", "apiVersion: kagenti.io/v1alpha1\nkind: TokenExchange\nmetadata:\n  name: lost\nspec:\n  targetRef: {kind: Deployment, name: nowhere}\n")
		}, "the package has no Deployment nowhere"},
	}
	hosts := map[string]func(t *testing.T, dir string) string{
		"render": func(t *testing.T, dir string) string { return mustFail(t, dir, "", "armature", "render", dir) },
		"kustomize": func(t *testing.T, dir string) string {
			return mustFail(t, dir, "", kustomize(t), buildArgs(dir)...)
		},
		"kpt": func(t *testing.T, dir string) string {
			needKpt(t)
			before := stream(t, dir)
			output := mustFail(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
			if stream(t, dir) != before {
				t.Error("kpt wrote to the package all the same")
			}
			return output
		},
		"argocd": func(t *testing.T, dir string) string {
			return mustFail(t, dir, "", argocd(t), "ask", plugin(t), dir, dir)
		},
	}
	for name, c := range cases {
		for host, fail := range hosts {
			t.Run(name+"/"+host, func(t *testing.T) {
				dir := examples(t, "memory-agent")
				must(t, dir, "", "armature", "init", "--for", "kpt")
				c.spoil(t, dir)
				write(t, dir, "kustomization.yaml", "resources: ["+strings.Join(manifests(t, dir), ", ")+"]\ntransformers: [armature.yaml]\n")
				output := fail(t, dir)
				if !strings.Contains(output, c.want) {
					t.Errorf("does not say %q:\n%s", c.want, output)
				}
				if strings.Contains(output, "proxy-init") {
					t.Errorf("something rendered got out:\n%s", output)
				}
			})
		}
	}
	t.Run("list", func(t *testing.T) {
		dir := examples(t, "memory-agent")
		list := resourceList(t, dir, "config.kubernetes.io/v1")
		r := command(dir, list+"functionConfig:\n  apiVersion: armature.dev/v1alpha1\n  kind: RenderConfig\n  spec: {sidecar: classic}\n", "armature-fn")
		if r.err == nil || !strings.HasPrefix(r.stdout, list) || !strings.Contains(r.stdout, "severity: error") {
			t.Errorf("%v: want the input's items and an error among the results, have\n%s", r.err, r.stdout)
		}
	})
}

func TestKptKeepsThePackage(t *testing.T) {
	needKpt(t)
	dir := examples(t, "weather-agent")
	must(t, dir, "", "armature", "init", "--for", "kpt")
	must(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
	deployment := read(t, dir, "deployment.yaml")
	if !strings.Contains(deployment, "# or what your gateway offers") || strings.Contains(deployment, "kind: ConfigMap") {
		t.Errorf("deployment.yaml is not the author's any more:\n%s", deployment)
	}
	if n := strings.Count(read(t, dir, "deployment.armature.yaml"), "kind: ConfigMap"); n != 2 {
		t.Errorf("deployment.armature.yaml has %d of 2 ConfigMaps", n)
	}
	for _, name := range []string{"token-exchange.yaml", "agent-trace.yaml", "agent-card.yaml"} {
		if text := read(t, dir, name); !strings.Contains(text, krm.LocalConfig+`: "true"`) {
			t.Errorf("%s is not marked as local configuration, so that it would be applied:\n%s", name, text)
		}
	}
	// A change of a custom resource reaches what was rendered before.
	write(t, dir, "token-exchange.yaml", strings.Replace(read(t, dir, "token-exchange.yaml"), "premium-api.external.com", "other.example.com", 1))
	if output := mustFail(t, dir, "", "armature", "verify", dir); !strings.Contains(output, "weather-agent-token-exchange differs") {
		t.Errorf("verify says %s", output)
	}
	must(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
	if text := read(t, dir, "deployment.armature.yaml"); !strings.Contains(text, "other.example.com") || strings.Contains(text, "premium-api.external.com") {
		t.Errorf("the change did not arrive:\n%s", text)
	}
	// And uninject takes all of it away again.
	must(t, dir, "", "armature", "uninject", dir, "-o", dir+"/back")
	if text := read(t, dir, "back/token-exchange.yaml"); strings.Contains(text, "annotations:") {
		t.Errorf("uninject leaves annotations behind:\n%s", text)
	}
	if diff := cmp.Diff(read(t, root, "examples/weather-agent/deployment.yaml"), read(t, dir, "back/deployment.yaml")); diff != "" {
		t.Errorf("uninject (-author +uninjected):\n%s", diff)
	}
}

func TestInitWiring(t *testing.T) {
	t.Run("ci", func(t *testing.T) {
		dir := t.TempDir()
		must(t, dir, "", "armature", "init", "--for", "ci")
		// What init wrote is the configuration of what the script renders.
		config := strings.Replace(read(t, dir, "armature.yaml"), "  profile: kagenti\n", "  profile: kagenti\n  rollout: hash\n", 1)
		write(t, dir, "armature.yaml", config)
		must(t, dir, "", "git", "init", "-q")
		if err := os.Mkdir(filepath.Join(dir, "apps"), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "apps/deployment.yaml", read(t, root, "examples/weather-agent/deployment.yaml"))
		mustFail(t, dir, "", "./render.sh") // rendered/ is not in Git
		if text := read(t, dir, "rendered/deployment.yaml"); !strings.Contains(text, "armature.dev/config-hash") {
			t.Errorf("render.sh without the configuration:\n%s", text)
		}
		must(t, dir, "", "git", "add", "-A")
		must(t, dir, "", "git", "-c", "user.name=ci", "-c", "user.email=ci@example.com", "commit", "-qm", "rendered")
		must(t, dir, "", "./render.sh")
		write(t, dir, "apps/more.yaml", strings.ReplaceAll(read(t, root, "examples/memory-agent/statefulset.yaml"), "memory-agent", "new-agent"))
		mustFail(t, dir, "", "./render.sh")
	})
	t.Run("kustomize", func(t *testing.T) {
		out := must(t, "", "", kustomize(t), buildArgs(filepath.Join(root, "examples/kustomize"))...)
		must(t, "", out, "armature", "verify", "-c", filepath.Join(root, "examples/kustomize/armature.yaml"), "-")
		if !strings.Contains(out, "name: staging-travel-agent-token-exchange") || !strings.Contains(out, "booking.example.com") {
			t.Errorf("examples/kustomize:\n%s", out)
		}
	})
	t.Run("kpt", func(t *testing.T) {
		needKpt(t)
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(root, "examples/kpt"))); err != nil {
			t.Fatal(err)
		}
		must(t, dir, "", "kpt", "fn", "render", "--allow-exec")
		must(t, dir, "", "armature", "verify", dir)
	})
	t.Run("never overwrites", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "Kptfile", "mine")
		mustFail(t, dir, "", "armature", "init", "--for", "kpt")
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 || read(t, dir, "Kptfile") != "mine" {
			t.Errorf("init left %v, %v", entries, err)
		}
	})
	t.Run("examples are as init writes them", func(t *testing.T) {
		for _, pair := range [][2]string{
			{"templates/wiring/armature.yaml", "examples/kustomize/armature.yaml"},
			{"templates/wiring/armature.yaml", "examples/kpt/armature.yaml"},
			{"templates/wiring/argocd/plugin.yaml", "examples/argocd/plugin.yaml"},
		} {
			if diff := cmp.Diff(read(t, root, pair[0]), read(t, root, pair[1])); diff != "" {
				t.Errorf("%s: %s", pair[1], diff)
			}
		}
	})
}

func TestEveryExampleIsInTheReadme(t *testing.T) {
	readme := read(t, root, "examples/README.md")
	entries, err := os.ReadDir(filepath.Join(root, "examples"))
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	for _, e := range entries {
		if e.IsDir() && !strings.Contains(readme, "| `"+e.Name()+"`") {
			missing = append(missing, e.Name())
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		t.Errorf("examples/README.md lacks %v", missing)
	}
}
