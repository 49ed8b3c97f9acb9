package krm

import (
	"bytes"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// authorLine is the line of a value's entry in what the author wrote of an
// object that kyaml has rewritten: of the deepest value on the way to it that
// the author wrote at that place, since aliases and merge keys bring in others.
func (n Node) authorLine() int {
	o := n.o
	plain := bytes.ReplaceAll(o.author, []byte("\r\n"), []byte("\n"))
	if o.item {
		plain = bytes.Clone(plain)
		plain[bytes.IndexByte(plain, '-')] = ' '
	}
	var document yaml.Node
	if yaml.Unmarshal(plain, &document) != nil || len(document.Content) == 0 {
		return o.Origin.Line
	}
	at, line := document.Content[0], 1
	for _, step := range stepsTo(n) {
		entry, value := step.in(at)
		if entry == nil {
			break
		}
		at, line = value, entry.Line
	}
	return o.Origin.Line + line - 1
}

// step leads from a collection to one of its entries.
type step struct {
	key   string
	index int // of a sequence's item, -1 in a mapping
}

// stepsTo leads from the root to a value.
func stepsTo(n Node) (steps []step) {
	if n.i == 0 {
		return nil
	}
	parent := Node{n.o, n.node().parent, true}
	if parent.IsList() {
		return append(stepsTo(parent), step{"", indexOf(n)})
	}
	return append(stepsTo(parent), step{n.Key(), -1})
}

// in returns the entry's key, or the item itself, and its value.
func (s step) in(collection *yaml.Node) (entry, value *yaml.Node) {
	switch {
	case collection.Kind == yaml.SequenceNode && s.index >= 0 && s.index < len(collection.Content):
		return collection.Content[s.index], collection.Content[s.index]
	case collection.Kind == yaml.MappingNode && s.index < 0:
		for i := 0; i+1 < len(collection.Content); i += 2 {
			if collection.Content[i].Value == s.key {
				return collection.Content[i], collection.Content[i+1]
			}
		}
	}
	return nil, nil
}
