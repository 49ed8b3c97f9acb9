package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/verify"
)

// The story of the command has a list that is larger.
func init() { large = 100 }

// does is a function in Go.
type does func(input []byte) (Answer, error)

func (d does) Run(_ context.Context, input []byte) (Answer, error) { return d(input) }

// good is a function that writes an env into Deployments, by text, and says so.
func good(input []byte) (Answer, error) {
	l, err := read(input)
	if err != nil {
		return Answer{Stderr: []byte(err.Error()), Exit: 1}, nil
	}
	if kind := textOf(l.config, "kind"); kind != "" {
		return Answer{Stdout: append(slices.Clip(input),
			"results:\n- message: wrong configuration\n  severity: error\n"...), Exit: 1}, nil
	}
	text := string(input)
	if strings.Contains(text, "name: DONE") {
		return Answer{Stdout: input}, nil
	}
	if out := strings.Replace(text, "    - {name: MODE,",
		"    - {name: DONE, value: x}\n          - {name: MODE,", 1); out != text {
		text = out +
			"results:\n- message: done\n  severity: info\n  resourceRef: {apiVersion: apps/v1, " +
			"kind: Deployment, name: weather, namespace: team1}\n" +
			"  field: {path: spec.template.spec.containers}\n  file: {path: agent.yaml, index: 1}\n"
	}
	return Answer{Stdout: []byte(text)}, nil
}

func statuses(checks []Check) map[string]Check {
	byName := make(map[string]Check)
	for _, c := range checks {
		byName[c.Name] = c
	}
	return byName
}

func test(t *testing.T, f Function, input, config []byte) []Check {
	t.Helper()
	checks, err := Test(t.Context(), f, input, config)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks {
		if c.Seen == "" || (c.Status != OK) != (c.Hint != "") {
			t.Errorf("%+v: nothing seen, or no hint", c)
		}
	}
	return checks
}

func TestGood(t *testing.T) {
	for _, c := range test(t, does(good), nil, nil) {
		if c.Status != OK {
			t.Errorf("%+v", c)
		}
	}
}

// after changes what the good function prints.
func after(change func(string) string) does {
	return func(input []byte) (Answer, error) {
		a, err := good(input)
		a.Stdout = []byte(change(string(a.Stdout)))
		return a, err
	}
}

func replaced(from, to string) does {
	return after(func(out string) string { return strings.ReplaceAll(out, from, to) })
}

// Each fault is found, by the check that is about it.
func TestFaults(t *testing.T) {
	runs := 0
	for name, c := range map[string]struct {
		f     does
		check string
		seen  string
	}{
		"a log on standard output": {after(func(out string) string { return "starting\n" + out }),
			"list", "not a ResourceList"},
		"two documents": {after(func(out string) string { return out + "---\na: b\n" }),
			"list", "more than one document"},
		"a list that is encoded again": {after(func(out string) string {
			n, err := yaml.Parse(out)
			if err != nil {
				return out
			}
			return n.MustString()
		}), "text", "is unchanged, but its text differs"},
		"decoded without comments": {after(func(out string) string {
			var v any
			if yaml.Unmarshal([]byte(out), &v) != nil {
				return out
			}
			text, _ := yaml.Marshal(v)
			return string(text)
		}), "text", "its text differs"},
		"a comment of the changed item": {replaced(" # one is not enough", ""), "text",
			`the comment "# one is not enough" at spec.replicas is gone`},
		"quotes of the changed item": {replaced(`value: "on"`, "value: on"), "text",
			`is "on" as before, in other quotes`},
		"keys of the changed item": {
			replaced("  kind: Deployment\n  metadata:\n    name: weather\n    namespace: team1\n",
				"  kind: Deployment\n  metadata:\n    namespace: team1\n    name: weather\n"),
			"text", "in another order"},
		"an alias that is spelt out": {replaced("*text", `"the same text"`), "text",
			"ConfigMap team1/anchors is unchanged, but its text differs"},
		"a kind that it does not know": {replaced("replicas: 1 #", "replicas: 3 #"),
			"unknown kinds", `Gadget team1/first: its "spec" is changed`},
		"a severity that does not exist": {replaced("severity: info", "severity: notice"),
			"results", `its severity is "notice"`},
		"no message": {replaced("message: done", "message: ''"), "results",
			"no message"},
		"another file": {replaced("file: {path: agent.yaml, index: 1}",
			"file: {path: other.yaml}"), "results", `its file is "other.yaml"`},
		"another place in the file": {replaced("file: {path: agent.yaml, index: 1}",
			"file: {path: agent.yaml, index: 2}"), "results", `its index is 2`},
		"no file": {replaced("  file: {path: agent.yaml, index: 1}\n", ""),
			"results", "it has no file"},
		"an item that does not exist": {replaced("name: weather, namespace: team1}",
			"name: whether}"), "results",
			"it has a field of Deployment whether, which is not an item"},
		"an annotation of the host": {
			replaced(`      internal.config.kubernetes.io/index: "1"`+"\n", ""), "host annotations",
			`internal.config.kubernetes.io/index was "1" and is ""`},
		"one more annotation of the host": {replaced("annotations: {}",
			"annotations: {internal.config.kubernetes.io/x: a}"), "host annotations",
			"internal.config.kubernetes.io/x"},
		"exit status 0 with an error": {replaced("severity: info", "severity: error"),
			"exit status", "exit status 0, and a result of severity error"},
		"another output the second time": {after(func(out string) string {
			runs++
			return out + fmt.Sprintf("# %d\n", runs)
		}), "deterministic", "another output"},
		"items that are lost": {func(input []byte) (Answer, error) {
			return good(input[:min(len(input),
				bytes.LastIndex(input[:min(len(input), 64<<10)], []byte("\n- "))+1)])
		}, "large list", "is gone"},
		"one more at each run": {func(input []byte) (Answer, error) {
			return good(bytes.Replace(input, []byte("name: DONE"), []byte("name: ONCE"), 1))
		}, "idempotent", "on its own output"},
		"a fault in an empty list": {func(input []byte) (Answer, error) {
			if bytes.Contains(input, []byte("items: []")) {
				return Answer{Stderr: []byte("panic: index out of range"), Exit: 2}, nil
			}
			return good(input)
		}, "empty list", `exit status 2: "panic: index out of range"`},
		"half of the items": {func(input []byte) (Answer, error) {
			a, err := good(input)
			if a.Exit != 0 && len(a.Stdout) > 0 {
				before, rest, _ := strings.Cut(string(a.Stdout),
					"- apiVersion: v1\n  kind: Service")
				_, results, _ := strings.Cut(rest, "results:")
				a.Stdout = []byte(before + "results:" + results)
			}
			return a, err
		}, "partial output", "exit status 1, with 3 of 4 items"},
		"some items changed": {func(input []byte) (Answer, error) {
			a, err := good(input)
			if a.Exit != 0 {
				a.Stdout = bytes.Replace(a.Stdout, []byte("replicas: 2"), []byte("replicas: 4"), 1)
			}
			return a, err
		}, "partial output", "Deployment team1/weather is changed"},
		"failure without a result": {func(input []byte) (Answer, error) {
			a, err := good(input)
			if a.Exit != 0 {
				return Answer{Stderr: []byte("wrong"), Exit: 1}, nil
			}
			return a, err
		}, "exit status", "no result of severity error"},
		"input that cannot be read": {func(input []byte) (Answer, error) {
			if _, err := read(input); err != nil {
				return Answer{}, nil
			}
			return good(input)
		}, "unreadable input", "exit status 0"},
		"no end": {func(input []byte) (Answer, error) {
			if bytes.Contains(input, []byte("anchors")) {
				return Answer{}, errors.New("it was still running after 30s")
			}
			return good(input)
		}, "answer", "the list of odd YAML: it was still running"},
		"another order": {after(func(out string) string {
			at, end :=
				strings.Index(out, "- apiVersion: apps/v1"), strings.Index(out,
					"- apiVersion: v1\n  kind: Service\n")
			first := strings.Index(out, "- apiVersion: v1\n  kind: Namespace")
			if first < 0 || at < first || end < at {
				return out
			}
			return out[:first] + out[at:end] + out[first:at] + out[end:]
		}), "order", "Deployment team1/weather comes before"},
	} {
		got := statuses(test(t, c.f, nil, nil))[c.check]
		if got.Status != Failed || !strings.Contains(got.Seen, c.seen) {
			t.Errorf("%s: %+v, not %q", name, got, c.seen)
		}
	}
}

