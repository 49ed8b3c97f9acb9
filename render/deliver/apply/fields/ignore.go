package fields

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/armature-dev/armature/functions/api/keys"
)

// Ignored parses the annotation that leaves fields to other managers: comma-separated JSON pointers
// (RFC 6901), each returned as its parts. A number is an index into the list of the package.
func Ignored(u *unstructured.Unstructured) (all [][]string, err error) {
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
		if !ok || rest == "" ||
			strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(rest), "~") {
			return bad(
				`is not a JSON pointer to a field: write one such as "/spec/replicas", with commas between several, ~1 for / and ~0 for ~ in a name`)
		}
		path := strings.Split(rest, "/")
		for i := range path {
			path[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(path[i])
		}
		switch {
		case path[0] == "status":
			return bad("is never applied: remove it")
		case path[0] == "apiVersion", path[0] == "kind",
			path[0] == "metadata" &&
				(len(path) == 1 || path[1] != "annotations" && path[1] != "labels" ||
					len(path) == 2),
			path[0] == "metadata" && strings.HasPrefix(path[2], keys.Own):
			return bad("identifies the object or its owner: remove it")
		case lacksItem(u.Object, path):
			return bad("is not a field of the object: of a list, name a field of an item that " +
				"the package has")
		}
		all = append(all, path)
	}
	return all, nil
}

// lacksItem reports whether a path leads to an item that a list does not have, ends at an item, or
// leads into a value without fields.
func lacksItem(value any, path []string) bool {
	for n, part := range path {
		switch v := value.(type) {
		case nil:
			return false // the package omits the field
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

// Leave replaces the ignored fields of body, which is sent to update live. A field keeps its live
// value if any part of it is ours, so that it does not change. It is removed if others own all of
// it.
func Leave(body, live *unstructured.Unstructured, is func(manager, operation string) bool,
	ignored [][]string) {
	ours, now := &fieldpath.Set{}, map[string]any(nil)
	if live != nil {
		now = live.Object
		for _, fields := range Of(live, is) {
			set := &fieldpath.Set{}
			text, err := json.Marshal(fields)
			if err == nil && set.FromJSON(bytes.NewReader(text)) == nil {
				ours = ours.Union(set)
			}
		}
	}
	for _, path := range ignored {
		leave(body.Object, now, ours, false, path)
	}
}

// leave returns the replacement of a value of the package; keep is false if the value is removed.
// The paths of ours are relative to the value. whole means that the API server records the value as
// ours without recording its fields.
func leave(old, live any, ours *fieldpath.Set, whole bool, path []string) (left any, keep bool) {
	if len(path) == 0 {
		return live, live != nil && (whole || !ours.Empty())
	}
	switch v := old.(type) {
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i < 0 || i >= len(v) {
			return v, true // Ignored refuses it
		}
		items, _ := live.([]any)
		at, below := i, ours
		if !whole { // the live item has the key under which our fields are recorded
			at, below = -1, &fieldpath.Set{}
			ours.Iterate(func(field fieldpath.Path) {
				if ItemOf(v, field[0]) == i {
					at, below = ItemOf(items, field[0]), ours.WithPrefix(field[0])
				}
			})
		}
		var item any
		if at >= 0 && at < len(items) {
			item = items[at]
		}
		if left, keep = leave(v[i], item, below, whole, path[1:]); keep {
			v[i] = left
		}
		return v, true
	case map[string]any, nil:
		fields, _ := v.(map[string]any)
		now, _ := live.(map[string]any)
		name := fieldpath.PathElement{FieldName: &path[0]}
		below := ours.WithPrefix(name)
		whole = whole || below.Empty() && ours.Members.Has(name)
		had := len(fields) > 0
		if left, keep = leave(fields[path[0]], now[path[0]], below, whole, path[1:]); !keep {
			delete(fields, path[0])
			return old, v != nil && (len(fields) > 0 || !had)
		}
		if fields == nil {
			fields = make(map[string]any)
		}
		fields[path[0]] = left
		return fields, true
	}
	return old, true
}

// ItemOf returns the index of the list item that a path element identifies by its keys or value, or
// -1.
func ItemOf(items []any, e fieldpath.PathElement) int {
	return slices.IndexFunc(items, func(item any) bool {
		if e.Value != nil {
			return value.Equals(*e.Value, value.NewValueInterface(item))
		}
		fields, ok := item.(map[string]any)
		ok = ok && e.Key != nil
		for i := 0; ok && i < len(*e.Key); i++ {
			key := (*e.Key)[i]
			ok = value.Equals(key.Value, value.NewValueInterface(fields[key.Name]))
		}
		return ok
	})
}
