package integrations

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
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
	log.SetLogger(logr.Discard()) // controller-runtime's client insists on one
	var err error
	if bin, err = os.MkdirTemp("", "integrations-"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(bin)
	if err := errors.Join(programs.Build(bin, "cmd/armature"),
		programs.Build(bin, "cmd/armature-fn")); err != nil {
		fmt.Fprintln(os.Stderr, err)
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
	return programs.Peer(t, "argocd")
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

// must runs a command that has to succeed, and returns its standard output.
func must(t *testing.T, dir, stdin, name string, args ...string) string {
	t.Helper()
	r := command(dir, stdin, name, args...)
	if r.err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(name), strings.Join(args, " "), r.err, r.stderr,
			r.stdout)
	}
	return r.stdout
}

// mustFail runs a command that has to fail, and returns its whole output.
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
var workloads = []string{"weather-agent", "memory-agent", "report-job", "nightly-cronjob",
	"opted-out", "overcommit", "agent", "kagent"}

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

// packages are what every host has to render alike: with their own configuration, which
// sets the profile kagenti, or else with the default. With -short, examples are only in mixtures.
func packages(t *testing.T) map[string]string {
	all := map[string]string{"weather-agent-prod": examples(t, "weather-agent-prod")}
	for _, name := range []string{"mixed", "mixed-kagenti"} {
		all[name] = examples(t, workloads...)
		write(t, all[name], "daemonset.yaml", daemonSet)
	}
	write(t, all["mixed-kagenti"], "armature.yaml", configuration(t, all["weather-agent-prod"]))
	for _, name := range workloads {
		if !testing.Short() {
			all[name] = examples(t, name)
		}
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

// configuration is the armature.yaml of a package, "" for none.
func configuration(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "armature.yaml"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

// initFor configures a folder as init does, and wires it up for a host, "" for none. A
// folder whose configuration sets the profile kagenti keeps it.
func initFor(t *testing.T, folder, host string) {
	t.Helper()
	own := configuration(t, folder)
	if own != "" {
		if err := os.Remove(filepath.Join(folder, "armature.yaml")); err != nil {
			t.Fatal(err)
		}
	}
	must(t, "", "", "armature", "init", folder, "--for="+host)
	if strings.Contains(own, kagenti) {
		write(t, folder, "armature.yaml",
			strings.Replace(read(t, folder, "armature.yaml"), defaultProfile, kagenti, 1))
	}
}

// How a configuration sets a profile.
const kagenti, defaultProfile = "  profile: kagenti\n", "  profile: authbridge\n"

// kustomization makes a package one of kustomize, wired as init wires it.
func kustomization(t *testing.T, dir, more string) {
	t.Helper()
	initFor(t, dir, "kustomize")
	write(t, dir, "kustomization.yaml", read(t, dir, "kustomization.yaml")+more)
}

func buildArgs(dir string) []string {
	return []string{"build", "--enable-alpha-plugins", "--enable-exec", dir}
}

// resourceList is what a host sends, with every item's bytes as they are, and with the
// package's configuration if it has one.
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
	if config := configuration(t, dir); config != "" {
		b.WriteString("functionConfig:\n")
		for line := range strings.Lines(config) {
			b.WriteString("  " + line)
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

// objectsOf leaves out trailing line feeds, which a folder's files may lack.
func objectsOf(text string) string { return strings.TrimRight(text, "\n") }
