// Package index records the contents of a package of manifests: its objects by name, its
// Namespaces, and the names that kustomize has changed. A Builder fills an Index in the first pass;
// functions get the Index read-only.
package index

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/workload"
)

// Key is the name of an object in the package.
type Key struct{ Kind, Namespace, Name string }

// KeyOf returns the key of a reference.
func KeyOf(r finding.Ref) Key { return Key{r.Kind, r.Namespace, r.Name} }

// ID is the number of an entry. The zero ID is not an entry.
type ID int32

// Entry is one object of the package.
type Entry struct {
	Key
	APIVersion, File string
	Line             int32
	// Generated says that an earlier render wrote the object, or that this render generates it.
	Generated bool
	// Made says that this render generates the object from a custom resource.
	Made bool

	next ID // the next entry of the same key
}

// Group returns the API group of the object, v1 for the core group.
func (e *Entry) Group() string { return group(e.APIVersion) }

func group(apiVersion string) string {
	group, _, _ := strings.Cut(apiVersion, "/")
	return group
}

// Ref returns the reference to the object.
func (e *Entry) Ref() finding.Ref {
	return finding.Ref{APIVersion: e.APIVersion, Kind: e.Kind, Namespace: e.Namespace, Name: e.Name}
}

// Place returns "file:line".
func (e *Entry) Place() string { return fmt.Sprintf("%s:%d", e.File, e.Line) }

// renamed is an object whose name kustomize has changed since.
type renamed struct {
	id      ID
	affixes string
}

// Index records the contents of a package.
type Index struct {
	entries    []Entry // entries[0] is unused
	first      map[Key]ID
	workloads  map[string]int // the number of workloads of each kind
	configMaps int            // the number of authored ones
	namespaces map[string][]*krm.Object
	renamed    map[Key][]renamed
	broken     map[Key]bool // by namespace and name only
	similar    similar
}

// Has reports whether the package has an object of the key.
func (x *Index) Has(k Key) bool { return x.first[k] != 0 }

// Entry returns an entry, which must not be changed.
func (x *Index) Entry(id ID) *Entry { return &x.entries[id] }

// Named returns the entries of a key, the one that was entered last first.
func (x *Index) Named(k Key) iter.Seq2[ID, *Entry] {
	return func(yield func(ID, *Entry) bool) {
		for id := x.first[k]; id != 0; id = x.entries[id].next {
			if !yield(id, &x.entries[id]) {
				return
			}
		}
	}
}

// Find returns the entry of an object by its name and place.
func (x *Index) Find(o *krm.Object) ID {
	for id := x.first[KeyOf(o.Ref)]; id != 0; id = x.entries[id].next {
		if e := &x.entries[id]; int(e.Line) == o.Origin.Line && e.File == o.Origin.File {
			return id
		}
	}
	return 0
}

// Nearest returns the entries of a key that share the longest path with a file. matches filters
// them; nil accepts all.
func (x *Index) Nearest(k Key, file string, matches func(*Entry) bool) (found []ID) {
	best := -1
	for id, e := range x.Named(k) {
		if matches != nil && !matches(e) {
			continue
		}
		depth := SharedFolders(e.File, file)
		if depth > best {
			best, found = depth, found[:0]
		}
		if depth == best {
			found = append(found, id)
		}
	}
	slices.Sort(found)
	return found
}

// Renamed returns the entries that had the key before kustomize changed their names in the overlay
// of o.
func (x *Index) Renamed(k Key, o *krm.Object) iter.Seq2[ID, *Entry] {
	return func(yield func(ID, *Entry) bool) {
		for _, r := range x.renamed[k] {
			if r.affixes == Affixes(o) && !yield(r.id, &x.entries[r.id]) {
				return
			}
		}
	}
}

// Authored returns the place, "file:line", of an authored object with a key that a generated one
// needs, or of the one nearest to file if there are several.
func (x *Index) Authored(k Key, file string) (place string, found bool) {
	for _, id := range x.Nearest(k, file, func(e *Entry) bool { return !e.Generated }) {
		return x.entries[id].Place(), true
	}
	return "", false
}

// HasAuthoredConfigMaps reports whether an author wrote any ConfigMap.
func (x *Index) HasAuthoredConfigMaps() bool { return x.configMaps > 0 }

// Broken reports whether the custom resource of a name could not be expanded, so that the objects
// that it generates are missing.
func (x *Index) Broken(namespace, name string) bool { return x.broken[Key{"", namespace, name}] }