// ours is what armature-fn does.
func ours(name string) does {
	return func(input []byte) (Answer, error) {
		in, err := host.ReadList(input)
		if err != nil {
			return Answer{Stderr: []byte(err.Error()), Exit: 1}, nil
		}
		var names []string
		do := (*host.List).Render
		switch name {
		case "":
		case "verify":
			do = verify.List
		default:
			names = []string{name}
		}
		out, findings, _, err := do(in, render.Options{Functions: names})
		if err != nil {
			return Answer{Stderr: []byte(err.Error()), Exit: 1}, nil
		}
		a := Answer{Stdout: out}
		if finding.Failed(findings) {
			a.Exit = 1
		}
		return a, nil
	}
}

// Our functions pass, also with the examples of their pages.
func TestOurs(t *testing.T) {
	for _, name := range append(functions.Names(), "", "verify") {
		page, _ := functions.Page(name)
		lists := map[string][]byte{"the built-in list": nil}
		for i, text := range strings.Split(page, "```yaml\n")[1:] {
			text, _, _ = strings.Cut(text, "```")
			var b strings.Builder
			b.WriteString("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n")
			for _, d := range strings.Split(text, "\n---\n") {
				b.WriteString("- " + strings.TrimPrefix(indented(strings.TrimRight(d, "\n")+"\n"), "  "))
			}
			lists[fmt.Sprintf("example %d", i)] = []byte(b.String())
		}
		for of, list := range lists {
			for _, c := range test(t, ours(name), list, nil) {
				if c.Status == Failed {
					t.Errorf("%s: %s: %+v", name, of, c)
				}
			}
		}
	}
}

func TestInput(t *testing.T) {
	if _, err := Test(t.Context(), does(good), []byte("a: b\n"), nil); err == nil ||
		!strings.Contains(err.Error(), "reading the list: it has no kind: ResourceList") {
		t.Error(err)
	}
	list := []byte("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n" +
		"functionConfig: {kind: A}\n")
	if _, err := Test(t.Context(), does(good), list, []byte("kind: B\n")); err == nil ||
		!strings.Contains(err.Error(), "has a functionConfig already") {
		t.Error(err)
	}
	// A configuration goes to the function with all lists.
	for _, c := range test(t, does(good), nil, []byte("kind: B\n")) {
		if c.Status == Failed ||
			c.Name == "large list" &&
				c.Seen != "it refuses the large list, with a result that has the reason" {
			t.Errorf("%+v", c)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Test(ctx, does(good), nil, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
