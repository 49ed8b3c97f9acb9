package apply

import (
	"reflect"

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
	case Run:
		before, after = nil, shown(s.want.body)
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
		mask(before, after)
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

// mask hides the values of a Secret on both sides of a diff. Either side may be
// nil. A value that is the same on both shows as ***, one that changes as
// *** (before) and *** (after).
func mask(before, after *unstructured.Unstructured) {
	for _, field := range [...]string{"data", "stringData"} {
		old, changed := values(before, field), values(after, field)
		shownOld, shownChanged := map[string]any{}, map[string]any{}
		for key := range old {
			shownOld[key] = "***"
		}
		for key, value := range changed {
			shownChanged[key] = "***"
			if was, ok := old[key]; ok && !reflect.DeepEqual(was, value) {
				shownOld[key], shownChanged[key] = "*** (before)", "*** (after)"
			}
		}
		if len(old) > 0 {
			before.Object[field] = shownOld
		}
		if len(changed) > 0 {
			after.Object[field] = shownChanged
		}
	}
}

// values of a field of a Secret. What is not a map, which no API server takes, is
// one value without a name.
func values(u *unstructured.Unstructured, field string) map[string]any {
	if u == nil || u.Object[field] == nil {
		return nil
	}
	if m, ok := u.Object[field].(map[string]any); ok {
		return m
	}
	return map[string]any{"": u.Object[field]}
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
