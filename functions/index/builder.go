package index

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/krm"
)

// Builder fills an index.
type Builder struct {
	index   Index
	scratch [2][]byte
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

// Index gives what is known so far, and will know what is entered later.
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
	case IsWorkload(e.Kind):
		x.workloads[e.Kind]++
	}
	return id
}

// EnterNamespace adds a Namespace, which outlives the text of its file.
func (b *Builder) EnterNamespace(ns *krm.Object) {
	b.index.namespaces[ns.Name] = append(b.index.namespaces[ns.Name], ns)
}

// Rename adds the name that an object had before kustomize changed it, in the
// overlay that o is of.
func (b *Builder) Rename(before Key, id ID, o *krm.Object) {
	b.index.renamed[before] = append(b.index.renamed[before], renamed{id, Affixes(o)})
}

// Break notes that a custom resource could not be expanded.
func (b *Builder) Break(namespace, name string) { b.index.broken[Key{"", namespace, name}] = true }

// Facts are the objects of a file, as a render remembers them for the next one.
type Facts struct {
	// Names are the objects, and Lines their places.
	Names, Lines string
}

// Mark is how many objects are known.
func (b *Builder) Mark() int { return len(b.index.entries) }

// FactsSince gives the objects that were entered after a mark. all is false
// where their names cannot be kept.
func (b *Builder) FactsSince(mark int) (facts Facts, all bool) {
	names, lines := b.scratch[0][:0], b.scratch[1][:0]
	entries := b.index.entries[mark:]
	for i := range entries {
		e := &entries[i]
		for _, field := range [...]string{e.APIVersion, e.Kind, e.Namespace, e.Name} {
			names = append(append(names, field...), '\x1f')
		}
		names = append(strconv.AppendBool(names, e.Generated), '\x1e')
		lines = append(strconv.AppendInt(lines, int64(e.Line), 10), ' ')
	}
	b.scratch = [...][]byte{names, lines}
	all = !bytes.ContainsAny(names, "\t\n") && bytes.Count(names, []byte{'\x1e'}) == len(entries)
	return Facts{string(names), string(lines)}, all
}

// Restore enters the objects of a file that is not read again.
func (b *Builder) Restore(file string, facts Facts) {
	lines := facts.Lines
	for names := facts.Names; names != ""; {
		var name, line string
		name, names, _ = strings.Cut(names, "\x1e")
		line, lines, _ = strings.Cut(lines, " ")
		var fields [5]string
		for i := range fields {
			fields[i], name, _ = strings.Cut(name, "\x1f")
		}
		at, _ := strconv.Atoi(line)
		b.Enter(Entry{Key: Key{fields[1], fields[2], fields[3]}, APIVersion: fields[0], File: file, Line: int32(at), Generated: fields[4] == "true"})
	}
}
