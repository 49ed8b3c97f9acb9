package render_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
)

// layout is one way to write an opted-in workload between brackets.
type layout struct {
	name, file, text string
	refused          bool // it cannot be rendered, and that is an error
}

// bracketed are the collections that a render adds to, with what an author may
// have written there; "" leaves the field out.
var bracketed = []struct {
	field  string
	values []string
}{
	{"annotations", []string{"", "null", "{}", "{ }", `{"a": "b"}`}},
	{"podMetadata", []string{"", "null", "{}", `{"annotations": null}`, `{"annotations": {}}`,
		`{"labels": {"a": "b"}}`}},
	{"initContainers", []string{"", "null", "[]", "[ ]", "{}", `[{"name": "i", "image": "j"}]`}},
	{"volumeMounts", []string{"", "null", "[]", "{}", `[{"name": "v", "mountPath": "/v"}]`}},
	{"volumes", []string{"", "null", "[]", "[ ]", "{}", `[{"name": "v", "emptyDir": {}}]`}},
	{"args", []string{"", `["yes", "1.0", "\u00e9\t"]`}}, // behind a colon that only kyaml reads
}

// bracketedText writes a Deployment as JSON; the order of its fields depends on
// the seed.
func bracketedText(seed uint64, values map[string]string) string {
	r := rand.New(rand.NewPCG(seed, 3))
	object := func(fields ...string) string {
		var kept []string
		for _, f := range fields {
			if f != "" {
				kept = append(kept, f)
			}
		}
		if seed > 0 {
			r.Shuffle(len(kept), func(i, j int) { kept[i], kept[j] = kept[j], kept[i] })
		}
		return "{" + strings.Join(kept, ", ") + "}"
	}
	field := func(name, key string) string {
		if values[name] == "" {
			return ""
		}
		return fmt.Sprintf("%q: %s", key, values[name])
	}
	container := object(`"name": "c"`, `"image": "d"`, field("volumeMounts", "volumeMounts"),
		strings.Replace(field("args", "args"), ":", " :", 1))
	spec := object(`"containers": [`+container+`]`, field("initContainers", "initContainers"),
		field("volumes", "volumes"))
	template := object(field("podMetadata", "metadata"), `"spec": `+spec)
	metadata := object(`"name": "a"`, `"labels": {"kagenti.io/inject": "enabled"}`,
		field("annotations", "annotations"))
	return object(`"apiVersion": "apps/v1"`, `"kind": "Deployment"`, `"metadata": `+metadata,
		`"spec": {"template": `+template+`}`)
}

// unquoted writes JSON the way that YAML's authors write in brackets.
func unquoted(json string) string {
	return strings.NewReplacer(`["yes", "1.0", "\u00e9\t"]`, `["yes", "1.0", "\u00e9\t"]`, `"`, "",
		"null", "~").Replace(json)
}

const bystander = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "annotations": null}}`

// around puts a workload into everything that holds one.
func around(name, object string) []layout {
	flow := unquoted(object)
	list := func(head, items string) string {
		return "{" + head + `"kind": "List", "items": [` + items + "]}"
	}
	odd := strings.Contains(object, `" :`) // refused in a list that is not JSON
	indented := strings.NewReplacer("{", "{\n\t", ", ", ",\n\t", "}", "\n}").Replace
	return []layout{
		{name + "/flow", "x.yaml", flow + "\n", false},
		{name + "/json", "x.yaml", object, false},
		{name + "/json file", "x.json", object + "\n", false},
		{name + "/tight json file", "x.json",
			strings.ReplaceAll(strings.ReplaceAll(object, `": `, `":`), ", ", ","), false},
		{name + "/indented json file", "x.json", indented(object) + "\n", false},
		// two of a name
		{name + "/block list", "x.yaml",
			"apiVersion: v1\nkind: List\nitems:\n- " + flow + "\n- " + object + "\n", true},
		{name + "/item of a block list", "x.yaml",
			"apiVersion: v1\nkind: List\nitems:\n- " + flow + "\n", false},
		{name + "/flow list", "x.yaml",
			"apiVersion: v1\nkind: List\nitems: [" + unquoted(bystander) + ", " + flow + "]\n",
			odd},
		{name + "/json list", "x.json", list(`"apiVersion": "v1", `, object+", "+bystander) + "\n",
			false},
		{name + "/indented json list", "x.json",
			indented(list(`"apiVersion": "v1", `, bystander+", "+object)) + "\n", false},
		{name + "/list without apiVersion", "x.json", list("", object), false},
		{name + "/nested list", "x.json",
			list(`"apiVersion": "v1", `, list(`"apiVersion": "v1", `, object)), false},
		{name + "/list in a block list", "x.yaml",
			"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: List\n  items: [" +
				flow + "]\n", odd},
	}
}

// layouts are each value of each collection, all of a kind at once, and mixtures.
func layouts(mixtures int) (all []layout) {
	for _, b := range bracketed {
		for _, value := range b.values {
			all = append(all,
				around(b.field+" "+value, bracketedText(0, map[string]string{b.field: value}))...)
		}
	}
	for i, name := range []string{"all null", "all empty"} {
		values := make(map[string]string)
		for _, b := range bracketed {
			values[b.field] = b.values[min(i+1, len(b.values)-1)]
		}
		all = append(all, around(name, bracketedText(0, values))...)
	}
	for seed := range uint64(mixtures) {
		r := rand.New(rand.NewPCG(seed, 5))
		values := make(map[string]string)
		for _, b := range bracketed {
			values[b.field] = b.values[r.IntN(len(b.values))]
		}
		all = append(all, around(fmt.Sprintf("mixture %d", seed), bracketedText(1+seed, values))...)
	}
	return all
}

