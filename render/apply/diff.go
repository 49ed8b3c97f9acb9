package apply

import (
	"fmt"

	"github.com/fluxcd/pkg/ssa"
	"github.com/rogpeppe/go-internal/diff"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// lastApplied is kubectl's copy of an object, a Secret's values included.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Diff shows what a step of Cluster.Plan changes, as a unified diff of YAML; ""
// where it changes nothing. The values of Secrets are masked: one that changes
// shows as *** (before) and *** (after).
func (s Step) Diff() (string, error) {
	var before, after *unstructured.Unstructured
	if s.live != nil {
		before = shown(s.live)
	}
	switch s.Action {
	case Create, Change, Recreate, Conflict:
		switch {
		case s.next != nil:
			after = shown(s.next)
		case s.want != nil && s.Action != Conflict:
			after = shown(s.want.body)
		default:
			return "", nil
		}
	case Prune:
	default:
		return "", nil
	}
	if s.GroupKind == secretKind {
		if err := ssa.SanitizeUnstructuredData(before, after); err != nil {
			return "", fmt.Errorf("masking %s: %w", title(s.ID), err)
		}
	}
	old, err := text(before)
	if err != nil {
		return "", err
	}
	changed, err := text(after)
	if err != nil {
		return "", err
	}
	return string(diff.Diff("live "+title(s.ID), old, "wanted "+title(s.ID), changed)), nil
}

func text(u *unstructured.Unstructured) ([]byte, error) {
	if u == nil {
		return nil, nil
	}
	return yaml.Marshal(u.Object)
}

// shown is a copy of an object as people want to see it.
func shown(u *unstructured.Unstructured) *unstructured.Unstructured {
	out := bare(u).DeepCopy()
	unstructured.RemoveNestedField(out.Object, "metadata", "annotations", lastApplied)
	if len(out.GetAnnotations()) == 0 {
		unstructured.RemoveNestedField(out.Object, "metadata", "annotations")
	}
	return out
}
