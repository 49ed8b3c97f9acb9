package agent

import (
	"testing"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/krm"
)

// TestCardNames: names that YAML reads as another type stay strings in a migrated AgentCard.
func TestCardNames(t *testing.T) {
	var o krm.Object
	text := []byte("apiVersion: agent.kagenti.dev/v1alpha1\nkind: Agent\n" +
		"metadata: {name: \"true\", namespace: \"123\"}\n")
	if ok, err := o.Read(text, krm.Document{End: len(text)}, false, krm.Origin{}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	card, err := yaml.Parse(string(card(&o, "kagenti.io")))
	if err != nil {
		t.Fatal(err)
	}
	for want, path := range map[string][]string{
		"true":      {"spec", "selector", "matchLabels", "app.kubernetes.io/name"},
		"123":       {"metadata", "namespace"},
		"true-card": {"metadata", "name"},
	} {
		n, err := card.Pipe(yaml.Lookup(path...))
		if err != nil || n == nil || n.YNode().Value != want || n.YNode().ShortTag() != yaml.NodeTagString {
			t.Errorf("%v is %v (%v), want the string %q", path, n, err, want)
		}
	}
}