// Namespace returns the Namespace of an object, from the nearest file, or nil. An object without a
// namespace is in default.
func (x *Index) Namespace(o *krm.Object) (nearest *krm.Object) {
	best := -1
	for _, ns := range x.namespaces[finding.Home(o.Namespace)] {
		if depth := SharedFolders(ns.Origin.File, o.Origin.File); depth > best {
			best, nearest = depth, ns
		}
	}
	return nearest
}

// Namespaces returns all Namespaces of the package, in no particular order.
func (x *Index) Namespaces() iter.Seq[*krm.Object] {
	return slices.Values(slices.Concat(slices.Collect(maps.Values(x.namespaces))...))
}

// All returns all entries.
func (x *Index) All() iter.Seq2[ID, *Entry] {
	return func(yield func(ID, *Entry) bool) {
		for id := 1; id < len(x.entries); id++ {
			if !yield(ID(id), &x.entries[id]) {
				return
			}
		}
	}
}

// Shares reports whether another workload may have the namespace and name of an entry.
func (x *Index) Shares(id ID) bool {
	e := &x.entries[id]
	if e.next != 0 || x.first[e.Key] != id {
		return true
	}
	for kind := range x.workloads {
		if kind != e.Kind && x.first[Key{kind, e.Namespace, e.Name}] != 0 {
			return true
		}
	}
	return false
}

// WorkloadKinds returns the kinds of workloads that the package has.
func (x *Index) WorkloadKinds() iter.Seq[string] { return maps.Keys(x.workloads) }

// SharedFolders returns the number of folders that two files have in common. The root counts only
// for two files in it.
func SharedFolders(a, b string) (depth int) {
	i := 0
	for ; i < len(a) && i < len(b) && a[i] == b[i]; i++ {
		if a[i] == '/' {
			depth++
		}
	}
	if depth == 0 && strings.IndexByte(a[i:], '/') < 0 && strings.IndexByte(b[i:], '/') < 0 {
		return 1
	}
	return depth
}

// PreviousNames returns the names of an item before kustomize changed them. kustomize updates
// references only after its transformers, and Armature is one.
func PreviousNames(o *krm.Object) []string {
	names, ok := o.Annotation("internal.config.kubernetes.io/previousNames")
	if !ok || names == "" {
		return nil
	}
	list := strings.Split(names, ",")
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(name string) bool { return name == o.Name })
}

// Affixes distinguishes the results of two overlays of one base in the same way as kustomize.
func Affixes(o *krm.Object) string {
	prefixes, _ := o.Annotation("internal.config.kubernetes.io/prefixes")
	suffixes, _ := o.Annotation("internal.config.kubernetes.io/suffixes")
	return prefixes + "/" + suffixes
}

// Builder fills an index.
type Builder struct {
	index Index
}

// NewBuilder returns a builder for a package of about the given number of files.
func NewBuilder(files int) *Builder {
	return &Builder{index: Index{
		entries:    make([]Entry, 1, 1+files),
		first:      make(map[Key]ID, files),
		workloads:  make(map[string]int),
		namespaces: make(map[string][]*krm.Object),
		renamed:    make(map[Key][]renamed),
		broken:     make(map[Key]bool),
		similar:    similar{named: make(map[string][]Key), names: make(map[Key][]string)},
	}}
}

// Index returns the index, which later calls of the builder still extend.
func (b *Builder) Index() *Index { return &b.index }

// Enter adds an object.
func (b *Builder) Enter(e Entry) ID {
	x := &b.index
	id := ID(len(x.entries))
	e.next = x.first[e.Key]
	x.first[e.Key] = id
	x.entries = append(x.entries, e)
	switch {
	case e.Kind == "ConfigMap" && !e.Generated:
		x.configMaps++
	case workload.Is(e.Kind):
		x.workloads[e.Kind]++
	}
	return id
}

// EnterNamespace adds a Namespace, which outlives the text of its file.
func (b *Builder) EnterNamespace(ns *krm.Object) {
	name := finding.Home(ns.Name)
	b.index.namespaces[name] = append(b.index.namespaces[name], ns)
}

// Rename adds the name of an object before kustomize changed it, in the overlay of o.
func (b *Builder) Rename(before Key, id ID, o *krm.Object) {
	b.index.renamed[before] = append(b.index.renamed[before], renamed{id, Affixes(o)})
}

// Break notes that a custom resource could not be expanded.
func (b *Builder) Break(namespace, name string) { b.index.broken[Key{"", namespace, name}] = true }
