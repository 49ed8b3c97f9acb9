package index

import (
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/workload"
)

// Builder fills an index.
type Builder struct {
	index Index
}

// NewBuilder prepares an index of a package that has about so many files.
func NewBuilder(files int) *Builder {
	return &Builder{index: Index{
		entries:    make([]Entry, 1, 1+files),
		first:      make(map[Key]ID, files),
		workloads:  make(map[string]int),
		namespaces: make(map[string][]*krm.Object),
		renamed:    make(map[Key][]renamed),
		broken:     make(map[Key]bool),
	}}
}

// Index returns what is known so far, and will know what is entered later.
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

// Rename adds the name that an object had before kustomize changed it, in the
// overlay that o is of.
func (b *Builder) Rename(before Key, id ID, o *krm.Object) {
	b.index.renamed[before] = append(b.index.renamed[before], renamed{id, Affixes(o)})
}

// Break notes that a custom resource could not be expanded.
func (b *Builder) Break(namespace, name string) { b.index.broken[Key{"", namespace, name}] = true }
