package krm

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf16"
)

// ItemList is a list that was split into its items.
type ItemList struct {
	// Items are the items' text: whole lines in a block list, the first with its dash; the text
	// between the commas in a flow list.
	Items []Document
	// Flow says that the items are between brackets, which are at Open and Close.
	Flow        bool
	Open, Close int
}

// ListItems splits a document at its items if its kind, from KindOf, ends in List. The caller sets
// dash if the text is itself an item of a list. ok is false for every other document, and for a
// list that the scanner is not certain of.
func ListItems(src []byte, d Document, dash bool, kind string) (l ItemList, ok bool) {
	doc := src[d.Start:d.End]
	if kind != "" && !strings.HasSuffix(kind, "List") || !bytes.Contains(doc, []byte("items")) {
		return l, false
	}
	if kind != "" {
		if items, _, _, ok := Items(src, d.Start, d.End); ok {
			withBlanks(src, items, d.End)
			return ItemList{Items: items}, true
		}
	} else if !bytes.Contains(doc, []byte("List")) && bytes.IndexByte(doc, '\\') < 0 {
		return l, false
	}
	var o Object
	if o.ReadList(src, d, dash) != nil {
		return l, false
	}
	list := o.Get("items")
	if !list.IsList() {
		return l, false
	}
	n := list.node()
	if l.Flow = n.style == flowStyle; l.Flow {
		l.Open, l.Close = int(n.start), int(n.end)-1
	}
	for item := range list.Items() {
		n := item.node()
		span := Document{Start: int(n.start), End: int(n.end)}
		if !l.Flow {
			span = Document{Start: o.tree.lineStart(int(n.keyStart)),
				End: o.tree.lineEnd(int(max(n.end, n.keyEnd)))}
			if len(bytes.TrimLeft(src[span.Start:n.keyStart], " ")) > 0 {
				return ItemList{}, false
			}
		}
		span.Lead = span.Start
		l.Items = append(l.Items, span)
	}
	if !l.Flow {
		withBlanks(src, l.Items, d.End)
	}
	return l, true
}

var errNoList = errors.New("it is not a list whose text can be edited")

// ReadList reads a list for edits of its own fields. Unlike Read it leaves JSON that YAML reads
// differently as it is.
func (o *Object) ReadList(src []byte, d Document, dash bool) error {
	if _, err := o.Read(src, d, dash, Origin{}); err != nil {
		return err
	}
	if plain, ok := plainJSON(src[d.Start:d.End]); o.rewritten && ok {
		text := append(bytes.Clone(src[:d.Start]), plain...)
		if _, err := o.Read(text, d, dash, Origin{}); err != nil {
			return err
		}
		o.tree.src = src
	}
	if o.rewritten || !strings.HasSuffix(o.Kind, "List") {
		return errNoList
	}
	return nil
}

// plainJSON returns a copy of a JSON text that the scanner reads, with every value at the same
// position: it replaces escapes that YAML lacks by other characters, and moves each colon next to
// its key.
func plainJSON(text []byte) (plain []byte, ok bool) {
	if !json.Valid(text) {
		return nil, false
	}
	plain = bytes.Clone(text)
	within, after := false, 0 // inside a string; the end of the last string
	for at := 0; at < len(plain); at++ {
		switch c := plain[at]; {
		case c == '"':
			within, after = !within, at+1
		case within && c == '\\' && plain[at+1] == '/':
			plain[at] = '/'
			at++
		case within && c == '\\' && plain[at+1] == 'u' && surrogate(plain[at+2:at+6]):
			copy(plain[at:], "------")
			at += 5
		case within && c == '\\':
			at++
		case !within && c == ':' && at > after:
			plain[after], plain[at] = ':', ' '
		}
	}
	return plain, true
}

// surrogate reports whether four hexadecimal digits are half of a surrogate pair.
func surrogate(digits []byte) bool {
	code, err := strconv.ParseUint(string(digits), 16, 16)
	return err == nil && utf16.IsSurrogate(rune(code))
}

// Note describes the mapping to which annotations or other fields were added.
type Note struct {
	// Created is the number of missing mappings, from the one with the fields upwards.
	Created int `json:"created,omitempty"`
	// Emptied is the text after the colon of the mapping, or of the one above the missing ones, if
	// it was empty.
	Emptied string `json:"emptied,omitempty"`
}

// PlanNote returns the Note for a later Annotate.
func (o *Object) PlanNote() Note {
	n, missing := o.follow(annotationsPath)
	return Note{missing, o.Plan(n, nil).Was}
}

var annotationsPath = []string{"metadata", "annotations"}

// Annotate adds annotations. Each is a line of YAML.
func (o *Object) Annotate(lines string) error {
	_, err := o.Insert(o.Root(), annotationsPath, []byte(lines), false)
	return err
}

// TakeNote removes annotations that Annotate added, and what was created for them according to the
// note.
func (o *Object) TakeNote(note Note, keys ...string) error {
	return o.Take(o.Get(annotationsPath...), keyed(keys), note)
}
