package krm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// edit replaces tree.src[at:end] by Object.text[from:to].
type edit struct {
	at, end  int
	from, to int
	// depth orders inserts at one position: the deeper one comes first, and the items of a compact
	// list before the field that follows them in their column.
	depth int
	// within is the index plus one of the flow collection that an entry is removed from, or 0.
	within int32
}

// ErrUncertain reports that the text's layout has no safe place for an edit. After
// Object.Canonicalize every edit has one.
var ErrUncertain = errors.New("no safe place for an edit in this layout")

// Insertion says what an insert changes apart from adding entries, so that the record can undo it.
type Insertion struct {
	// Created says that the collection, or one above it, did not exist.
	Created bool
	// Was is the text of an empty collection after its colon: " []".
	Was string
}

// Insert adds entries at the beginning or end of the collection that keys lead to from parent, and
// creates missing collections on the way. The entries are block-style YAML without indentation,
// each line ended by a line feed, as items ("- name: x") or fields ("key: value").
func (o *Object) Insert(parent Node, keys []string, entries []byte,
	atStart bool) (Insertion, error) {
	if o.frozen != "" {
		return Insertion{}, errors.New(o.frozen)
	}
	n, missing, note := o.plan(parent, keys, areItems(entries))
	return note, o.insert(n, missing, entries, atStart && len(missing) == 0)
}

func areItems(entries []byte) bool { return entries[0] == '-' }

// Plan returns the Insertion that Insert would return for fields at the same place.
func (o *Object) Plan(parent Node, keys []string) Insertion {
	_, _, note := o.plan(parent, keys, false)
	return note
}

// plan returns the deepest existing collection that keys lead to, the keys that are missing in it,
// and the Insertion for the record.
func (o *Object) plan(n Node, keys []string, items bool) (_ Node, missing []string,
	note Insertion) {
	for i, key := range keys {
		next := n.Get(key)
		if !next.Exists() {
			return n, keys[i:], Insertion{Created: true}
		}
		n = next
	}
	if d := n.node(); d.first == 0 && n.i != 0 {
		// Entries of an empty collection of the right kind go between its brackets.
		if p := &o.tree.nodes[d.parent]; p.kind == mappingNode &&
			(p.style == blockStyle || !d.holds(items)) {
			note.Was = string(o.tree.src[d.keyEnd+1 : d.end])
		}
	}
	return n, nil, note
}

// holds reports whether the value is a list, if items is set, or a mapping.
func (d *node) holds(items bool) bool {
	if items {
		return d.kind == sequenceNode
	}
	return d.kind == mappingNode
}

// Reset drops all waiting edits.
func (o *Object) Reset() {
	o.edits, o.text, o.inFlow, o.removed = o.edits[:0], o.text[:0], false, nil
}

// listIndent returns how far the author indents lists below their key: 0 or more.
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

// TypeError reports an edit inside a value whose type the API server does not accept there.
type TypeError struct {
	// At is the value.
	At Node
	// What describes the value and the expected type.
	What string
}

func (e *TypeError) Error() string { return e.At.Path() + " is " + e.What }

// LayoutFinding returns a finding about an edit that failed with err.
func (o *Object) LayoutFinding(rule string, err error) finding.Finding {
	var wrong *TypeError
	if errors.As(err, &wrong) {
		return o.Finding(finding.Error, rule, wrong.At, "it is "+wrong.What,
			"`kubectl explain` shows the type of each field")
	}
	hint := "write the object in block style, with each value on one line"
	if o.frozen != "" && o.item {
		hint = "write the shared text out in each place"
	}
	return o.Finding(finding.Error, rule, Node{}, err.Error(), hint)
}

