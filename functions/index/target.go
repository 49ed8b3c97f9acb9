package index

import (
	"fmt"
	"slices"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/functions/workload"
)

// Targets returns the objects that a reference of o may mean: those of the name in the namespace of
// o whose files are nearest, or those that had the name before kustomize changed it. An object of
// an earlier render does not count if this render generates it again.
func (x *Index) Targets(o *krm.Object, ref api.TargetRef) (found []ID) {
	k := Key{ref.Kind, o.Namespace, ref.Name}
	matches := func(e *Entry) bool {
		return (ref.APIVersion == "" || e.Group() == group(ref.APIVersion)) && !x.Outdated(e)
	}
	if found = x.Nearest(k, o.Origin.File, matches); len(found) > 0 {
		return found
	}
	for id, e := range x.Renamed(k, o) {
		if matches(e) {
			found = append(found, id)
		}
	}
	return found
}

// Outdated reports whether this render generates the object of an earlier one again.
func (x *Index) Outdated(old *Entry) bool {
	if !old.Generated || old.Made {
		return false
	}
	for _, e := range x.Named(old.Key) {
		if e.Made {
			return true
		}
	}
	return false
}

// Suggest returns a hint for a reference to an object that does not exist, or "" if the package has
// no similar object.
func (x *Index) Suggest(ref api.TargetRef, namespace string) string {
	var near []string
	for k, id := range x.first {
		e := &x.entries[id]
		switch {
		case k.Name == ref.Name && k.Kind == ref.Kind && k.Namespace != namespace:
			where := "namespace " + k.Namespace
			if k.Namespace == "" {
				where = "no namespace"
			}
			near = append(near, fmt.Sprintf("%s has it in %s: use the same namespace", e.Place(), where))
		case k.Name == ref.Name && k.Kind == ref.Kind:
			near = append(near,
				fmt.Sprintf("%s has it with apiVersion %s", e.Place(), e.APIVersion))
		case k.Name == ref.Name && workload.Is(k.Kind):
			near = append(near, fmt.Sprintf("%s is a %s of that name", e.Place(), k.Kind))
		}
	}
	if len(near) == 0 {
		return ""
	}
	slices.Sort(near)
	return near[0]
}

// Misspelt returns the name of the object in a namespace that a misspelt name probably means, or
// "".
func (x *Index) Misspelt(kind, namespace, name string) string {
	var names []string
	for k := range x.first {
		if k.Kind == kind && k.Namespace == namespace {
			names = append(names, k.Name)
		}
	}
	slices.Sort(names)
	return text.Nearest(name, names)
}
