package compare

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/rogpeppe/go-internal/diff"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
)

// changedFields returns the paths of the values in which two objects differ. It identifies items of
// lists by name, and omits the values inside of a value that only one object has.
func changedFields(a, b *krm.Object) (fields []string) {
	was, is := shapes(a), shapes(b)
	all := maps.Clone(was)
	maps.Copy(all, is)
	for _, field := range slices.Sorted(maps.Keys(all)) {
		if was[field] != is[field] && !slices.ContainsFunc(fields,
			func(of string) bool { return text.Inside(field, of) }) {
			fields = append(fields, field)
		}
	}
	return fields
}

// shapes returns the type and text of each value of an object; for a collection, whether it is
// empty.
func shapes(o *krm.Object) map[string]string {
	all := make(map[string]string)
	render.EachField(o.Root(), func(n krm.Node, field string) {
		if !n.IsNull() {
			all[field] = fmt.Sprint(n.IsMap(), n.IsList(), n.IsText(), n.Len() == 0, n.Text())
		}
	})
	return all
}

// lastApplied is the annotation with kubectl's copy of an object, including the values of a Secret.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Lines returns the differences in the text of the object as a unified diff, or "" if its values
// are equal. The values of a Secret are masked: a changed value shows as *** (before) and ***
// (after).
func (s Sides) Lines() (string, error) {
	if s.was != nil && s.is != nil && effectOf(s.was, s.is) == "" {
		return "", nil
	}
	before, err := s.was.displayed(s.is, "*** (before)")
	after, failed := s.is.displayed(s.was, "*** (after)")
	return string(diff.Diff("before", before, "after", after)), cmp.Or(err, failed)
}

// displayed returns the text of the object, or nil if it does not exist. In a Secret it masks the
// values of the data, those that differ from the other side with changed, and omits comments, which
// may quote a value.
func (i *item) displayed(other *item, changed string) ([]byte, error) {
	if i == nil {
		return nil, nil
	}
	if i.ref.Kind != "Secret" {
		return i.text, nil
	}
	object, ok := i.decoded().(map[string]any)
	if !ok {
		return nil, fmt.Errorf("reading %s to mask its values", i.ref)
	}
	object = maps.Clone(object)
	for _, field := range [...]string{"data", "stringData"} {
		if object[field] == nil {
			continue
		}
		own, others := values(object, field), map[string]any(nil)
		if other != nil {
			others = values(other.decoded(), field)
		}
		masked := make(map[string]any)
		for key, value := range own {
			masked[key] = "***"
			if was, ok := others[key]; ok && !reflect.DeepEqual(was, value) {
				masked[key] = changed
			}
		}
		object[field] = masked
	}
	if metadata, ok := object["metadata"].(map[string]any); ok {
		if annotations, ok := metadata["annotations"].(map[string]any); ok &&
			annotations[lastApplied] != nil {
			metadata, annotations = maps.Clone(metadata), maps.Clone(annotations)
			annotations[lastApplied] = "***"
			metadata["annotations"], object["metadata"] = annotations, metadata
		}
	}
	return yaml.Marshal(object)
}
