// Package resources reads the data of the console: from live objects of a cluster, one after the
// other, and from the schemas of tools; for programs, from isolated runs. Only Reader and Door
// query the cluster. Its functions for templates make untrusted text safe to show.
package resources

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/apply/fields"
)

// Drift is a field of an applied object that another manager set.
type Drift struct {
	Manager, Field, Value string
	At                    time.Time
}

// maxDrift is how many fields of an object are shown.
const maxDrift = 20

// DriftOf returns the fields outside of metadata and status that a person or program set by an
// update, in addition to what was applied. Kubernetes' own controllers, and writers of subresources
// such as scale, do not count.
func DriftOf(u *unstructured.Unstructured) (out []Drift) {
	if fields.Of(u, fields.Ours) == nil {
		return nil
	}
	for _, m := range u.GetManagedFields() {
		if len(out) == maxDrift {
			break
		}
		if m.Operation != "Update" || m.Subresource != "" ||
			strings.HasPrefix(m.Manager, "kube-") || m.FieldsV1 == nil {
			continue
		}
		if size := len(m.FieldsV1.GetRawBytes()); size > maxRecord {
			out = append(out, Drift{Manager: m.Manager,
				Field: fmt.Sprintf("more fields than are shown, %d KiB of names", size>>10)})
			continue
		}
		set := &fieldpath.Set{}
		if set.FromJSON(m.FieldsV1.GetRawReader()) != nil {
			continue
		}
		set.Leaves().Iterate(func(p fieldpath.Path) {
			first := p[0].FieldName
			if first == nil || *first == "metadata" || *first == "status" || len(out) == maxDrift {
				return
			}
			left := maxAddedName
			d := Drift{Manager: m.Manager, Field: clip(strings.TrimPrefix(p.String(), ".")),
				Value: Shown(fit(at(u.Object, p), &left))}
			if m.Time != nil {
				d.At = m.Time.Time
			}
			out = append(out, d)
		})
	}
	return out
}

// at returns the value at a path, or nil.
func at(v any, p fieldpath.Path) any {
	for _, e := range p {
		if e.FieldName != nil {
			m, _ := v.(map[string]any)
			v = m[*e.FieldName]
			continue
		}
		if e.Value != nil {
			return (*e.Value).Unstructured()
		}
		list, _ := v.([]any)
		i := fields.ItemOf(list, e)
		if e.Index != nil {
			i = *e.Index
		}
		if i < 0 || i >= len(list) {
			return nil
		}
		v = list[i]
	}
	return v
}

// Added is something that rendering added to a workload, or set in it.
type Added struct {
	What, Value, Was, By string
	// Text is the part of the object, as it is in the cluster.
	Text string
}

// Rendered reports whether an object records the changes of rendering.
func Rendered(u *unstructured.Unstructured) bool {
	return u.GetAnnotations()[keys.Injected] != "" || u.GetAnnotations()[keys.Changed] != ""
}

// AddedBy reads the changes of rendering from the annotations of a rendered object.
func AddedBy(u *unstructured.Unstructured) (out []Added) {
	template, found, _ := unstructured.NestedMap(u.Object, "spec", "template")
	if !found {
		template, _, _ = unstructured.NestedMap(u.Object, "spec", "jobTemplate", "spec", "template")
	}
	pod, _ := template["spec"].(map[string]any)
	meta, _ := template["metadata"].(map[string]any)
	if u.GetAnnotations()[keys.Injected] != "" {
		out = injectedBy(u.GetAnnotations()[keys.Injected], pod, meta)
	}
	if u.GetAnnotations()[keys.Changed] != "" {
		out = append(out, changedBy(u.GetAnnotations()[keys.Changed])...)
	}
	slices.SortStableFunc(out, func(a, b Added) int { return strings.Compare(a.What, b.What) })
	return out[:min(len(out), maxAdded)]
}

// readRecord decodes a record, unless it is larger than what rendering writes. The memory for
// decoding grows with the length, so the length is checked first.
func readRecord(text, by string, into any) (tooLarge []Added, ok bool) {
	if len(text) > maxRecord {
		return []Added{{What: "record",
			Value: fmt.Sprintf("it has %d KiB, and a record of more than %d KiB is not shown",
				len(text)>>10, maxRecord>>10), By: by}}, false
	}
	return nil, json.Unmarshal([]byte(text), into) == nil
}

