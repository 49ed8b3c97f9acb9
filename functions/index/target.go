package index

import (
	"fmt"
	"slices"
	"sync"

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

// similar are the keys of an index for suggestions, which few packages need.
type similar struct {
	mu    sync.Mutex
	known int              // how many entries have been read
	named map[string][]Key // by name
	names map[Key][]string // by kind and namespace
}

// maxNames is how many names are compared with a misspelt one: a package may misspell each of its
// names.
const maxNames = 1000

// keys returns the keys with a name, and the names of a kind in a namespace.
func (x *Index) keys(kind, namespace, name string) (named []Key, names []string) {
	s := &x.similar
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; s.known < len(x.entries); s.known++ {
		if e := &x.entries[s.known]; e.next == 0 && s.known > 0 { // the first of its key
			of := Key{Kind: e.Kind, Namespace: e.Namespace}
			s.named[e.Name], s.names[of] = append(s.named[e.Name], e.Key), append(s.names[of], e.Name)
		}
	}
	return s.named[name], s.names[Key{Kind: kind, Namespace: namespace}]
}

// Suggest returns a hint for a reference to an object that does not exist, or "" if the package has
// no similar object.
func (x *Index) Suggest(ref api.TargetRef, namespace string) string {
	var near []string
	named, _ := x.keys(ref.Kind, namespace, ref.Name)
	for _, k := range named[:min(len(named), maxNames)] {
		e := &x.entries[x.first[k]]
		switch {
		case k.Kind == ref.Kind && k.Namespace != namespace:
			where := "namespace " + k.Namespace
			if k.Namespace == "" {
				where = "no namespace"
			}
			near = append(near, fmt.Sprintf("%s has it in %s: use the same namespace", e.Place(), where))
		case k.Kind == ref.Kind:
			near = append(near,
				fmt.Sprintf("%s has it with apiVersion %s", e.Place(), e.APIVersion))
		case workload.Is(k.Kind):
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
	_, names := x.keys(kind, namespace, name)
	return text.Nearest(name, slices.Sorted(slices.Values(names[:min(len(names), maxNames)])))
}
