package apply

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/armature-dev/armature/functions/api/keys"
)

// ignoredFields reads the annotation that leaves fields to others: JSON pointers (RFC
// 6901) with commas between them, each as its parts. A part that is a number counts
// the items of a list as the package has it.
func ignoredFields(u *unstructured.Unstructured) (all [][]string, err error) {
	value, ok := u.GetAnnotations()[keys.IgnoreFields]
	if !ok {
		return nil, nil
	}
	for _, text := range strings.Split(value, ",") {
		text = strings.TrimSpace(text)
		bad := func(why string) ([][]string, error) {
			return nil, fmt.Errorf("annotation %s: %q %s", keys.IgnoreFields, text, why)
		}
		rest, ok := strings.CutPrefix(text, "/")
		if !ok || rest == "" || strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(rest), "~") {
			return bad(`is not a JSON pointer to a field: write one such as "/spec/replicas", with commas between several, ~1 for / and ~0 for ~ in a name`)
		}
		path := strings.Split(rest, "/")
		for i := range path {
			path[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(path[i])
		}
		switch {
		case path[0] == "status":
			return bad("is never applied: remove it")
		case path[0] == "apiVersion", path[0] == "kind",
			path[0] == "metadata" && (len(path) == 1 || path[1] != "annotations" && path[1] != "labels" || len(path) == 2),
			path[0] == "metadata" && strings.HasPrefix(path[2], keys.Own):
			return bad("says what the object is, or whose: remove it")
		case lacksItem(u.Object, path):
			return bad("is not a field of the object: of a list, name a field of an item that the package has")
		}
		all = append(all, path)
	}
	return all, nil
}

// lacksItem reports whether a path leads to an item that a list has not, ends at one,
// or leads into a value that has no fields.
func lacksItem(value any, path []string) bool {
	for n, part := range path {
		switch v := value.(type) {
		case nil:
			return false // the package leaves the field out
		case map[string]any:
			value = v[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(v) || n == len(path)-1 {
				return true
			}
			value = v[i]
		default:
			return true
		}
	}
	return false
}

// leaveFields makes of the author's object what is sent where the object exists: of
// the ignored fields it has those that are recorded as ours, with their live values,
// so that nothing happens to them. What others own is left out.
func leaveFields(body, live liveObject, ours map[string]any, ignored [][]string) {
	for _, path := range ignored {
		leave(body.Object, live.Object, ours, path)
	}
}

// leave gives what takes the place of a value of the package; keep says whether
// anything does. Where the API server knows the owner of a value as a whole only,
// the live one counts below it.
func leave(value, live any, ours map[string]any, path []string) (left any, keep bool) {
	if len(path) == 0 {
		return ownedPart(live, ours)
	}
	part, whole := path[0], ours != nil && len(ours) == 0
	switch v := value.(type) {
	case []any:
		i, err := strconv.Atoi(part)
		if err != nil || i < 0 || i >= len(v) {
			return v, true // ignoredFields refuses it
		}
		items, _ := live.([]any)
		var item any
		below := ours
		if !whole {
			item, below = itemLike(v, i, items, ours)
		} else if i < len(items) {
			item = items[i]
		}
		if left, keep = leave(v[i], item, below, path[1:]); keep {
			v[i] = left
		}
		return v, true
	case map[string]any, nil:
		fields, _ := v.(map[string]any)
		now, _ := live.(map[string]any)
		below := ours
		if !whole {
			below, _ = ours["f:"+part].(map[string]any)
		}
		had := len(fields) > 0
		if left, keep = leave(fields[part], now[part], below, path[1:]); !keep {
			delete(fields, part)
			return value, v != nil && (len(fields) > 0 || !had)
		}
		if fields == nil {
			fields = make(map[string]any)
		}
		fields[part] = left
		return fields, true
	}
	return value, true
}

// itemLike finds the live item that an item of the package is, by the key under which
// fields of it are ours, and these fields.
func itemLike(items []any, i int, live []any, ours map[string]any) (item any, fields map[string]any) {
	for step, below := range ours {
		if itemOf(items, step) == i {
			item, _ = child(live, step)
			fields, _ = below.(map[string]any)
		}
	}
	return item, fields
}

// ownedPart is what fields name of a value.
func ownedPart(value any, fields map[string]any) (any, bool) {
	if fields == nil || value == nil {
		return nil, false
	}
	if len(fields) == 0 {
		return value, true
	}
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any)
		for step, below := range fields {
			name, ok := strings.CutPrefix(step, "f:")
			below, isMap := below.(map[string]any)
			if !ok || !isMap {
				continue
			}
			if part, found := ownedPart(v[name], below); found {
				out[name] = part
			}
		}
		return out, len(out) > 0 || fields["."] != nil
	case []any:
		var out []any
		for _, item := range v {
			for step, below := range fields {
				below, isMap := below.(map[string]any)
				if step == "." || !isMap || itemOf([]any{item}, step) != 0 {
					continue
				}
				if part, found := ownedPart(item, below); found {
					out = append(out, part)
				}
			}
		}
		return out, len(out) > 0
	}
	return value, true
}

// union of two sets of fields.
func union(x, y map[string]any) map[string]any {
	out := maps.Clone(x)
	if out == nil {
		return y
	}
	for step, below := range y {
		a, _ := out[step].(map[string]any)
		b, _ := below.(map[string]any)
		out[step] = union(a, b)
	}
	return out
}
