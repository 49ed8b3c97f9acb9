package render

import (
	"bytes"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
)

// list is a document that krm.ListItems split.
type list struct {
	src  []byte // contains the document and its items
	doc  krm.Document
	dash bool // it is itself an item of a block list
	line int  // where it starts in its file
	krm.ItemList
	lines  []int          // of the items in their file
	kept   map[int]bool   // items from an annotation, which have no line of their own
	shared map[int][]byte // items from krm.SharedItems
	nested map[int]list   // items that are lists
}

// listOf splits a document into items. With consumed, it includes the consumed items, and items
// that share text can be read.
func listOf(data []byte, d krm.Document, line int, consumed bool) (l list, ok bool) {
	kind := krm.KindOf(data[d.Start:d.End])
	if kind != "" && !strings.HasSuffix(kind, "List") {
		return l, false
	}
	text := data[d.Start:d.End]
	noted := consumed && bytes.Contains(text, []byte(keys.Consumed))
	if noted && bytes.Contains(text, []byte("\n"+consumedMark)) {
		data = withoutComments(text)
		d = krm.Document{End: len(data)}
	}
	l = list{src: data, doc: d, line: line}
	return l, l.split(kind, consumed, noted)
}

// split finds the items of a list and of the lists in it. noted means that the outer document may
// keep consumed items.
func (l *list) split(kind string, consumed, noted bool) (ok bool) {
	if noted && bytes.Contains(l.src[l.doc.Start:l.doc.End], []byte(keys.Consumed)) && !l.restore() {
		return false
	}
	if l.lines == nil {
		if l.ItemList, ok = krm.ListItems(l.src, l.doc, l.dash, kind); !ok {
			return false
		}
		l.lines = l.linesOf(l.Items)
	}
	if consumed && !l.Flow && !l.dash { // flow style has no anchors here
		l.shared = krm.SharedItems(l.src[l.doc.Start:l.doc.End], len(l.Items))
	}
	mention := -1 // of the next list: one search in all items is faster than one per item
	for i, item := range l.Items {
		if mention < item.Start {
			if mention = bytes.Index(l.src[item.Start:l.doc.End], []byte("List")); mention < 0 {
				break
			}
			mention += item.Start
		}
		if mention >= item.End || l.shared[i] != nil {
			continue
		}
		inner := list{src: l.src, doc: item, dash: !l.Flow, line: l.lines[i]}
		if inner.split("", consumed, noted) {
			if l.nested == nil {
				l.nested = make(map[int]list)
			}
			l.nested[i] = inner
		}
	}
	return true
}

// linesOf returns the lines of items in their file.
func (l *list) linesOf(items []krm.Document) []int {
	lines, line, at := make([]int, len(items)), l.line, l.doc.Start
	for i, item := range items {
		line += bytes.Count(l.src[at:item.Start], []byte{'\n'})
		lines[i], at = line, item.Start
	}
	return lines
}

// origin returns the origin of an item.
func (l *list) origin(i int, file string) krm.Origin {
	return krm.Origin{File: file, Line: l.lines[i], Kept: l.kept[i]}
}

// restore adds the consumed items that the annotation of a list in flow style keeps to its items.
// It returns false if a change made that impossible.
func (l *list) restore() (ok bool) {
	var o krm.Object
	if o.ReadList(l.src, l.doc, l.dash) != nil {
		return true // ListItems reports it as well
	}
	text, marked := o.Annotation(keys.Consumed)
	if !marked {
		return true // it is an item's
	}
	note, ok := readNote(text)
	existing, isList := krm.ListItems(l.src, l.doc, l.dash, "")
	if !ok || !isList || o.TakeNote(note.Note, keys.Consumed) != nil {
		return false
	}
	lines, rest := l.linesOf(existing.Items), o.Append(nil)
	left, isList := krm.ListItems(rest, krm.Document{End: len(rest)}, l.dash, "")
	if !isList || !left.Flow {
		return false
	}
	var kept []krm.Document
	l.src, kept = withKept(rest, left, note.Items)
	l.doc, l.kept = krm.Document{End: len(l.src)}, make(map[int]bool)
	if l.ItemList, ok = krm.ListItems(l.src, l.doc, l.dash, ""); !ok {
		return false
	}
	for i, item := range l.Items {
		l.kept[i] = slices.ContainsFunc(kept, func(k krm.Document) bool {
			return k.Start <= item.Start && item.Start < k.End
		})
		switch {
		case l.kept[i]:
			l.lines = append(l.lines, l.line)
		case len(lines) == 0:
			return false
		default:
			l.lines, lines = append(l.lines, lines[0]), lines[1:]
		}
	}
	return len(lines) == 0
}

// withKept inserts kept items into a list and returns their places.
func withKept(text []byte, l krm.ItemList, kept []keptItems) (src []byte, places []krm.Document) {
	n, cursor := len(l.Items), 0
	for i, k := range kept {
		at, items := l.Open+1, k.Text
		switch { // items may have been added to an empty list, or all removed
		case n == 0 && k.After != all:
			if items = strings.Trim(items, ", \t\r\n"); i > 0 {
				items = ", " + items
			}
		case n > 0 && k.After > 0:
			at = l.Items[min(k.After, n)-1].End
		case n > 0:
			if at = l.Items[0].Start; k.After == all {
				items += ", "
			}
		}
		at = max(at, cursor)
		src = append(src, text[cursor:at]...)
		places = append(places, krm.Document{Start: len(src), End: len(src) + len(items)})
		src, cursor = append(src, items...), at
	}
	return append(src, text[cursor:]...), places
}
