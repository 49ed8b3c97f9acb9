package agent

import (
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// lookup follows keys through mappings, nil where there is nothing.
func lookup(n *yaml.RNode, keys ...string) *yaml.RNode {
	for _, key := range keys {
		if n == nil || n.YNode().Kind != yaml.MappingNode {
			return nil
		}
		field := n.Field(key)
		if field == nil || field.Value == nil {
			return nil
		}
		n = field.Value
	}
	return n
}

// text is a scalar's.
func textOf(n *yaml.RNode, keys ...string) string {
	n = lookup(n, keys...)
	if n == nil || n.YNode().Kind != yaml.ScalarNode || n.YNode().Tag == yaml.NodeTagNull {
		return ""
	}
	return n.YNode().Value
}

// elements are the items of a list.
func elements(n *yaml.RNode, keys ...string) (items []*yaml.RNode) {
	n = lookup(n, keys...)
	if n == nil || n.YNode().Kind != yaml.SequenceNode {
		return nil
	}
	for _, c := range n.YNode().Content {
		items = append(items, yaml.NewRNode(c))
	}
	return items
}

func fields(n *yaml.RNode) (names []string) {
	for i := 0; i+1 < len(n.YNode().Content); i += 2 {
		names = append(names, n.YNode().Content[i].Value)
	}
	return names
}

// set sets a field of a mapping to a string.
func set(n *yaml.RNode, key, value string) {
	scalar := &yaml.Node{Kind: yaml.ScalarNode, Tag: yaml.NodeTagString, Value: value}
	put(n, key, scalar)
}

func put(n *yaml.RNode, key string, value *yaml.Node) {
	if field := n.Field(key); field != nil {
		value.LineComment = field.Value.YNode().LineComment
		*field.Value.YNode() = *value
		return
	}
	n.YNode().Content = append(n.YNode().Content,
		&yaml.Node{Kind: yaml.ScalarNode, Tag: yaml.NodeTagString, Value: key}, value)
}

// ensure returns the mapping in a field, which it makes where there is none.
func ensure(n *yaml.RNode, key string) *yaml.RNode {
	if have := lookup(n, key); have != nil && have.YNode().Kind == yaml.MappingNode {
		return have
	}
	put(n, key, &yaml.Node{Kind: yaml.MappingNode})
	return lookup(n, key)
}

// pairs of a mapping.
func pairs(n *yaml.RNode) (all [][]*yaml.Node) {
	return slices.Collect(slices.Chunk(n.YNode().Content, 2))
}

func sortFields(n *yaml.RNode) {
	all := pairs(n)
	slices.SortStableFunc(all, func(a, b []*yaml.Node) int { return strings.Compare(a[0].Value, b[0].Value) })
	n.YNode().Content = slices.Concat(all...)
}

// first moves a field to the beginning.
func first(n *yaml.RNode, key string) {
	all := pairs(n)
	slices.SortStableFunc(all, func(a, b []*yaml.Node) int {
		switch {
		case a[0].Value == key && b[0].Value != key:
			return -1
		case b[0].Value == key && a[0].Value != key:
			return 1
		}
		return 0
	})
	n.YNode().Content = slices.Concat(all...)
}

// extend appends an item to a list, which it makes where there is none.
func extend(n *yaml.RNode, key string, item any) {
	if len(elements(n, key)) == 0 {
		put(n, key, &yaml.Node{Kind: yaml.SequenceNode})
	}
	list := lookup(n, key).YNode()
	list.Content = append(list.Content, encode(item))
}

// encode makes a node of a value whose fields have yaml tags.
func encode(value any) *yaml.Node {
	var n yaml.Node
	if err := n.Encode(value); err != nil {
		panic("agent: " + err.Error()) // structs of strings and numbers always encode
	}
	return &n
}
