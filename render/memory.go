package render

import (
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
	kept        []*note // of files as they were, by index of the source's file
	next        []*note // of this render, by index of the source's file
}

// Stamp tells a file from one that changed. Times are Unix nanoseconds. The
// zero Stamp is that of no file.
type Stamp struct{ Size, Modified, Changed int64 }

// note is about one file of the source.
type note struct {
	in, out Stamp
	// facts are what the file told the package; own says that this is all that
	// other files can learn from it.
	facts    functions.Facts
	own      bool
	always   bool // to be read by every render
	stats    Stats
	findings []krm.Finding
}

// settled is how old a change has to be before the clock of the file system
// surely tells it from the next one.
const settled = int64(50 * time.Millisecond)

const memoryFormat = "armature 1"

// NewMemory reads from a file what is remembered of a render into a folder, with
// the same configuration and lock and from the same root, and stamps the files
// of the source.
func NewMemory(file, folder, root string, src Source, config *api.RenderConfig, lock *api.ImageLock) *Memory {
	m := &Memory{file: file, folder: folder, notes: make(map[string]*note), kept: make([]*note, len(src.Files))}
	absolute, err1 := filepath.Abs(root)
	to, err2 := filepath.Abs(folder)
	decides, err3 := json.Marshal([]any{functions.Version, absolute, to, config, lock})
	if errors.Join(err1, err2, err3) == nil {
		m.fingerprint = string(decides)
		if data, err := os.ReadFile(file); err == nil {
			m.notes = make(map[string]*note, len(src.Files))
			m.parse(string(data))
		}
	}
	if info, err := os.Stat(root); err == nil && !info.IsDir() {
		root = filepath.Dir(root)
	}
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
	return m
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// parse reads the format that String writes. What it cannot read it forgets.
func (m *Memory) parse(state string) {
	head, rest, _ := strings.Cut(state, "\n")
	fields := strings.SplitN(head, "\t", 3)
	if len(fields) != 3 || fields[0] != memoryFormat || fields[2] != m.fingerprint {
		return
	}
	m.written, _ = strconv.ParseInt(fields[1], 10, 64)
	for line := range strings.SplitSeq(rest, "\n") {
		fields := strings.SplitN(line, "\t", 14)
		if len(fields) != 14 {
			continue
		}
		var numbers [9]int64
		for i := range numbers {
			numbers[i], _ = strconv.ParseInt(fields[i+1], 10, 64)
		}
		n := &note{
			in: Stamp{numbers[0], numbers[1], numbers[2]}, out: Stamp{numbers[3], numbers[4], 0},
			stats: Stats{Files: 1, Documents: int(numbers[5]), Workloads: int(numbers[6]), Generated: int(numbers[7]), Rewritten: int(numbers[8])},
			own:   fields[10] == "own",
			facts: functions.Facts{Names: fields[11], Lines: fields[12]},
		}
		if fields[13] != "" && json.Unmarshal([]byte(fields[13]), &n.findings) != nil {
			continue
		}
		m.notes[fields[0]] = n
	}
}

// Save keeps what this render of a source into a folder has shown.
func (m *Memory) Save(src Source, to *Folder) error {
	state, err := m.state(src.Files, to)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(m.file), 0o700); err != nil {
		return err
	}
	next, err := os.CreateTemp(filepath.Dir(m.file), ".next-")
	if err != nil {
		return err
	}
	_, err = next.Write(state)
	if err = errors.Join(err, next.Close()); err == nil {
		err = os.Rename(next.Name(), m.file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return nil
}

// state is what Save writes.
func (m *Memory) state(files []File, to *Folder) ([]byte, error) {
	m.written = to.started
	b := make([]byte, 0, 256*len(files)+len(m.fingerprint))
	b = fmt.Appendf(b, "%s\t%d\t%s\n", memoryFormat, m.written, m.fingerprint)
	for i, f := range files {
		n := m.next[i]
		if n == nil {
			continue
		}
		if n.in = f.Stamp; n.always {
			n.in = Stamp{}
		}
		if n.out == (Stamp{}) {
			n.out = to.stamp(f.Path)
		}
		b = append(append(b, f.Path...), '\t')
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
				return nil, err
			}
			b = append(b, findings...)
		}
		b = append(b, '\n')
	}
	return b, nil
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
