// Package render is the pure engine: it takes files or a ResourceList, runs the
// functions of functions.Table over every object, and gives the same text back,
// changed only where it had to change. It knows no clock, network, environment
// or cluster.
package render

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/krm"
)

// File is one file of a package.
type File struct {
	// Path is relative to the package's root, with slashes; "-" is standard input.
	Path string
	// Data is the content; nil where the Source reads it on demand.
	Data []byte
	// AsIs leaves the file as it is: it holds text for another tool.
	AsIs bool
}

// Source is what is rendered.
type Source struct {
	Files []File
	// Folder is the folder that the files are in, absolute and without links; ""
	// where there is none, as for a stream.
	Folder string
	// Read gives the content of a file without Data. It may use buf.
	Read func(file string, buf []byte) ([]byte, error)
}

// Content gives the content of a file of the source, or of one beside them that
// Read knows.
func (s Source) Content(file string) ([]byte, error) {
	for _, f := range s.Files {
		if f.Path == file && (f.Data != nil || s.Read == nil) {
			return f.Data, nil
		}
	}
	if s.Read == nil {
		return nil, fmt.Errorf("%s: %w", file, fs.ErrNotExist)
	}
	return s.Read(file, nil)
}

// Options say how.
type Options struct {
	// Config is the RenderConfig, nil for the defaults.
	Config *api.RenderConfig
	// Lock is the ImageLock beside the package, nil for none.
	Lock *api.ImageLock
	// Closed makes it an error that the workload of a resource is not in the package.
	Closed bool
	// Functions are the names of the functions to run; nil is all of them.
	Functions []string
	// Version is recorded in what is rendered; "" is this build's.
	Version string
	// ObjectsOnly leaves out files and documents that are not Kubernetes objects
	// of a cluster, so that the output can be applied.
	ObjectsOnly bool
	// Beside gives what is generated for a JSON file, which can hold one object
	// only, a file of its own beside it. A stream takes it behind the object.
	Beside bool
	// Memory is the last render's, nil for none. Keep is called, in its place of
	// the sink, for files that need no work.
	Memory *Memory
	Keep   func(file string)
	// Pieces lets a large file reach the sink in several calls, one after the
	// other, so that no more than a piece of it is in memory.
	Pieces bool
	// Observe looks at every object that the functions have been through, nil
	// not at all. More than one worker calls it at the same time.
	Observe func(*contract.Unit)
	// Workers is how many files are worked on at once; 0 is one for each
	// processor. Files reach the sink in order only with one.
	Workers int

	// Hosted says that the source is a ResourceList that a host passes.
	Hosted bool

	table []contract.Function // nil for functions.Table
}

// Stats counts what was done.
type Stats struct {
	Files     int `json:"files"`
	Documents int `json:"documents"`
	// Workloads opted in and were rendered.
	Workloads int `json:"workloads"`
	// Generated is the number of generated objects.
	Generated int `json:"generated"`
	// Rewritten documents went through kyaml.
	Rewritten int `json:"rewritten"`
}

func (s *Stats) add(t Stats) {
	s.Files += t.Files
	s.Documents += t.Documents
	s.Workloads += t.Workloads
	s.Generated += t.Generated
	s.Rewritten += t.Rewritten
}

func (s Stats) since(t Stats) Stats {
	return Stats{s.Files - t.Files, s.Documents - t.Documents, s.Workloads - t.Workloads, s.Generated - t.Generated, s.Rewritten - t.Rewritten}
}

// Result is a render that is held in memory.
type Result struct {
	// Files are the rendered files; empty where a finding is an error.
	Files    []File
	Findings []krm.Finding
	Stats    Stats
}

// Run renders a source in memory. An error says that the source could not be
// read; what is wrong with its content is among the findings, and an error
// among those leaves no files.
func Run(src Source, opt Options) (Result, error) {
	var r Result
	opt.Workers, opt.Beside = 1, true
	var err error
	r.Findings, r.Stats, err = Stream(src, opt, func(file string, data []byte) error {
		if data != nil {
			r.Files = append(r.Files, File{Path: file, Data: bytes.Clone(data)})
		}
		return nil
	})
	if err != nil || krm.Failed(r.Findings) {
		r.Files = nil
	}
	return r, err
}

// Sink takes a rendered file. Data is valid during the call only; nil says that
// nothing is left of the file, which held generated objects only. Whoever
// passes a sink must not let its output leave when Stream ends with an error or
// with a finding that is one.
type Sink func(file string, data []byte) error

// Stream renders a source file by file, so that memory stays bounded however
// large the package is.
func Stream(src Source, opt Options, sink Sink) ([]krm.Finding, Stats, error) {
	e, err := newEngine(src, opt, sink)
	if err != nil {
		return nil, Stats{}, err
	}
	return e.run()
}

// Uninject gives a rendered source back as its author wrote it: without what
// was injected and generated, and with the custom resources that were consumed.
func Uninject(src Source, opt Options, sink Sink) ([]krm.Finding, Stats, error) {
	e, err := newEngine(src, opt, sink)
	if err != nil {
		return nil, Stats{}, err
	}
	e.undo = true
	return e.run()
}

func newEngine(src Source, opt Options, sink Sink) (*engine, error) {
	pkg := functions.NewPackage(functions.Settings{Version: opt.Version, Config: opt.Config, Lock: opt.Lock, Closed: opt.Closed, Files: len(src.Files), Functions: opt.table})
	rows, err := pkg.Rows(opt.Functions)
	if err != nil {
		return nil, err
	}
	return &engine{src: src, opt: opt, rows: rows, sink: sink, pkg: pkg}, nil
}

