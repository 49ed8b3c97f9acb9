package render

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
)

// Memory is what the last render of a source knew of its files. The next one
// leaves files alone that are as they were, as long as what has changed is of no
// consequence for them. render/source keeps it from one render to the next.
type Memory struct {
	last  []*Note // of the last render, by index of the source's file
	kept  []*Note // of files as they were
	whole bool    // the source has all files of the last render
	next  []*Note // of this render
}

// NewMemory takes the notes of the last render, by index of the source's file, nil
// for files that it did not have. The files of same are as they were, and so is
// what became of them. whole says that the source has all files of that render.
func NewMemory(last []*Note, same []bool, whole bool) *Memory {
	m := &Memory{last: last, kept: make([]*Note, len(last)), whole: whole}
	for i, n := range last {
		if same[i] {
			m.kept[i] = n
		}
	}
	return m
}

// Note gives what this render noted of a file, that of the last render where
// nothing had to be done. It is nil where a render did not reach the file.
func (m *Memory) Note(i int) *Note { return m.next[i] }

// never makes the next render work on a file again.
func (m *Memory) never(i int) { m.next[i].always = true }

// Note is about one file of a source.
type Note struct {
	// facts are what the file contributes to the package; own says that other files
	// can learn nothing else from it.
	facts    index.Facts
	own      bool
	always   bool // to be worked on by every render
	stats    Stats
	findings []krm.Finding
}

// Always reports whether every render has to work on the file.
func (n *Note) Always() bool { return n.always }

// Append writes the note as text without a line ending, for ParseNote.
func (n *Note) Append(b []byte) ([]byte, error) {
	for _, v := range [...]int{n.stats.Documents, n.stats.Workloads, n.stats.Generated, n.stats.Rewritten} {
		b = append(strconv.AppendInt(b, int64(v), 10), '\t')
	}
	own := ""
	if n.own {
		own = "own"
	}
	b = append(append(append(append(b, own...), '\t'), n.facts.Names...), '\t')
	b = append(append(b, n.facts.Lines...), '\t')
	if len(n.findings) == 0 {
		return b, nil
	}
	findings, err := json.Marshal(n.findings)
	return append(b, findings...), err
}

// ParseNote reads what Append wrote.
func ParseNote(text string) (n Note, ok bool) {
	n.stats.Files = 1
	for _, count := range [...]*int{&n.stats.Documents, &n.stats.Workloads, &n.stats.Generated, &n.stats.Rewritten} {
		var number string
		number, text, _ = strings.Cut(text, "\t")
		*count, _ = strconv.Atoi(number)
	}
	own, text, _ := strings.Cut(text, "\t")
	n.own = own == "own"
	n.facts.Names, text, _ = strings.Cut(text, "\t")
	var findings string
	if n.facts.Lines, findings, ok = strings.Cut(text, "\t"); !ok {
		return n, false
	}
	return n, findings == "" || json.Unmarshal([]byte(findings), &n.findings) == nil
}
