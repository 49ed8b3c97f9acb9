package apply_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// Each object knows the line that it starts in: of documents, of items of lists,
// and of several objects on one line.
func TestReadLines(t *testing.T) {
	text := `# settings
apiVersion: v1
kind: ConfigMap
metadata: {name: one}
---

apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: two}
# the third
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: three}
---
{apiVersion: v1, kind: List, items: [
  {apiVersion: v1, kind: ConfigMap, metadata: {name: four}},
  {apiVersion: v1, kind: ConfigMap, metadata: {name: five}}]}
`
	objects, err := apply.Read("app.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"one", "two", "three", "four", "five"}
	lines := []int{1, 10, 14, 19, 20}
	for i, o := range objects {
		if i >= len(want) || o.GetName() != want[i] || o.Line != lines[i] {
			t.Errorf("%s in line %d; want %v in %v", o.GetName(), o.Line, want, lines)
		}
	}
	if len(objects) != len(want) {
		t.Errorf("%d objects", len(objects))
	}
	for words, broken := range map[string]string{
		"app.yaml:7: a document is not a Kubernetes object": "---\na: b\n",
		"app.yaml:7: ConfigMap has no metadata.name": "---\napiVersion: v1\n" +
			"kind: ConfigMap\nmetadata: {}\n",
		"yaml: line 10: ": "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n" +
			"\tname: x\n",
		"line 9: key \"kind\" already set": "---\napiVersion: v1\nkind: ConfigMap\nkind: Secret\n",
	} {
		before := strings.Join(strings.SplitAfter(text, "\n")[:5], "")
		if _, err := apply.Read("app.yaml", []byte(before+broken)); err == nil ||
			!strings.Contains(err.Error(), words) {
			t.Errorf("want %q, got %v", words, err)
		}
	}
}

// What the API server refuses, and what somebody else owns, is named with the
// line that it starts in.
func TestRefusalsNameTheirLine(t *testing.T) {
	w := newWorld(t)
	bad := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\ndatta: {}\n"
	plan, err := w.Plan(t.Context(), w.Package, w.read(web, configMap("good", "a"), bad), apply.Options{})
	w.must(err)
	i := slices.IndexFunc(plan.Steps, func(s *apply.Step) bool { return s.Action == apply.Refused })
	if i < 0 || plan.Steps[i].Place() != "app.yaml:24" {
		t.Errorf("want a refusal in line 24:\n%s", show(plan))
	}
	plan = w.refused(apply.Options{}, "field not declared in schema", configMap("good", "a"), bad)
	if got := plan.Steps[0].Place(); got != "app.yaml:7" {
		t.Errorf("refused in %s", got)
	}
	for _, name := range []string{"good", "armature-weather"} {
		if w.get("v1", "ConfigMap", name) != nil {
			t.Errorf("%s is there after a refusal", name)
		}
	}
}

// Lists in a list give their items, and those that a render emptied give none.
func TestReadLists(t *testing.T) {
	const emptied = "apiVersion: v1\nkind: List\nitems:\n# armature.dev/consumed: TokenExchange " +
		"a\n#| - kind: TokenExchange\n"
	const kept = `{"apiVersion": "v1", "kind": "List", "metadata": {"annotations": {"armature.dev/consumed": "{}"}}, "items": []}` + "\n"
	const nested = `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}]}, ` +
		`{"apiVersion": "v1", "kind": "List", "items": []}, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "two"}}]}` + "\n"
	objects, err := apply.Read("app.yaml", []byte(emptied+"---\n"+kept+"---\n"+nested))
	var names []string
	for _, o := range objects {
		names = append(names, o.GetKind()+" "+o.GetName())
	}
	if want := []string{"ConfigMap one", "ConfigMap two"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v; want %q", names, err, want)
	}
}
