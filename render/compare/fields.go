package compare

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// changedFields returns the paths of the values in which two objects differ. Items of lists are
// identified by their names if all of them have one.
func changedFields(a, b any) (fields []string) {
	var walk func(path string, a, b any)
	walk = func(path string, a, b any) {
		if reflect.DeepEqual(a, b) {
			return
		}
		am, ok1 := asMap(a)
		bm, ok2 := asMap(b)
		if !ok1 || !ok2 || len(am) == 0 || len(bm) == 0 {
			fields = append(fields, path)
			return
		}
		all := maps.Clone(am)
		maps.Copy(all, bm)
		for _, k := range slices.Sorted(maps.Keys(all)) {
			walk(join(path, k), am[k], bm[k])
		}
	}
	walk("", a, b)
	return fields
}

func join(path, step string) string {
	switch {
	case strings.HasPrefix(step, "["):
		return path + step
	case strings.ContainsAny(step, "./"):
		return path + "[" + step + "]"
	case path == "":
		return step
	}
	return path + "." + step
}

// asMap returns a mapping, or a list by the names or indices of its items.
func asMap(v any) (map[string]any, bool) {
	switch v := v.(type) {
	case map[string]any:
		return v, true
	case []any:
		m := make(map[string]any, len(v))
		for i, item := range v {
			m[itemName(item, i)] = item
		}
		return m, len(m) == len(v)
	}
	return nil, false
}

func itemName(item any, index int) string {
	if m, ok := item.(map[string]any); ok {
		for _, field := range [...]string{"mountPath", "name"} {
			if name, ok := m[field].(string); ok {
				return "[" + name + "]"
			}
		}
	}
	return fmt.Sprintf("[%d]", index)
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
	before, after, err := s.texts()
	return string(diff.Diff("before", before, "after", after)), err
}

// texts returns the documents of both sides, nil for one that is not there.
func (s Sides) texts() (before, after []byte, err error) {
	if s.was.secret() || s.is.secret() {
		if before, err = s.was.masked(s.is, "*** (before)"); err != nil {
			return nil, nil, err
		}
		after, err = s.is.masked(s.was, "*** (after)")
		return before, after, err
	}
	if s.was != nil {
		before = s.was.text
	}
	if s.is != nil {
		after = s.is.text
	}
	return before, after, nil
}

func (i *item) secret() bool { return i != nil && i.ref.Kind == "Secret" }

// masked is the document without the values of its data; changed stands for those
// that another one has differently. Comments, which may quote a value, are left out.
func (i *item) masked(other *item, changed string) ([]byte, error) {
	if i == nil {
		return nil, nil
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
		mine, theirs := values(object, field), make(map[string]any)
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
