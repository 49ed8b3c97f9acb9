package render

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
)

// Memory is what the last render into a folder left: what each file of the
// source looked like, told other files, and became. With it the next render
// reads only what has changed since, as long as the change is of no consequence
// for other files. It is kept apart from the folder, which may be in Git, since
// it is true on one machine only. Without it everything is rendered.
type Memory struct {
	file, folder string
	// fingerprint is of everything that decides besides the files.
	fingerprint string
	written     int64 // when, in Unix nanoseconds
	notes       map[string]*note
	read        chan struct{} // closed when the file has been read
	kept        []*note       // of files as they were, by index of the source's file
	next        []*note       // of this render, by index of the source's file
}

// Stamp tells a file from one that changed. Times are Unix nanoseconds. The
// zero Stamp is that of no file.
type Stamp struct{ Size, Modified, Changed int64 }

// note is about one file of the source.
type note struct {
	line    string // of the memory's file that it was read from
	in, out Stamp
	// facts are what the file told the package; own says that this is all that
	// other files can learn from it.
	facts    index.Facts
	own      bool
	always   bool // to be read by every render
	stats    Stats
	findings []krm.Finding
}

// settled is how old a change has to be before the clock of the file system
// surely tells it from the next one.
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
// them. It gives how many are not. Build is whatever tells one build of the
// program from another.
func (m *Memory) Match(build, root string, src Source, config *api.RenderConfig, lock *api.ImageLock) (changed int) {
	absolute, err1 := filepath.Abs(root)
	to, err2 := filepath.Abs(m.folder)
	decides, err3 := json.Marshal([]any{functions.Generation, build, absolute, to, config, lock})
	<-m.read
	if fingerprint := string(decides); errors.Join(err1, err2, err3) != nil || fingerprint != m.fingerprint {
		m.notes, m.fingerprint = nil, fingerprint
	}
	if info, err := os.Stat(root); err == nil && !info.IsDir() {
		root = filepath.Dir(root)
	}
	m.kept = make([]*note, len(src.Files))
	// Asking for two times ten thousand files is what a small change costs.
	var wg sync.WaitGroup
	for part := range slices.Chunk(indices(len(src.Files)), 1+len(src.Files)/runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for _, i := range part {
				f := &src.Files[i]
				f.Stamp = stampOf(below(root, f.Path))
				m.kept[i] = m.fresh(f)
			}
		})
	}
	wg.Wait()
	for _, n := range m.kept {
		if n == nil {
			changed++
		}
	}
	if changed == len(m.kept) {
		m.notes = nil // of no use, and as large as the rest
	}
	return changed
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// parse reads the format that write writes. What it cannot read it forgets.
func (m *Memory) parse(state string) {
	head, rest, _ := strings.Cut(state, "\n")
	format, head, _ := strings.Cut(head, "\t")
	written, fingerprint, _ := strings.Cut(head, "\t")
	if format != memoryFormat {
		return
	}
	m.written, _ = strconv.ParseInt(written, 10, 64)
	m.fingerprint = fingerprint
	m.notes = make(map[string]*note, strings.Count(rest, "\n"))
	for line := range strings.Lines(rest) {
		file, fields, _ := strings.Cut(line, "\t")
		var numbers [9]int64
		for i := range numbers {
			var number string
			number, fields, _ = strings.Cut(fields, "\t")
			numbers[i], _ = strconv.ParseInt(number, 10, 64)
		}
		own, fields, _ := strings.Cut(fields, "\t")
		names, fields, _ := strings.Cut(fields, "\t")
		lines, findings, ok := strings.Cut(fields, "\t")
		if !ok || !strings.HasSuffix(line, "\n") {
			continue
		}
		n := &note{
			line: line,
			in:   Stamp{numbers[0], numbers[1], numbers[2]}, out: Stamp{numbers[3], numbers[4], 0},
			stats: Stats{Files: 1, Documents: int(numbers[5]), Workloads: int(numbers[6]), Generated: int(numbers[7]), Rewritten: int(numbers[8])},
			own:   own == "own",
			facts: index.Facts{Names: names, Lines: lines},
		}
		if findings = strings.TrimSuffix(findings, "\n"); findings != "" && json.Unmarshal([]byte(findings), &n.findings) != nil {
			continue
		}
		m.notes[file] = n
	}
}

// Save keeps what this render of a source into a folder has shown.
func (m *Memory) Save(src Source, to *Folder) error {
	if err := os.MkdirAll(filepath.Dir(m.file), 0o700); err != nil {
		return err
	}
	next, err := os.CreateTemp(filepath.Dir(m.file), ".next-")
	if err != nil {
		return err
	}
	if err = errors.Join(m.write(next, src.Files, to), next.Close()); err == nil {
		err = os.Rename(next.Name(), m.file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return nil
}

// write writes a line with tabs for all, and one for each file.
func (m *Memory) write(next *os.File, files []File, to *Folder) error {
	out := bufio.NewWriterSize(next, 64<<10)
	fmt.Fprintf(out, "%s\t%d\t%s\n", memoryFormat, to.started, m.fingerprint)
	var b []byte
	for i, f := range files {
		n := m.next[i]
		if n == nil {
			continue
		}
		if n.line != "" {
			out.WriteString(n.line)
			continue
		}
		if n.in = f.Stamp; n.always {
			n.in = Stamp{}
		}
		n.out = to.stamp(f.Path)
		b = append(append(b[:0], f.Path...), '\t')
		for _, v := range [...]int64{n.in.Size, n.in.Modified, n.in.Changed, n.out.Size, n.out.Modified,
			int64(n.stats.Documents), int64(n.stats.Workloads), int64(n.stats.Generated), int64(n.stats.Rewritten)} {
			b = append(strconv.AppendInt(b, v, 10), '\t')
		}
		own := ""
		if n.own {
			own = "own"
		}
		b = append(append(append(append(b, own...), '\t'), n.facts.Names...), '\t')
		b = append(append(b, n.facts.Lines...), '\t')
		if len(n.findings) > 0 {
			findings, err := json.Marshal(n.findings)
			if err != nil {
				return err
			}
			b = append(b, findings...)
		}
		out.Write(append(b, '\n'))
	}
	return out.Flush()
}

// never makes the next render read a file again.
func (m *Memory) never(i int) { m.next[i].always = true }

// fresh gives the note of a file that is as it was, and so is what became of it.
func (m *Memory) fresh(f *File) *note {
	n := m.notes[f.Path]
	if n == nil || f.Stamp == (Stamp{}) || n.in != f.Stamp || max(f.Stamp.Modified, f.Stamp.Changed) > m.written-settled {
		return nil
	}
	if out := linkStamp(below(m.folder, f.Path)); out.Size != n.out.Size || out.Modified != n.out.Modified {
		return nil
	}
	return n
}
