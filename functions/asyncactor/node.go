package asyncactor

import (
	"fmt"
	"reflect"
	"slices"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// fields is a mapping in the order in which it is written.
type fields []field

type field struct {
	key   string
	value any
}

// object makes fields of keys and values in turn, but for values that are nil.
func object(pairs ...any) (f fields) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != nil {
			f = append(f, field{pairs[i].(string), pairs[i+1]})
		}
	}
	return f
}

// given is a value that object writes where somebody has set it: nil for one that
// is zero or empty.
func given(value any) any {
	if v := reflect.ValueOf(value); v.IsZero() || (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) &&
		v.Len() == 0 {
		return nil
	}
	return value
}

func variable(name, value string) fields { return object("name", name, "value", value) }

// variables are those of names and values in turn, but for values that are empty.
func variables(pairs ...string) (env []fields) {
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			env = append(env, variable(pair[0], pair[1]))
		}
	}
	return env
}

// secretVariable is a variable whose value is a key of a Secret.
func secretVariable(name, secret, key string) fields {
	return object("name", name, "valueFrom", object("secretKeyRef", object("name", secret, "key", key)))
}

func (f fields) node() *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: yaml.NodeTagMap}
	if len(f) == 0 {
		n.Style = yaml.FlowStyle
	}
	for _, field := range f {
		n.Content = append(n.Content, encode(field.key), encode(field.value))
	}
	return n
}

// encode makes a node of a value: fields, a node, or what the library takes.
func encode(value any) *yaml.Node {
	switch value := value.(type) {
	case *yaml.Node:
		return value
	case fields:
		return value.node()
	case []fields:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: yaml.NodeTagSeq}
		for _, item := range value {
			n.Content = append(n.Content, item.node())
		}
		return n
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: yaml.NodeTagSeq}
		for _, item := range value {
			n.Content = append(n.Content, encode(item))
		}
		return n
	}
	var n yaml.Node
	if err := n.Encode(value); err != nil {
		panic(fmt.Sprintf("asyncactor: %T does not encode: %v", value, err)) // plain values of JSON always do
	}
	return &n
}

// lookup follows keys through mappings, nil where there is nothing.
func lookup(n *yaml.RNode, keys ...string) *yaml.RNode {
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

// scalarOf is the text of a scalar, "" of anything else.
func scalarOf(n *yaml.RNode, keys ...string) string {
	if n = lookup(n, keys...); n == nil || n.YNode().Kind != yaml.ScalarNode {
		return ""
	}
	return n.YNode().Value
}

func elements(n *yaml.RNode, keys ...string) (items []*yaml.RNode) {
	if n = lookup(n, keys...); n == nil || n.YNode().Kind != yaml.SequenceNode {
		return nil
	}
	for _, c := range n.YNode().Content {
		items = append(items, yaml.NewRNode(c))
	}
	return items
}

func put(n *yaml.RNode, key string, value any) {
	content := n.YNode().Content
	for i := 0; i+1 < len(content); i += 2 {
		if content[i].Value == key {
			content[i+1] = encode(value)
			return
		}
	}
	n.YNode().Content = append(content, encode(key), encode(value))
}

func extend(n *yaml.RNode, key string, items ...fields) {
	list := lookup(n, key)
	if list == nil || list.YNode().Kind != yaml.SequenceNode {
		put(n, key, []fields{})
		list = lookup(n, key)
	}
	for _, item := range items {
		list.YNode().Content = append(list.YNode().Content, item.node())
	}
}