// insert adds entries, below the missing keys, to an existing collection.
func (o *Object) insert(n Node, missing []string, entries []byte, atStart bool) error {
	d := n.node()
	items := len(missing) == 0 && areItems(entries)
	switch {
	case d.first != 0 && !d.holds(items):
		if items {
			return &TypeError{n, "a mapping where a list should be"}
		}
		return &TypeError{n, "a list where a mapping should be"}
	case d.first != 0 && d.style == blockStyle:
		at := o.afterComments(o.tree.lineEnd(int(d.end)), int(d.col))
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
		if json = json[1 : len(json)-1]; atStart {
			o.replace(int(o.tree.nodes[d.first].keyStart), 0, json+", ")
		} else {
			o.replace(int(o.tree.nodes[d.last].end), 0, ", "+json)
		}
		return nil
	case !n.IsNull() && d.kind == scalarNode:
		return &TypeError{n, "a single value where a collection should be"}
	}
	// Empty: null, {} or [].
	p := &o.tree.nodes[d.parent]
	fits := d.holds(items)
	switch {
	case n.i == 0, p.kind != mappingNode && !(p.style == flowStyle && fits):
		return ErrUncertain
	case p.style == flowStyle:
		json, err := o.flowEntries(missing, entries)
		if err != nil {
			return err
		}
		if fits {
			o.replace(int(d.start)+1, 0, json[1:len(json)-1])
		} else { // null, or [] where fields come
			o.replace(int(d.start), int(d.end-d.start), json)
		}
		return nil
	}
	colon := int(d.keyEnd) + 1
	if was := string(o.tree.src[colon:d.end]); was != "" {
		if strings.Contains(was, "#") { // a comment, which may be about the collection
			return ErrUncertain
		}
		o.cut(colon, int(d.end))
	}
	col := int(p.col) + 2
	if items {
		col = int(p.col) + o.listIndent()
	}
	o.insertLines(o.tree.lineEnd(int(d.end)), col, missing, entries)
	return nil
}

// afterComments returns the position after the comments that follow at and are indented deeper than
// col. They belong to the block that ends there, like an entry that is commented out.
func (o *Object) afterComments(at, col int) int {
	for p := at; p < o.end; {
		next := min(o.tree.lineEnd(p), o.end)
		line := o.tree.src[p:next]
		switch text := bytes.TrimLeft(line, " "); {
		case len(bytes.TrimSpace(text)) == 0: // skipped if a comment of the block follows
		case text[0] == '#' && len(line)-len(text) > col:
			at = next
		default:
			return at
		}
		p = next
	}
	return at
}

func (o *Object) insertLines(at, col int, missing []string, entries []byte) {
	from := len(o.text)
	if unended := at == o.end && at > o.start && o.tree.src[at-1] != '\n'; unended {
		o.text = append(o.text, o.eol...)
		o.text = o.appendWrapped(o.text, entries, missing, col)
		o.text = o.text[:len(o.text)-len(o.eol)]
	} else {
		o.text = o.appendWrapped(o.text, entries, missing, col)
	}
	depth := 2 * col
	if len(missing) == 0 && areItems(entries) {
		depth++
	}
	o.edits = append(o.edits, edit{at: at, end: at, from: from, to: len(o.text), depth: depth})
}

func (o *Object) replace(at, length int, text string) {
	from := len(o.text)
	o.text = append(o.text, text...)
	o.edits = append(o.edits, edit{at: at, end: at + length, from: from, to: len(o.text)})
}

// AppendIndented writes lines with n more spaces before each that is not empty, and with another
// line ending.
func AppendIndented(dst, lines []byte, n int, eol string) []byte {
	if n == 0 && eol == "\n" {
		return append(dst, lines...)
	}
	for len(lines) > 0 {
		end := bytes.IndexByte(lines, '\n') + 1
		if end > 1 {
			dst = scalar.AppendSpaces(dst, n)
		}
		if eol == "\n" {
			dst = append(dst, lines[:end]...)
		} else {
			dst = append(append(dst, lines[:end-1]...), eol...)
		}
		lines = lines[end:]
	}
	return dst
}

// flowEntries writes entries as one JSON collection, for insertion between brackets.
func (o *Object) flowEntries(missing []string, entries []byte) (string, error) {
	o.inFlow = true
	n, err := yaml.Parse(string((&Object{eol: "\n"}).appendWrapped(nil, entries, missing, 0)))
	if err != nil {
		return "", fmt.Errorf("reading entries to insert: %w", err)
	}
	json, err := n.MarshalJSON()
	if err != nil {
		return "", fmt.Errorf("writing entries as JSON: %w", err)
	}
	return string(bytes.TrimSpace(json)), nil
}

