package render

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
)

// list is a document that krm.ListItems took apart.
type list struct {
	src  []byte // that the document and its items are in
	doc  krm.Document
	dash bool // it is an item of a block list itself
	krm.ItemList
	// shared are the items that krm.SharedItems returns.
	shared map[int][]byte
	// nested are the items that are lists themselves.
	nested map[int]list

	// Of a list with consumed items, which its file keeps in comments or in an
	// annotation, src is the text with these items. Behind each of shifts lines of
	// the file are missing; start is where the document is in the file.
	shifts []shift
	start  int
	line   int // of start, once it is known
	// kept are the places of the items that an annotation keeps.
	kept map[int]bool
	// unended is the end of the item whose last line had no end, 0 for none.
	unended int
}

// shift is a place in a text behind which it lacks lines that its file has; a
// negative number of them was added.
type shift struct{ at, lines int }

// listOf takes a document apart, which may be an item of a block list itself.
// Where consumed is set, its consumed items are items again, and those that share
// text can be read.
func listOf(data []byte, d krm.Document, dash bool, head *krm.Head, consumed bool) (l list, ok bool) {
	l = list{src: data, doc: d, dash: dash}
	if head != nil && !strings.HasSuffix(head.Kind, "List") {
		return l, false
	}
	if consumed && bytes.Contains(data[d.Start:d.End], []byte(keys.Consumed)) {
		if l, ok = withConsumed(l); !ok {
			return l, false
		}
		if !dash && len(l.shifts)+len(l.kept) > 0 {
			head = krm.HeadOf(l.src[l.doc.Start:l.doc.End])
		}
	}
	if l.ItemList, ok = krm.ListItems(l.src, l.doc, dash, head); !ok {
		return l, false
	}
	if consumed && !l.Flow && !dash { // between brackets there are no anchors
		l.shared = krm.SharedItems(l.src[l.doc.Start:l.doc.End], len(l.Items))
	}
	mention := -1 // of the next list: one search in all items takes a third of one in each
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
		if inner, ok := listOf(l.src, item, !l.Flow, nil, consumed); ok {
			if l.nested == nil {
				l.nested = make(map[int]list)
			}
			l.nested[i] = inner
		}
	}
	return l, true
}

// parted is a list of a file in memory that the first pass took apart. Lists with consumed,
// shared or nested items are parsed again, because keeping them takes much memory.
type parted struct {
	doc krm.Document
	krm.ItemList
}

func (l *list) parted(d krm.Document) (p parted, ok bool) {
	return parted{d, l.ItemList}, len(l.shifts)+len(l.kept)+len(l.shared)+len(l.nested) == 0
}

// listIn is listOf for the second pass: d is often one of the lists that the first
// pass took apart. rest are those that are not rendered yet, in their order.
func listIn(data []byte, d krm.Document, rest *[]parted) (l list, ok bool) {
	if p := *rest; len(p) > 0 && p[0].doc == d {
		*rest = p[1:]
		return list{src: data, doc: d, ItemList: p[0].ItemList}, true
	}
	return listOf(data, d, false, krm.HeadOf(data[d.Start:d.End]), true)
}

// withConsumed makes the consumed items of a list items again. ok is false where
// somebody has made that impossible.
func withConsumed(l list) (restored list, ok bool) {
	text := l.src[l.doc.Start:l.doc.End]
	if bytes.Contains(text, []byte("\n"+consumedMark)) {
		restored = restoreItems(text, l.doc.Start)
		restored.dash = l.dash
		return restored, true
	}
	return restoreFlowItems(l)
}

// lineOf returns the line of a place in src; inFile does so for one in the file. Calls of both have
// to be in the order of the places.
func (l *list) lineOf(at int, inFile func(int) int) int {
	if len(l.shifts) == 0 {
		return inFile(at)
	}
	if l.line == 0 {
		l.line = inFile(l.start)
	}
	line := l.line + bytes.Count(l.src[:at], []byte{'\n'})
	for _, s := range l.shifts {
		if s.at <= at {
			line += s.lines
		}
	}
	return line
}

// inner is lineOf for the lists in the list.
func (l *list) inner(inFile func(int) int) func(int) int {
	return func(at int) int { return l.lineOf(at, inFile) }
}

// origin returns the origin of an item.
func (l *list) origin(i int, file string, inFile func(int) int) krm.Origin {
	if at := l.Items[i].Start; !l.kept[at] {
		return krm.Origin{File: file, Line: l.lineOf(at, inFile)}
	}
	return krm.Origin{File: file, Line: l.lineOf(l.doc.Start, inFile), Kept: true}
}

