// Package node reads and writes YAML trees, for functions that expand custom resources.
package node

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// Fields is a mapping in the order in which it is written.
type Fields []Field

// Field is a key with its value.
type Field struct {
	Key   string
	Value any
}

// Map returns fields from alternating keys and values. It omits values that are nil.
func Map(pairs ...any) (f Fields) {
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != nil {
			f = append(f, Field{pair[0].(string), pair[1]})
		}
	}
	return f
}

// Or returns the value of a pointer, or the fallback for nil.
func Or[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}

// Some returns the fields of Map whose values are neither zero nor empty.
func Some(pairs ...any) Fields {
	for i := 1; i < len(pairs); i += 2 {
		if pairs[i] != nil {
			pairs[i] = Given(pairs[i])
		}
	}
	return Map(pairs...)
}

// Given returns a value, or nil if it is zero or empty.
func Given(value any) any {
	if v := reflect.ValueOf(value); v.IsZero() ||
		(v.Kind() == reflect.Slice || v.Kind() == reflect.Map) &&
			v.Len() == 0 {
		return nil
	}
	return value
}

// Get returns the value of a field, or nil.
func (f Fields) Get(key string) any {
	for _, field := range f {
		if field.Key == key {
			return field.Value
		}
	}
	return nil
}

// MarshalJSON writes the fields in order.
func (f Fields) MarshalJSON() ([]byte, error) {
	text := []byte{'{'}
	for i, field := range f {
		if i > 0 {
			text = append(text, ',')
		}
		key, err := json.Marshal(field.Key)
		value, err2 := json.Marshal(field.Value)
		if err = cmp.Or(err, err2); err != nil {
			return nil, fmt.Errorf("writing %s: %w", field.Key, err)
		}
		text = append(append(append(text, key...), ':'), value...)
	}
	return append(text, '}'), nil
}

// Node returns the mapping as a tree.
func (f Fields) Node() *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: yaml.NodeTagMap}
	if len(f) == 0 {
		n.Style = yaml.FlowStyle
	}
	for _, field := range f {
		n.Content = append(n.Content, Encode(field.Key), Encode(field.Value))
	}
	return n
}

// Encode returns a value as a tree: Fields, a tree, or a value that the YAML library encodes.
func Encode(value any) *yaml.Node {
	switch value := value.(type) {
	case *yaml.Node:
		return value
	case Fields:
		return value.Node()
	case []Fields:
		return list(value)
	case []any:
		return list(value)
	}
	var n yaml.Node
	if err := n.Encode(value); err != nil {
		// Plain JSON values always encode.
		panic(fmt.Sprintf("node: %T does not encode: %v", value, err))
	}
	return &n
}

func list[T any](items []T) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Tag: yaml.NodeTagSeq}
	for _, item := range items {
		n.Content = append(n.Content, Encode(item))
	}
	return n
}

// Get follows keys through mappings. It returns nil if the value is missing or null.
func Get(n *yaml.RNode, keys ...string) *yaml.RNode {
	for _, key := range keys {
		if n == nil || n.YNode().Kind != yaml.MappingNode {
			return nil
		}
		f := n.Field(key)
		if f == nil || f.Value == nil || f.Value.YNode().Tag == yaml.NodeTagNull {
			return nil
		}
		n = f.Value
	}
	return n
}

// Text returns the text of a scalar, and "" for anything else.
func Text(n *yaml.RNode, keys ...string) string {
	if n = Get(n, keys...); n == nil || n.YNode().Kind != yaml.ScalarNode {
		return ""
	}
	return n.YNode().Value
}

// Items returns the items of a list.
func Items(n *yaml.RNode, keys ...string) (items []*yaml.RNode) {
	if n = Get(n, keys...); n == nil || n.YNode().Kind != yaml.SequenceNode {
		return nil
	}
	for _, c := range n.YNode().Content {
		items = append(items, yaml.NewRNode(c))
	}
	return items
}

// Set sets a field of a mapping.
func Set(n *yaml.RNode, key string, value any) {
	set := Encode(value)
	if have := n.Field(key); have != nil {
		set.LineComment = have.Value.YNode().LineComment
		*have.Value.YNode() = *set
		return
	}
	n.YNode().Content = append(n.YNode().Content, Encode(key), set)
}

// Ensure returns the mapping in a field, and creates it if it is missing.
func Ensure(n *yaml.RNode, key string) *yaml.RNode {
	if have := Get(n, key); have != nil && have.YNode().Kind == yaml.MappingNode {
		return have
	}
	Set(n, key, Fields{})
	return Get(n, key)
}

// Extend appends items to a list, and creates it if it is missing.
func Extend(n *yaml.RNode, key string, items ...Fields) {
	have := Get(n, key)
	if have == nil || have.YNode().Kind != yaml.SequenceNode {
		Set(n, key, []Fields{})
		have = Get(n, key)
	}
	for _, item := range items {
		have.YNode().Content = append(have.YNode().Content, item.Node())
	}
}

// First moves a field to the beginning of a mapping.
func First(n *yaml.RNode, key string) {
	content := n.YNode().Content
	for i := 0; i+1 < len(content); i += 2 {
		if content[i].Value == key {
			n.YNode().Content = slices.Concat(content[i:i+2], content[:i], content[i+2:])
		}
	}
}
