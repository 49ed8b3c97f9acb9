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

// changedFields returns the paths of the values in which two objects differ. Items of lists are
// identified by their names, and what is in a value that only one object has is not listed.
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

// shapes returns what the values of an object are, of collections only whether they are empty.
func shapes(o *krm.Object) map[string]string {
	all := make(map[string]string)
	render.EachField(o.Root(), func(n krm.Node, field string) {
		if !n.IsNull() {
			all[field] = fmt.Sprint(n.IsMap(), n.IsList(), n.IsText(), n.Len() == 0, n.Text())
		}
	})
	return all
}

// lastApplied is kubectl's copy of an object, a Secret's values included.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Lines are what differs in the text of the object, as a unified diff; "" where its
// values are the same, and only what it uses changes. The values of a Secret are
// masked: one that changes shows as *** (before) and *** (after).
func (s Sides) Lines() (string, error) {
	if s.was != nil && s.is != nil && effectOf(s.was, s.is) == "" {
		return "", nil
	}
	before, err := s.was.shown(s.is, "*** (before)")
	after, failed := s.is.shown(s.was, "*** (after)")
	return string(diff.Diff("before", before, "after", after)), cmp.Or(err, failed)
}

// shown is the document, nil where it is not there. That of a Secret is without the values of its
// data; changed stands for those that the other side has differently. Comments, which may quote a
// value, are left out.
func (i *item) shown(other *item, changed string) ([]byte, error) {
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
		mine, theirs := values(object, field), map[string]any(nil)
		if other != nil {
			theirs = values(other.decoded(), field)
		}
		shown := make(map[string]any)
		for key, value := range mine {
			shown[key] = "***"
			if was, ok := theirs[key]; ok && !reflect.DeepEqual(was, value) {
				shown[key] = changed
			}
		}
		object[field] = shown
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