func (e *engine) run() ([]krm.Finding, Stats, error) {
	if err := e.collect(); err != nil {
		return nil, Stats{}, err
	}
	if !e.undo {
		e.findings = append(e.findings, e.resolve(e.rows)...)
	}
	if err := e.render(); err != nil {
		return nil, Stats{}, err
	}
	if !e.undo {
		e.findings = e.pkg.WithoutEchoes(append(e.findings, e.pkg.Finish()...))
	}
	krm.SortFindings(e.findings)
	return e.findings, e.stats, nil
}

// resolve ends the first pass for the functions that run.
func (e *engine) resolve(rows []functions.Row) []krm.Finding {
	e.pkg.ReadWith(e.find)
	findings := e.pkg.Resolve(rows)
	e.pkg.Look(e.find)
	return findings
}

// engine is one run.
type engine struct {
	src  Source
	opt  Options
	rows []functions.Row
	sink Sink
	pkg  *functions.Package
	undo bool

	seed  maphash.Seed
	sums  []uint64         // of the files as the first pass read them
	forms []form           // of the files
	kept  []*Note          // of files that need no work
	lists map[int][]parted // of files in memory

	mu       sync.Mutex
	findings []krm.Finding
	stats    Stats
	failed   error
}

// form is what the first pass learnt about the text of a file. The zero form is
// that of one that holds a single document, which is not a list.
type form struct{ lists, several bool }

// anyForm is that of a file that the first pass did not read.
var anyForm = form{true, true}

func (e *engine) read(i int, buf []byte) ([]byte, error) {
	f := e.src.Files[i]
	if f.Data != nil || e.src.Read == nil {
		return f.Data, nil
	}
	return e.src.Read(f.Path, buf)
}

// render is the second pass.
func (e *engine) render() error {
	workers := e.opt.Workers
	if workers == 0 {
		workers = min(runtime.GOMAXPROCS(0), max(1, len(e.src.Files)/64))
	}
	if workers == 1 {
		w := worker{engine: e}
		for i := range e.src.Files {
			if err := w.renderFile(i); err != nil {
				return err
			}
		}
		w.done()
		return nil
	}
	// A worker takes neighbouring files, because two that make files
	// in the same folder wait for each other.
	n := len(e.src.Files)
	run := max(1, min(256, n/(4*workers)))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			w := worker{engine: e}
			defer w.done()
			for {
				to := int(next.Add(int64(run)))
				if to-run >= n {
					return
				}
				for i := to - run; i < min(to, n); i++ {
					if err := w.renderFile(i); err != nil {
						e.fail(err)
					}
				}
			}
		})
	}
	wg.Wait()
	return e.failed
}

func (e *engine) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed == nil {
		e.failed = err
	}
}

// worker renders one file after the other and keeps its memory between them.
type worker struct {
	*engine
	findings []krm.Finding
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

func (w *worker) renderFile(i int) error {
	f := w.src.Files[i]
	m := w.opt.Memory
	if n := w.kept[i]; n != nil {
		m.next[i] = n
		w.stats.add(n.stats)
		w.findings = append(w.findings, n.findings...)
		w.opt.Keep(f.Path)
		return nil
	}
	asIs := w.asIs(&f)
	stats, findings := w.stats, len(w.findings)
	defer func() {
		if m == nil {
			return
		}
		n := m.next[i]
		if n == nil {
			n = &Note{own: true}
			m.next[i] = n
		}
		n.stats = w.stats.since(stats)
		n.findings = slices.Clone(w.findings[findings:])
	}()
	if asIs && w.opt.ObjectsOnly {
		return nil
	}
	data, err := w.read(i, w.buffers.in)
	if err != nil {
		return fmt.Errorf("reading %s: %w", f.Path, err)
	}
	if f.Data == nil {
		w.buffers.in = data[:0]
	}
	w.stats.Files++
	if asIs {
		return w.sink(f.Path, data)
	}
	if w.sums[i] != 0 && maphash.Bytes(w.seed, data) != w.sums[i] {
		return fmt.Errorf("%s changed while it was rendered: try again", f.Path)
	}
	w.file.spilled = false
	w.file.json, w.file.aside = w.opt.Beside && path.Ext(f.Path) == ".json", w.file.aside[:0]
	w.buffers.out = w.appendFile(w.buffers.out[:0], data, f.Path, w.forms[i], w.lists[i])
	if w.file.failure != nil {
		return w.file.failure
	}
	if len(w.file.aside) > 0 {
		if m != nil {
			m.never(i) // the memory knows of one file for each
		}
		if err := w.sink(FileBeside(f.Path), w.file.aside); err != nil {
			return err
		}
	}
	if len(w.buffers.out) == 0 && len(data) > 0 {
		return w.sink(f.Path, nil)
	}
	return w.sink(f.Path, w.buffers.out)
}

// pieceSize is how much of a file is collected before it leaves.
const pieceSize = 1 << 20

// spill passes a large part of a file on to the sink, where that takes pieces.
// It keeps the last line ending, which the end of the file may take back.
func (w *worker) spill(dst []byte, file string) []byte {
	if !w.opt.Pieces || len(dst) < pieceSize || w.file.failure != nil {
		return dst
	}
	if !w.file.spilled && !w.undo && BeginsJSON(dst) { // another document is about to follow
		dst = slices.Insert(dst, 0, []byte(jsonLead+lineEnding(dst))...)
	}
	w.file.spilled = true
	kept := len(dst) - len("\r\n")
	w.file.failure = w.sink(file, dst[:kept])
	return append(dst[:0], dst[kept:]...)
}
