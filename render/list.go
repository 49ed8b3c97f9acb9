package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/internal/room"
)

// list is a document that krm.ListItems took apart.
type list struct {
	src   []byte // that the document and its items are in
	doc   krm.Document
	items []krm.Document
	flow  bool
	// shared are the items that krm.SharedItems gives.
	shared map[int][]byte

	// In a list, consumed items are comments in the file; src is the text with
	// these items. A line of the file is missing before each of marks;
	// start is where the document is in the file.
	marks []int
	start int
	line  int // of start, once it is known
}

// listOf takes a document apart. Where consumed is set, its consumed items are
// items again, and those that share text can be read.
func listOf(data []byte, d krm.Document, head *krm.Head, consumed bool) (l list, ok bool) {
	if consumed {
		defer func() {
			if ok && !l.flow { // between brackets there are no anchors
				l.shared = krm.SharedItems(l.src[l.doc.Start:l.doc.End], len(l.items))
			}
		}()
	}
	if consumed && head != nil && strings.HasSuffix(head.Kind, "List") {
		if text, marks, restored := restoreItems(data[d.Start:d.End]); restored {
			l = list{src: text, doc: krm.Document{End: len(text)}, marks: marks, start: d.Start}
			if l.items, l.flow, ok = krm.ListItems(text, l.doc, krm.HeadOf(text)); ok && !l.flow {
				return l, true
			}
		}
	}
	l = list{src: data, doc: d}
	l.items, l.flow, ok = krm.ListItems(data, d, head)
	return l, ok
}

// lineOf gives the line of a place in src; inFile does so for one in the file.
// Calls of both have to be in the order of the places.
func (l *list) lineOf(at int, inFile func(int) int) int {
	if len(l.marks) == 0 {
		return inFile(at)
	}
	if l.line == 0 {
		l.line = inFile(l.start)
	}
	gone, _ := slices.BinarySearch(l.marks, at+1)
	return l.line + bytes.Count(l.src[:at], []byte{'\n'}) + gone
}

// restoreItems makes the consumed items of a block list items again. It gives
// the places at which a line has gone.
func restoreItems(text []byte) (restored []byte, marks []int, ok bool) {
	if !bytes.Contains(text, []byte("\n"+consumedMark)) {
		return nil, nil, false
	}
	within := false
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte(consumedMark)) {
			within, marks = true, append(marks, len(restored))
			continue
		}
		if within {
			if line, within = bytes.CutPrefix(line, []byte(ConsumedLine)); !within {
				line, within = bytes.CutPrefix(line, []byte(ConsumedLine[:2]))
			}
		}
		restored = append(restored, line...)
	}
	return restored, marks, true
}

// appendItems renders the items of a list in place. Generated objects become
// items behind their workload's.
func (w *worker) appendItems(dst []byte, l list, file string, lineOf func(int) int) []byte {
	data, d, items, flow := l.src, l.doc, l.items, l.flow
	if len(items) == 0 {
		return append(dst, data[d.Start:d.End]...)
	}
	start := len(dst)
	dst = append(dst, data[d.Start:items[0].Start]...)
	cursor, from, findings := items[0].Start, len(dst), len(w.findings)
	for i, item := range items {
		w.stats.Documents++
		if done := cursor - items[0].Start; done > (d.End-items[0].Start)/64 && cap(dst)-len(dst) < (len(dst)-from)/16 {
			// Room for all items at once, should they grow like those so far.
			rest := float64(len(dst)-from) / float64(done) * float64(d.End-cursor)
			dst = room.Grow(dst, int(rest*1.1)+pieceSize)
		}
		between := data[cursor:item.Start]
		cursor = item.End
		origin := krm.Origin{File: file, Line: l.lineOf(item.Start, lineOf)}
		if flow {
			if len(dst) == from { // all before it were dropped, and their commas with them
				between = nil
			}
			dst = w.appendFlowItem(dst, data, between, item, origin)
		} else {
			before := len(dst)
			dst = append(krm.EndLine(dst, lineEnding(data)), between...)
			start := len(dst)
			if dst = w.appendItem(dst, data, item, l.shared[i], origin); len(dst) == start { // dropped
				dst = append(dst[:before], between...)
			}
		}
	}
	if tail := data[cursor:d.End]; len(tail) > 0 && !flow {
		dst = append(krm.EndLine(dst, lineEnding(data)), tail...)
	} else {
		dst = append(dst, tail...)
	}
	if flow && !krm.Failed(w.findings[findings:]) {
		w.checkFlowList(dst[start:], data, d, file)
	}
	return dst
}

