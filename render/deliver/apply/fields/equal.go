package fields

import (
	"maps"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Equal reports whether a dry run left an object as it was. Status and other
// managers' bookkeeping may have moved on in between.
func Equal(live, trial *unstructured.Unstructured) bool {
	return apiequality.Semantic.DeepEqual(Of(live, Ours), Of(trial, Ours)) && apiequality.Semantic.DeepEqual(Bare(live).Object, Bare(trial).Object)
}

// Bare is a copy of an object without what the API server keeps books of.
func Bare(u *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: maps.Clone(u.Object)}
	delete(out.Object, "status")
	if m, ok := u.Object["metadata"].(map[string]any); ok {
		metadata := maps.Clone(m)
		for _, key := range Bookkeeping {
			delete(metadata, key)
		}
		out.Object["metadata"] = metadata
	}
	return out
}

// Bookkeeping are the fields of metadata that only the API server writes.
var Bookkeeping = [...]string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"}

// EqualButLabels compares objects, but not who owns which field, nor labels.
func EqualButLabels(live, trial *unstructured.Unstructured) bool {
	x, y := Bare(live).DeepCopy(), Bare(trial).DeepCopy()
	x.SetLabels(nil)
	y.SetLabels(nil)
	return apiequality.Semantic.DeepEqual(x.Object, y.Object)
}
