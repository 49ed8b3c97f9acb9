package apply

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// No value of a Secret is in a diff, whichever field has it and whichever side is
// missing; the keys are.
func TestMask(t *testing.T) {
	secret := func(field string, value any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"kind": "Secret", field: value}}
	}
	for name, c := range map[string]struct {
		before, after *unstructured.Unstructured
		want          []string
	}{
		"changed": {secret("data", map[string]any{"key": "hidden1"}),
			secret("data", map[string]any{"key": "hidden2"}),
			[]string{"key: '*** (before)'", "key: '*** (after)'"}},
		"unchanged": {secret("data", map[string]any{"key": "hidden"}),
			secret("data", map[string]any{"key": "hidden"}), []string{"key: '***'", "key: '***'"}},
		"another key": {secret("data", map[string]any{"old": "hidden"}),
			secret("data", map[string]any{"new": "hidden"}), []string{"old: '***'", "new: '***'"}},
		"created": {nil, secret("data", map[string]any{"key": "hidden"}),
			[]string{"key: '***'"}},
		"pruned": {secret("data", map[string]any{"key": "hidden"}), nil,
			[]string{"key: '***'"}},
		"plain text": {nil, secret("stringData", map[string]any{"key": "hidden"}),
			[]string{"kind: Secret"}},
		"not a map": {nil, secret("data", "hidden"), []string{"data:"}},
		"values not texts": {secret("data", map[string]any{"key": []any{"hidden"}}),
			secret("data", map[string]any{"key": map[string]any{"hidden": "hidden"}}),
			[]string{`"": '***'`, `"": '***'`}},
		"no values": {secret("type", "Opaque"), nil, []string{"type: Opaque"}},
	} {
		if err := mask(c.before, c.after); err != nil {
			t.Fatal(err)
		}
		var both strings.Builder
		for _, u := range []*unstructured.Unstructured{c.before, c.after} {
			if u == nil {
				continue
			}
			data, err := yaml.Marshal(u.Object)
			if err != nil {
				t.Fatal(err)
			}
			both.Write(data)
		}
		if strings.Contains(both.String(), "hidden") {
			t.Errorf("%s: a value is shown:\n%s", name, both.String())
		}
		rest := both.String()
		for _, want := range c.want {
			_, after, found := strings.Cut(rest, want)
			if !found {
				t.Errorf("%s: no %q in\n%s", name, want, both.String())
			}
			rest = after
		}
	}
}
