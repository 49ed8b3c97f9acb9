package render

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/armature-dev/armature/functions/krm"
)

// appendItems renders the items of a list in place. Generated objects become
// items behind their workload's.
func (w *worker) appendItems(dst, data []byte, d krm.Document, items []krm.Document, file string, lineOf func(int) int) []byte {
	cursor := d.Start
	for _, item := range items {
		w.stats.Documents++
		dst = append(dst, data[cursor:item.Start]...)
		cursor = item.End
		dst = w.appendItem(dst, data, item, krm.Origin{File: file, Line: lineOf(item.Start)})
	}
	return append(dst, data[cursor:d.End]...)
}

func (w *worker) appendItem(dst, data []byte, item krm.Document, origin krm.Origin) []byte {
	o, drop := w.process(data, item, true, origin)
	switch {
	case drop:
		return dst
	case o == nil:
		return append(dst, data[item.Start:item.End]...)
	}
	u := &w.unit
	if u.Consumed {
		w.localOnly(o)
	}
	dst = o.Append(dst)
	if len(dst) > 0 && dst[len(dst)-1] != '\n' {
		dst = append(dst, '\n')
	}
	dash := bytes.IndexByte(data[item.Start:item.End], '-')
	indent := strings.Repeat(" ", dash+2)
	for document := range u.Documents {
		w.stats.Generated++
		dst = appendLines(dst, w.beside(o, document), indent[:dash]+"- ", indent, lineEnding(data))
	}
	return dst
}

// localOnly marks a custom resource that was input: hosts keep it in the
// package and leave it out of what they apply.
func (w *worker) localOnly(o *krm.Object) {
	if o.Get("metadata", "annotations", krm.LocalConfig).Exists() {
		return
	}
	if _, err := o.Insert(o.Get("metadata"), []string{"annotations"}, krm.Entries{Text: []byte(krm.LocalConfig + ": \"true\"\n")}, false); err != nil {
		w.findings = append(w.findings, o.Finding(krm.Error, "package/layout", o.Get("metadata"), err.Error(), "write the object in block style"))
	}
}

// beside gives a generated object of a list the file next to its workload's,
// where the host says which that is, and a place in it of its own.
func (w *worker) beside(o *krm.Object, document []byte) []byte {
	path, ok := o.Annotation(krm.PathAnnotation)
	if !ok || path == "" {
		return document
	}
	dot := strings.LastIndexByte(path, '.')
	if dot <= strings.LastIndexByte(path, '/') {
		dot = len(path)
	}
	path = path[:dot] + ".armature.yaml"
	if w.placed == nil {
		w.placed = make(map[string]int)
	}
	index := w.placed[path]
	w.placed[path]++
	where := fmt.Sprintf("  annotations:\n    %s: '%s'\n    %s: '%d'\n",
		krm.PathAnnotation, strings.ReplaceAll(path, "'", "''"), krm.IndexAnnotation, index)
	return bytes.Replace(document, []byte("  annotations:\n"), []byte(where), 1)
}
