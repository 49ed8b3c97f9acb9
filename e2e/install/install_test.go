// Package install compares the three ways to install Armature: `armature
// install`, the kustomize bases and the Helm chart.
package install

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/armature-dev/armature/e2e/programs"
)

const root = "../.."

// armature builds the program once for a test.
func armature(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "armature")
	build := exec.Command("go", "build", "-o", path, "./cmd/armature")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building armature: %v\n%s", err, out)
	}
	return path
}

// objects that a command prints, by kind, namespace and name.
func objects(t *testing.T, name string, args ...string) map[string]map[string]any {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var problem bytes.Buffer
	cmd.Dir, cmd.Stderr = root, &problem
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", filepath.Base(name), args, err, &problem)
	}
	found := map[string]map[string]any{}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096)
	for {
		u := unstructured.Unstructured{}
		if err := decoder.Decode(&u.Object); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatalf("%s %v: %v", filepath.Base(name), args, err)
		}
		if len(u.Object) == 0 {
			continue
		}
		key := u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
		if found[key] != nil {
			t.Errorf("%s prints %s twice", filepath.Base(name), key)
		}
		found[key] = u.Object
	}
}

// compare objects, where Helm's differ as the chart says: the Namespace is made
// before, and CRDs stay.
func compare(t *testing.T, want, got map[string]map[string]any) {
	t.Helper()
	expected := map[string]map[string]any{}
	for key, object := range want {
		if strings.HasPrefix(key, "Namespace ") {
			continue
		}
		u := unstructured.Unstructured{Object: object}
		if u.GetKind() == "CustomResourceDefinition" {
			annotations := u.GetAnnotations()
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations["helm.sh/resource-policy"] = "keep"
			u.SetAnnotations(annotations)
		}
		expected[key] = u.Object
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(expected)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Fatalf("the chart has other objects than `armature install` (-install +chart):\n%s", diff)
	}
	for key := range expected {
		if diff := cmp.Diff(expected[key], got[key]); diff != "" {
			t.Errorf("%s (-install +chart):\n%s", key, diff)
		}
	}
}

// The chart, rendered by Helm's own engine, has the objects of `armature
// install`, whatever namespace and values are chosen.
func TestHelmChart(t *testing.T) {
	helm, program := programs.Peer(t, "helm-template"), armature(t)
	for name, c := range map[string]struct {
		namespace, values string
		flags             []string
	}{
		"defaults": {"armature-system", "{}", nil},
		"settings": {"platform", "{image: registry.example/controller:v9, imageMirror: mirror.local/hub, gitAllowNetwork: [169.254.20.0/24, 'fe80::/64'], catalog: {enabled: true}}",
			[]string{"--image", "registry.example/controller:v9", "--image-mirror", "mirror.local/hub", "--git-allow-network", "169.254.20.0/24,fe80::/64", "--catalog"}},
	} {
		t.Run(name, func(t *testing.T) {
			want := objects(t, program, append([]string{"install", "--namespace", c.namespace}, c.flags...)...)
			if len(want) < 30 {
				t.Fatalf("`armature install` prints %d objects", len(want))
			}
			compare(t, want, objects(t, helm, "templates/chart", c.namespace, c.values))
		})
	}
	if out, err := exec.CommandContext(t.Context(), helm, root+"/templates/chart", "default", "{imgae: x}").CombinedOutput(); err == nil || !strings.Contains(string(out), "imgae") {
		t.Errorf("a misspelt value: %v %s", err, out)
	}
}

// The kustomize bases have the objects of `armature install`.
func TestKustomizeBases(t *testing.T) {
	kustomize, program := programs.Peer(t, "kustomize"), armature(t)
	for _, mode := range []string{"cluster", "namespaced"} {
		want := objects(t, program, "install", "--mode", mode, "--catalog")
		got := objects(t, kustomize, "build", "templates/install/"+mode)
		maps.Copy(got, objects(t, kustomize, "build", "templates/install/catalog/"+mode))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-install +kustomize):\n%s", mode, diff)
		}
	}
}
