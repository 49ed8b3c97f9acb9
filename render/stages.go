package render

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
)

// stages renders single files again and again: with no function, with the first
// one, with the first two, and so on. What a function does is the difference
// between two of them, whichever function it is.
type stages struct {
	engine *engine
	worker worker
	files  map[string][]byte // that the last render wrote
}

// newStages reads what functions have to know of the whole package, once.
func newStages(src Source, opt Options) (*stages, error) {
	opt.Workers, opt.Memory, opt.Pieces, opt.Beside = 1, nil, false, true
	s := &stages{}
	s.engine = newEngine(src, opt, nil, func(file string, data []byte) error {
		s.files[file] = bytes.Clone(data)
		return nil
	})
	if err := s.engine.collect(); err != nil {
		return nil, err
	}
	s.engine.findings = s.engine.pkg.Resolve()
	s.worker.engine = s.engine
	return s, nil
}

// render gives what a file of the source becomes with some of the functions,
// and with the settings of its workloads altered where alter is not nil.
func (s *stages) render(i int, rows []functions.Function, alter func(*identity.Settings)) ([]byte, error) {
	s.files = make(map[string][]byte)
	s.engine.rows, s.worker.findings = rows, nil
	s.worker.unit.Alter = alter
	if err := s.worker.file(i); err != nil {
		return nil, err
	}
	path := s.engine.src.Files[i].Path
	out := s.files[path]
	if aside, ok := s.files[beside(path)]; ok {
		out = append(append(out, "---\n"...), aside...)
	}
	return out, nil
}

// filed is one file as it was after each function: texts[0] without any.
type filed struct {
	path  string
	texts [][]byte
}

// file renders a file of the source in stages.
func (s *stages) file(i int, rows []functions.Function) (f filed, err error) {
	f.path = s.engine.src.Files[i].Path
	for n := range len(rows) + 1 {
		text, err := s.render(i, rows[:n], nil)
		if err != nil {
			return f, err
		}
		f.texts = append(f.texts, text)
	}
	return f, nil
}

// touched counts the functions that changed the file.
func touched(f filed) (n int) {
	for i := range f.texts[1:] {
		if !bytes.Equal(f.texts[i], f.texts[i+1]) {
			n++
		}
	}
	return n
}

// change is a field that the function first set and the function second, both
// indices of the pipeline, changed.
type change struct {
	ref           krm.Ref
	file          string
	line          int
	field         string
	first, second int
	was, is       string
}

// pins reports whether the change only adds a digest to an image.
func (c change) pins() bool { return strings.HasPrefix(c.is, c.was+"@") }

// changes finds the fields that two functions set.
func (f filed) changes() (found []change) {
	type place struct {
		ref   krm.Ref
		field string
	}
	var before map[place]string
	setter := make(map[place]int)
	lines := make(map[krm.Ref]int) // of the objects that the author wrote
	for n, text := range f.texts {
		if n > 0 && bytes.Equal(text, f.texts[n-1]) {
			continue
		}
		now := make(map[place]string)
		walk(text, func(d krm.Document, item bool, line int) {
			var o krm.Object
			if isObject, err := o.Read(text, d, item, krm.Origin{File: f.path, Line: line}); err != nil || !isObject {
				return
			}
			if n == 0 {
				lines[o.Ref] = line
			}
			leaves(o.Root(), func(at krm.Node, field string) {
				key := place{o.Ref, field}
				value := at.Text()
				now[key] = value
				was, there := before[key]
				if there && was == value || n == 0 {
					return
				}
				if first, set := setter[key]; set && there {
					found = append(found, change{o.Ref, f.path, lines[o.Ref], field, first, n - 1, was, value})
				}
				setter[key] = n - 1
			})
		})
		before = now
	}
	return found
}

// appendKey appends a step to a mapping's entry. Keys that hold dots or slashes
// stand in brackets.
func appendKey(path []byte, key string) []byte {
	path = path[:len(path):len(path)]
	if strings.ContainsAny(key, "./[]") {
		return append(append(append(path, '['), key...), ']')
	}
	if len(path) > 0 {
		path = append(path, '.')
	}
	return append(path, key...)
}

// appendItem appends a step to an item of a list: its name, or its index.
func appendItem(path []byte, item krm.Node, index int) []byte {
	path = path[:len(path):len(path)]
	_, name := item.ItemName()
	if name == "" {
		name = strconv.Itoa(index)
	}
	return append(append(append(path, '['), name...), ']')
}

// leaves visits every scalar with its field path, in which items of lists that
// have names are called by them.
func leaves(n krm.Node, visit func(at krm.Node, field string)) {
	var descend func(n krm.Node, path []byte)
	descend = func(n krm.Node, path []byte) {
		switch {
		case n.IsMap():
			for key, value := range n.Fields() {
				descend(value, appendKey(path, key))
			}
		case n.IsList():
			i := 0
			for item := range n.Items() {
				descend(item, appendItem(path, item, i))
				i++
			}
		default:
			visit(n, string(path))
		}
	}
	descend(n, nil)
}
