package render_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
)

const agentResource = `apiVersion: agent.kagenti.dev/v1alpha1
kind: Agent
metadata:
  name: weather
  namespace: team1
  labels:
    kagenti.io/inject: enabled
spec:
  imageSource:
    image: example/weather:v1
  podTemplateSpec:
    spec:
      containers:
      - name: agent
        envFrom:
        - secretRef:
            name: keys
`

func resourceList(items ...string) []byte {
	b := strings.Builder{}
	b.WriteString("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n")
	for _, item := range items {
		b.WriteString("- " + strings.ReplaceAll(strings.TrimSpace(item), "\n", "\n  ") + "\n")
	}
	return []byte(b.String())
}

func renderItems(t *testing.T, opt render.Options, items ...string) (out []string) {
	t.Helper()
	list, err := host.ReadList(resourceList(items...))
	if err != nil {
		t.Fatal(err)
	}
	data, findings, _, err := list.Render(opt)
	if err != nil || finding.Failed(findings) {
		t.Fatal(err, findings)
	}
	return itemsOf(t, data)
}

func itemsOf(t *testing.T, list []byte) (items []string) {
	t.Helper()
	n, err := yaml.Parse(string(list))
	if err != nil {
		t.Fatal(err)
	}
	elements, err := n.Field("items").Value.Elements()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range elements {
		items = append(items, e.MustString())
	}
	return items
}

// withoutLocal is what kustomize passes on: it drops objects for local use.
func withoutLocal(items []string) (kept []string) {
	for _, item := range items {
		if !strings.Contains(item, krm.LocalConfig) {
			kept = append(kept, item)
		}
	}
	return kept
}

// A host that drops the custom resource after a render gets the same objects
// from the next one, which reads the resource from what it made of it.
func TestExpansionWithoutItsResource(t *testing.T) {
	first := withoutLocal(renderItems(t, render.Options{}, agentResource))
	if len(first) != 6 {
		t.Fatalf("%d items, want Deployment, its ConfigMap, Service, ServiceAccount, Role and "+
			"RoleBinding:\n%s", len(first), strings.Join(first, "---\n"))
	}
	if diff := cmp.Diff(values(t, first),
		values(t, renderItems(t, render.Options{}, first...))); diff != "" {
		t.Errorf("the second render differs (-want +got):\n%s", diff)
	}
	// The order of items is the host's.
	var reversed []string
	for _, item := range first {
		reversed = append([]string{item}, reversed...)
	}
	again := renderItems(t, render.Options{}, reversed...)
	if diff := cmp.Diff(len(first), len(again)); diff != "" {
		t.Errorf("another order gives other items:\n%s", strings.Join(again, "---\n"))
	}
}

// A host may later change the name and the namespace of the objects.
func TestExpansionRenamed(t *testing.T) {
	first := withoutLocal(renderItems(t, render.Options{}, agentResource))
	var renamed []string
	for _, item := range first {
		item = strings.ReplaceAll(item, "name: weather", "name: prod-weather")
		item = strings.ReplaceAll(item, "serviceAccountName: weather",
			"serviceAccountName: prod-weather")
		renamed = append(renamed, strings.ReplaceAll(item, "namespace: team1", "namespace: prod"))
	}
	direct := withoutLocal(renderItems(t, render.Options{},
		strings.NewReplacer("name: weather", "name: prod-weather", "namespace: team1",
			"namespace: prod").Replace(agentResource)))
	if diff := cmp.Diff(values(t, direct),
		values(t, renderItems(t, render.Options{}, renamed...))); diff != "" {
		t.Errorf("-rendered under the name +renamed after a render:\n%s", diff)
	}
}

