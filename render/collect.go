package render

import (
	"bytes"
	"errors"
	"hash/maphash"
	"io/fs"
	"path"
	"slices"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
)

// find reads objects of the package again and calls visit for each object in ids.
func (e *engine) find(ids map[functions.Place]index.ID, visit func(index.ID, *krm.Object)) {
	files := make(map[string]bool)
	for place := range ids {
		files[place.File] = true
	}
	var o krm.Object
	for i, f := range e.src.Files {
		if !files[f.Path] && len(e.src.Files) > 1 { // items of a stream name files of their own
			continue
		}
		data, err := e.read(i, nil)
		if err != nil {
			continue
		}
		EachDocument(data, func(d krm.Document, item bool, line int) {
			if isObject, err := o.Read(data, d, item,
				krm.Origin{File: f.Path, Line: line}); err == nil && isObject {
				if id, ok := ids[functions.Place{Origin: o.Origin, Ref: o.Ref}]; ok {
					visit(id, &o)
				}
			}
		})
	}
}

// collect runs the first pass, in which functions collect facts about the whole package.
func (e *engine) collect() error {
	e.seed, e.sums, e.forms = maphash.MakeSeed(), make([]uint64, len(e.src.Files)), make([]form,
		len(e.src.Files))
	var buf []byte
	var o krm.Object
	for i, f := range e.src.Files {
		if e.asIs(&f) {
			continue
		}
		data, err := e.read(i, buf)
		if err != nil {
			return reading(f.Path, err)
		}
		if f.Data == nil {
			buf = data[:0]
			e.sums[i] = maphash.Bytes(e.seed, data)
		}
		e.forms[i] = walkHeads(data, true, func(v visited) {
			origin := krm.Origin{File: f.Path, Line: v.line, Kept: v.kept}
			if source, ok := restoreConsumed(v.src[v.doc.Start:v.doc.End], &origin); ok {
				e.pkg.Collect(source, krm.Document{End: len(source)}, false, origin)
				return
			}
			if !v.kept && e.pkg.CollectHead(&o, v.src, v.doc, v.item, origin) {
				return
			}
			if isObject, err := o.Read(v.src, v.doc, v.item, origin); err != nil || !isObject {
				return // the second pass reports it
			}
			if source, ok := restoreLocal(&o); ok {
				e.pkg.Collect(source, krm.Document{End: len(source)}, v.item, origin)
			} else {
				e.pkg.CollectObject(&o)
			}
		})
		if f.Data == nil { // the second pass reads it into other memory
			e.forms[i].list = nil
		}
	}
	for f := range e.pkg.Files() {
		if err := e.beside(f); err != nil {
			return err
		}
	}
	return nil
}

// beside reads a file of the package, other than a manifest, that a function requests. A package
// that is a single file may request files of the same folder.
func (e *engine) beside(f *contract.File) error {
	file := path.Clean(f.Name)
	i := slices.IndexFunc(e.src.Files, func(f File) bool { return f.Path == file })
	var data []byte
	var err error
	switch {
	case i >= 0:
		data, err = e.read(i, nil)
	case len(e.src.Files) == 1 && e.src.Read != nil && fs.ValidPath(file):
		if data, err = e.src.Read(file, nil); errors.Is(err, fs.ErrNotExist) {
			data, err = nil, nil
		}
	}
	if err != nil {
		return reading(f.Name, err)
	}
	if data != nil {
		data = append([]byte{}, data...)
	}
	f.Take(data)
	return nil
}

// EachDocument calls visit for every document of a stream, or for the items of documents that are
// lists, with the line where each starts.
func EachDocument(data []byte, visit func(d krm.Document, item bool, line int)) {
	walkHeads(data, false, func(v visited) { visit(v.doc, v.item, v.line) })
}

// visited is a document of a stream, or an item of a document that is a list.
type visited struct {
	src  []byte // the stream, or a list with its consumed items
	doc  krm.Document
	item bool // of a block list
	line int
	kept bool // in an annotation of its list
}

// walkHeads visits the same documents as EachDocument with their heads and, with consumed, the
// consumed items of lists.
func walkHeads(data []byte, consumed bool, visit func(visited)) (f form) {
	line, at := 1, 0
	for d := range krm.Documents(data) {
		f.several = f.several || d.End < len(data)
		line += bytes.Count(data[at:d.Start], []byte{'\n'})
		at = d.Start
		text := data[d.Start:d.End]
		if _, alone := restoreKept(text); !alone || !consumed {
			if list, ok := listOf(data, d, line, consumed); ok {
				f.lists, f.list = true, &list
				walkItems(&list, visit)
				continue
			}
		}
		visit(visited{src: data, doc: d, line: line})
	}
	if f.several {
		f.list = nil
	}
	return f
}

// walkItems visits the items of a list and of the lists in it.
func walkItems(l *list, visit func(visited)) {
	for i, item := range l.Items {
		if inner, ok := l.nested[i]; ok {
			walkItems(&inner, visit)
			continue
		}
		v := visited{src: l.src, doc: item, item: !l.Flow, line: l.lines[i], kept: l.kept[i]}
		if text := l.shared[i]; text != nil {
			v.src, v.doc, v.item = text, krm.Document{End: len(text)}, false
		}
		visit(v)
	}
}

// Objects calls visit for every object of a file in memory, including items of lists. The object is
// valid only during the call.
func Objects(f File, visit func(*krm.Object)) {
	EachDocument(f.Data, func(d krm.Document, item bool, line int) {
		var o krm.Object
		if isObject, err := o.Read(f.Data, d, item,
			krm.Origin{File: f.Path, Line: line}); err == nil && isObject {
			visit(&o)
		}
	})
}
