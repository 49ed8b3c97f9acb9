package krm

import (
	"bytes"
	"iter"
	"strconv"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/text"
)

// Node is a value inside an object. The zero Node is a missing value; all its methods answer as for
// null.
type Node struct {
	o *Object
	i int32
	// in distinguishes the root, node 0, from a missing value.
	in bool
}

func (n Node) node() *node { return &n.o.tree.nodes[n.i] }

// Exists reports whether the author wrote the value, even if it is null.
func (n Node) Exists() bool { return n.in }

// IsNull reports whether the value is missing, empty or null.
func (n Node) IsNull() bool {
	if !n.in {
		return true
	}
	d := n.node()
	if d.kind == scalarNode && d.style == plainStyle {
		switch string(n.o.tree.src[d.start:d.end]) {
		case "~", "null", "Null", "NULL":
			return true
		}
	}
	return d.kind == nullNode
}

// IsMap reports whether the value is a mapping.
func (n Node) IsMap() bool { return n.in && n.node().kind == mappingNode }

// IsList reports whether the value is a sequence.
func (n Node) IsList() bool { return n.in && n.node().kind == sequenceNode }

// IsScalar reports whether the value is a scalar other than null.
func (n Node) IsScalar() bool { return n.in && n.node().kind == scalarNode && !n.IsNull() }

// IsText reports whether the value is a string: it is quoted, or not read as another type.
func (n Node) IsText() bool {
	if !n.IsScalar() {
		return false
	}
	d := n.node()
	return d.style != plainStyle || !looksTyped(string(n.o.tree.src[d.start:d.end]))
}

// looksTyped reports whether a plain scalar would not be read as a string.
func looksTyped(s string) bool {
	return yaml.IsYaml1_1NonString(&yaml.Node{Kind: yaml.ScalarNode, Value: s})
}

// Get follows keys through mappings.
func (n Node) Get(keys ...string) Node {
	for _, key := range keys {
		if !n.IsMap() {
			return Node{}
		}
		n = n.child(key)
	}
	return n
}

func (n Node) child(key string) Node {
	t := &n.o.tree
	nodes, sum := t.nodes, keySum(key)
	for c := nodes[n.i].first; c != 0; {
		d := &nodes[c]
		if d.sum == sum && string(t.rawKey(c)) == key {
			return Node{n.o, c, true}
		}
		c = d.next
	}
	return Node{}
}

// entries yields the entries of a collection if it has the given kind.
func entries(n Node, of nodeKind) iter.Seq[Node] {
	return func(yield func(Node) bool) {
		if !n.in || n.node().kind != of {
			return
		}
		t := &n.o.tree
		for c := t.nodes[n.i].first; c != 0; c = t.nodes[c].next {
			if !yield(Node{n.o, c, true}) {
				return
			}
		}
	}
}

// Items yields the items of a sequence.
func (n Node) Items() iter.Seq[Node] { return entries(n, sequenceNode) }

// Fields yields the keys and values of a mapping.
func (n Node) Fields() iter.Seq2[string, Node] {
	return func(yield func(string, Node) bool) {
		for field := range entries(n, mappingNode) {
			if !yield(field.Key(), field) {
				return
			}
		}
	}
}

// Prefixed yields the values of a mapping whose keys start with a prefix that needs no escapes.
func (n Node) Prefixed(prefix string) iter.Seq[Node] {
	return func(yield func(Node) bool) {
		for field := range entries(n, mappingNode) {
			if bytes.HasPrefix(n.o.tree.rawKey(field.i), []byte(prefix)) && !yield(field) {
				return
			}
		}
	}
}

// Len counts the items or fields.
func (n Node) Len() (count int) {
	if !n.in {
		return 0
	}
	t := &n.o.tree
	for c := t.nodes[n.i].first; c != 0; c = t.nodes[c].next {
		count++
	}
	return count
}

// Named returns the item of a sequence of mappings whose field has the value.
func (n Node) Named(field, value string) Node {
	for item := range n.Items() {
		if item.Get(field).Is(value) {
			return item
		}
	}
	return Node{}
}

// Key returns the key of a mapping's entry.
func (n Node) Key() string {
	d := n.node()
	raw := n.o.tree.src[d.keyStart:d.keyEnd]
	if len(raw) > 1 && raw[0] == '"' && bytes.IndexByte(raw, '\\') >= 0 ||
		len(raw) > 1 && raw[0] == '\'' &&
			bytes.Contains(raw[1:len(raw)-1], []byte("''")) {
		return decode(raw)
	}
	return string(n.o.tree.rawKey(n.i))
}

// Is compares a scalar's text, and copies it only if it has escapes or several lines.
func (n Node) Is(text string) bool {
	if !n.in {
		return false
	}
	if raw, ok := n.simple(); ok {
		return string(raw) == text
	}
	return n.Text() == text
}

// simple returns the text of a scalar whose value equals its source text.
func (n Node) simple() ([]byte, bool) {
	d := n.node()
	if d.kind != scalarNode {
		return nil, false
	}
	raw := n.o.tree.src[d.start:d.end]
	switch d.style {
	case plainStyle:
		return raw, true
	case singleStyle:
		raw = raw[1 : len(raw)-1]
		return raw, bytes.IndexByte(raw, '\'') < 0 && bytes.IndexByte(raw, '\n') < 0
	case doubleStyle:
		raw = raw[1 : len(raw)-1]
		return raw, bytes.IndexByte(raw, '\\') < 0 && bytes.IndexByte(raw, '\n') < 0
	}
	return nil, false
}

