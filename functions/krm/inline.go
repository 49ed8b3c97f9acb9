package krm

import (
	"bytes"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// Inline marks the object, which was just read, as one between brackets or in a JSON file, where
// block style has no place: text that kyaml had to rewrite is written as JSON.
func (o *Object) Inline() { o.inline = true }

// IsInline reports whether Inline was called since the object was read.
func (o *Object) IsInline() bool { return o.inline }

// Check reads the text that Append made of edits between brackets, where one comma too many makes
// it unreadable. After an error the text must not be written. again lends its memory, and its
// content is lost.
func (o *Object) Check(text []byte, again *Object) error {
	if !o.inFlow && !(o.inline && o.rewritten && len(o.edits) > 0) {
		return nil
	}
	isObject, err := again.Read(text, Document{End: len(text)}, o.item, o.Origin)
	switch {
	case err != nil:
		return fmt.Errorf("the edited text cannot be read: %w", err)
	case !isObject || again.Ref != o.Ref:
		return fmt.Errorf("the edited text is not %s", o.Ref)
	case again.rewritten && !o.rewritten:
		return fmt.Errorf("the edited text has %s", again.why)
	case json.Valid(o.Bytes()) && !json.Valid(text):
		return fmt.Errorf("the edited text is not JSON")
	}
	return nil
}

// appendInline writes block-style text as JSON, with the author's line ending.
func (o *Object) appendInline(dst, text []byte) []byte {
	n, err := yaml.Parse(string(text))
	if err != nil {
		return append(dst, text...) // which Check refuses
	}
	dst = appendJSON(dst, n.YNode())
	return append(dst, o.author[len(bytes.TrimRight(o.author, " \t\r\n")):]...)
}

// appendJSON writes a value as JSON, in the order of its keys. A plain scalar that JSON lacks is
// left as it is, because YAML readers disagree on the meaning of some of them.
func appendJSON(dst []byte, n *yaml.Node) []byte {
	text := func(s string) {
		quoted, err := json.Marshal(s)
		if err != nil {
			panic(err) // a string always marshals
		}
		dst = append(dst, quoted...)
	}
	switch n.Kind {
	case yaml.MappingNode:
		dst = append(dst, '{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			text(n.Content[i].Value)
			dst = appendJSON(append(dst, ": "...), n.Content[i+1])
		}
		return append(dst, '}')
	case yaml.SequenceNode:
		dst = append(dst, '[')
		for i, item := range n.Content {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = appendJSON(dst, item)
		}
		return append(dst, ']')
	}
	plain := n.Style&
		(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
	switch {
	case plain && (n.Value == "" || n.Value == "~"):
		return append(dst, "null"...)
	case plain && looksTyped(n.Value):
		return append(dst, n.Value...)
	}
	text(n.Value)
	return dst
}

// sameValue reports whether two texts, in any style, have the same value.
func sameValue(a, b []byte) (bool, error) {
	var values [2][]byte
	for i, text := range [...][]byte{a, b} {
		n, err := yaml.Parse(string(text))
		if err == nil {
			values[i], err = n.MarshalJSON()
		}
		if err != nil {
			return false, err
		}
	}
	return bytes.Equal(values[0], values[1]), nil
}

// authorLine returns the line of a value's entry in the author's text of an object that kyaml has
// rewritten. Aliases and merge keys bring in values from elsewhere, so it returns the line of the
// deepest value on the path that the author wrote at that place.
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

// stepsTo returns the steps from the root to a value.
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
