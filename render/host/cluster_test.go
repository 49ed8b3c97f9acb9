package host_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
)

// A list loses what stays in its package, in lists within it and in every style.
func TestForClusterLists(t *testing.T) {
	service := func(name, annotation string) string {
		return `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "` + name + `"` +
			annotation + `}}`
	}
	const marked = `, "annotations": {"config.kubernetes.io/local-config": "true"}`
	kept, dropped := service("kept", ""), service("marked", marked)
	list := func(items ...string) string {
		return `{"apiVersion": "v1", "kind": "List", "items": [` + strings.Join(items, ", ") + `]}`
	}
	kustomization := `{"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "metadata": {"name": "tool"}}`
	function := `{"apiVersion": "config.kubernetes.io/v1", "kind": "ResourceList", "metadata": {"name": "tool"}}`
	config := `{"apiVersion": "armature.dev/v1alpha1", "kind": "RenderConfig", "metadata": {"name": "tool"}}`
	block := "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata:\n" +
		"    name: kept\n- apiVersion: kustomize.config.k8s.io/v1beta1\n  kind: Kustomization\n" +
		"  metadata:\n    name: tool\n"
	for name, text := range map[string]string{
		"annotated":                    list(kept, dropped),
		"a kind of kustomize":          list(kept, kustomization),
		"a kind of functions":          list(kept, function),
		"a configuration":              list(config, kept),
		"in block style":               block,
		"in a list in it":              list(list(dropped, kept), config),
		"a list in it, with all of it": list(kept, list(dropped, config)),
		"another document":             list(dropped) + "\n---\n" + list(kept, config),
	} {
		t.Run(name, func(t *testing.T) {
			out, objects, err := host.ForCluster(render.File{Path: "all.yaml", Data: []byte(text)})
			if err != nil || objects != 1 {
				t.Fatalf("%d objects, %v; want 1", objects, err)
			}
			var got []string
			render.Objects(render.File{Path: "all.yaml", Data: out},
				func(o *krm.Object) { got = append(got, o.Kind+"/"+o.Name) })
			if !slices.Equal(got, []string{"Service/kept"}) {
				t.Errorf("%v; want Service/kept alone\n%s", got, out)
			}
		})
	}
}

// A file with nothing for a cluster has no text, and one without objects keeps its own.
func TestForClusterLeavesNothing(t *testing.T) {
	for text, want := range map[string]string{local: "",
		"# to do\n---\n" + local + "---\n" + local: "", "# to do\n": "# to do\n"} {
		out, objects, err := host.ForCluster(render.File{Path: "all.yaml", Data: []byte(text)})
		if err != nil || objects != 0 || string(out) != want {
			t.Errorf("%v, %d objects, %q; want 0 and %q", err, objects, out, want)
		}
	}
}