// Remove deletes the entries of a collection for which remove returns true. It
// reports whether no entry is left.
func (o *Object) Remove(collection Node, remove func(Node) bool) (empty bool, err error) {
	if !collection.IsMap() && !collection.IsList() {
		return false, nil
	}
	if o.frozen != "" {
		return false, errors.New(o.frozen)
	}
	t := &o.tree
	var live []int32
	head := true // no entry has survived yet
	d := collection.node()
	previous := int32(0)
	flow := d.style == flowStyle
	if flow {
		// A comma is removed with one of its neighbours. If an earlier call has removed entries,
		// all cuts are made again.
		o.inFlow = true
		o.edits = slices.DeleteFunc(o.edits,
			func(e edit) bool { return e.within == collection.i+1 })
	}
	cut := func(from, to int) {
		if o.cut(from, to); flow {
			o.edits[len(o.edits)-1].within = collection.i + 1
		}
	}
	for c := d.first; c != 0; c = t.nodes[c].next {
		deleted := remove(Node{o, c, true})
		if flow && deleted {
			o.removed = append(o.removed, c)
		}
		if !deleted && !slices.Contains(o.removed, c) {
			live = append(live, c)
			head = false
			previous = c
			continue
		}
		n := &t.nodes[c]
		switch {
		case d.style == blockStyle:
			from, to := t.lineStart(int(n.keyStart)), t.lineEnd(int(max(n.end, n.keyEnd)))
			switch before := bytes.TrimLeft(t.src[from:n.keyStart], " "); {
			case slices.ContainsFunc(o.edits,
				func(e edit) bool { return e.end == int(n.keyStart) && t.lineStart(e.at) < e.at }):
				return false, ErrUncertain // it has taken the place of the one before
			case len(before) == 0:
				cut(from, to)
			case collection.IsMap() && len(bytes.Trim(before, "- ")) == 0 &&
				o.mayLead(n.next, to, remove):
				cut(int(n.keyStart), int(t.nodes[n.next].keyStart)) // the next one follows the dash
			default:
				return false, ErrUncertain
			}
		case !head:
			cut(int(t.nodes[previous].end), int(n.end))
			previous = c
		case n.next != 0:
			cut(int(n.keyStart), int(t.nodes[n.next].keyStart))
		default: // the last of a run that nothing survives
			cut(int(n.keyStart), int(n.end))
		}
	}
	return len(live) == 0, nil
}

// mayLead reports whether an entry of a block mapping stays and begins on the line at, so that it
// can move up to the dash.
func (o *Object) mayLead(i int32, at int, remove func(Node) bool) bool {
	if i == 0 || remove(Node{o, i, true}) {
		return false
	}
	start := int(o.tree.nodes[i].keyStart)
	return o.tree.lineStart(start) == at && len(bytes.TrimLeft(o.tree.src[at:start], " ")) == 0
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
func (o *Object) Restore(n Node, was string) {
	d := n.node()
	at, length := int(d.keyEnd)+1, 0
	if d.style == flowStyle && d.kind != scalarNode {
		length = int(d.end) - at
	}
	o.replace(at, length, was)
}

func (o *Object) cut(from, to int) { o.edits = append(o.edits, edit{at: from, end: to}) }

// Canonicalize drops all edits and sets the object to the block-style text that kyaml writes for
// it, in which every edit has a safe place.
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

// Append writes the object with its edits. Without edits it writes the author's bytes.
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
	text, eol := o.splice(nil), LineEnding(o.author)
	if o.inline {
		return o.appendInline(dst, text)
	}
	if o.item {
		indent := bytes.IndexByte(o.author, '-')
		from := len(dst)
		dst = AppendIndented(dst, text, indent+2, eol)
		dst[from+indent] = '-'
		return dst
	}
	return AppendIndented(dst, text, 0, eol)
}

// LineEnding returns the line break of the first line of a text.
func LineEnding(text []byte) string {
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
		// If the text has no last line feed, lines cut from its end take the line feed before them
		// along.
		if e.end == o.end && e.end > e.at && i == len(o.edits)-1 && src[e.end-1] != '\n' &&
			bytes.HasSuffix(dst, []byte(o.eol)) {
			if col := bytes.LastIndexByte(src[:e.at], '\n'); col+1 == e.at {
				dst = dst[:len(dst)-len(o.eol)]
			}
		}
	}
	return append(dst, src[cursor:o.end]...)
}

// appendWrapped writes the entries below keys, at a column.
func (o *Object) appendWrapped(dst, entries []byte, keys []string, col int) []byte {
	for i, key := range keys {
		dst = scalar.AppendSpaces(dst, col)
		dst = append(dst, key...)
		dst = append(dst, ':')
		dst = append(dst, o.eol...)
		if i == len(keys)-1 && areItems(entries) {
			col += o.listIndent()
		} else {
			col += 2
		}
	}
	return AppendIndented(dst, entries, col, o.eol)
}
