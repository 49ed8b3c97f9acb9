// Package render is the pure engine: it takes files or a ResourceList, runs the functions of
// functions.Table over every object, and returns the same text, changed only where it had to
// change. It knows no clock, network, environment or cluster.
package render

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/finding"
)

// Run renders a source in memory. It returns an error if the source could not be read. Problems of
// the content are findings; if one of them is an error, the result has no files.
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
	if err != nil || finding.Failed(r.Findings) {
		r.Files = nil
	}
	return r, err
}

// Stream renders a source file by file, so that its memory does not grow with the package.
func Stream(src Source, opt Options, sink Sink) ([]finding.Finding, Stats, error) {
	e, err := newEngine(src, opt, sink)
	if err != nil {
		return nil, Stats{}, err
	}
	return e.run()
}

// Uninject restores a rendered source as written: it removes injected and generated parts, and
// restores consumed custom resources.
func Uninject(src Source, opt Options, sink Sink) ([]finding.Finding, Stats, error) {
	e, err := newEngine(src, opt, sink)
	if err != nil {
		return nil, Stats{}, err
	}
	e.undo = true
	return e.run()
}

func newEngine(src Source, opt Options, sink Sink) (*engine, error) {
	pkg := functions.NewPackage(functions.Settings{Version: opt.Version, Config: opt.Config,
		Lock: opt.Lock, Closed: opt.Closed, Files: len(src.Files), Functions: opt.table})
	rows, err := pkg.Rows(opt.Functions)
	if err != nil {
		return nil, err
	}
	return &engine{src: src, opt: opt, rows: rows, sink: sink, pkg: pkg}, nil
}

func (e *engine) run() ([]finding.Finding, Stats, error) {
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
	finding.Sort(e.findings)
	return e.findings, e.stats, nil
}

// resolve ends the first pass of the functions.
func (e *engine) resolve(rows []functions.Row) []finding.Finding {
	e.pkg.ReadWith(e.find)
	findings := e.pkg.Resolve(rows)
	e.pkg.Look(e.find)
	return findings
}

// render runs the second pass.
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
	// A worker takes neighboring files, because two workers that create files in the same folder
	// wait for each other.
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

// Stats counts the work of a render.
type Stats struct {
	Files     int `json:"files"`
	Documents int `json:"documents"`
	// Workloads is the number of workloads that opted in and were rendered.
	Workloads int `json:"workloads"`
	// Generated is the number of generated objects.
	Generated int `json:"generated"`
	// Rewritten is the number of documents that kyaml wrote.
	Rewritten int `json:"rewritten"`
}

func (s *Stats) add(t Stats) {
	s.Files += t.Files
	s.Documents += t.Documents
	s.Workloads += t.Workloads
	s.Generated += t.Generated
	s.Rewritten += t.Rewritten
}
