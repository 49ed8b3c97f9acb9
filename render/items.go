package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

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
	cursor := items[0].Start
	for i, item := range items {
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

// appendItem renders an item of a block list. One that shares text can be read
// as shared, and has to stay as it is.
func (w *worker) appendItem(dst, data []byte, item krm.Document, shared []byte, origin krm.Origin) []byte {
	w.file.inline, w.shared = false, shared
	o, becomes := w.process(data, item, true, origin)
	w.shared = nil
	switch {
	case shared != nil && (becomes != stays || o != nil && w.unit.Consumed):
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
		w.findings = append(w.findings, o.Finding(finding.Error, "package/layout", metadata, err.Error(), "write the object in block style"))
	}
}

// place returns the annotations that put a generated object of a list into the file next to its
// workload's, if the host names that file and has a separate place in it.
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

// FileBeside names the file for what is generated for the objects of another, see
// Options.Beside.
func FileBeside(file string) string {
	dot := strings.LastIndexByte(file, '.')
	if dot <= strings.LastIndexByte(file, '/') {
		dot = len(file)
	}
	return file[:dot] + ".armature.yaml"
}

// flowList is a list between brackets as it is rendered.
type flowList struct {
	items int // that are in it
	kept  []keptItem
}

// keep takes a consumed item out of the list. between is the text before it.
func (l *flowList) keep(between, text []byte) {
	if l.items == 0 && len(l.kept) == 0 {
		between = nil
	}
	l.kept = append(l.kept, keptItem{After: l.items, Before: string(between), Text: string(text)})
}

// next returns the text that goes before another item. If all items before it were dropped or
// consumed, their commas were removed with them.
func (l *flowList) next(between []byte) []byte {
	if l.items++; l.items > 1 {
		return between
	}
	if n := len(l.kept); n > 0 {
		l.kept[n-1].Behind = string(between)
	}
	return nil
}

// appendFlowItems is appendItems of a list between brackets.
func (w *worker) appendFlowItems(dst []byte, l list, file string, lineOf func(int) int) []byte {
	data, d, items := l.src, l.doc, l.Items
	start, findings, line := len(dst), len(w.findings), l.lineOf(d.Start, lineOf)
	dst = append(dst, data[d.Start:items[0].Start]...)
	cursor := items[0].Start
	var made flowList
	for i, item := range items {
		between := data[cursor:item.Start]
		cursor = item.End
		if inner, ok := l.nested[i]; ok {
			dst = append(dst, made.next(between)...)
			dst = w.appendItems(dst, inner, file, l.inner(lineOf))
			continue
		}
		w.stats.Documents++
		dst = w.appendFlowItem(dst, data, between, item, l.origin(i, file, lineOf), &made)
	}
	if n := len(made.kept); n > 0 && made.items == 0 {
		made.kept[0].Before = string(data[l.Open+1 : items[0].Start])
		made.kept[n-1].Behind = string(data[cursor:l.Close])
		dst, cursor = append(dst[:start], data[d.Start:l.Open+1]...), l.Close
	}
	dst = append(dst, data[cursor:d.End]...)
	if len(made.kept) > 0 {
		dst = w.keepItems(dst, start, &l, made.kept, file, line)
	}
	if !finding.Failed(w.findings[findings:]) {
		w.checkFlowList(dst[start:], &l, file, line)
	}
	return dst
}

// keepItems notes the consumed items of a list, whose text is in dst from start
// on, in an annotation.
func (w *worker) keepItems(dst []byte, start int, l *list, items []keptItem, file string, line int) []byte {
	var o krm.Object
	text := bytes.Clone(dst[start:])
	err := o.ReadList(text, krm.Document{End: len(text)}, l.dash)
	if err == nil {
		var note []byte
		if note, err = json.Marshal(keptItems{o.PlanNote(), items}); err == nil {
			err = o.Annotate(keys.Consumed, string(note))
		}
	}
	if err != nil {
		w.findings = append(w.findings, finding.Finding{Rule: "package/layout", Severity: finding.Error, Place: finding.Place{File: file, Line: line},
			Message: fmt.Sprintf("the list cannot keep its consumed custom resources: %v", err), Hint: "write the list in block style"})
		return dst
	}
	return o.Append(dst[:start])
}

// checkFlowList holds back a list between brackets that no parser would read.
func (w *worker) checkFlowList(text []byte, l *list, file string, line int) {
	if bytes.Equal(text, l.src[l.doc.Start:l.doc.End]) {
		return
	}
	var o krm.Object
	err := o.ReadList(text, krm.Document{End: len(text)}, l.dash)
	if err == nil && !w.undo && json.Valid(l.src[l.doc.Start:l.doc.End]) && !json.Valid(text) {
		err = errors.New("it is not JSON")
	}
	if err != nil {
		w.findings = append(w.findings, finding.Finding{Rule: "package/layout", Severity: finding.Error, Place: finding.Place{File: file, Line: line},
			Message: fmt.Sprintf("the rendered list cannot be read: %v", err), Hint: "write the list in block style"})
	}
}

// appendFlowItem renders an item between brackets. between is the text before it.
func (w *worker) appendFlowItem(dst, data, between []byte, item krm.Document, origin krm.Origin, made *flowList) []byte {
	w.file.inline = true
	o, becomes := w.process(data, item, false, origin)
	if becomes == dropped || becomes == replaced && len(w.unit.Generated) == 0 {
		return dst
	}
	if o == nil {
		return append(append(dst, made.next(between)...), data[item.Start:item.End]...)
	}
	u := &w.unit
	switch {
	case u.Consumed && !w.opt.Hosted:
		made.keep(between, o.Bytes())
		between = []byte(", ")
	case becomes == replaced:
	default:
		if u.Consumed {
			w.localOnly(o)
		}
		dst = w.appendObject(append(dst, made.next(between)...), o)
		between = []byte(", ")
	}
	for i := range u.Generated {
		w.stats.Generated++
		n, err := yaml.Parse(string(u.Generated[i].Text()))
		var json []byte
		if err == nil {
			json, err = n.MarshalJSON()
		}
		if err != nil {
			w.findings = append(w.findings, o.Finding(finding.Error, "package/layout", krm.Node{}, err.Error(), ""))
			return dst
		}
		dst = append(append(dst, made.next(between)...), bytes.TrimSpace(json)...)
		between = []byte(", ")
	}
	return dst
}
