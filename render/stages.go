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

// Stages renders single files of a source repeatedly: with no function, with the first one, with
// the first two, and so on. The difference between two of them is the effect of a function.
type Stages struct {
	engine *engine
	worker worker
	rows   []functions.Row   // all functions
	files  map[string][]byte // that the last render wrote
}

// NewStages runs the first pass over the package, once.
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

// Rows returns the functions in the order of the stages.
func (s *Stages) Rows() []functions.Row { return s.rows }

// SharedKinds returns the kinds of custom resources that decide about objects of other files.
func (s *Stages) SharedKinds() []string { return s.engine.pkg.SharedKinds() }

// Touches reports whether a render may change a file: it is a manifest that is not excluded.
func (s *Stages) Touches(i int) bool { return !s.engine.asIs(&s.engine.src.Files[i]) }

// Findings returns the findings on the whole package and those of the last render.
func (s *Stages) Findings() []finding.Finding {
	return append(slices.Clone(s.engine.findings), s.worker.findings.Findings()...)
}

// Replace replaces the text of a file. The facts that functions collected about the package do not
// change.
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
	s.engine.rows, s.worker.findings = rows, finding.List{}
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

// Versions are the texts of one object after each function that changed it.
type Versions struct {
	Functions []int // indices of the rows, -1 for the author
	Texts     [][]byte
	Listed    []bool // as an item of a list
	Line      int    // in the author's file; 0 if a function generated the object
}

// Each visits the values that each function set or the author wrote. before is the previous value,
// and existed whether there was one.
func (v *Versions) Each(visit func(function int, at krm.Node, field, before string, existed bool)) {
	values := make(map[string]string)
	for i, text := range v.Texts {
		var o krm.Object
		if isObject, err := o.Read(text, krm.Document{End: len(text)}, v.Listed[i],
			krm.Origin{}); err != nil || !isObject {
			continue
		}
		EachField(o.Root(), func(at krm.Node, field string) {
			before, existed := values[field]
			if value := at.Text(); !existed || before != value {
				values[field] = value
				visit(v.Functions[i], at, field, before, existed)
			}
		})
	}
}

// RefOf returns the reference to an object, from its first lines if they suffice.
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

// EachObject visits the objects of a rendered file with their lines; listed means that the object
// is an item of a list.
func EachObject(data []byte, visit func(d krm.Document, listed bool, line int, ref finding.Ref)) {
	EachDocument(data, func(d krm.Document, item bool, line int) {
		if ref, ok := RefOf(data, d, item); ok {
			visit(d, item, line, ref)
		}
	})
}

// Versions renders a file with no function, with the first one, and so on, and collects the
// versions of its objects. It keeps only texts that differ from the previous one. It returns the
// text with all functions.
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

// EachField visits all values, scalars and collections, with their field paths. Items of lists are
// identified by name if they have one.
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