// injectedBy returns the parts of a pod that inject's record names, at most maxAdded.
func injectedBy(text string, pod, meta map[string]any) (out []Added) {
	var injected struct {
		InitContainers, Volumes, PodAnnotations, Mounts []string
		Env, Paths                                      map[string][]string
		Fields                                          []struct{ At, Value, Was string }
	}
	out, ok := readRecord(text, "inject", &injected)
	if !ok {
		return out
	}
	add := func(what string, names []string, part func(name string) any) {
		for _, name := range names[:min(len(names), maxAdded-len(out))] {
			out = append(out, Added{What: clip(what), Value: clip(name), By: "inject",
				Text: yamlOf(part(name))})
		}
	}
	named := func(list string) func(name string) any {
		return func(name string) any { return item(pod[list], "name", name) }
	}
	add("init container", injected.InitContainers, named("initContainers"))
	add("volume", injected.Volumes, named("volumes"))
	annotations, _ := meta["annotations"].(map[string]any)
	add("annotation of pods", injected.PodAnnotations,
		func(name string) any { return annotations[name] })
	add("mount of the trace's configuration", injected.Mounts, func(string) any { return nil })
	for _, part := range []struct {
		what, list, key string
		of              map[string][]string
	}{
		{"variable", "env", "name", injected.Env},
		{"mount", "volumeMounts", "mountPath", injected.Paths},
	} {
		for _, container := range slices.Sorted(maps.Keys(part.of)) {
			c, _ := item(pod["containers"], "name", container).(map[string]any)
			add(part.what+" of container "+container, part.of[container],
				func(name string) any { return item(c[part.list], part.key, name) })
		}
	}
	for _, f := range injected.Fields[:min(len(injected.Fields), maxAdded-len(out))] {
		out = append(out, Added{What: clip(f.At), Value: f.Value, Was: f.Was, By: "inject"})
	}
	return out
}

// changedBy returns the fields that the record of the other functions names, at most maxAdded.
func changedBy(text string) (out []Added) {
	var changed struct {
		Changes []struct {
			At  []string
			Set []struct{ Key, By, Value, Was string }
		}
	}
	out, ok := readRecord(text, "", &changed)
	if !ok {
		return out
	}
	for _, c := range changed.Changes {
		at := clip(strings.Join(c.At, "."))
		for _, s := range c.Set[:min(len(c.Set), maxAdded-len(out))] {
			what := clip(s.Key)
			if at != "" {
				what = at + "." + what
			}
			out = append(out, Added{What: what, Value: strings.Trim(s.Value, `"`), Was: s.Was, By: s.By})
		}
	}
	return out
}

// Bounds of the data that is read and shown: bytes of a record, parts that rendering added to an
// object, and bytes of each and of its name.
const (
	maxRecord    = 64 << 10
	maxAdded     = 200
	maxAddedText = 8 << 10
	maxAddedName = 1 << 10
)

// clip shortens the name of a part.
func clip(name string) string { return text.Cut(name, maxAddedName) }

// item returns an item of a list of mappings, by a key that its items have; nil if there is none.
func item(list any, key, value string) any {
	all, _ := list.([]any)
	for _, one := range all {
		if m, ok := one.(map[string]any); ok && m[key] == value {
			return m
		}
	}
	return nil
}

// yamlOf returns a part of an object as YAML, as much as is shown of it; "" for none.
func yamlOf(part any) string {
	if part == nil {
		return ""
	}
	left := maxAddedText
	text, err := yaml.Marshal(fit(part, &left))
	if err != nil {
		return ""
	}
	if len(text) > maxAddedText {
		text = append(bytes.ToValidUTF8(text[:maxAddedText], nil), "…"...)
	}
	return strings.TrimSuffix(string(text), "\n")
}

// fit returns as much of a part as fits into left bytes, so that printing it takes no more memory
// than what is shown.
func fit(part any, left *int) any {
	const least = 4 // bytes of a value and its separators
	*left -= least
	switch v := part.(type) {
	case string:
		if len(v) > max(0, *left) {
			v = strings.ToValidUTF8(v[:max(0, *left)], "") + "…"
		}
		*left -= len(v)
		return v
	case []any:
		out := []any{}
		for _, one := range v {
			if *left < 0 {
				return append(out, "…")
			}
			out = append(out, fit(one, left))
		}
		return out
	case map[string]any:
		if len(v) > maxAddedText/least {
			return "…"
		}
		out := map[string]any{}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if *left -= len(key); *left < 0 {
				out["…"] = "…"
				return out
			}
			out[key] = fit(v[key], left)
		}
		return out
	}
	return part
}
