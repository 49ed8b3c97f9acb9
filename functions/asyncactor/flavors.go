package asyncactor

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
)

// A flavor is a part of the spec of actors that a platform has named: the data of an
// EnvironmentConfig of Crossplane, which is cluster-scoped.
const (
	flavorGroup = "apiextensions.crossplane.io"
	flavorKind  = "EnvironmentConfig"
	maxFlavors  = 8
)

// flavorVersions are the versions of EnvironmentConfigs, which all have data.
var flavorVersions = []string{"v1beta1", "v1alpha1", "v1"}

// notOfFlavors are the fields that Asya ignores in flavors.
var notOfFlavors = []string{"actor", "transport", "flavors"}

type flavor struct {
	api.TypeMeta   `json:",inline"`
	api.ObjectMeta `json:"metadata,omitempty"`

	Data api.AsyncActorSpec `json:"data"`
}

// applyFlavors completes the spec of the actor with its flavors. Between flavors, lists are
// joined, mappings are merged, and a value that two of them set is an error. A field of the actor
// overrides that of its flavors as a whole. ok is false if a flavor is missing or invalid.
func applyFlavors(e *expander) (ok bool) {
	names := e.actor.Spec.Flavors
	if len(names) == 0 {
		return true
	}
	if e.FailIf(len(names) > maxFlavors, "flavor", "spec.flavors", "merge some of them",
		"an actor has at most %d flavors, and this one %d", maxFlavors, len(names)) {
		return false
	}
	ok = true
	m := merger{spec: map[string]any{}, from: map[string]string{}}
	for i, name := range names {
		at := fmt.Sprintf("spec.flavors[%d]", i)
		if e.FailIf(slices.Contains(names[:i], name), "flavor", at, "remove one",
			"%s is there twice", name) {
			continue
		}
		data, read := readFlavor(e, name, at)
		if !read {
			ok = false
			continue
		}
		m.flavor = name
		for _, path := range m.merge(data, m.spec, "") {
			e.Fail("flavor", at, "take it out of one of them", "the flavors %s and %s both set %s",
				m.from[path], name, path)
		}
	}
	author, err := e.Value()
	if !ok || err != nil || e.Failed() {
		return false // reported
	}
	object, _ := author.(map[string]any)
	written, _ := object["spec"].(map[string]any)
	for field, value := range written {
		if value != nil {
			m.spec[field] = value
			maps.DeleteFunc(m.from,
				func(path, _ string) bool {
					return path == field || strings.HasPrefix(path, field+".")
				})
		}
	}
	data, err := json.Marshal(m.spec)
	spec := api.AsyncActorSpec{}
	if err == nil {
		err = json.Unmarshal(data, &spec)
	}
	if e.FailIf(err != nil, "flavor", "spec.flavors", "",
		"the flavors do not give a spec: %v", err) {
		return false
	}
	e.actor.Spec, e.merged, e.from = spec, m.spec, m.from
	return true
}

// readFlavor returns the data of a flavor. Its errors are reported for the first actor that has it.
func readFlavor(e *expander, name, at string) (data map[string]any, ok bool) {
	o := e.Find(flavorGroup, flavorKind, "", name)
	if o == nil && e.Namespace != "" { // kustomize adds a namespace to kinds that it does not know
		o = e.Find(flavorGroup, flavorKind, e.Namespace, name)
	}
	if e.FailIf(o == nil, "no-flavor", at, "correct the name, or add it to the package",
		"the package has no %s %s", flavorKind, name) {
		return nil, false
	}
	var f flavor
	findings := o.Decode("async-actor/flavor", &f)
	value, err := o.Value()
	whole, _ := value.(map[string]any)
	data, _ = whole["data"].(map[string]any)
	for _, field := range notOfFlavors {
		if _, set := data[field]; set {
			findings = append(findings,
				o.Finding(finding.Warning, "async-actor/flavor", o.At("data."+field),
					field+" has no effect in a flavor", "remove it: the actor says it"))
			delete(data, field)
		}
	}
	if !e.judged[o] {
		e.judged[o] = true
		e.Findings = append(e.Findings, findings...)
	}
	return data, err == nil && !finding.Failed(findings)
}

type merger struct {
	spec   map[string]any
	from   map[string]string // the first flavor, by the path of a field
	flavor string            // the one that is merged
}

// merge merges fields into others, and returns the paths of conflicts.
func (m *merger) merge(fields, into map[string]any, below string) (conflicts []string) {
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		path := below + key
		have, taken := into[key]
		if !taken {
			into[key] = fields[key]
			m.note(path, fields[key])
			continue
		}
		switch value := fields[key].(type) {
		case map[string]any:
			if have, ok := have.(map[string]any); ok {
				conflicts = append(conflicts, m.merge(value, have, path+".")...)
				continue
			}
		case []any:
			if have, ok := have.([]any); ok {
				into[key] = slices.Concat(have, value)
				continue
			}
		}
		conflicts = append(conflicts, path)
	}
	return conflicts
}

// note records the flavor of a value, and of all values below it.
func (m *merger) note(path string, value any) {
	m.from[path] = m.flavor
	if fields, ok := value.(map[string]any); ok {
		for key, value := range fields {
			m.note(path+"."+key, value)
		}
	}
}

// has reports whether the actor or one of its flavors has a field such as
// spec.scaling.maxReplicaCount.
func (e *expander) has(field string) bool {
	if e.merged == nil {
		return e.Has(field)
	}
	var value any = map[string]any{"spec": e.merged}
	for key := range strings.SplitSeq(field, ".") {
		fields, _ := value.(map[string]any)
		if value = fields[key]; value == nil {
			return false
		}
	}
	return true
}

// blame names the flavor of a field, or the first of a list's; "" is a field of the actor.
func (e *expander) blame(field string) string {
	path, _, _ := strings.Cut(strings.TrimPrefix(field, "spec."), "[")
	for path != "" {
		if name := e.from[path]; name != "" {
			return ", by the flavor " + name
		}
		end := max(strings.LastIndexByte(path, '.'), 0)
		path = path[:end]
	}
	return ""
}