// Uninject restores a custom resource that only its objects remember.
func TestExpansionUninjected(t *testing.T) {
	first := withoutLocal(renderItems(t, render.Options{}, agentResource))
	list, err := host.ReadList(resourceList(first...))
	if err != nil {
		t.Fatal(err)
	}
	data, findings, _, err := list.Run(render.Options{}, render.Uninject)
	if err != nil || finding.Failed(findings) {
		t.Fatal(err, findings)
	}
	items := itemsOf(t, data)
	if len(items) != 1 || !same(t, items[0], agentResource) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(items, "---\n"), agentResource)
	}
}

// TestExpansionOfEmptyAnnotations checks that an item of a host keeps its empty annotations on a
// line of their own.
func TestExpansionOfEmptyAnnotations(t *testing.T) {
	resource := strings.Replace(agentResource, "metadata:\n", "metadata:\n  annotations:\n    {}\n", 1)
	list, err := host.ReadList(resourceList(resource))
	if err != nil {
		t.Fatal(err)
	}
	rendered, findings, _, err := list.Render(render.Options{})
	if err != nil || finding.Failed(findings) {
		t.Fatal(err, findings)
	}
	if list, err = host.ReadList(rendered); err != nil {
		t.Fatal(err)
	}
	data, findings, _, err := list.Run(render.Options{}, render.Uninject)
	if err != nil || finding.Failed(findings) {
		t.Fatal(err, findings)
	}
	if !strings.Contains(string(data), strings.ReplaceAll("\nmetadata:\n  annotations:\n    {}\n",
		"\n", "\n  ")) || strings.Contains(string(data), "armature.dev/") {
		t.Errorf("got:\n%s\nfrom:\n%s", data, rendered)
	}
}

// values are items without the order of their fields, which hosts sort.
func values(t *testing.T, items []string) (all []any) {
	t.Helper()
	for _, item := range items {
		var value any
		if err := yaml.Unmarshal([]byte(item), &value); err != nil {
			t.Fatal(err)
		}
		all = append(all, value)
	}
	return all
}

func same(t *testing.T, a, b string) bool {
	t.Helper()
	var one, two any
	if err := yaml.Unmarshal([]byte(a), &one); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(b), &two); err != nil {
		t.Fatal(err)
	}
	return cmp.Equal(one, two)
}

// Where the function that expands does not run, what it made stays as it is.
func TestExpansionByItself(t *testing.T) {
	made := renderItems(t, render.Options{Functions: []string{"agent"}}, agentResource)
	injected := renderItems(t, render.Options{Functions: []string{"inject"}}, made...)
	if len(injected) != len(made) ||
		!strings.Contains(strings.Join(injected, ""), "authbridge-proxy") {
		t.Errorf("inject alone makes of what agent made:\n%s", strings.Join(injected, "---\n"))
	}
}

// A JSON list, a file with a single JSON object and a kept resource.
func TestExpansionOfJSON(t *testing.T) {
	n, err := yaml.Parse(agentResource)
	if err != nil {
		t.Fatal(err)
	}
	json, err := n.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	list := `{"apiVersion":"v1","kind":"List","items":[` + strings.TrimSpace(string(json)) + "]}\n"
	for name, src := range map[string]string{"list.json": list, "agent.json": string(json)} {
		t.Run(name, func(t *testing.T) {
			source := render.Source{Files: []render.File{{Path: name, Data: []byte(src)}}}
			result, err := render.Run(source, render.Options{})
			if err != nil || finding.Failed(result.Findings) {
				t.Fatal(err, result.Findings)
			}
			if result.Stats.Workloads != 1 || result.Stats.Generated != 6 {
				t.Error(result.Stats)
			}
			again, err := render.Run(render.Source{Files: result.Files}, render.Options{})
			if err != nil || finding.Failed(again.Findings) {
				t.Fatal(err, again.Findings)
			}
			if diff := cmp.Diff(sorted(result.Files), sorted(again.Files)); diff != "" {
				t.Errorf("the second render differs (-want +got):\n%s", diff)
			}
		})
	}
}

func sorted(files []render.File) map[string]string {
	m := make(map[string]string)
	for _, f := range files {
		m[f.Path] = string(f.Data)
	}
	return m
}
