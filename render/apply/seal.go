package apply

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// FieldManager is the name under which the API server records our fields.
const FieldManager = "armature"

// seal is a digest of the desired state and of the live fields that are ours: their
// names and values. While it stays the same, to apply again would change
// nothing, so that no request is needed to find out; a field that somebody
// else changed, took over or removed breaks it.
//
// It is "" where a digest must not be kept: that of a Secret could be guessed.
func seal(want digest, live *unstructured.Unstructured) string {
	if live == nil || live.GroupVersionKind().GroupKind() == secretKind {
		return ""
	}
	fields, found := owned(live)
	if !found {
		return ""
	}
	h := sha256.New()
	h.Write(want[:])
	project(h, live.Object, fields)
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:15])
}

type digest [sha256.Size]byte

func digestOf(u *unstructured.Unstructured) (digest, error) {
	text, err := json.Marshal(u.Object) // with sorted keys
	return sha256.Sum256(text), err
}

// owned gives the fields that server-side apply has recorded as ours, in the
// form of FieldsV1: "f:name" for a field, "k:{…}" and "v:…" for items of a list,
// "." for the thing itself.
func owned(live *unstructured.Unstructured) (fields map[string]any, found bool) {
	return ownedBy(live, func(manager, operation, subresource string) bool {
		return manager == FieldManager && operation == string(metav1.ManagedFieldsOperationApply) && subresource == ""
	})
}

func ownedBy(live *unstructured.Unstructured, is func(manager, operation, subresource string) bool) (map[string]any, bool) {
	value, _, err := unstructured.NestedFieldNoCopy(live.Object, "metadata", "managedFields")
	entries, ok := value.([]any)
	if err != nil || !ok {
		return nil, false
	}
	for _, e := range entries {
		entry, ok := e.(map[string]any)
		if !ok {
			continue
		}
		word := func(key string) string { s, _ := entry[key].(string); return s }
		if is(word("manager"), word("operation"), word("subresource")) {
			fields, ok := entry["fieldsV1"].(map[string]any)
			return fields, ok
		}
	}
	return nil, false
}

// project hashes the part of value that fields name.
func project(h hash.Hash, value any, fields map[string]any) {
	if len(fields) == 0 {
		text, err := json.Marshal(value)
		if err != nil {
			text = fmt.Appendf(nil, "%#v", value) // what came as JSON goes as JSON
		}
		h.Write(text)
		h.Write([]byte{'\n'})
		return
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		h.Write([]byte(key))
		h.Write([]byte{' '})
		below, _ := fields[key].(map[string]any)
		part, found := value, true
		if key != "." {
			part, found = child(value, key)
		}
		switch {
		case !found:
			h.Write([]byte("absent\n"))
		case key == ".":
			h.Write([]byte("present\n"))
		default:
			project(h, part, below)
		}
	}
}

// child follows one step of FieldsV1.
func child(value any, step string) (any, bool) {
	kind, rest, _ := strings.Cut(step, ":")
	switch kind {
	case "f":
		m, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		v, ok := m[rest]
		return v, ok
	case "k", "v":
		items, ok := value.([]any)
		if i := itemOf(items, step); ok && i >= 0 {
			return items[i], true
		}
	}
	return nil, false
}

// itemOf finds the item of a list that a step of FieldsV1 names; -1 for none.
func itemOf(items []any, step string) int {
	kind, rest, _ := strings.Cut(step, ":")
	switch kind {
	case "k":
		var keys map[string]any
		if unmarshal(rest, &keys) == nil {
			return slices.IndexFunc(items, func(item any) bool { return matches(item, keys) })
		}
	case "v":
		var wanted any
		if unmarshal(rest, &wanted) == nil {
			return slices.IndexFunc(items, func(item any) bool { return same(item, wanted) })
		}
	}
	return -1
}

func matches(item any, keys map[string]any) bool {
	m, ok := item.(map[string]any)
	if !ok {
		return false
	}
	for k, v := range keys {
		if !same(m[k], v) {
			return false
		}
	}
	return true
}

// same compares scalars as their JSON does, so that 1 is 1 whatever Go calls it.
func same(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}

func unmarshal(text string, into any) error { return json.Unmarshal([]byte(text), into) }

// has reports whether a path of fields is among those of ours.
func has(fields map[string]any, path ...string) bool {
	for _, p := range path {
		next, ok := fields["f:"+p].(map[string]any)
		if !ok {
			return false
		}
		fields = next
	}
	return true
}

func apiVersion(group, version string) string {
	return schema.GroupVersion{Group: group, Version: version}.String()
}
