// Package facts reads what pages show from live objects of a cluster and from the schemas of
// tools. It is pure.
package facts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/apply/fields"
)

// Drift is a field of an applied object that somebody else set.
type Drift struct {
	Manager, Field, Value string
	At                    time.Time
}

// maxDrift fields of an object are shown.
const maxDrift = 20

// DriftOf gives the fields outside of metadata and status that a person or program set by
// an update, beside what was applied. Kubernetes' own controllers, and what writes
// subresources such as scale, are left out.
func DriftOf(u *unstructured.Unstructured) (out []Drift) {
	if fields.Of(u, fields.Ours) == nil {
		return nil
	}
	for _, m := range u.GetManagedFields() {
		if m.Operation != "Update" || m.Subresource != "" || strings.HasPrefix(m.Manager, "kube-") || m.FieldsV1 == nil {
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
			d := Drift{Manager: m.Manager, Field: strings.TrimPrefix(p.String(), "."), Value: Shown(at(u.Object, p))}
			if m.Time != nil {
				d.At = m.Time.Time
			}
			out = append(out, d)
		})
	}
	return out
}

// at is the value at a path; nil where there is none.
func at(v any, p fieldpath.Path) any {
	for _, e := range p {
		switch {
		case e.FieldName != nil:
			m, _ := v.(map[string]any)
			v = m[*e.FieldName]
		case e.Key != nil:
			list, _ := v.([]any)
			i := slices.IndexFunc(list, func(one any) bool { return hasKey(one, *e.Key) })
			if i < 0 {
				return nil
			}
			v = list[i]
		case e.Index != nil:
			list, _ := v.([]any)
			if *e.Index < 0 || *e.Index >= len(list) {
				return nil
			}
			v = list[*e.Index]
		case e.Value != nil:
			return (*e.Value).Unstructured()
		}
	}
	return v
}

func hasKey(one any, key value.FieldList) bool {
	m, ok := one.(map[string]any)
	return ok && !slices.ContainsFunc(key, func(f value.Field) bool { return fmt.Sprint(m[f.Name]) != fmt.Sprint(f.Value.Unstructured()) })
}

// Added is something that rendering added to a workload, or set in it.
type Added struct {
	What, Value, Was, By string
	// Text is the part of the object, as it is in the cluster.
	Text string
}

// Rendered reports whether an object says what rendering did to it.
func Rendered(u *unstructured.Unstructured) bool {
	return u.GetAnnotations()[keys.Injected] != "" || u.GetAnnotations()[keys.Changed] != ""
}

// AddedBy reads from the annotations of a rendered object what rendering did to it.
func AddedBy(u *unstructured.Unstructured) (out []Added) {
	template, found, _ := unstructured.NestedMap(u.Object, "spec", "template")
	if !found {
		template, _, _ = unstructured.NestedMap(u.Object, "spec", "jobTemplate", "spec", "template")
	}
	pod, _ := template["spec"].(map[string]any)
	meta, _ := template["metadata"].(map[string]any)
	var injected struct {
		InitContainers, Containers, Volumes, PodAnnotations, Mounts []string
		Env, Paths                                                  map[string][]string
		Fields                                                      []struct{ At, Value, Was string }
	}
	if text := u.GetAnnotations()[keys.Injected]; text != "" && json.Unmarshal([]byte(text), &injected) == nil {
		add := func(what, name string, part any) {
			out = append(out, Added{What: what, Value: name, By: "inject", Text: yamlOf(part)})
		}
		for _, part := range []struct {
			what, list string
			names      []string
		}{
			{"init container", "initContainers", injected.InitContainers}, {"container", "containers", injected.Containers}, {"volume", "volumes", injected.Volumes},
		} {
			for _, name := range part.names {
				add(part.what, name, item(pod[part.list], "name", name))
			}
		}
		for _, name := range injected.PodAnnotations {
			annotations, _ := meta["annotations"].(map[string]any)
			add("annotation of pods", name, annotations[name])
		}
		for _, container := range injected.Mounts {
			add("mount of the trace's configuration", container, nil)
		}
		for _, part := range []struct {
			what, list, key string
			of              map[string][]string
		}{
			{"variable", "env", "name", injected.Env}, {"mount", "volumeMounts", "mountPath", injected.Paths},
		} {
			for container, names := range part.of {
				c, _ := item(pod["containers"], "name", container).(map[string]any)
				for _, name := range names {
					add(part.what+" of container "+container, name, item(c[part.list], part.key, name))
				}
			}
		}
		for _, f := range injected.Fields {
			out = append(out, Added{What: f.At, Value: f.Value, Was: f.Was, By: "inject"})
		}
	}
	var changed struct {
		Changes []struct {
			At  []string
			Set []struct{ Key, By, Value, Was string }
		}
	}
	if text := u.GetAnnotations()[keys.Changed]; text != "" && json.Unmarshal([]byte(text), &changed) == nil {
		for _, c := range changed.Changes {
			for _, s := range c.Set {
				out = append(out, Added{What: strings.Join(append(slices.Clone(c.At), s.Key), "."), Value: strings.Trim(s.Value, `"`), Was: s.Was, By: s.By})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Added) int { return strings.Compare(a.What, b.What) })
	return out[:min(len(out), maxAdded)]
}

// Bounds of what rendering added that are shown: parts of an object, and bytes of each.
const (
	maxAdded     = 200
	maxAddedText = 8 << 10
)

// item of a list of mappings, by a key that its items have; nil where there is none.
func item(list any, key, value string) any {
	all, _ := list.([]any)
	for _, one := range all {
		if m, ok := one.(map[string]any); ok && m[key] == value {
			return m
		}
	}
	return nil
}

// yamlOf a part of an object; "" for none.
func yamlOf(part any) string {
	if part == nil {
		return ""
	}
	text, err := yaml.Marshal(part)
	if err != nil {
		return ""
	}
	if len(text) > maxAddedText {
		text = append(bytes.ToValidUTF8(text[:maxAddedText], nil), "…"...)
	}
	return strings.TrimSuffix(string(text), "\n")
}
