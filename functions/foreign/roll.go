package foreign

import (
	"fmt"
	"maps"
	"slices"
)

// Differs says where a pod template that is applied over a running one changes
// it: "" where it does not. What the new one leaves out stays as it runs, since
// applying removes only fields that the same manager set.
func Differs(template, running any) string { return differs("", template, running) }

func differs(path string, a, b any) string {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return path
		}
		for _, key := range slices.Sorted(maps.Keys(a)) {
			if at := differs(join(path, key), a[key], b[key]); at != "" {
				return at
			}
		}
		return ""
	case []any:
		b, ok := b.([]any)
		if !ok {
			return path
		}
		for i, item := range a {
			at := fmt.Sprintf("%s[%d]", path, i)
			other, found := counterpart(item, b, i)
			if !found {
				return at
			}
			if at := differs(at, item, other); at != "" {
				return at
			}
		}
		return ""
	}
	if fmt.Sprint(a) != fmt.Sprint(b) {
		return path
	}
	return ""
}

// counterpart finds the item of a list that is the same by name, or by place.
func counterpart(item any, list []any, i int) (any, bool) {
	if m, ok := item.(map[string]any); ok && m["name"] != nil {
		for _, other := range list {
			if o, ok := other.(map[string]any); ok && o["name"] == m["name"] {
				return o, true
			}
		}
		return nil, false
	}
	if i < len(list) {
		return list[i], true
	}
	return nil, false
}
