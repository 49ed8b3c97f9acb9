package krm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
)

// Changes sets scalar fields of one object: requests, images, annotations of its pods. Functions
// note their settings with Set; Apply makes the edits and records the previous values in one
// annotation, so that Revert restores the author's bytes. Containers have to be added before: see
// Settle.
type Changes struct {
	// Version is recorded with the changes.
	Version string
	// NoOriginal says that the text comes from a host, which rewrites it each time, so that no
	// original is kept.
	NoOriginal bool

	changes []change
}

// changeRecord is the content of keys.Changed.
type changeRecord struct {
	Version string   `json:"version"`
	Changes []change `json:"changes"`
	Kept
}

// change holds the settings of one mapping.
type change struct {
	// At leads to the mapping: keys, and "[name]" for an item of a list.
	At  []string   `json:"at"`
	Set []setField `json:"set,omitempty"`
	Note
}

type setField struct {
	Key string `json:"key"`
	// By is the function that set the field.
	By string `json:"by"`
	// Value is the new value, as YAML.
	Value string `json:"value"`
	// Was is the author's value as it was written; nil if there was none.
	Was *string `json:"was,omitempty"`
}

// Reset drops all noted settings.
func (c *Changes) Reset() { c.changes = c.changes[:0] }

// Any reports whether a setting was noted since the last Reset.
func (c *Changes) Any() bool { return len(c.changes) > 0 }

// Set notes that a function sets the field key of the mapping that keys lead to from a mapping of
// the object; they need not exist. Value is a YAML scalar on one line, quoted if it has to be a
// string. A field that has the value already stays as it is.
func (c *Changes) Set(by string, from Node, keys []string, key, value string) {
	n := from.Get(keys...)
	if have := n.Get(key); have.IsScalar() && have.Is(scalarText(value)) {
		return
	}
	at := append(steps(from), keys...)
	i := slices.IndexFunc(c.changes, func(have change) bool { return slices.Equal(have.At, at) })
	if i < 0 {
		i = len(c.changes)
		c.changes = append(c.changes, change{At: at})
	}
	c.changes[i].Set = append(c.changes[i].Set, setField{Key: key, By: by, Value: value})
}

