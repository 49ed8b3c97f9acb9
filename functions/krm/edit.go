package krm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// edit replaces tree.src[at:end] by Object.text[from:to].
type edit struct {
	at, end  int
	from, to int
	// depth orders inserts at one place: what stands deeper comes first, and the
	// items of a compact list before the field that follows it in their column.
	depth int
}

// ErrUncertain is an edit that the text's layout leaves no safe place for. The
// remedy is Object.Canonicalize, after which every edit has one.
var ErrUncertain = errors.New("no safe place for an edit in this layout")

// Insertion tells what an insert does besides adding entries, for the record
// that lets it be undone.
type Insertion struct {
	// Created says that the collection, or one above it, was not there.
	Created bool
	// Was is how an empty collection was written after its colon: " []".
	Was string
}

// Insert adds entries to the collection that keys lead to from parent, at its
// beginning or its end, and makes what is missing on the way.
func (o *Object) Insert(parent Node, keys []string, entries Entries, atStart bool) (Insertion, error) {
	if o.frozen != "" {
		return Insertion{}, errors.New(o.frozen)
	}
	n, missing := parent, keys
	for len(missing) > 0 {
		next := n.Get(missing[0])
		if !next.Exists() {
			break
		}
		n, missing = next, missing[1:]
	}
	return o.Plan(parent, keys), o.insert(n, missing, &entries, atStart && len(missing) == 0)
}

// Plan tells what Insert would note for the same place.
func (o *Object) Plan(parent Node, keys []string) (note Insertion) {
	n := parent
	for _, key := range keys {
		next := n.Get(key)
		if !next.Exists() {
			return Insertion{Created: true}
		}
		n = next
	}
	if d := n.node(); d.first == 0 && n.i != 0 {
		if p := &o.tree.nodes[d.parent]; p.kind == mappingNode && p.style == blockStyle {
			note.Was = string(o.tree.src[d.keyEnd+1 : d.end])
		}
	}
	return note
}

// Reset drops all edits that wait to be applied.
func (o *Object) Reset() { o.edits, o.text = o.edits[:0], o.text[:0] }

// listIndent is how far the author indents lists below their key: 0 or more.
func (o *Object) listIndent() int {
	for i := range o.tree.nodes {
		n := &o.tree.nodes[i]
		if n.kind == sequenceNode && n.style == blockStyle && i != 0 {
			if p := &o.tree.nodes[n.parent]; p.kind == mappingNode && p.style == blockStyle {
				return int(n.col - p.col)
			}
		}
	}
	return 0
}

// insert adds entries, below the keys that are missing, to a collection that is there.
func (o *Object) insert(n Node, missing []string, entries *Entries, atStart bool) error {
	d := n.node()
	switch {
	case d.first != 0 && d.style == blockStyle && (d.kind == mappingNode || d.kind == sequenceNode):
		at := o.tree.lineEnd(int(d.end))
		if atStart {
			first := int(o.tree.nodes[d.first].keyStart)
			at = o.tree.lineStart(first)
			if len(bytes.TrimLeft(o.tree.src[at:first], " ")) > 0 {
				return ErrUncertain
			}
		}
		o.insertLines(at, int(d.col), missing, entries)
		return nil
	case d.first != 0 && d.style == flowStyle:
		json, err := o.flowEntries(missing, entries)
		if err != nil {
			return err
		}
		if atStart {
			o.replace(int(o.tree.nodes[d.first].keyStart), 0, json+", ")
		} else {
			o.replace(int(o.tree.nodes[d.last].end), 0, ", "+json)
		}
		return nil
	case !n.IsNull() && d.kind == scalarNode:
		return fmt.Errorf("%s holds a single value where a collection should be", n.Path())
	}
	// Empty: null, {} or [].
	p := &o.tree.nodes[d.parent]
	if n.i == 0 || p.kind != mappingNode {
		return ErrUncertain
	}
	if p.style == flowStyle {
		json, err := o.flowEntries(missing, entries)
		if err != nil || d.kind == nullNode || d.kind == scalarNode {
			return errors.Join(err, ErrUncertain)
		}
		o.replace(int(d.start)+1, 0, json)
		return nil
	}
	colon := int(d.keyEnd) + 1
	if was := string(o.tree.src[colon:d.end]); was != "" {
		if strings.Contains(was, "\n") {
			return ErrUncertain
		}
		o.cut(colon, int(d.end))
	}
	col := int(p.col) + 2
	if len(missing) == 0 && entries.items() {
		col = int(p.col) + o.listIndent()
	}
	o.insertLines(o.tree.lineEnd(int(d.end)), col, missing, entries)
	return nil
}

func (o *Object) insertLines(at, col int, missing []string, entries *Entries) {
	from := len(o.text)
	if unended := at == o.end && at > o.start && o.tree.src[at-1] != '\n'; unended {
		o.text = append(o.text, o.eol...)
		o.text = entries.appendWrapped(o.text, o, missing, col)
		o.text = o.text[:len(o.text)-len(o.eol)]
	} else {
		o.text = entries.appendWrapped(o.text, o, missing, col)
	}
	depth := 2 * col
	if len(missing) == 0 && entries.items() {
		depth++
	}
	o.edits = append(o.edits, edit{at: at, end: at, from: from, to: len(o.text), depth: depth})
}

func (o *Object) replace(at, length int, text string) {
	from := len(o.text)
	o.text = append(o.text, text...)
	o.edits = append(o.edits, edit{at: at, end: at + length, from: from, to: len(o.text)})
}

const spaces = "                                                                "

