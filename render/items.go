package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// appendItems renders the items of a list in place. Generated objects become items after their
// workload.
func (w *worker) appendItems(dst []byte, l list, file string) []byte {
	data, d, items := l.src, l.doc, l.Items
	if len(items) == 0 {
		return append(dst, data[d.Start:d.End]...)
	}
	if l.Flow {
		return w.appendFlowItems(dst, l, file)
	}
	eol, cursor := krm.LineEnding(data), d.Start
	for i, item := range items {
		if cap(dst)-len(dst) < 64<<10 { // append would grow a large dst by a quarter
			dst = slices.Grow(dst, len(dst))
		}
		between, unended := withoutMarks(data[cursor:item.Start])
		if cursor = item.End; unended {
			item.End = item.Start + len(trimEnd(data[item.Start:item.End]))
		}
		before := len(dst)
		if i > 0 {
			dst = krm.EndLine(dst, eol)
		}
		dst = append(dst, between...)
		if inner, ok := l.nested[i]; ok {
			dst = w.appendItems(dst, inner, file)
			continue
		}
		w.stats.Documents++
		start := len(dst)
		// dropped
		if dst = w.appendItem(dst, data, item, l.shared[i], l.origin(i, file)); len(dst) == start {
			dst = append(dst[:before], between...)
		}
	}
	if tail, _ := withoutMarks(data[cursor:d.End]); len(tail) > 0 {
		dst = append(krm.EndLine(dst, eol), tail...)
	}
	return dst
}

