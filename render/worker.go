package render

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"sync"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
)

// worker renders files sequentially and reuses its memory.
type worker struct {
	*engine
	findings finding.List
	stats    Stats
	buffers  buffers
	file     output

	object   krm.Object
	unit     contract.Unit
	shared   []byte // the object as krm.SharedItems returns it
	expanded struct {
		object krm.Object // from a custom resource
		unit   contract.Unit
	}
}

// buffers are memory that a worker reuses for each file and object.
type buffers struct {
	in, out []byte
	text    [2][]byte
	again   [2]krm.Object // without an earlier render, reverted in two steps
	check   krm.Object    // an edited object, read again
}

// output is the state of the file that a worker writes.
type output struct {
	inline  bool // the object is in flow style, or in a JSON file
	json    bool // generated objects go aside
	aside   []byte
	placed  map[string]int // generated items of lists, by their file
	failure error          // of the sink, at a piece
	spilled bool           // a piece of the file was passed to the sink
}

func (w *worker) done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.engine.findings = append(w.engine.findings, w.findings.Findings()...)
	w.engine.stats.add(w.stats)
}

// pieceSize is the size of a piece of a file.
const pieceSize = 1 << 20

// readObject reads an object's text for an edit.
func (w *worker) readObject(o *krm.Object, src []byte, d krm.Document, item bool,
	origin krm.Origin) (isObject bool, err error) {
	isObject, err = o.Read(src, d, item, origin)
	if w.file.inline {
		o.Inline()
	}
	return isObject, err
}

// appendObject appends an object with its edits, and reports an error if no parser could read it.
func (w *worker) appendObject(dst []byte, o *krm.Object) []byte {
	from := len(dst)
	dst = o.Append(dst)
	if err := o.Check(dst[from:], &w.buffers.check); err != nil {
		w.findings.Add(o.Finding(finding.Error, "package/layout", krm.Node{},
			err.Error(), "write the object in block style"))
	}
	return dst
}

type engine struct {
	src  Source
	opt  Options
	rows []functions.Row
	sink Sink
	pkg  *functions.Package
	undo bool

	seed  maphash.Seed
	sums  []uint64 // of the files as the first pass read them
	forms []form   // of the files

	mu       sync.Mutex
	findings []finding.Finding
	stats    Stats
	failed   error
}

// form describes the text of a file as found by the first pass. The zero form is a single document
// that is not a list.
type form struct {
	lists, several bool
	// list is the only document of a file in memory; nil for any other document.
	list *list
}

func (e *engine) read(i int, buf []byte) ([]byte, error) {
	f := e.src.Files[i]
	if f.Data != nil || e.src.Read == nil {
		return f.Data, nil
	}
	return e.src.Read(f.Path, buf)
}

// reading returns the error of reading a file, with the file unless the cause names it.
func reading(file string, err error) error {
	if about := (*fs.PathError)(nil); errors.As(err, &about) {
		return fmt.Errorf("reading: %w", err)
	}
	return fmt.Errorf("reading %s: %w", file, err)
}

// asIs reports whether a file passes unchanged: it is not a manifest, is text for another tool, or
// the configuration excludes it.
func (e *engine) asIs(f *File) bool {
	return f.AsIs || !IsManifest(f.Path) || e.opt.Excludes(f.Path)
}

func (e *engine) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed == nil {
		e.failed = err
	}
}