// checkFlowList holds back a list between brackets that no parser would read.
func (w *worker) checkFlowList(text, data []byte, d krm.Document, file string) {
	if bytes.Equal(text, data[d.Start:d.End]) {
		return
	}
	var o krm.Object
	_, err := o.Read(text, krm.Document{End: len(text)}, false, krm.Origin{File: file, Line: 1})
	if why, rewritten := o.Rewritten(); err == nil && rewritten {
		err = errors.New("it has " + why)
	} else if err == nil && json.Valid(data[d.Start:d.End]) && !json.Valid(text) {
		err = errors.New("it is not JSON")
	}
	if err != nil {
		w.findings = append(w.findings, krm.Finding{Rule: "package/layout", Severity: krm.Error, File: file, Line: 1 + bytes.Count(data[:d.Start], []byte{'\n'}),
			Message: fmt.Sprintf("the rendered list cannot be read: %v", err), Hint: "write the list in block style"})
	}
}

// appendFlowItem renders an item between brackets, where the comma before it
// goes with an item that is dropped.
func (w *worker) appendFlowItem(dst, data, between []byte, item krm.Document, origin krm.Origin) []byte {
	w.inline = true
	o, becomes := w.process(data, item, false, origin)
	if becomes == dropped || becomes == replaced && len(w.unit.Generated) == 0 {
		return dst
	}
	dst = append(dst, between...)
	if o == nil {
		return append(dst, data[item.Start:item.End]...)
	}
	u := &w.unit
	if u.Consumed {
		w.localOnly(o)
	}
	first := becomes == replaced
	if !first {
		dst = w.appendObject(dst, o)
	}
	for i := range u.Generated {
		w.stats.Generated++
		n, err := yaml.Parse(string(u.Generated[i].Text()))
		var json []byte
		if err == nil {
			json, err = n.MarshalJSON()
		}
		if err != nil {
			w.findings = append(w.findings, o.Finding(krm.Error, "package/layout", krm.Node{}, err.Error(), ""))
			return dst
		}
		if !first {
			dst = append(dst, ", "...)
		}
		first = false
		dst = append(dst, bytes.TrimSpace(json)...)
	}
	return dst
}

// appendItem renders an item of a block list. One that shares text can be read
// as shared, and has to stay as it is.
func (w *worker) appendItem(dst, data []byte, item krm.Document, shared []byte, origin krm.Origin) []byte {
	w.inline, w.shared = false, shared
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
	case u.Consumed && !w.opt.Hosted && !o.Unended():
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

// keys.Consumed says that the render added krm.LocalConfig, and to what: to
// annotations that it "created", "added" to, or found "emptied" and how.

// localOnly marks a custom resource that was input: hosts keep it in the
// package and leave it out of what they apply.
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
	lines := fmt.Sprintf("%s: '%s'\n%s: \"true\"\n", keys.Consumed, was, krm.LocalConfig)
	if _, err := o.Insert(metadata, annotations, krm.Entries{Text: []byte(lines)}, false); err != nil {
		w.findings = append(w.findings, o.Finding(krm.Error, "package/layout", metadata, err.Error(), "write the object in block style"))
	}
}

// restoreLocal undoes localOnly.
func restoreLocal(o *krm.Object) ([]byte, bool) {
	annotations := o.Get("metadata", "annotations")
	was, marked := o.Annotation(keys.Consumed)
	if !marked {
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
	if w.placed == nil {
		w.placed = make(map[string]int)
	}
	index := w.placed[path]
	w.placed[path]++
	quoted := strings.ReplaceAll(path, "'", "''")
	return "    " + krm.PathAnnotation + ": '" + quoted + "'\n    " + krm.IndexAnnotation + ": '" + strconv.Itoa(index) + "'\n", true
}
