package render_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	yaml3 "go.yaml.in/yaml/v3"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
)

// FuzzRender holds any text to the contract of checkRender: whatever it is, it
// is refused, or rendered to what the reference makes of it, twice the same,
// and given back byte for byte.
func FuzzRender(f *testing.F) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 15
	}
	for seed := range seeds {
		file, _ := manifest(seed)
		f.Add([]byte(file))
	}
	for _, text := range nasty {
		f.Add([]byte(text))
	}
	for _, l := range append(layouts(10), consumedLayouts()...) {
		f.Add([]byte(l.text))
	}
	c := config(f, small)
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) > 16<<10 {
			t.Skip()
		}
		if _, problem := checkRender(t, src, c); problem != "" {
			t.Errorf("%s\ninput:\n%s", problem, src)
		}
	})
}

// nasty are layouts that have been, or might be, misread.
var nasty = []string{
	pod("volumes: []\n"), pod("volumes: []"), pod("volumes:\n"), pod("volumes: ~ # none\n"),
	pod("initContainers: {}\nvolumes: null\n"),
	pod("initContainers: [{name: a, image: b}]\nvolumes: [ {name: v, emptyDir: {}} ]\n"),
	pod("initContainers:\n- name: a\n# in between\n- name: b\n\n# at the end\n"),
	pod("restartPolicy: |\n Always\n\n\n"), pod("restartPolicy: |+\n Always\n\n\n"),
	pod("restartPolicy: >-\n Always"), pod("x: |+\n\n"), pod("x: 'a\n\n  b'\n"),
	pod("x: \"a\\\n  b\\u263A\\U0001F680\"\n"), pod("x: a\n  b # c\n"), pod("? x\n: y\n"), pod("?"),
	pod("x: !!binary aGVsbG8=\n"), pod("x: !"), pod("x: !!str 1\n"), pod("x: &a [1]\ny: *a\n"),
	"kind: Pod\napiVersion: v1\nmetadata: {name: a, labels: {kagenti.io/inject: enabled}}\n" +
		"spec: {containers: [{name: c}]}\n",
	"{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\",\"labels\":{\"kagenti." +
		"io/inject\":\"enabled\"}},\"spec\":{\"containers\":[{\"name\":\"c\"}]}}",
	"apiVersion: v1\nkind: List\nitems:\n- " +
		"apiVersion: v1\n  kind: Pod\n  metadata: {name: a, labels: {kagenti.io/inject: " +
		"enabled}}\n  spec:\n    containers:\n    - name: c\n",
	"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod, metadata: {name: a, labels: " +
		"{kagenti.io/inject: enabled}}, spec: {containers: [{name: c}]}}, {a: b}]\n",
	"%YAML 1.1\n---\na: b\n...\n---\n# c\n", "--- a: b\n", "---\n---\n\n--- # x\n", "a:\tb\n",
	"\xff\n", "a: b\r\nc: d\n", "\ufeffa: b\n", "[]\n", "a", "",
}

// pod returns an opted-in Pod with further lines in its spec.
func pod(more string) string {
	var b bytes.Buffer
	b.WriteString("apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels:\n" +
		"    kagenti.io/inject: enabled\nspec:\n  containers:\n  - name: c\n    image: d\n")
	for line := range bytes.Lines([]byte(more)) {
		if len(bytes.TrimSpace(line)) > 0 {
			b.WriteString("  ")
		}
		b.Write(line)
	}
	return b.String()
}

// TestNasty runs the seeds that are easy to read through the whole contract,
// and expects that all but a few are rendered.
func TestNasty(t *testing.T) {
	c := config(t, small)
	for _, text := range nasty {
		if _, problem := checkRender(t, []byte(text), c); problem != "" {
			t.Errorf("%s\ninput:\n%s", problem, text)
		}
		crlf := bytes.ReplaceAll([]byte(text), []byte("\n"), []byte("\r\n"))
		if _, problem := checkRender(t, crlf, c); problem != "" {
			t.Errorf("with CRLF: %s\ninput:\n%s", problem, text)
		}
	}
}

// FuzzResourceList passes any text through the door of KRM functions: it is
// refused, or comes out as a ResourceList that another call does not change.
func FuzzResourceList(f *testing.F) {
	item := "- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: a\n    labels:\n" +
		"      kagenti.io/inject: enabled\n    annotations:\n      config.kubernetes.io/path: " +
		"'a/b.yaml'\n  spec:\n    containers:\n    - name: c\n"
	head := "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n"
	f.Add([]byte(head + "items:\n" + item))
	f.Add(
		[]byte(head + "items:\n" + item +
			"functionConfig:\n  apiVersion: armature.dev/v1alpha1\n  kind: RenderConfig\n" +
			"  metadata:\n    name: c\n  spec:\n    rollout: hash\nresults:\n- message: x\n"))
	f.Add(
		[]byte(head +
			"functionConfig: {apiVersion: v1, kind: ConfigMap, data: {rollout: hash}}\nitems: []\n"))
	f.Add(
		[]byte(head +
			"items: [{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {kagenti.io/inject: " +
			"enabled}}, spec: {containers: [{name: c}]}}]\n"))
	f.Add(
		[]byte(
			"{\"apiVersion\":\"config.kubernetes.io/v1\",\"kind\":\"ResourceList\",\"items\":[]}"))
	f.Add([]byte(head))
	f.Add([]byte(head + "items:\n- &a\n  x: y\n- *a\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) > 16<<10 {
			t.Skip()
		}
		first, failed := runList(t, src)
		if first == nil {
			return
		}
		var v struct {
			Kind    string           `yaml:"kind"`
			Items   []any            `yaml:"items"`
			Results []map[string]any `yaml:"results"`
		}
		if err := yaml3.Unmarshal(first, &v); err != nil || v.Kind != "ResourceList" {
			t.Fatalf("the output is not a ResourceList: %v\n%s\ninput:\n%s", err, first, src)
		}
		second, failedAgain := runList(t, first)
		if failed != failedAgain || !bytes.Equal(withoutResults(first), withoutResults(second)) {
			t.Errorf("the second call differs:\n%s\ninput:\n%s",
				cmp.Diff(string(first), string(second)), src)
		}
	})
}

// withoutResults is a ResourceList up to its results, which differ per call: an
// item that was rewritten in block style is not rewritten again.
func withoutResults(list []byte) []byte {
	list, _, _ = bytes.Cut(list, []byte("\nresults:"))
	return bytes.TrimRight(list, "\n")
}

func runList(t *testing.T, src []byte) (out []byte, failed bool) {
	t.Helper()
	if !host.IsResourceList(src) {
		return nil, true
	}
	list, err := host.ReadList(src)
	if err != nil {
		return nil, true
	}
	out, findings, _, err := list.Render(render.Options{})
	if err != nil {
		return nil, true
	}
	return out, finding.Failed(findings)
}