// TestLayouts holds every layout between brackets to the contract of
// checkRender, once with annotations for the pods.
func TestLayouts(t *testing.T) {
	t.Parallel()
	mixtures := 40
	if testing.Short() {
		mixtures = 5
	}
	hash := config(t,
		`{profile: kagenti, trace: {enabled: true}, rollout: hash, components: {spiffe-helper: {enabled: false}, client-registration: {enabled: false}, envoy-proxy: {enabled: false}}}`)
	for i, l := range layouts(mixtures) {
		c := hash
		if i%3 == 0 {
			c = config(t, small)
		}
		result, problem := checkRenderAs(t, l.file, []byte(l.text), c)
		if problem != "" {
			t.Errorf("%s: %s\ninput:\n%s", l.name, problem, l.text)
		}
		if failed := finding.Failed(result.Findings); failed != l.refused {
			t.Errorf("%s: refused is %t: %v\ninput:\n%s", l.name, failed, result.Findings, l.text)
		} else if !failed && result.Stats.Workloads == 0 {
			t.Errorf("%s: nothing was injected\ninput:\n%s", l.name, l.text)
		}
	}
}

// rendered returns a file of a result.
func rendered(r render.Result, file string) []byte {
	for _, f := range r.Files {
		if f.Path == file {
			return f.Data
		}
	}
	return nil
}

// TestJSONRequests sets fields that a JSON file has, has as null, and lacks.
func TestJSONRequests(t *testing.T) {
	policy := `{"kind": "List", "apiVersion": "v1", "items": [
{"apiVersion": "overcommit.inditex.dev/v1alpha1", "kind": "Overcommit", "metadata": {"name": "cluster"}, "spec": {"overcommitLabel": "class"}},
{"apiVersion": "overcommit.inditex.dev/v1alpha1", "kind": "OvercommitClass", "metadata": {"name": "half"}, "spec": {"cpuOvercommit": 0.5, "memoryOvercommit": 0.5, "isDefault": true}}]}`
	for _, requests := range []string{`{"cpu": "700m", "memory": "2Gi"}`,
		`{"cpu": 2, "memory": null}`, `{"cpu": 2}`, `null`, `{}`, `{"a" : 1, "cpu": null}`, `[]`} {
		pod := `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": ` + requests + `}}]}}` + "\n"
		files := func(data []byte) render.Source {
			return render.Source{Files: []render.File{{Path: "o.json", Data: []byte(policy)},
				{Path: "p.json", Data: data}}}
		}
		result, err := render.Run(files([]byte(pod)), render.Options{})
		if err != nil || finding.Failed(result.Findings) {
			t.Errorf("%s: %v %v", requests, err, result.Findings)
			continue
		}
		out := rendered(result, "p.json")
		var object struct {
			Spec struct {
				Containers []struct {
					Resources struct{ Requests map[string]any }
				}
			}
		}
		if err := json.Unmarshal(out, &object); err != nil {
			t.Errorf("%s: %v\n%s", requests, err, out)
			continue
		}
		if have := object.Spec.Containers[0].Resources.Requests; have["cpu"] != "500m" ||
			have["memory"] != "512Mi" {
			t.Errorf("%s: %v", requests, have)
		}
		var undone string
		_, _, err = render.Uninject(files(out), render.Options{Workers: 1},
			func(file string, data []byte) error {
				if file == "p.json" {
					undone = string(data)
				}
				return nil
			})
		if err != nil || undone != pod {
			t.Errorf("%s: uninject gives %v\n%s", requests, err, undone)
		}
	}
}

// TestEmptyOnTheNextLine adds to empty collections as Helm's nindent writes them,
// and leaves every other line as it is.
func TestEmptyOnTheNextLine(t *testing.T) {
	const text = `apiVersion: apps/v1
kind: Deployment
metadata:
  name:   a
  annotations:
    {}
  labels: {kagenti.io/inject: enabled}
spec:
  template:
    metadata:
      annotations:

        {}
    spec:
      initContainers:
        []
      containers:
        - {name: c, image: d}
        - name: e
          image:   "f" # odd
          volumeMounts:
            []
      volumes:
        null
`
	c := config(t,
		`{profile: kagenti, trace: {enabled: true}, rollout: hash, components: {spiffe-helper: {enabled: false}, client-registration: {enabled: false}, envoy-proxy: {enabled: false}}}`)
	for _, text := range []string{text, strings.ReplaceAll(text, "\n", "\r\n"),
		"apiVersion: v1\nkind: List\nitems:\n- " +
			strings.TrimSuffix(strings.ReplaceAll(text, "\n", "\n  "), "  ")} {
		result, problem := checkRenderAs(t, "x.yaml", []byte(text), c)
		if problem != "" || finding.Failed(result.Findings) || result.Stats.Workloads != 1 {
			t.Fatalf("%s %v %+v\n%s", problem, result.Findings, result.Stats, text)
		}
		out := string(rendered(result, "x.yaml"))
		for line := range strings.Lines(text) {
			if word := strings.TrimSpace(line); word != "" && word != "{}" && word != "[]" &&
				word != "null" && !strings.Contains(word, "{name: c,") &&
				!strings.Contains(out, line) {
				t.Errorf("the line %q is gone:\n%s", line, out)
			}
		}
		if result.Stats.Rewritten > 0 {
			t.Errorf("rewritten:\n%s", out)
		}
	}
}