// restoreItems makes the consumed items of a block list items again.
func restoreItems(text []byte, start int) list {
	l := list{start: start}
	within, unended := false, false
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte(consumedMark)) {
			within, unended = true, bytes.Contains(line, []byte(unendedMark))
			l.shifts = append(l.shifts, shift{len(l.src), 1})
			continue
		}
		if within {
			if line, within = uncomment(line); !within && unended {
				l.unended, unended = len(l.src), false
			}
		}
		l.src = append(l.src, line...)
	}
	l.doc.End = len(l.src)
	if within && unended {
		l.unended = len(l.src)
	}
	return l
}

// keptItems is what the annotation keys.Consumed of a list between brackets says, where
// no comment has a place: the items that were consumed, as their author wrote them.
type keptItems struct {
	krm.Note
	Items []keptItem `json:"items"`
}

// keptItem is an item with the text that set it apart from others.
type keptItem struct {
	// After is how many of the list's items are before it.
	After  int    `json:"after,omitempty"`
	Before string `json:"before,omitempty"`
	Text   string `json:"text"`
	// Behind is set for the last one that has no item before it.
	Behind string `json:"behind,omitempty"`
}

// restoreFlowItems makes the consumed items of a list between brackets items
// again. ok is false where somebody has made that impossible.
func restoreFlowItems(l list) (restored list, ok bool) {
	var o krm.Object
	if o.ReadList(l.src, l.doc, l.dash) != nil {
		return l, true // which ListItems finds as well
	}
	note, marked := o.Annotation(keys.Consumed)
	if !marked {
		return l, true // it is an item's
	}
	var kept keptItems
	decoder := json.NewDecoder(strings.NewReader(note))
	decoder.DisallowUnknownFields()
	if decoder.Decode(&kept) != nil || o.TakeNote(keys.Consumed, kept.Note) != nil {
		return l, false
	}
	text, was := o.Append(nil), l.src[l.doc.Start:l.doc.End]
	items, ok := krm.ListItems(text, krm.Document{End: len(text)}, l.dash, nil)
	if !ok || !items.Flow {
		return l, false
	}
	r := list{dash: l.dash, start: l.doc.Start, kept: make(map[int]bool)}
	same := 0 // up to the annotation, which is before all items or behind them
	for same < min(len(text), len(was)) && text[same] == was[same] {
		same++
	}
	added := r.putItems(text, items, kept.Items)
	if same > items.Open {
		same += added
	}
	r.doc.End = len(r.src)
	r.shifts = append(r.shifts, shift{same, bytes.Count(was, []byte{'\n'}) - bytes.Count(text, []byte{'\n'})})
	return r, true
}

// putItems makes the text of a list that of the list with consumed items among its items. It
// returns the length of the text that it added.
func (l *list) putItems(text []byte, items krm.ItemList, kept []keptItem) (added int) {
	put := func(piece string) {
		l.src = append(l.src, piece...)
		added += len(piece)
	}
	putKept := func(before string, k keptItem, behind string) {
		put(before)
		l.kept[len(l.src)] = true
		put(k.Text)
		put(behind)
		if lines := strings.Count(before+k.Text+behind, "\n"); lines > 0 {
			l.shifts = append(l.shifts, shift{len(l.src), -lines})
		}
	}
	comma := func(between string) string {
		if !strings.Contains(between, ",") { // somebody has changed what is around it
			return ", "
		}
		return between
	}
	n, first := len(items.Items), 0
	for first < len(kept) && (n == 0 || kept[first].After <= 0) {
		first++
	}
	cursor := items.Open + 1
	if n > 0 {
		cursor = items.Items[0].Start
	}
	l.src = append(l.src, text[:cursor]...)
	for i, k := range kept[:first] {
		before, behind := "", ""
		if i > 0 {
			before = comma(k.Before)
		} else if n == 0 {
			before = k.Before
		}
		if i == first-1 && n > 0 {
			behind = comma(k.Behind)
		} else if i == first-1 {
			behind = k.Behind
		}
		putKept(before, k, behind)
	}
	kept = kept[first:]
	for i, item := range items.Items {
		l.src = append(l.src, text[cursor:item.End]...)
		cursor = item.End
		for len(kept) > 0 && (kept[0].After == i+1 || i+1 == n) {
			putKept(comma(kept[0].Before), kept[0], "")
			kept = kept[1:]
		}
	}
	l.src = append(l.src, text[cursor:]...)
	return added
}