// Text returns the text of a scalar, and "" for any other value.
func (n Node) Text() string {
	if !n.IsScalar() {
		return ""
	}
	if raw, ok := n.simple(); ok {
		return string(raw)
	}
	d := n.node()
	t := &n.o.tree
	switch d.style {
	case literalStyle, foldedStyle:
		// The decoder does not know the key's column, so that an explicit indentation would have
		// another meaning. State the indentation that was found.
		header, text, _ := bytes.Cut(t.src[d.start:t.lineEnd(int(d.end))], []byte("\n"))
		style, chomp := string(header[:1]), ""
		if bytes.ContainsAny(header[:min(3, len(header))], "-") {
			chomp = "-"
		} else if bytes.ContainsAny(header[:min(3, len(header))], "+") {
			chomp = "+"
		}
		var b bytes.Buffer
		b.WriteString(style + "1" + chomp + "\n")
		for line := range bytes.Lines(text) {
			if len(bytes.TrimRight(line, "\r\n")) > int(d.col) {
				b.WriteByte(' ')
				b.Write(line[d.col:])
			} else {
				b.WriteByte('\n')
			}
		}
		return decode(b.Bytes())
	}
	return decode(t.src[d.start:d.end])
}

// Dress puts a text that needs no escapes into the quotes that the scalar has.
func (n Node) Dress(text string) string {
	if n.IsScalar() {
		switch n.node().style {
		case singleStyle:
			return "'" + text + "'"
		case doubleStyle:
			return `"` + text + `"`
		}
	}
	return text
}

// decode reads a scalar with the full parser.
func decode(raw []byte) string {
	var v struct{ V yaml.Node }
	if err := yaml.Unmarshal(append([]byte("v: "), raw...), &v); err != nil {
		return ""
	}
	return v.V.Value
}

// Int returns a whole number, as the API server reads a plain scalar.
func (n Node) Int() (int, bool) {
	if !n.IsScalar() || n.node().style != plainStyle {
		return 0, false
	}
	raw, _ := n.simple()
	return scalar.Int(string(raw))
}

// Line returns the line of the value's entry in its file, counting from 1.
func (n Node) Line() int {
	if n.o == nil {
		return 0
	}
	if n.o.moved || !n.in {
		return n.o.Origin.Line
	}
	if n.o.rewritten {
		return n.authorLine()
	}
	d := n.node()
	at := d.keyStart
	if d.keyEnd == 0 {
		at = d.start
	}
	line := n.o.Origin.Line + bytes.Count(n.o.tree.src[n.o.start:at], []byte{'\n'})
	for _, cut := range n.o.cuts {
		if line >= cut.line {
			line = max(line+cut.removed, cut.line-1)
		}
	}
	return line
}

// Path returns the field path: spec.template.spec.containers[0].image.
func (n Node) Path() string {
	if !n.in || n.i == 0 {
		return ""
	}
	parent := Node{n.o, n.node().parent, true}
	if parent.IsList() {
		return parent.Path() + "[" + strconv.Itoa(indexOf(n)) + "]"
	}
	return text.JoinField(parent.Path(), n.Key())
}

// lineStart returns the start of the line that contains p.
func (t *tree) lineStart(p int) int { return bytes.LastIndexByte(t.src[:p], '\n') + 1 }

// lineEnd returns the start of the line after the one that contains p.
func (t *tree) lineEnd(p int) int { return nextLine(t.src, p) }

// In finds the value in another reading of the object, for instance in the author's text of a
// rendered object: by the same keys, and in lists of named items by the same name. If the other
// reading has no such value, In returns the nearest one around it, and exact is false.
func (n Node) In(other *Object) (found Node, exact bool) {
	if !n.in || n.i == 0 {
		return other.Root(), n.in
	}
	parent := Node{n.o, n.o.tree.nodes[n.i].parent, true}
	around, exact := parent.In(other)
	if !exact {
		return around, false
	}
	if parent.IsMap() {
		found = around.child(n.Key())
	} else if field, name := n.ItemName(); name != "" {
		found = around.Named(field, name)
	} else {
		found = ItemAt(around, indexOf(n))
	}
	if !found.in {
		return around, false
	}
	return found, true
}

// ItemName returns the field, and its value, that identifies an item of a list: mountPath, which
// distinguishes two mounts of one volume, or name. Both are empty if the item has neither.
func (n Node) ItemName() (field, name string) {
	for _, field := range [...]string{"mountPath", "name"} {
		if name := n.Get(field).Text(); name != "" {
			return field, name
		}
	}
	return "", ""
}

// indexOf returns the index of an item in its list.
func indexOf(item Node) (index int) {
	nodes := item.o.tree.nodes
	for c := nodes[nodes[item.i].parent].first; c != item.i; c = nodes[c].next {
		index++
	}
	return index
}

// ItemAt returns an item of a list by its index, or the zero Node.
func ItemAt(list Node, index int) Node {
	for item := range list.Items() {
		if index == 0 {
			return item
		}
		index--
	}
	return Node{}
}
