package source

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render"
)

// Memory is what the last render into a folder left: what each file of the
// source looked like, contributed to other files, and became. With it the next render
// reads only what has changed since, as long as the change is of no consequence
// for other files. It is kept apart from the folder, which may be in Git, since
// it is true on one machine only. Without it everything is rendered.
type Memory struct {
	file, folder string
	// fingerprint is of everything that decides besides the files.
	fingerprint string
	written     int64 // when, in Unix nanoseconds
	entries     map[string]*entry
	read        chan struct{} // closed when the file has been read

	known  *render.Memory // what the engine gets
	stamps []stamp        // of the source's files
	kept   []*entry       // of files as they were, by index of the source's file
}

// entry is about one file of the source.
type entry struct {
	line    string // of the memory's file that it was read from
	in, out stamp
	note    render.Note
}

// stamp distinguishes a file from a changed one. Times are Unix nanoseconds. The
// zero stamp is that of no file.
type stamp struct{ size, modified, changed int64 }

// settled is how old a change has to be before the clock of the file system
// surely distinguishes it from the next one.
const settled = int64(50 * time.Millisecond)

const memoryFormat = "armature 1"

// OpenMemory begins to read from a file what is remembered of a render into a
// folder. Match says how much of it holds.
func OpenMemory(file, folder string) *Memory {
	m := &Memory{file: file, folder: folder, read: make(chan struct{})}
	go func() {
		defer close(m.read)
		if _, err := os.Stat(folder); err != nil {
			return // nothing is left of that render
		}
		if data, err := os.ReadFile(file); err == nil {
			m.parse(string(data))
		}
	}()
	return m
}

// Match stamps the files of the source and finds those that are as a render by
// the same build with the same configuration and lock, from the same root, left
// them. It gives what the engine need not do again, and how many files it has to
// work on. Build is whatever identifies a build of the program.
func (m *Memory) Match(build, root string, src render.Source, config *api.RenderConfig, lock *api.ImageLock) (known *render.Memory, changed int) {
	absolute, err1 := filepath.Abs(root)
	to, err2 := filepath.Abs(m.folder)
	decides, err3 := json.Marshal([]any{functions.Generation, build, absolute, to, config, lock})
	<-m.read
	if fingerprint := string(decides); multi.Errors(err1, err2, err3) != nil || fingerprint != m.fingerprint {
		m.entries, m.fingerprint = nil, fingerprint
	}
	if info, err := os.Stat(root); err == nil && !info.IsDir() {
		root = filepath.Dir(root)
	}
	n := len(src.Files)
	m.stamps, m.kept = make([]stamp, n), make([]*entry, n)
	last := make([]*render.Note, n)
	// Asking for two times ten thousand files is what a small change costs.
	var wg sync.WaitGroup
	for part, parts := 0, runtime.GOMAXPROCS(0); part < parts; part++ {
		wg.Go(func() {
			for i := part * n / parts; i < (part+1)*n/parts; i++ {
				file := src.Files[i].Path
				m.stamps[i] = stampOf(below(root, file))
				e := m.entries[file]
				if e == nil {
					continue
				}
				last[i] = &e.note
				if m.fresh(e, file, m.stamps[i]) {
					m.kept[i] = e
				}
			}
		})
	}
	wg.Wait()
	seen, same := 0, make([]bool, n)
	for i, e := range m.kept {
		same[i] = e != nil
		if e == nil {
			changed++
		}
		if last[i] != nil {
			seen++
		}
	}
	whole := seen == len(m.entries)
	m.entries = nil
	if changed == n {
		clear(last) // of no use, and as large as the rest
	}
	m.known = render.NewMemory(last, same, whole)
	return m.known, changed
}

// parse reads the format that write writes. It drops entries that it cannot read.
func (m *Memory) parse(state string) {
	head, rest, _ := strings.Cut(state, "\n")
	format, head, _ := strings.Cut(head, "\t")
	written, fingerprint, _ := strings.Cut(head, "\t")
	if format != memoryFormat {
		return
	}
	m.written, _ = strconv.ParseInt(written, 10, 64)
	m.fingerprint = fingerprint
	m.entries = make(map[string]*entry, strings.Count(rest, "\n"))
	for line := range strings.Lines(rest) {
		file, fields, _ := strings.Cut(line, "\t")
		var numbers [5]int64
		for i := range numbers {
			var number string
			number, fields, _ = strings.Cut(fields, "\t")
			numbers[i], _ = strconv.ParseInt(number, 10, 64)
		}
		fields, ended := strings.CutSuffix(fields, "\n")
		note, ok := render.ParseNote(fields)
		if !ok || !ended {
			continue
		}
		m.entries[file] = &entry{
			line: line, in: stamp{numbers[0], numbers[1], numbers[2]}, out: stamp{numbers[3], numbers[4], 0}, note: note,
		}
	}
}

// Save keeps what this render of a source into a folder has shown.
func (m *Memory) Save(src render.Source, to *Folder) error {
	if err := os.MkdirAll(filepath.Dir(m.file), 0o700); err != nil {
		return err
	}
	next, err := os.CreateTemp(filepath.Dir(m.file), ".next-")
	if err != nil {
		return err
	}
	if err = multi.Errors(m.write(next, src.Files, to), next.Close()); err == nil {
		err = os.Rename(next.Name(), m.file)
	}
	if err != nil {
		return multi.Errors(err, os.Remove(next.Name()))
	}
	return nil
}

// write writes a line with tabs for all, and one for each file.
func (m *Memory) write(next *os.File, files []render.File, to *Folder) (err error) {
	out := bufio.NewWriterSize(next, 64<<10)
	fmt.Fprintf(out, "%s\t%d\t%s\n", memoryFormat, to.started, m.fingerprint)
	var b []byte
	for i, f := range files {
		note := m.known.Note(i)
		if note == nil {
			continue
		}
		if kept := m.kept[i]; kept != nil && note == &kept.note {
			out.WriteString(kept.line)
			continue
		}
		in, made := m.stamps[i], to.stamp(f.Path)
		if note.Always() {
			in = stamp{}
		}
		b = append(append(b[:0], f.Path...), '\t')
		for _, v := range [...]int64{in.size, in.modified, in.changed, made.size, made.modified} {
			b = append(strconv.AppendInt(b, v, 10), '\t')
		}
		if b, err = note.Append(b); err != nil {
			return err
		}
		out.Write(append(b, '\n'))
	}
	return out.Flush()
}

// fresh reports whether a file is as it was, and so is what became of it.
func (m *Memory) fresh(e *entry, file string, now stamp) bool {
	if now == (stamp{}) || e.in != now || max(now.modified, now.changed) > m.written-settled {
		return false
	}
	out := linkStamp(below(m.folder, file))
	return out.size == e.out.size && out.modified == e.out.modified
}