// scalarText returns the content of a value that was passed to Set.
func scalarText(value string) string {
	if text := ""; strings.HasPrefix(value, `"`) && json.Unmarshal([]byte(value), &text) == nil {
		return text
	}
	if strings.ContainsAny(value, `"'\`) {
		return decode([]byte(value))
	}
	return value
}

// steps returns the path to a node as the record keeps it. Items are identified by their name,
// because other items may be inserted before them.
func steps(n Node) []string {
	if !n.in || n.i == 0 {
		return nil
	}
	parent := Node{n.o, n.node().parent, true}
	if parent.IsList() {
		return append(steps(parent), "["+n.Get("name").Text()+"]")
	}
	return append(steps(parent), n.Key())
}

// follow resolves a path that steps returned. It returns the deepest node that exists and the
// number of steps that are left.
func (o *Object) follow(at []string) (n Node, missing int) {
	n = o.Root()
	for i, step := range at {
		next := n.Get(step)
		if n.IsList() {
			next = n.Named("name", strings.TrimSuffix(strings.TrimPrefix(step, "["), "]"))
		}
		if !next.Exists() {
			return n, len(at) - i
		}
		n = next
	}
	return n, 0
}

// ParentOf returns the collection that contains a node. known reports that Changes can name it,
// which requires that the items of lists on the way have unique names.
func ParentOf(n Node) (in Node, known bool) {
	in = Node{n.o, n.node().parent, true}
	found, missing := n.o.follow(steps(in))
	return in, missing == 0 && found.i == in.i
}

// Apply makes the edits, which wait in the object until Append, and adds the record. Without a
// change it does nothing.
func (c *Changes) Apply(o *Object) error {
	if !c.Any() {
		return nil
	}
	return o.Attempt("a layout in which fields cannot be set", !c.NoOriginal,
		func(kept Kept) error { return c.apply(o, kept) })
}

func (c *Changes) apply(o *Object, kept Kept) error {
	r := changeRecord{Version: c.Version, Kept: kept}
	own := change{At: annotationsPath}
	annotations := -1 // the index of the mapping for the record
	for _, ch := range c.changes {
		if slices.Equal(ch.At, own.At) {
			annotations = len(r.Changes)
		}
		r.Changes = append(r.Changes, change{At: ch.At, Set: slices.Clone(ch.Set)})
	}
	if annotations < 0 {
		annotations = len(r.Changes)
		r.Changes = append(r.Changes, own)
	}
	inserts := make([][]byte, len(r.Changes))
	for i := range r.Changes {
		var err error
		if inserts[i], err = o.replaceFields(&r.Changes[i], c.NoOriginal); err != nil {
			return err
		}
	}
	if o.OnlyHostAnnotations() {
		r.Changes[annotations].Created = 1 // the host takes its own away
	}
	record, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("recording the changes of %s: %w", o.Ref, err)
	}
	inserts[annotations] = fmt.Appendf(inserts[annotations], "%s: '%s'\n", keys.Changed,
		bytes.ReplaceAll(record, []byte("'"), []byte("''")))
	for i, text := range inserts {
		if len(text) == 0 {
			continue
		}
		n, missing := o.follow(r.Changes[i].At)
		at := r.Changes[i].At
		if _, err := o.Insert(n, at[len(at)-missing:], text, false); err != nil {
			return err
		}
	}
	return nil
}

// replaceFields replaces the existing fields of a mapping, notes the previous values for the
// record, and returns the fields that have to be inserted. A host respells values, so its spelling
// is not kept.
func (o *Object) replaceFields(ch *change, hosted bool) (insert []byte, err error) {
	n, missing := o.follow(ch.At)
	ch.Note = Note{missing, o.Plan(n, nil).Was}
	for i := range ch.Set {
		f := &ch.Set[i]
		var have Node
		if missing == 0 {
			have = n.Get(f.Key)
		}
		if !have.Exists() {
			insert = fmt.Appendf(insert, "%s: %s\n", f.Key, f.Value)
			continue
		}
		was, err := o.replaceScalar(have, f.Value)
		if err != nil {
			return nil, err
		}
		if hosted && have.IsText() {
			was = spell(have.Text())
		}
		f.Was = &was
	}
	return insert, nil
}

var plainText = text.Pattern(`^[A-Za-z0-9][-A-Za-z0-9._/@:]*[A-Za-z0-9]$|^[A-Za-z0-9]$`)

// spell writes a string plainly if that is safe, and quoted otherwise.
func spell(text string) string {
	if plainText().MatchString(text) && !looksTyped(text) {
		return text
	}
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string always marshals
	}
	return string(quoted)
}

// replaceScalar replaces a value with one line and returns the previous text, "" if there was none.
func (o *Object) replaceScalar(n Node, value string) (was string, err error) {
	d := n.node()
	was = string(o.tree.src[d.start:d.end])
	switch {
	case o.frozen != "":
		return "", errors.New(o.frozen)
	case d.kind == mappingNode || d.kind == sequenceNode:
		return "", fmt.Errorf("%s holds a collection where a single value should be", n.Path())
	case strings.Contains(was, "\n") || d.style == literalStyle || d.style == foldedStyle:
		return "", ErrUncertain
	case was == "" && o.tree.nodes[d.parent].style == flowStyle:
		return "", ErrUncertain
	case was == "":
		value = " " + value
	case o.tree.nodes[d.parent].style == flowStyle:
		o.inFlow = true
		// JSON stays JSON
		if d.keyEnd > d.keyStart && o.tree.src[d.keyStart] == '"' && !json.Valid([]byte(value)) {
			quoted, err := json.Marshal(scalarText(value))
			if err != nil {
				return "", err
			}
			value = string(quoted)
		}
	}
	o.replace(int(d.start), len(was), value)
	return was, nil
}

// Changed reports whether an object carries a record of Changes.
func Changed(o *Object) bool {
	return o.Get("metadata", "annotations", keys.Changed).Exists()
}

// ChangedBy reports whether the object's record names a function.
func ChangedBy(o *Object, function string) bool {
	record, _ := o.Annotation(keys.Changed)
	return strings.Contains(record, `"by":"`+function+`"`)
}

// Overwritten lists the fields that had a value before they were set, according to the object's
// record: the path, the function, and whether the new value only extends the old one, as a digest
// does. It returns "" if there are none, and the text of a record that cannot be read.
func Overwritten(o *Object) string {
	text, _ := o.Annotation(keys.Changed)
	var r changeRecord
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return text
	}
	var b strings.Builder
	for _, c := range r.Changes {
		for _, f := range c.Set {
			if f.Was != nil {
				fmt.Fprintf(&b, "%q %s %s %t\n", c.At, f.Key, f.By,
					strings.HasPrefix(f.Value, *f.Was))
			}
		}
	}
	return b.String()
}

// Revert takes back the settings in the object's record; see Undo. A field that was changed since
// keeps its new value.
func Revert(o *Object) (was bool, original []byte, unended bool, err error) {
	var r changeRecord
	return o.Undo(keys.Changed, "", &r, &r.Kept, func() error { return o.revert(&r) })
}

func (o *Object) revert(r *changeRecord) error {
	for i := range r.Changes {
		if err := o.revertChange(&r.Changes[i]); err != nil {
			return err
		}
	}
	return nil
}

func (o *Object) revertChange(ch *change) error {
	n, missing := o.follow(ch.At)
	if missing > 0 || !n.IsMap() {
		return nil // the author has removed it
	}
	var remove []string
	if slices.Equal(ch.At, annotationsPath) {
		remove = append(remove, keys.Changed)
	}
	for _, f := range ch.Set {
		have := n.Get(f.Key)
		switch {
		case !have.IsScalar() || !have.Is(scalarText(f.Value)):
		case f.Was == nil:
			remove = append(remove, f.Key)
		default:
			o.restoreScalar(have, *f.Was)
		}
	}
	if len(remove) == 0 {
		return nil
	}
	return o.Take(n, keyed(remove), ch.Note)
}

func keyed(keys []string) func(Node) bool {
	return func(field Node) bool { return slices.Contains(keys, field.Key()) }
}

// Take removes the entries that were added to a collection, and the collections that were created
// for them unless they hold other entries. added selects the added entries.
func (o *Object) Take(n Node, added func(Node) bool, note Note) error {
	if n.Len() == 0 {
		return nil
	}
	all := true
	for c := n.node().first; c != 0; c = o.tree.nodes[c].next {
		all = all && added(Node{o, c, true})
	}
	if !all || note.Created == 0 {
		_, err := o.Remove(n, added)
		if all && note.Emptied != "" {
			o.Restore(n, note.Emptied)
		}
		return err
	}
	for range note.Created - 1 {
		above := Node{o, n.node().parent, true}
		if above.Len() > 1 {
			return o.RemoveField(n)
		}
		n = above
	}
	if above := (Node{o, n.node().parent, true}); note.Emptied != "" && above.Len() == 1 {
		o.Restore(above, note.Emptied)
	}
	return o.RemoveField(n)
}

// restoreScalar reverts replaceScalar.
func (o *Object) restoreScalar(n Node, was string) {
	d := n.node()
	start := int(d.start)
	if was == "" && o.tree.src[start-1] == ' ' {
		start--
	}
	o.replace(start, int(d.end)-start, was)
}

// Settle reads the text of another object, with its waiting edits applied, into o, so that later
// edits see them. Both name the lines of the author's file. Buf is memory for the text, which is
// returned and has to live as long as o.
func (o *Object) Settle(from *Object, buf []byte) ([]byte, error) {
	buf = from.Append(buf[:0])
	isObject, err := o.Read(buf, Document{End: len(buf)}, from.item, from.Origin)
	if err == nil && !isObject {
		err = errors.New("the edits leave something other than an object")
	}
	if err != nil {
		return buf, fmt.Errorf("reading %s with its edits: %w", from.Ref, err)
	}
	o.moved, o.unlined, o.inline = from.rewritten, from.unlined, from.inline
	o.MapLines(from)
	return buf, nil
}
