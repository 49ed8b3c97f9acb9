package render

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"sync"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/finding"
)

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
	lists map[int][]parted // of files in memory

	mu       sync.Mutex
	findings []finding.Finding
	stats    Stats
	failed   error
}

// form is what the first pass learnt about the text of a file. The zero form is
// that of one that holds a single document, which is not a list.
type form struct{ lists, several bool }

func (e *engine) read(i int, buf []byte) ([]byte, error) {
	f := e.src.Files[i]
	if f.Data != nil || e.src.Read == nil {
		return f.Data, nil
	}
	return e.src.Read(f.Path, buf)
}

// reading is the error of reading a file, which names it unless the cause does.
func reading(file string, err error) error {
	if about := (*fs.PathError)(nil); errors.As(err, &about) {
		return fmt.Errorf("reading: %w", err)
	}
	return fmt.Errorf("reading %s: %w", file, err)
}

// asIs reports whether a file passes untouched: it is not a manifest, holds text
// for another tool, or the configuration leaves it alone.
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
