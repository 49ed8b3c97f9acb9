package krm

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf16"
)

// ItemList is a list that was taken apart.
type ItemList struct {
	// Items are the items' text: in a block list whole lines, the first with its dash; in a
	// flow list the text between the commas.
	Items []Document
	// Flow says that the items are between brackets, which are at Open and Close.
	Flow        bool
	Open, Close int
}

// ListItems splits a document at its items if its kind, from KindOf, ends in List. Where
// dash is set the text is an item of a list itself. ok is false for every other document,
// and for a list that the scanner is not certain of.
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

// ReadList reads a list for edits of its own fields. Unlike Read it leaves JSON
// that YAML reads differently as it is.
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

// plainJSON returns a JSON text in which every value is at the same place, and
// which the scanner reads: what follows an escape that YAML does not have is other
// text, and a colon follows its key at once.
func plainJSON(text []byte) (plain []byte, ok bool) {
	if !json.Valid(text) {
		return nil, false
	}
	plain = bytes.Clone(text)
	within, after := false, 0 // a string; the last one
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

// surrogate reports whether four digits are half of a character.
func surrogate(digits []byte) bool {
	code := 0
	for _, c := range bytes.ToLower(digits) {
		code = code<<4 | bytes.IndexByte([]byte("0123456789abcdef"), c)
	}
	return utf16.IsSurrogate(rune(code))
}

// Note is what annotations were added to, or other fields of a mapping.
type Note struct {
	// Created is how many mappings, up from the one that they are in, were missing.
	Created int `json:"created,omitempty"`
	// Emptied is how the mapping, or the one above those that were missing, was
	// written after its colon, where it was empty.
	Emptied string `json:"emptied,omitempty"`
}

// PlanNote says what Annotate adds to.
func (o *Object) PlanNote() Note {
	n, missing := o.follow(annotationsPath)
	return Note{missing, o.Plan(n, nil).Was}
}

var annotationsPath = []string{"metadata", "annotations"}

// Annotate adds annotations, each a line of YAML.
func (o *Object) Annotate(lines string) error {
	_, err := o.Insert(o.Root(), annotationsPath, []byte(lines), false)
	return err
}

// TakeNote takes out annotations that Annotate added to what the note says.
func (o *Object) TakeNote(note Note, keys ...string) error {
	return o.Take(o.Get(annotationsPath...), keyed(keys), note)
}