func appendSpaces(dst []byte, n int) []byte {
	for ; n > len(spaces); n -= len(spaces) {
		dst = append(dst, spaces...)
	}
	return append(dst, spaces[:n]...)
}

// AppendIndented writes lines with n more spaces before each that is not empty,
// and with another line ending.
func AppendIndented(dst, lines []byte, n int, eol string) []byte {
	if n == 0 && eol == "\n" {
		return append(dst, lines...)
	}
	for len(lines) > 0 {
		i := bytes.IndexByte(lines, '\n')
		if i > 0 {
			dst = appendSpaces(dst, n)
			dst = append(dst, lines[:i]...)
		}
		dst = append(dst, eol...)
		lines = lines[i+1:]
	}
	return dst
}

// flowEntries writes entries the way they stand inside brackets.
func (o *Object) flowEntries(missing []string, entries *Entries) (string, error) {
	n, err := yaml.Parse(string(entries.appendWrapped(nil, &Object{eol: "\n"}, missing, 0)))
	if err != nil {
		return "", fmt.Errorf("reading entries to insert: %w", err)
	}
	json, err := n.MarshalJSON()
	if err != nil {
		return "", fmt.Errorf("writing entries as JSON: %w", err)
	}
	json = bytes.TrimSpace(json)
	return string(json[1 : len(json)-1]), nil
}

// Remove deletes the entries of a collection that doomed names. It says
// whether no entry is left.
func (o *Object) Remove(collection Node, doomed func(Node) bool) (empty bool, err error) {
	if !collection.IsMap() && !collection.IsList() {
		return false, nil
	}
	t := &o.tree
	var dead, live []int32
	head := true // no entry has survived yet
	d := collection.node()
	previous := int32(0)
	for c := d.first; c != 0; c = t.nodes[c].next {
		if !doomed(Node{o, c, true}) {
			live = append(live, c)
			head = false
			previous = c
			continue
		}
		dead = append(dead, c)
		n := &t.nodes[c]
		switch {
		case d.style == blockStyle:
			from := t.lineStart(int(n.keyStart))
			if len(bytes.TrimLeft(t.src[from:n.keyStart], " ")) > 0 {
				return false, ErrUncertain
			}
			o.cut(from, t.lineEnd(int(max(n.end, n.keyEnd))))
		case !head:
			o.cut(int(t.nodes[previous].end), int(n.end))
			previous = c
		case n.next != 0:
			o.cut(int(n.keyStart), int(t.nodes[n.next].keyStart))
		case len(dead) == 1:
			o.cut(int(n.keyStart), int(n.end))
		default: // the last of a run that nothing survives
			o.cut(int(n.keyStart), int(n.end))
		}
	}
	return len(live) == 0, nil
}

// RemoveField deletes one entry of a mapping or sequence.
func (o *Object) RemoveField(n Node) error {
	if n.i == 0 || !n.in {
		return nil
	}
	parent := Node{o, n.node().parent, true}
	_, err := o.Remove(parent, func(c Node) bool { return c.i == n.i })
	return err
}

// Restore puts back the text that an emptied collection had after its colon.
func (o *Object) Restore(n Node, was string) { o.replace(int(n.node().keyEnd)+1, 0, was) }

func (o *Object) cut(from, to int) { o.edits = append(o.edits, edit{at: from, end: to}) }

// Canonicalize drops all edits and gives the object the block-style text that
// kyaml makes of it, in which every edit has a safe place.
func (o *Object) Canonicalize(why string) error {
	text := o.Bytes()
	o.Reset()
	if o.rewritten {
		return fmt.Errorf("%s: %w", why, ErrUncertain)
	}
	if err := o.rewrite(text); err != nil {
		return err
	}
	o.why, o.eol = why, "\n"
	return nil
}

// Append writes the object with its edits. Without an edit it writes the
// author's bytes.
func (o *Object) Append(dst []byte) []byte {
	if len(o.edits) == 0 {
		return append(dst, o.Bytes()...)
	}
	slices.SortStableFunc(o.edits, func(a, b edit) int {
		if a.at != b.at {
			return a.at - b.at
		}
		return b.depth - a.depth
	})
	if !o.rewritten {
		return o.splice(dst)
	}
	text, eol := o.splice(nil), lineEnding(o.author)
	if o.item {
		indent := bytes.IndexByte(o.author, '-')
		from := len(dst)
		dst = AppendIndented(dst, text, indent+2, eol)
		dst[from+indent] = '-'
		return dst
	}
	return AppendIndented(dst, text, 0, eol)
}

// lineEnding is how the first line of a text ends.
func lineEnding(text []byte) string {
	if i := bytes.IndexByte(text, '\n'); i > 0 && text[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

func (o *Object) splice(dst []byte) []byte {
	src := o.tree.src
	cursor := o.start
	for i, e := range o.edits {
		if e.at > cursor {
			dst = append(dst, src[cursor:e.at]...)
			cursor = e.at
		}
		dst = append(dst, o.text[e.from:e.to]...)
		cursor = max(cursor, e.end)
		// Lines cut from the end of a text without a last line feed take the
		// line feed before them along.
		if e.end == o.end && e.end > e.at && i == len(o.edits)-1 && src[e.end-1] != '\n' && bytes.HasSuffix(dst, []byte(o.eol)) {
			if col := bytes.LastIndexByte(src[:e.at], '\n'); col+1 == e.at {
				dst = dst[:len(dst)-len(o.eol)]
			}
		}
	}
	return append(dst, src[cursor:o.end]...)
}
