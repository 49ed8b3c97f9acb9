package api_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/multi"
)

// decode is strict as rendering is: names in their exact case, none unknown,
// none twice.
func decode(text string, object any) error {
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return err
	}
	strict, err := kjson.UnmarshalStrict(data, object)
	return multi.Errors(append(strict, err)...)
}

// TestExamples decodes the CRs of source 001 unchanged (lines 330 to
// 404, 434 to 481, 502 to 547 and 719 to 768), status included, and finds every
// value again.
func TestExamples(t *testing.T) {
	for file, objects := range map[string][]any{
		"tokenexchange.yaml": {&api.TokenExchange{}},
		"agentcard.yaml":     {&api.AgentCard{}},
		"agenttrace.yaml":    {&api.AgentTrace{}},
		"migration.yaml":     {nil, &api.TokenExchange{}, &api.AgentCard{}},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		documents := strings.Split(string(text), "\n---\n")
		if len(documents) != len(objects) {
			t.Fatalf("%s has %d documents", file, len(documents))
		}
		for i, object := range objects {
			if object == nil {
				continue
			}
			if err := decode(documents[i], object); err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			var want, got any
			again, err := yaml.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(documents[i]), &want); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal(again, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s", file, diff)
			}
		}
	}
}

func TestUnknownFields(t *testing.T) {
	for text, object := range map[string]any{
		"spec: {targetRef: {kind: Deployment, name: x, nmae: y}}": &api.TokenExchange{},
		"spec: {inbound: {validation: {jwksURL: x}}}":             &api.TokenExchange{},
		"spec: {sampling: {ratio: 1}}":                            &api.AgentTrace{},
		"spec: {selektor: {}}":                                    &api.AgentCard{},
		"spec: {identity: {targetRef: {}}}":                       &api.RenderConfig{},
		"metadata: {nmae: x}":                                     &api.RenderConfig{},
	} {
		if err := decode(text, object); err == nil {
			t.Errorf("%s is taken for a %T", text, object)
		}
	}
}

func TestQuantity(t *testing.T) {
	for text, want := range map[string]string{"1": "1", "0.5": "0.5", "100m": "100m", `"2"`: "2",
		`""`: ""} {
		var l api.ResourceList
		if err := decode("cpu: "+text, &l); err != nil || l.CPU == nil || string(*l.CPU) != want {
			t.Errorf("%s: %v, %v", text, l.CPU, err)
		}
	}
	var l api.ResourceList
	if err := decode("cpu: {}", &l); err == nil {
		t.Error("a mapping is taken for a quantity")
	}
}

// TestExportedObject: the additional fields of kubectl get -o yaml decode too.
func TestExportedObject(t *testing.T) {
	const text = `
apiVersion: kagenti.io/v1alpha1
kind: TokenExchange
metadata:
  name: x
  uid: 7a2c
  resourceVersion: "12"
  generation: 3
  creationTimestamp: "2026-01-13T16:10:00Z"
  finalizers: [a/b]
  ownerReferences: [{kind: X, name: y}]
  managedFields: [{manager: kubectl}]
spec:
  targetRef: {kind: Deployment, name: x}
`
	var te api.TokenExchange
	if err := decode(text, &te); err != nil {
		t.Error(err)
	}
}
