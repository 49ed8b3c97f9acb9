package explain

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

// explained is an object of the rendered file.
type explained struct {
	*krm.Object
	from, to int // its lines in the file, from 0
	// spans are its values in the order of their lines.
	spans []span
}

// span is a value of a rendered object with the lines that it begins and ends on.
type span struct {
	field    string
	line     int // in the file, from 0
	to       int // behind its last line
	function int // of the rows, -1 for the author
	entry    int // among explainer.lines
	leaf     bool
	value    string
}

// attribute finds the function that set each value, and fills in the lines.
func (e *explainer) attribute(f render.Staged) (objects []*explained) {
	for _, line := range bytes.Split(bytes.TrimSuffix(e.rendered, []byte{'\n'}), []byte{'\n'}) {
		e.lines = append(e.lines, Line{Line: len(e.lines) + 1,
			Text: strings.TrimRight(string(line), "\r"), Function: Author})
	}
	e.height, e.shared = len(e.lines), make(map[int]bool)
	versions := f.Versions()
	render.EachDocument(e.rendered, func(d krm.Document, item bool, line int) {
		o := new(krm.Object)
		if isObject, err := o.Read(e.rendered, d, item,
			krm.Origin{File: f.Path, Line: line}); err != nil || !isObject {
			return
		}
		x := &explained{Object: o, from: line - 1,
			to: line - 1 + lineCount(e.rendered[d.Start:d.End])}
		setter := setters(versions[o.Ref])
		render.EachField(o.Root(), func(at krm.Node, field string) {
			if field != "" {
				function, known := setter[field]
				if !known {
					function = -1
				}
				x.spans = append(x.spans, span{
					field: field, line: at.Line() - 1, entry: at.Line() - 1, function: function,
					leaf: !at.IsMap() && !at.IsList(), value: at.Text(),
				})
			}
		})
		x.close()
		e.fill(x)
		objects = append(objects, x)
	})
	e.sources()
	return objects
}

func lineCount(text []byte) int {
	n := bytes.Count(text, []byte{'\n'})
	if len(text) > 0 && text[len(text)-1] != '\n' {
		n++
	}
	return n
}

// setters returns, for each field of an object, the function that set its final value; -1 for the
// author.
func setters(v *render.Versions) map[string]int {
	setter := make(map[string]int)
	if v == nil {
		return setter
	}
	before := make(map[string]string)
	for i, text := range v.Texts {
		var o krm.Object
		if isObject, err := o.Read(text, krm.Document{End: len(text)}, v.Listed[i],
			krm.Origin{}); err != nil || !isObject {
			continue
		}
		render.EachField(o.Root(), func(at krm.Node, field string) {
			value := at.Text()
			if was, there := before[field]; !there || was != value {
				setter[field] = v.Functions[i]
			}
			before[field] = value
		})
	}
	return setter
}

// close sets the end of each value: where the next value that is not inside of it begins.
func (x *explained) close() {
	for i := range x.spans {
		s := &x.spans[i]
		s.to = x.to
		for _, later := range x.spans[i+1:] {
			if !render.Inside(later.field, s.field) {
				s.to = max(later.line, s.line+1)
				break
			}
		}
	}
}

// lineOwner returns the value that explains each line. For a line with several values, for instance
// the dash of an item with its first field, it is the last one.
func (x *explained) lineOwner() map[int]span {
	owner := make(map[int]span)
	for _, s := range x.spans {
		owner[s.line] = s
		for line := s.line + 1; s.leaf && line < s.to; line++ {
			owner[line] = s
		}
	}
	return owner
}

// share returns the values that functions set on a line with others, in flow style, an entry
// each. The line itself is the author's if one of its values is.
func (e *explainer) share(x *explained) {
	leaves, authored := make(map[int]int), make(map[int]bool)
	for _, s := range x.spans {
		if s.leaf {
			leaves[s.line]++
			authored[s.line] = authored[s.line] || s.function < 0
		}
	}
	for i := range x.spans {
		s := &x.spans[i]
		if !s.leaf || leaves[s.line] < 2 || s.line >= e.height {
			continue
		}
		if e.shared[s.line] = true; authored[s.line] {
			e.lines[s.line].Function = Author
		} else {
			e.lines[s.line].Always = "its values follow"
		}
		if s.function >= 0 {
			s.entry = len(e.lines)
			e.lines = append(e.lines, Line{
				Line: s.line + 1, Text: s.field + ": " + strconv.Quote(s.value), Object: x.Ref,
				Field: s.field, Function: e.function(*s),
			})
		}
	}
}

func (e *explainer) function(s span) string {
	if s.function < 0 {
		return Author
	}
	return e.variants.stages.Rows()[s.function].Name
}

// fill writes what is known of the object's values into their lines.
func (e *explainer) fill(x *explained) {
	for line, s := range x.lineOwner() {
		if line < e.height {
			l := &e.lines[line]
			l.Object, l.Field, l.Function = x.Ref, s.field, e.function(s)
		}
	}
	e.share(x)
	// Comments and apiVersion lines of a generated object are its function's.
	if len(x.spans) == 0 || x.spans[0].function < 0 {
		return
	}
	for line := x.from; line < x.to && line < e.height; line++ {
		if e.lines[line].Field == "" {
			e.lines[line].Function = e.function(x.spans[0])
		}
	}
	if x.from > 0 && strings.HasPrefix(e.lines[x.from-1].Text, "---") {
		e.lines[x.from-1].Function = e.function(x.spans[0])
	}
}

// sources sets the author's lines to their numbers in the author's file: in the same order, the
// next line with the same text. A file that was rendered before has them where they are.
func (e *explainer) sources() {
	if bytes.Equal(e.rendered, e.source) {
		for i := range e.height {
			if l := &e.lines[i]; l.Function == Author {
				l.Source = i + 1
			}
		}
		return
	}
	// lines by their text, and by their key
	texts, firsts := make(map[string][]int), make(map[string][]int)
	for i, line := range bytes.Split(bytes.TrimSuffix(e.source, []byte{'\n'}), []byte{'\n'}) {
		text := strings.TrimRight(string(line), "\r")
		texts[text] = append(texts[text], i)
		if key, _, ok := strings.Cut(text, ":"); ok && strings.TrimSpace(key) != "" {
			firsts[key] = append(firsts[key], i)
		}
	}
	at := 0
	for i := range e.height {
		l := &e.lines[i]
		var candidates [][]int
		switch {
		case l.Function == Author && e.shared[i]: // functions may have added to the line
			key, _, _ := strings.Cut(l.Text, ":")
			candidates = [][]int{firsts[key]}
		case l.Function == Author:
			candidates = [][]int{texts[l.Text],
				texts[strings.TrimPrefix(l.Text, render.ConsumedLine)]}
		}
		next := -1
		for _, lines := range candidates {
			if n, _ := slices.BinarySearch(lines, at); n < len(lines) &&
				(next < 0 || lines[n] < next) {
				next = lines[n]
			}
		}
		if next >= 0 {
			l.Source, at = next+1, next+1
		}
	}
}
