// Package block writes YAML in block style from typed values.
package block

import (
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/internal/scalar"
)

// Node is a YAML value, with its key if it is a field of a mapping. The zero Node is not written.
type Node struct {
	key   string
	kind  kind
	text  string
	nodes []Node
}

type kind int

const (
	absent   kind = iota
	null          // only the key
	plain         // text, unquoted
	quoted        // text in double quotes
	env           // text in double quotes, with Kubernetes' expansions escaped
	mapping       // nodes are fields
	list          // nodes are items
	file          // text is the content of a literal block
	document      // nodes are the fields of a document in a literal block
)

// Plain returns a scalar that is written unquoted.
func Plain(key, text string) Node { return Node{key: key, kind: plain, text: text} }

// Null returns a field without a value.
func Null(key string) Node { return Node{key: key, kind: null} }

// Text returns a string in double quotes.
func Text(key, text string) Node { return Node{key: key, kind: quoted, text: text} }

// Env returns the value of an environment variable in which Kubernetes expands nothing.
func Env(key, text string) Node { return Node{key: key, kind: env, text: text} }

// Int returns a whole number.
func Int(key string, n int) Node { return Plain(key, strconv.Itoa(n)) }

// Bool returns a boolean.
func Bool(key string, b bool) Node { return Plain(key, strconv.FormatBool(b)) }

// Map returns a mapping, which is omitted if it has no fields. An item of a list has the key "".
func Map(key string, fields ...Node) Node { return Node{key: key, kind: mapping, nodes: fields} }

// List returns a list of mappings or scalars, which is omitted if it has no items.
func List(key string, items ...Node) Node { return Node{key: key, kind: list, nodes: items} }

// File returns a string as a literal block.
func File(key, text string) Node { return Node{key: key, kind: file, text: text} }

// Document returns a YAML document as a literal block: the fields of a mapping, or the items of a
// list.
func Document(key string, nodes ...Node) Node {
	return Node{key: key, kind: document, nodes: nodes}
}

// If returns a node if a condition holds, and the zero Node otherwise.
func If(condition bool, n Node) Node {
	if !condition {
		return Node{}
	}
	return n
}

// Append appends the fields of a mapping, each at the given indentation.
func Append(dst []byte, indent int, fields ...Node) []byte {
	for i := range fields {
		dst = fields[i].append(dst, indent, false)
	}
	return dst
}

// AppendItem appends a mapping as an item of a list.
func AppendItem(dst []byte, indent int, fields ...Node) []byte {
	first := true // the first line has the dash
	for i := range fields {
		if !fields[i].absent() {
			dst = fields[i].append(dst, indent+2, first)
			first = false
		}
	}
	return dst
}

// absent reports whether a node is not written.
func (n *Node) absent() bool {
	return n.kind == absent || (n.kind == mapping || n.kind == list) && len(n.nodes) == 0
}

// append appends the node at an indentation, which a dash reduces by two.
func (n *Node) append(dst []byte, indent int, dash bool) []byte {
	if n.absent() {
		return dst
	}
	if n.key == "" && n.kind == mapping {
		return AppendItem(dst, indent, n.nodes...)
	}
	if dash {
		dst = append(scalar.AppendSpaces(dst, indent-2), "- "...)
	} else {
		dst = scalar.AppendSpaces(dst, indent)
	}
	if n.key != "" {
		dst = append(append(dst, n.key...), ':')
	} else {
		dst = append(dst, '-')
	}
	switch n.kind {
	case mapping, list:
		inner := indent
		if n.kind == mapping {
			inner += 2
		}
		return Append(append(dst, '\n'), inner, n.nodes...)
	case null:
	case document:
		return Append(append(dst, " |\n"...), indent+2, n.nodes...)
	case file:
		dst = append(dst, " |\n"...)
		for line := range strings.Lines(n.text) {
			dst = append(scalar.AppendSpaces(dst, indent+2), line...)
		}
		return dst
	case quoted:
		dst = scalar.AppendYAML(append(dst, ' '), n.text)
	case env:
		dst = scalar.AppendEnv(append(dst, ' '), n.text)
	default:
		dst = append(append(dst, ' '), n.text...)
	}
	return append(dst, '\n')
}
