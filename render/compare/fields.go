package compare

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// changedFields gives the paths of the values in which two objects differ. Items
// of lists go by their names where all of them have one.
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

// asMap gives a mapping, or a list by the names or indices of its items.
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
