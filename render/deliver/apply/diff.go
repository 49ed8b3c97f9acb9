package apply

import (
	"github.com/fluxcd/pkg/ssa"
	"github.com/rogpeppe/go-internal/diff"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/render/deliver/apply/fields"
)

// Diff returns what a step of Cluster.Plan changes as a unified diff of YAML, or "" if it changes
// nothing. The values of Secrets are masked: a changed value shows as *** (before) and *** (after).
func (s *Step) Diff() (string, error) {
	before, after := s.seen.live, s.want.body
	switch s.Action {
	case Run:
		before = nil
	case Create, Change, Recreate, Prune:
	default:
		return "", nil
	}
	if s.dry.object != nil {
		after = s.dry.object
	}
	before, after = forDisplay(before), forDisplay(after)
	if s.GroupKind == secretKind {
		if err := mask(before, after); err != nil {
			return "", err
		}
	}
	var texts [2][]byte
	for i, u := range []*unstructured.Unstructured{before, after} {
		if u == nil {
			continue
		}
		var err error
		if texts[i], err = yaml.Marshal(u.Object); err != nil {
			return "", err
		}
	}
	return string(diff.Diff("live "+s.Title(), texts[0], "wanted "+s.Title(), texts[1])), nil
}

// mask hides the values of a Secret on both sides of a diff, as ssa does. Either side may be nil.
// Data that is not a map of strings, which no API server accepts, is hidden as a whole.
func mask(before, after *unstructured.Unstructured) error {
	for _, u := range []*unstructured.Unstructured{before, after} {
		if u == nil {
			continue
		}
		if _, _, err := unstructured.NestedStringMap(u.Object, "data"); err != nil {
			u.Object["data"] = map[string]any{"": ""}
		}
		delete(u.Object, "stringData") // adjust moved it into data
	}
	return ssa.SanitizeUnstructuredData(before, after)
}

// forDisplay returns a copy of an object without the fields that people do not want to see.
func forDisplay(u *unstructured.Unstructured) *unstructured.Unstructured {
	if u == nil {
		return nil
	}
	out := fields.Bare(u).DeepCopy()
	unstructured.RemoveNestedField(out.Object, "metadata", "annotations", fields.LastApplied)
	if len(out.GetAnnotations()) == 0 {
		unstructured.RemoveNestedField(out.Object, "metadata", "annotations")
	}
	return out
}
