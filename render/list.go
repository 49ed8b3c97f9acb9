package render

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/internal/room"
)

// list is a document that krm.ListItems took apart.
type list struct {
	src  []byte // that the document and its items are in
	doc  krm.Document
	dash bool // it is an item of a block list itself
	krm.ItemList
	// shared are the items that krm.SharedItems gives.
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

// parted is a list of a file in memory that the first pass took apart. Lists with
// consumed, shared or nested items are none, because they take much memory.
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

// lineOf gives the line of a place in src; inFile does so for one in the file.
// Calls of both have to be in the order of the places.
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

// origin gives the origin of an item.
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

// appendItems renders the items of a list in place. Generated objects become
// items behind their workload's.
func (w *worker) appendItems(dst []byte, l list, file string, lineOf func(int) int) []byte {
	data, d, items := l.src, l.doc, l.Items
	if len(items) == 0 {
		return append(dst, data[d.Start:d.End]...)
	}
	if l.Flow {
		return w.appendFlowItems(dst, l, file, lineOf)
	}
	dst = append(dst, data[d.Start:items[0].Start]...)
	cursor, from := items[0].Start, len(dst)
	for i, item := range items {
		dst = makeRoom(dst, cursor-items[0].Start, d.End-items[0].Start, from)
		between := data[cursor:item.Start]
		if cursor = item.End; item.End == l.unended {
			item.End = item.Start + len(trimEnd(data[item.Start:item.End]))
		}
		before := len(dst)
		dst = append(krm.EndLine(dst, lineEnding(data)), between...)
		if inner, ok := l.nested[i]; ok {
			dst = w.appendItems(dst, inner, file, l.inner(lineOf))
			continue
		}
		w.stats.Documents++
		start := len(dst)
		if dst = w.appendItem(dst, data, item, l.shared[i], l.origin(i, file, lineOf)); len(dst) == start { // dropped
			dst = append(dst[:before], between...)
		}
	}
	if tail := data[cursor:d.End]; len(tail) > 0 {
		dst = append(krm.EndLine(dst, lineEnding(data)), tail...)
	}
	return dst
}

// makeRoom makes room for all of a list at once, should its rest grow like what is
// done, which is in dst from a place on.
func makeRoom(dst []byte, done, all, from int) []byte {
	if done > all/64 && cap(dst)-len(dst) < (len(dst)-from)/16 {
		rest := float64(len(dst)-from) / float64(done) * float64(all-done)
		return room.Grow(dst, int(rest*1.1)+pieceSize)
	}
	return dst
}

// appendItem renders an item of a block list. One that shares text can be read
// as shared, and has to stay as it is.
func (w *worker) appendItem(dst, data []byte, item krm.Document, shared []byte, origin krm.Origin) []byte {
	w.file.inline, w.shared = false, shared
	o, becomes := w.process(data, item, true, origin)
	w.shared = nil
	switch {
	case shared != nil && (becomes != kept || o != nil && w.unit.Consumed):
		w.findings = append(w.findings, w.object.LayoutFinding("package/layout", errors.New(w.object.Frozen())))
		return append(dst, data[item.Start:item.End]...)
	case becomes == dropped:
		return dst
	case o == nil:
		return append(dst, data[item.Start:item.End]...)
	}
	u := &w.unit
	switch {
	case becomes == replaced:
	case u.Consumed && !w.opt.Hosted:
		dst = appendConsumed(dst, o.Bytes(), o.Ref)
	case u.Consumed:
		w.localOnly(o)
		dst = w.appendObject(dst, o)
	default:
		dst = w.appendObject(dst, o)
	}
	dash := bytes.IndexByte(data[item.Start:item.End], '-')
	eol := lineEnding(data)
	for i := range u.Generated {
		w.stats.Generated++
		dst = krm.EndLine(dst, eol)
		start := len(dst)
		dst = u.Generated[i].Append(dst, dash+2, eol)
		if place, ok := w.place(o); ok {
			if _, after, ok := bytes.Cut(dst[start:], []byte("  annotations:"+eol)); ok {
				lines := krm.AppendIndented(nil, []byte(place), dash+2, eol)
				dst = slices.Insert(dst, len(dst)-len(after), lines...)
			}
		}
		dst[start+dash] = '-'
	}
	return dst
}

// localOnly marks a custom resource that was input: hosts keep it in the
// package and leave it out of what they apply. keys.Consumed says to what
// krm.LocalConfig was added: to annotations that it "created", "added" to, or
// found "emptied" and how.
func (w *worker) localOnly(o *krm.Object) {
	metadata, annotations := o.Get("metadata"), []string{"annotations"}
	if metadata.Get("annotations", krm.LocalConfig).Exists() {
		return
	}
	was := "added"
	if note := o.Plan(metadata, annotations); note.Created {
		was = "created"
	} else if o.OnlyHostAnnotations() { // which the host takes away
		was = "created"
	} else if note.Was != "" {
		was = "emptied" + note.Was
	}
	quoted := "'" + was + "'"
	if strings.Contains(was, "\n") {
		quoted = strconv.Quote(was)
	}
	lines := fmt.Sprintf("%s: %s\n%s: \"true\"\n", keys.Consumed, quoted, krm.LocalConfig)
	if _, err := o.Insert(metadata, annotations, krm.Entries{Text: []byte(lines)}, false); err != nil {
		w.findings = append(w.findings, o.Finding(krm.Error, "package/layout", metadata, err.Error(), "write the object in block style"))
	}
}

// restoreLocal undoes localOnly.
func restoreLocal(o *krm.Object) ([]byte, bool) {
	annotations := o.Get("metadata", "annotations")
	was, marked := o.Annotation(keys.Consumed)
	if !marked || strings.HasPrefix(was, "{") { // a list's, which restoreFlowItems knows
		return nil, false
	}
	empty, err := o.Remove(annotations, func(n krm.Node) bool { return n.Key() == keys.Consumed || n.Key() == krm.LocalConfig })
	if err != nil {
		return nil, false
	}
	if emptied, ok := strings.CutPrefix(was, "emptied"); ok && empty {
		o.Restore(annotations, emptied)
	} else if was == "created" && empty {
		o.Reset()
		if o.RemoveField(annotations) != nil {
			return nil, false
		}
	}
	return o.Append(nil), true
}

// FileBeside names the file for what is generated for the objects of another, see
// Options.Beside.
func FileBeside(file string) string {
	dot := strings.LastIndexByte(file, '.')
	if dot <= strings.LastIndexByte(file, '/') {
		dot = len(file)
	}
	return file[:dot] + ".armature.yaml"
}

// place gives the annotations that put a generated object of a list into the
// file next to its workload's, where the host says which that is, and has a
// place in it of its own.
func (w *worker) place(o *krm.Object) (annotations string, known bool) {
	path, ok := o.Annotation(krm.PathAnnotation)
	if !ok || path == "" {
		return "", false
	}
	path = FileBeside(path)
	if w.file.placed == nil {
		w.file.placed = make(map[string]int)
	}
	index := w.file.placed[path]
	w.file.placed[path]++
	quoted := strings.ReplaceAll(path, "'", "''")
	return "    " + krm.PathAnnotation + ": '" + quoted + "'\n    " + krm.IndexAnnotation + ": '" + strconv.Itoa(index) + "'\n", true
}
