package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
)

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

// putItems makes the text of a list that of the list with consumed items among its
// items. It gives the length of what it added.
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

// next gives the text that goes before another item. Where all before it were
// dropped or consumed, their commas went with them.
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
	cursor, from := items[0].Start, len(dst)
	var made flowList
	for i, item := range items {
		dst = makeRoom(dst, cursor-items[0].Start, d.End-items[0].Start, from)
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
	if !krm.Failed(w.findings[findings:]) {
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
		w.findings = append(w.findings, krm.Finding{Rule: "package/layout", Severity: krm.Error, Place: krm.Place{File: file, Line: line},
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
		w.findings = append(w.findings, krm.Finding{Rule: "package/layout", Severity: krm.Error, Place: krm.Place{File: file, Line: line},
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
			w.findings = append(w.findings, o.Finding(krm.Error, "package/layout", krm.Node{}, err.Error(), ""))
			return dst
		}
		dst = append(append(dst, made.next(between)...), bytes.TrimSpace(json)...)
		between = []byte(", ")
	}
	return dst
}

// appendKept writes a custom resource that was input, and is all of a JSON file,
// as an empty List that keeps it.
func appendKept(dst, text []byte) []byte {
	kept, err := json.Marshal(keptDocument{string(text)})
	if err == nil {
		kept, err = json.Marshal(string(kept))
	}
	if err != nil {
		panic(err) // strings always marshal
	}
	dst = append(dst, `{"apiVersion": "v1", "kind": "List", "metadata": {"annotations": {"`+keys.Consumed+`": `...)
	return append(append(dst, kept...), "}}, \"items\": []}\n"...)
}

// keptDocument is what the annotation keys.Consumed of such a List says.
type keptDocument struct {
	Document string `json:"document"`
}

// restoreKept undoes appendKept.
func restoreKept(text []byte) (document []byte, ok bool) {
	if !BeginsJSON(text) || !bytes.Contains(text, []byte(keys.Consumed)) {
		return nil, false
	}
	var list struct {
		Kind     string
		Metadata struct{ Annotations map[string]string }
		Items    []any
	}
	var kept keptDocument
	if json.Unmarshal(text, &list) != nil || list.Kind != "List" || len(list.Items) > 0 ||
		json.Unmarshal([]byte(list.Metadata.Annotations[keys.Consumed]), &kept) != nil || kept.Document == "" {
		return nil, false
	}
	return []byte(kept.Document), true
}
