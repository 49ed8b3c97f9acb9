package render

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// Stages renders single files of a source again and again: with no function,
// with the first one, with the first two, and so on. What a function does is the
// difference between two of them, whichever function it is.
type Stages struct {
	engine *engine
	worker worker
	rows   []functions.Row   // all of them
	files  map[string][]byte // that the last render wrote
}

// NewStages reads what functions have to know of the whole package, once.
func NewStages(src Source, opt Options) (*Stages, error) {
	opt.Workers, opt.Pieces, opt.Beside = 1, false, true
	s := &Stages{}
	var err error
	s.engine, err = newEngine(src, opt, func(file string, data []byte) error {
		s.files[file] = bytes.Clone(data)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := s.engine.collect(); err != nil {
		return nil, err
	}
	s.rows = s.engine.rows
	s.engine.findings = s.engine.resolve(s.rows)
	s.worker.engine = s.engine
	return s, nil
}

// Rows are the functions, in the order of the stages.
func (s *Stages) Rows() []functions.Row { return s.rows }

// SharedKinds are the kinds of custom resources that decide about objects of
// other files.
func (s *Stages) SharedKinds() []string { return s.engine.pkg.SharedKinds() }

// Touches reports whether a render may change a file: it is a manifest, and
// nothing says to leave it alone.
func (s *Stages) Touches(i int) bool { return !s.engine.asIs(&s.engine.src.Files[i]) }

// Findings are those about the whole package, and those of the last render.
func (s *Stages) Findings() []finding.Finding {
	return append(slices.Clone(s.engine.findings), s.worker.findings...)
}

// Replace sets another text of a file. What the functions know of the package stays as it was.
func (s *Stages) Replace(i int, data []byte) {
	s.engine.src.Files = slices.Clone(s.engine.src.Files)
	s.engine.src.Files[i].Data = data
	s.engine.sums[i] = 0
}

// Render renders a file with all functions. If alter is not nil, it alters the settings of the
// workloads.
func (s *Stages) Render(i int, alter func(identity.Settings) identity.Settings) ([]byte, error) {
	return s.render(i, s.rows, alter)
}

func (s *Stages) render(i int, rows []functions.Row,
	alter func(identity.Settings) identity.Settings) ([]byte, error) {
	s.files = make(map[string][]byte)
	s.engine.rows, s.worker.findings = rows, nil
	s.worker.unit.Alter = alter
	if err := s.worker.renderFile(i); err != nil {
		return nil, err
	}
	path := s.engine.src.Files[i].Path
	out := s.files[path]
	if aside, ok := s.files[FileBeside(path)]; ok {
		out = append(append(out, "---\n"...), aside...)
	}
	return out, nil
}

// Versions are the texts of one object after the functions that changed it.
type Versions struct {
	Functions []int // indices of the rows, -1 for the author
	Texts     [][]byte
	Listed    []bool // as an item of a list
	Line      int    // of the author's, 0 where a function made the object
}

// Each visits the values that each function set, or the author wrote; before is what was there
// until then.
func (v *Versions) Each(visit func(function int, at krm.Node, field, before string, there bool)) {
	values := make(map[string]string)
	for i, text := range v.Texts {
		var o krm.Object
		if isObject, err := o.Read(text, krm.Document{End: len(text)}, v.Listed[i],
			krm.Origin{}); err != nil || !isObject {
			continue
		}
		EachField(o.Root(), func(at krm.Node, field string) {
			before, there := values[field]
			if value := at.Text(); !there || before != value {
				values[field] = value
				visit(v.Functions[i], at, field, before, there)
			}
		})
	}
}

// RefOf returns the name of an object, by its first lines if they are certain.
func RefOf(text []byte, d krm.Document, item bool) (finding.Ref, bool) {
	if head, ok := krm.HeadOf(text, d, item); ok {
		d = head
	}
	var o krm.Object
	if isObject, err := o.Read(text, d, item, krm.Origin{}); err != nil || !isObject {
		return finding.Ref{}, false
	}
	return o.Ref, true
}

// EachObject visits the objects of a rendered file, with the line that each
// starts on; listed says that one is an item of a list.
func EachObject(data []byte, visit func(d krm.Document, listed bool, line int, ref finding.Ref)) {
	EachDocument(data, func(d krm.Document, item bool, line int) {
		if ref, ok := RefOf(data, d, item); ok {
			visit(d, item, line, ref)
		}
	})
}

// Versions renders a file with no function, with the first one, and so on, and gathers its objects.
// Most are the same after most functions. The text is that with all functions.
func (s *Stages) Versions(i int) (text []byte, all map[finding.Ref]*Versions, err error) {
	all = make(map[finding.Ref]*Versions)
	for n := range len(s.rows) + 1 {
		before := text
		if text, err = s.render(i, s.rows[:n], nil); err != nil {
			return nil, nil, err
		}
		if n > 0 && bytes.Equal(text, before) {
			continue
		}
		EachObject(text, func(d krm.Document, listed bool, line int, ref finding.Ref) {
			own := text[d.Start:d.End]
			v := all[ref]
			if v == nil {
				v = &Versions{}
				all[ref] = v
				if n == 0 {
					v.Line = line
				}
			}
			if last := len(v.Texts); last == 0 || !bytes.Equal(v.Texts[last-1], own) {
				v.Functions, v.Texts, v.Listed =
					append(v.Functions, n-1), append(v.Texts, own), append(v.Listed, listed)
			}
		})
	}
	return text, all, nil
}

// EachField visits all values, scalars and collections, with their field paths, in
// which items of lists that have names are called by them.
func EachField(n krm.Node, visit func(at krm.Node, field string)) { eachField(n, "", visit) }

func eachField(n krm.Node, at string, visit func(at krm.Node, field string)) {
	visit(n, at)
	for key, value := range n.Fields() {
		eachField(value, text.JoinField(at, key), visit)
	}
	i := 0
	for item := range n.Items() {
		_, name := item.ItemName()
		if name == "" {
			name = strconv.Itoa(i)
		}
		eachField(item, at+"["+name+"]", visit)
		i++
	}
}
