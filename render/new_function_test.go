package render

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/testdata/labels"
)

// TestNewFunction: a function is a folder and a row. functions/testdata/labels
// has all that there is of one; with its row in the table, it takes part in a
// render, in a second one, and in uninject.
func TestNewFunction(t *testing.T) {
	const source = `apiVersion: labels.example.com/v1
kind: CommonLabels
metadata:
  name: team
  namespace: shop
spec:
  labels:
    team: checkout
---
apiVersion: v1
kind: Service
metadata:
  name: cart
  namespace: shop
spec: {}
---
apiVersion: v1
kind: Service
metadata:
  name: elsewhere
  namespace: other
`
	opt := Options{Version: "v0.0.0", table: append(functions.Table(), labels.Function())}
	render := func(text string) string {
		t.Helper()
		r, err := Run(Source{Files: []File{{Path: "a.yaml", Data: []byte(text)}}}, opt)
		if err != nil || finding.Failed(r.Findings) || len(r.Files) != 1 {
			t.Fatal(r.Findings, err)
		}
		return string(r.Files[0].Data)
	}
	once := render(source)
	if !strings.Contains(once,
		"  name: cart\n  namespace: shop\n  labels:\n    team: checkout\n") ||
		strings.Count(once, "    team: checkout\n") != 2 {
		t.Errorf("no label, or too many:\n%s", once)
	}
	if !strings.HasPrefix(once, consumedMark+"CommonLabels team") {
		t.Errorf("the CommonLabels is not consumed:\n%s", once)
	}
	if diff := cmp.Diff(once, render(once)); diff != "" {
		t.Errorf("a second render changes (-once +twice):\n%s", diff)
	}
	var restored string
	if _, _, err := Uninject(Source{Files: []File{{Path: "a.yaml", Data: []byte(once)}}}, opt,
		func(_ string, data []byte) error {
			restored = string(data)
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(source, restored); diff != "" {
		t.Errorf("uninject (-source +restored):\n%s", diff)
	}

	two := strings.Replace(source, "---\n",
		"---\n"+strings.Replace(source[:strings.Index(source, "---\n")], "team\n", "team-2\n", 1)+
			"---\n", 1)
	r, err := Run(Source{Files: []File{{Path: "a.yaml", Data: []byte(two)}}}, opt)
	if err != nil || !finding.Failed(r.Findings) ||
		r.Findings[0].Rule != "labels/two-of-a-namespace" {
		t.Error("two CommonLabels:", r.Findings, err)
	}
}

// TestTwoWorkloadsOfAResource: each workload that a resource expands to has what is generated for
// it, and not what a later one gets in the same memory.
func TestTwoWorkloadsOfAResource(t *testing.T) {
	pair := contract.Function{
		Name: "pair", Kinds: []contract.Kind{{Name: "Pair", Use: contract.Expands, Own: true,
			Groups: []contract.Group{{Name: "pair.example.com"}}, Versions: []string{"v1"}}},
		New: func(*contract.Package) contract.Steps {
			return contract.Steps{Expand: func(r *expand.Resource) {
				for _, name := range []string{r.Name, r.Name + "-2"} {
					r.Add(expand.Object{APIVersion: "apps/v1", Kind: "Deployment", Name: name,
						Labels: map[string]string{"kagenti.io/inject": "enabled"},
						Body: map[string]any{"spec": map[string]any{"template": map[string]any{
							"spec": map[string]any{"containers": []any{
								map[string]any{"name": "agent", "image": "agent"}}}}}}})
				}
			}}
		},
	}
	const source = "apiVersion: pair.example.com/v1\nkind: Pair\nmetadata: {name: web, namespace: a}\n"
	r, err := Run(Source{Files: []File{{Path: "a.yaml", Data: []byte(source)}}},
		Options{table: append(functions.Table(), pair)})
	if err != nil || finding.Failed(r.Findings) || len(r.Files) != 1 {
		t.Fatal(r.Findings, err)
	}
	var names []string
	Objects(r.Files[0], func(o *krm.Object) {
		if o.Kind == "ConfigMap" || o.Kind == "ServiceAccount" {
			names = append(names, o.Kind+"/"+o.Name)
		}
	})
	slices.Sort(names)
	want := []string{"ConfigMap/authbridge-config-web", "ConfigMap/authbridge-config-web-2",
		"ServiceAccount/web", "ServiceAccount/web-2"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("(-want +got)\n%s\n%s", diff, r.Files[0].Data)
	}
}
