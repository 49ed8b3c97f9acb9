package render

import (
	"bytes"
	"cmp"
	"slices"
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
	rows   []functions.Row   // all of them
	files  map[string][]byte // that the last render wrote
}

// newStages reads what functions have to know of the whole package, once.
func newStages(src Source, opt Options) (*stages, error) {
	opt.Workers, opt.Memory, opt.Pieces, opt.Beside = 1, nil, false, true
	s := &stages{}
	if err := checkFunctions(opt.Functions); err != nil {
		return nil, err
	}
	s.engine = newEngine(src, opt, func(file string, data []byte) error {
		s.files[file] = bytes.Clone(data)
		return nil
	})
	if err := s.engine.collect(); err != nil {
		return nil, err
	}
	s.rows = s.engine.rows
	s.engine.findings = s.engine.resolve(s.rows)
	s.worker.engine = s.engine
	return s, nil
}

// render gives what a file of the source becomes with some of the functions,
// and with the settings of its workloads altered where alter is not nil.
func (s *stages) render(i int, rows []functions.Row, alter func(identity.Settings) identity.Settings) ([]byte, error) {
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
func (s *stages) file(i int) (f filed, err error) {
	f.path = s.engine.src.Files[i].Path
	for n := range len(s.rows) + 1 {
		text, err := s.render(i, s.rows[:n], nil)
		if err != nil {
			return f, err
		}
		f.texts = append(f.texts, text)
	}
	return f, nil
}

// versions are the texts of one object after the functions that changed it.
type versions struct {
	functions []int // -1 for the author
	texts     [][]byte
	items     []bool
	line      int // of the author's, 0 where a function made the object
}

// refOf gives the name of an object, by its first lines where they are certain.
func refOf(text []byte, d krm.Document, item bool) (krm.Ref, bool) {
	if head, ok := krm.ReadHead(text[d.Start:d.End]); ok && !item && head.Name != "" && head.Kind != "" {
		return krm.Ref{APIVersion: head.APIVersion, Kind: head.Kind, Namespace: head.Namespace, Name: head.Name}, true
	}
	var o krm.Object
	if isObject, err := o.Read(text, d, item, krm.Origin{}); err != nil || !isObject {
		return krm.Ref{}, false
	}
	return o.Ref, true
}

// EachObject visits the objects of a rendered file with their texts; listed says
// that one is an item of a list.
func EachObject(data []byte, visit func(text []byte, listed bool, ref krm.Ref)) {
	walk(data, func(d krm.Document, item bool, line int) {
		if ref, ok := refOf(data, d, item); ok {
			visit(data[d.Start:d.End], item, ref)
		}
	})
}

// versions gathers the objects of a file. Most are the same after most functions.
func (f filed) versions() map[krm.Ref]*versions {
	all := make(map[krm.Ref]*versions)
	for n, text := range f.texts {
		if n > 0 && bytes.Equal(text, f.texts[n-1]) {
			continue
		}
		walk(text, func(d krm.Document, item bool, line int) {
			own := text[d.Start:d.End]
			ref, ok := refOf(text, d, item)
			if !ok {
				return
			}
			v := all[ref]
			if v == nil {
				v = &versions{}
				all[ref] = v
				if n == 0 {
					v.line = line
				}
			}
			if last := len(v.texts); last == 0 || !bytes.Equal(v.texts[last-1], own) {
				v.functions, v.texts, v.items = append(v.functions, n-1), append(v.texts, own), append(v.items, item)
			}
		})
	}
	return all
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

// changes finds the fields that two functions set, by object and field.
func (f filed) changes() (found []change) {
	for ref, v := range f.versions() {
		byFunctions := len(v.texts)
		if v.functions[0] < 0 {
			byFunctions--
		}
		if byFunctions < 2 {
			continue
		}
		before, setter := make(map[string]string), make(map[string]int)
		for i, text := range v.texts {
			var o krm.Object
			if isObject, err := o.Read(text, krm.Document{End: len(text)}, v.items[i], krm.Origin{}); err != nil || !isObject {
				continue
			}
			function := v.functions[i]
			leaves(o.Root(), func(at krm.Node, field string) {
				value := at.Text()
				was, there := before[field]
				before[field] = value
				if function < 0 || there && was == value {
					return
				}
				if first, set := setter[field]; set && there {
					found = append(found, change{ref, f.path, v.line, field, first, function, was, value})
				}
				setter[field] = function
			})
		}
	}
	slices.SortFunc(found, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.ref.Name, b.ref.Name), cmp.Compare(a.field, b.field))
	})
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
