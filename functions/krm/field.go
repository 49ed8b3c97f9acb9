package krm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ReplaceField replaces a field of a mapping, with any value, by another key and value, which is
// YAML on one line. It returns the previous text for RestoreField.
func (o *Object) ReplaceField(n Node, key, value string) (was string, err error) {
	field, err := o.fieldOf(n)
	if err != nil {
		return "", err
	}
	if field.json {
		quoted, err := json.Marshal([]string{key, scalarText(value)})
		if err != nil {
			return "", err
		}
		key, value, _ = strings.Cut(strings.Trim(string(quoted), "[]"), ",")
	}
	o.replace(field.start, len(field.text), key+": "+value)
	return field.dedented()
}

// RestoreField reverts ReplaceField.
func (o *Object) RestoreField(n Node, was string) error {
	field, err := o.fieldOf(n)
	if err != nil {
		return err
	}
	if field.flow && (strings.Contains(was, "\n") || field.json && !strings.HasPrefix(was, `"`)) {
		return ErrUncertain // another tool wrote the mapping in another style since
	}
	var b strings.Builder
	for i, line := range strings.Split(was, "\n") {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i > 0 && strings.TrimRight(line, "\r") != "" {
			b.WriteString(strings.Repeat(" ", field.col))
		}
		b.WriteString(line)
	}
	o.replace(field.start, len(field.text), b.String())
	return nil
}

// fieldText is the text of a field, from its key to the end of its value.
type fieldText struct {
	text       string
	start, col int
	// flow says that the mapping is between braces, and json that its keys are quoted.
	flow, json bool
}

func (o *Object) fieldOf(n Node) (f fieldText, err error) {
	if o.frozen != "" {
		return f, errors.New(o.frozen)
	}
	d := n.node()
	parent := &o.tree.nodes[d.parent]
	if parent.kind != mappingNode {
		return f, fmt.Errorf("%s is not a field of a mapping", n.Path())
	}
	f.start = int(d.keyStart)
	f.text = string(bytes.TrimRight(o.tree.src[f.start:max(int(d.end), int(d.keyEnd)+1)], "\r\n"))
	f.col = f.start - o.tree.lineStart(f.start)
	f.flow = parent.style == flowStyle
	f.json = f.flow && strings.HasPrefix(f.text, `"`)
	o.inFlow = o.inFlow || f.flow
	return f, nil
}

// dedented returns the text with the indentation of its key removed from its further lines.
func (f *fieldText) dedented() (string, error) {
	first, rest, more := strings.Cut(f.text, "\n")
	if !more {
		return first, nil
	}
	if f.flow {
		return "", ErrUncertain
	}
	var b strings.Builder
	b.WriteString(first)
	for line := range strings.SplitSeq(rest, "\n") {
		inner, indented := strings.CutPrefix(line, strings.Repeat(" ", f.col))
		if !indented && strings.TrimRight(line, "\r") != "" {
			return "", ErrUncertain
		}
		b.WriteString("\n" + inner)
	}
	return b.String(), nil
}