// appendItem renders an item of a block list. An item that shares text is read in its shared form,
// and must not change.
func (w *worker) appendItem(dst, data []byte, item krm.Document, shared []byte,
	origin krm.Origin) []byte {
	w.file.inline, w.shared = false, shared
	o, becomes := w.process(data, item, true, origin)
	w.shared = nil
	switch {
	case shared != nil && (becomes != stays || o != nil && w.unit.Consumed):
		w.findings.Add(w.object.LayoutFinding("package/layout", errors.New(w.object.Frozen())))
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
	eol := krm.LineEnding(data)
	for _, text := range u.Generated {
		w.stats.Generated++
		dst = krm.EndLine(dst, eol)
		start := len(dst)
		dst = krm.AppendIndented(dst, text, dash+2, eol)
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

// localOnly marks a consumed custom resource, so that hosts keep it in the package and omit it when
// they apply.
func (w *worker) localOnly(o *krm.Object) {
	if o.Get("metadata", "annotations", krm.LocalConfig).Exists() {
		return
	}
	note := consumedNote{Note: o.PlanNote()}
	if o.OnlyHostAnnotations() { // the host removes them
		note.Created = 1
	}
	if err := o.Annotate(note.line() + krm.LocalConfig + ": \"true\"\n"); err != nil {
		w.findings.Add(o.Finding(finding.Error, "package/layout", o.Get("metadata"),
			err.Error(), "write the object in block style"))
	}
}

// place returns the annotations that put a generated object of a list into the file next to its
// workload's. known is false if the host names no file.
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
	return "    " + krm.PathAnnotation + ": '" + quoted + "'\n    " + krm.IndexAnnotation + ": '" +
		strconv.Itoa(index) + "'\n", true
}

// FileBeside returns the name of the file for objects generated from another file, see
// Options.Beside.
func FileBeside(file string) string {
	dot := strings.LastIndexByte(file, '.')
	if dot <= strings.LastIndexByte(file, '/') {
		dot = len(file)
	}
	return file[:dot] + ".armature.yaml"
}

// flowList is a list in flow style during rendering.
type flowList struct {
	items int // number of rendered items
	kept  []keptItems
}

// keep removes a consumed item from the list. between is the text before it.
func (l *flowList) keep(between, text []byte) {
	if n := len(l.kept); n > 0 && l.kept[n-1].After == l.items {
		l.kept[n-1].Text += string(between) + string(text)
		return
	}
	if l.items == 0 {
		between = nil
	}
	l.kept = append(l.kept, keptItems{l.items, string(between) + string(text)})
}

// next returns the text before another item. If all items before it were dropped or consumed, their
// commas were removed with them.
func (l *flowList) next(between []byte) []byte {
	if l.items++; l.items > 1 {
		return between
	}
	if n := len(l.kept); n > 0 {
		l.kept[n-1].Text += string(between)
	}
	return nil
}

// appendFlowItems renders the items of a list in flow style.
func (w *worker) appendFlowItems(dst []byte, l list, file string) []byte {
	data, d, items := l.src, l.doc, l.Items
	start, failed := len(dst), w.findings.Errors()
	dst = append(dst, data[d.Start:items[0].Start]...)
	cursor := items[0].Start
	var made flowList
	for i, item := range items {
		between := data[cursor:item.Start]
		cursor = item.End
		if inner, ok := l.nested[i]; ok {
			dst = append(dst, made.next(between)...)
			dst = w.appendItems(dst, inner, file)
			continue
		}
		w.stats.Documents++
		dst = w.appendFlowItem(dst, data, between, item, l.origin(i, file), &made)
	}
	if len(made.kept) > 0 && made.items == 0 {
		before, behind := data[l.Open+1:items[0].Start], data[cursor:l.Close]
		made.kept[0] = keptItems{all, string(before) + made.kept[0].Text + string(behind)}
		dst, cursor = append(dst[:start], data[d.Start:l.Open+1]...), l.Close
	}
	dst = append(dst, data[cursor:d.End]...)
	if len(made.kept) > 0 {
		dst = w.keepItems(dst, start, &l, made.kept, file)
	}
	if w.findings.Errors() == failed {
		w.checkFlowList(dst[start:], &l, file)
	}
	return dst
}

// keepItems records the consumed items of a list, whose text starts at start in dst, in an
// annotation.
func (w *worker) keepItems(dst []byte, start int, l *list, items []keptItems, file string) []byte {
	var o krm.Object
	text := bytes.Clone(dst[start:])
	err := o.ReadList(text, krm.Document{End: len(text)}, l.dash)
	if err == nil {
		err = o.Annotate((&consumedNote{Note: o.PlanNote(), Items: items}).line())
	}
	if err != nil {
		w.refuseList(l, file, fmt.Sprintf("the list cannot keep its consumed custom resources: %v", err))
		return dst
	}
	return o.Append(dst[:start])
}

// refuseList reports a list in flow style that cannot be rendered.
func (w *worker) refuseList(l *list, file, message string) {
	w.findings.Add(finding.Finding{Rule: "package/layout", Severity: finding.Error,
		Place: finding.Place{File: file, Line: l.line}, Message: message,
		Hint: "write the list in block style"})
}

// checkFlowList reports a list in flow style that no parser could read.
func (w *worker) checkFlowList(text []byte, l *list, file string) {
	if bytes.Equal(text, l.src[l.doc.Start:l.doc.End]) {
		return
	}
	var o krm.Object
	err := o.ReadList(text, krm.Document{End: len(text)}, l.dash)
	if err == nil && !w.undo && json.Valid(l.src[l.doc.Start:l.doc.End]) && !json.Valid(text) {
		err = errors.New("it is not JSON")
	}
	if err != nil {
		w.refuseList(l, file, fmt.Sprintf("the rendered list cannot be read: %v", err))
	}
}

// appendFlowItem renders an item of a list in flow style. between is the text before it.
func (w *worker) appendFlowItem(dst, data, between []byte, item krm.Document, origin krm.Origin,
	made *flowList) []byte {
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
	for _, text := range u.Generated {
		w.stats.Generated++
		n, err := yaml.Parse(string(text))
		var json []byte
		if err == nil {
			json, err = n.MarshalJSON()
		}
		if err != nil {
			w.findings.Add(o.Finding(finding.Error, "package/layout", krm.Node{}, err.Error(), ""))
			return dst
		}
		dst = append(append(dst, made.next(between)...), bytes.TrimSpace(json)...)
		between = []byte(", ")
	}
	return dst
}
