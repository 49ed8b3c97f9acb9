package agentcard_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/agentcard"
	"github.com/armature-dev/armature/functions/api"
)

func decode(t *testing.T, text string) *api.AgentCard {
	t.Helper()
	card := &api.AgentCard{}
	if err := yaml.UnmarshalStrict([]byte(text), card); err != nil {
		t.Fatal(err)
	}
	return card
}

func render(t *testing.T, card *api.AgentCard) *corev1.ConfigMap {
	t.Helper()
	text := agentcard.AppendConfigMap(nil, card)
	cm := &corev1.ConfigMap{}
	if err := yaml.UnmarshalStrict(text, cm); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return cm
}

// TestExample renders the CR of 001, lines 434 to 457.
func TestExample(t *testing.T) {
	text, err := os.ReadFile("../api/testdata/agentcard.yaml")
	if err != nil {
		t.Fatal(err)
	}
	card := decode(t, string(text))
	if findings := agentcard.Check(card); len(findings) > 0 {
		t.Error(findings)
	}
	cm := render(t, card)
	if cm.Name != "weather-agent-card-discovery" || cm.Namespace != "default" ||
		cm.Annotations["armature.dev/rendered-for"] != "AgentCard/weather-agent-card" {
		t.Errorf("%s/%s %v", cm.Namespace, cm.Name, cm.Annotations)
	}
	var static map[string]any
	if err := json.Unmarshal([]byte(cm.Data["card.json"]), &static); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{
		"name":        "Weather Intelligence Agent",
		"description": "Production weather forecasting service",
		"tags":        []any{"weather", "forecast", "production"},
	}, static); diff != "" {
		t.Error(diff)
	}
	delete(cm.Data, "card.json")
	if diff := cmp.Diff(map[string]string{
		"endpoint_path": "/.well-known/agent.json", "endpoint_port": "8081",
		"endpoint_scheme": "http", "sync_period": "30s", "selector": "app=weather-agent",
	}, cm.Data); diff != "" {
		t.Error(diff)
	}
}

func TestDefaults(t *testing.T) {
	cm := render(t,
		decode(t, "metadata: {name: x}\nspec: {targetRef: {kind: StatefulSet, name: z}}"))
	if diff := cmp.Diff(map[string]string{
		"card.json": `{"name": "x"}` + "\n", "endpoint_path": "/.well-known/agent.json",
		"endpoint_port": "8081", "endpoint_scheme": "http", "sync_period": "30s",
		"target_kind": "StatefulSet", "target_name": "z",
	}, cm.Data); diff != "" {
		t.Error(diff)
	}
}

