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
		if set.FromJSON(bytes.NewReader(m.FieldsV1.GetRawBytes())) != nil {
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
type Added struct{ What, Value, Was, By string }

// AddedBy reads from the annotations of a rendered object what rendering did to it.
func AddedBy(u *unstructured.Unstructured) (out []Added) {
	var injected struct {
		InitContainers, Containers, Volumes, PodAnnotations []string
		Env                                                 map[string][]string
		Fields                                              []struct{ At, Value, Was string }
	}
	if text := u.GetAnnotations()[keys.Injected]; text != "" && json.Unmarshal([]byte(text), &injected) == nil {
		for _, part := range []struct {
			what  string
			names []string
		}{
			{"init containers", injected.InitContainers}, {"containers", injected.Containers}, {"volumes", injected.Volumes}, {"annotations of pods", injected.PodAnnotations},
		} {
			if len(part.names) > 0 {
				out = append(out, Added{What: part.what, Value: strings.Join(part.names, ", "), By: "inject"})
			}
		}
		for container, names := range injected.Env {
			out = append(out, Added{What: "variables of container " + container, Value: strings.Join(names, ", "), By: "inject"})
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
	return out
}
