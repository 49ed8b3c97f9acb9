package render

import (
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
)

// worker renders one file after the other and keeps its memory between them.
type worker struct {
	*engine
	findings []finding.Finding
	stats    Stats
	buffers  buffers
	file     output

	object   krm.Object
	unit     contract.Unit
	shared   []byte // the object as krm.SharedItems gives it
	expanded struct {
		object krm.Object // from a custom resource
		unit   contract.Unit
	}
}

// buffers are memory that a worker uses again for each file and object.
type buffers struct {
	in, out []byte
	text    [2][]byte
	again   [2]krm.Object // for what an earlier render did, undone in two steps
	check   krm.Object    // an edited one, read again
}

// output is what a worker knows of the file that it writes.
type output struct {
	inline  bool // the object is between brackets, or in a JSON file
	json    bool // what is generated goes aside
	aside   []byte
	placed  map[string]int // generated items of lists, by their file
	failure error          // of the sink, at a piece
	spilled bool           // a piece of the file has left
}

func (w *worker) done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.engine.findings = append(w.engine.findings, w.findings...)
	w.engine.stats.add(w.stats)
}

// pieceSize is how much of a file is collected before it leaves.
const pieceSize = 1 << 20

// readObject reads an object's text for an edit.
func (w *worker) readObject(o *krm.Object, src []byte, d krm.Document, item bool, origin krm.Origin) (isObject bool, err error) {
	isObject, err = o.Read(src, d, item, origin)
	if w.file.inline {
		o.Inline()
	}
	return isObject, err
}

// appendObject writes an object with its edits, and holds back what no parser
// would read.
func (w *worker) appendObject(dst []byte, o *krm.Object) []byte {
	from := len(dst)
	dst = o.Append(dst)
	if err := o.Check(dst[from:], &w.buffers.check); err != nil {
		w.findings = append(w.findings, o.Finding(finding.Error, "package/layout", krm.Node{}, err.Error(), "write the object in block style"))
	}
	return dst
}