func TestCheck(t *testing.T) {
	for spec, want := range map[string]string{
		"selector: {matchLabels: {app: x}}": "",
		"":                                  "agentcard/no-target spec",
		"selector: {}":                      "agentcard/selector-empty spec.selector",
		"selector: {matchLabels: {app: x}}, targetRef: {kind: Deployment, name: y}": "agentcard/" +
			"two-targets spec.targetRef",
		"targetRef: {kind: Deployment, name: ''}": "agentcard/" +
			"no-target spec.targetRef",

		"selector: {matchExpressions: [{key: app, " +
			"operator: In}]}": "agentcard/bad-selector spec.selector.matchExpressions[0].values",
		"selector: {matchExpressions: [{key: app, operator: Exists, " +
			"values: [x]}]}": "agentcard/bad-selector spec.selector.matchExpressions[0].values",
		"selector: {matchExpressions: [{key: app, operator: Equals, " +
			"values: [x]}]}": "agentcard/bad-selector spec.selector.matchExpressions[0].operator",
		"selector: {matchExpressions: [{key: '', " +
			"operator: Exists}]}": "agentcard/bad-selector spec.selector.matchExpressions[0].key",
		"selector: {matchExpressions: [{key: a, operator: In, values: [" +
			strings.Repeat("b,", 1000) + "]}]}": "agentcard/bad-selector spec.selector",
		"selector: {matchLabels: {app: x}, matchExpressions: [{key: app, operator: NotIn, " +
			"values: [x]}]}": "agentcard/selector-impossible spec.selector",
		"selector: {matchLabels: {app: x}, matchExpressions: [{key: app, operator: " +
			"DoesNotExist}]}": "agentcard/selector-impossible spec.selector",
		"selector: {matchExpressions: [{key: a, operator: Exists}, {key: a, operator: " +
			"DoesNotExist}]}": "agentcard/selector-impossible spec.selector",
		"selector: {matchExpressions: [{key: a, operator: In, values: [x]}, {key: a, operator: " +
			"In, values: [y]}]}": "agentcard/selector-impossible spec.selector",
		"selector: {matchExpressions: [{key: a, operator: In, values: [x, y]}, {key: a, " +
			"operator: NotIn, values: [x]}]}": "",
		"selector: {matchExpressions: [{key: a, operator: " +
			"DoesNotExist}]}": "",
		"selector: {matchExpressions: [{key: a, operator: NotIn, " +
			"values: [x]}]}": "",

		"selector: {matchLabels: {app: x}}, endpoint: {path: agent.json}": "agentcard/bad-path spec.endpoint.path",
		"selector: {matchLabels: {app: x}}, endpoint: {port: 0}":          "agentcard/bad-port spec.endpoint.port",
		"selector: {matchLabels: {app: x}}, endpoint: {scheme: grpc}": "agentcard/" +
			"unknown-value spec.endpoint.scheme",
		"selector: {matchLabels: {app: x}}, syncPeriod: 30": "agentcard/bad-period " +
			"spec.syncPeriod",
		"selector: {matchLabels: {app: x}}, syncPeriod: 10ms": "agentcard/bad-period " +
			"spec.syncPeriod",
	} {
		card := decode(t,
			"metadata: {name: x}\nspec: {"+strings.ReplaceAll(spec, "syncPeriod: 30\n", "")+"}")
		card.Origin = api.Origin{File: "card.yaml", Line: 2}
		var got []string
		for _, f := range agentcard.Check(card) {
			got = append(got, f.Rule+" "+f.Field)
			if f.File != "card.yaml" || f.Line != 2 || f.Hint == "" {
				t.Errorf("%s: %+v", spec, f)
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s:\ngot  %v\nwant %s", spec, got, want)
		}
	}
}

// TestMatches compares with Kubernetes' own selectors.
func TestMatches(t *testing.T) {
	sets := []map[string]string{{}, {"a": "x"}, {"a": "y"}, {"b": "x"}, {"a": "x", "b": "y"}, {"a": ""}}
	for _, text := range []string{
		"{}", "{matchLabels: {a: x}}", "{matchLabels: {a: x, b: y}}",
		"{matchExpressions: [{key: a, operator: In, values: [x, z]}]}",
		"{matchExpressions: [{key: a, operator: NotIn, values: [x]}]}",
		"{matchExpressions: [{key: a, operator: Exists}]}",
		"{matchExpressions: [{key: b, operator: DoesNotExist}]}",
		"{matchLabels: {a: x}, matchExpressions: [{key: b, operator: NotIn, values: [y]}]}",
	} {
		var ours api.LabelSelector
		var theirs metav1.LabelSelector
		if err := yaml.UnmarshalStrict([]byte(text), &ours); err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict([]byte(text), &theirs); err != nil {
			t.Fatal(err)
		}
		selector, err := metav1.LabelSelectorAsSelector(&theirs)
		if err != nil {
			t.Fatal(err)
		}
		for _, set := range sets {
			got := agentcard.Matches(&ours,
				func(key string) (string, bool) { v, ok := set[key]; return v, ok })
			if want := selector.Matches(labels.Set(set)); got != want {
				t.Errorf("%s on %v: %v, want %v", text, set, got, want)
			}
		}
		// What discovery reads is the same selector.
		cm := render(t, &api.AgentCard{Spec: api.AgentCardSpec{Selector: &ours}})
		parsed, err := labels.Parse(cm.Data["selector"])
		if err != nil {
			t.Fatalf("%s: %v", cm.Data["selector"], err)
		}
		for _, set := range sets {
			if selector.Matches(labels.Set(set)) != parsed.Matches(labels.Set(set)) {
				t.Errorf("%s became %s", text, cm.Data["selector"])
			}
		}
	}
}

func FuzzConfigMap(f *testing.F) {
	for _, s := range []string{"plain", "a\nb: c", `"`, `\`, "ä\x00\u2028", "#", "true", "\U000e0001"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, x string) {
		x = strings.ToValidUTF8(x, "")
		card := &api.AgentCard{}
		card.Name, card.Namespace = x, x
		card.Spec.Metadata = &api.CardMetadata{Name: &x, Description: &x, Tags: []string{x}}
		card.Spec.TargetRef = &api.TargetRef{Kind: x, Name: x}
		card.Spec.Endpoint = &api.CardEndpoint{Path: &x, Scheme: &x}
		cm := render(t, card)
		var static struct {
			Name, Description string
			Tags              []string
		}
		if err := json.Unmarshal([]byte(cm.Data["card.json"]), &static); err != nil {
			t.Fatal(err)
		}
		if got, want :=
			fmt.Sprintf("%q", static), fmt.Sprintf("{%q %q [%q]}", x, x, x); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		for _, key := range []string{"target_kind", "target_name", "endpoint_path", "endpoint_scheme"} {
			if cm.Data[key] != x {
				t.Errorf("%s: %q became %q", key, x, cm.Data[key])
			}
		}
	})
}
