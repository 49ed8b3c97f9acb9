package explain

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
)

// explained is an object of the rendered file.
type explained struct {
	krm.Object
	text     []byte
	from, to int // its lines in the file, from 0
	// spans are its values in the order of their lines, and values the texts of fields.
	spans  []span
	values map[string]string
	// settings of the workload that it is, or from which it was generated, by name.
	settings map[string]identity.Setting
}

// span is a value of a rendered object with its first and last line.
type span struct {
	field    string
	line     int // in the file, from 0
	to       int // after its last line
	function string
	entry    int // among explainer.lines
	leaf     bool
}

// attribute determines the function that set each value, and fills in the lines.
func (e *explainer) attribute(versions map[finding.Ref]*render.Versions) {
	for _, line := range linesOf(string(e.rendered)) {
		e.lines = append(e.lines, Line{Line: len(e.lines) + 1, Text: line, Function: Author})
	}
	e.height, e.shared = len(e.lines), make(map[int]bool)
	render.EachDocument(e.rendered, func(d krm.Document, item bool, line int) {
		x := &explained{text: e.rendered[d.Start:d.End], from: line - 1,
			values: make(map[string]string)}
		x.to = x.from + len(linesOf(string(x.text)))
		if isObject, err := x.Read(e.rendered, d, item,
			krm.Origin{File: e.src.Files[e.index].Path, Line: line}); err != nil || !isObject {
			return
		}
		setter := make(map[string]string)
		if v := versions[x.Ref]; v != nil {
			v.Each(func(function int, _ krm.Node, field, _ string, _ bool) {
				if setter[field] = Author; function >= 0 {
					setter[field] = e.stages.Rows()[function].Name
				}
			})
		}
		render.EachField(x.Root(), func(at krm.Node, field string) {
			if field != "" {
				x.values[field] = at.Text()
				x.spans = append(x.spans, span{
					field: field, line: at.Line() - 1, entry: at.Line() - 1,
					function: cmp.Or(setter[field], Author), leaf: !at.IsMap() && !at.IsList(),
				})
			}
		})
		x.close()
		e.fill(x)
		e.objects = append(e.objects, x)
	})
	e.sources()
}

// linesOf returns the lines of a text without their ends.
func linesOf(text string) []string {
	return strings.Split(strings.TrimSuffix(strings.ReplaceAll(text, "\r\n", "\n"), "\n"), "\n")
}

// close sets the end of each value, which is the start of the next value outside of it.
func (x *explained) close() {
	for i := range x.spans {
		s := &x.spans[i]
		s.to = x.to
		for _, later := range x.spans[i+1:] {
			if !text.Inside(later.field, s.field) {
				s.to = max(later.line, s.line+1)
				break
			}
		}
	}
}

// fill records the object's values in their lines. A line with several values, for instance the
// dash of an item with its first field, is explained by the last one.
func (e *explainer) fill(x *explained) {
	for _, s := range x.spans {
		for line := s.line; line < e.height && (line == s.line || s.leaf && line < s.to); line++ {
			l := &e.lines[line]
			l.Object, l.Field, l.Function = x.Ref, s.field, s.function
		}
	}
	e.share(x)
	// Comments and apiVersion lines of a generated object belong to its function.
	if len(x.spans) == 0 || x.spans[0].function == Author {
		return
	}
	for line := x.from; line < x.to && line < e.height; line++ {
		if e.lines[line].Field == "" {
			e.lines[line].Function = x.spans[0].function
		}
	}
	if x.from > 0 && strings.HasPrefix(e.lines[x.from-1].Text, "---") {
		e.lines[x.from-1].Function = x.spans[0].function
	}
}

// share adds an entry for each of the values that functions set on one line in flow style. The line
// itself is the author's if one of its values is.
func (e *explainer) share(x *explained) {
	leaves, authored := make(map[int]int), make(map[int]bool)
	for _, s := range x.spans {
		if s.leaf {
			leaves[s.line]++
			authored[s.line] = authored[s.line] || s.function == Author
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
		if s.function != Author {
			s.entry = len(e.lines)
			e.lines = append(e.lines, Line{
				Line: s.line + 1, Text: s.field + ": " + strconv.Quote(x.values[s.field]),
				Object: x.Ref, Field: s.field, Function: s.function,
			})
		}
	}
}

// sources sets the author's lines to their numbers in the author's file: the next line with the
// same text, in the same order. In a file that a render left unchanged the numbers are equal.
func (e *explainer) sources() {
	// Lines of the author's file by text and by key.
	texts, firsts := make(map[string][]int), make(map[string][]int)
	for i, text := range linesOf(string(e.source)) {
		texts[text] = append(texts[text], i)
		if key, _, ok := strings.Cut(text, ":"); ok && strings.TrimSpace(key) != "" {
			firsts[key] = append(firsts[key], i)
		}
	}
	at, same := 0, bytes.Equal(e.rendered, e.source)
	for i := range e.height {
		l := &e.lines[i]
		if l.Function != Author {
			continue
		}
		candidates := [][]int{texts[l.Text], texts[strings.TrimPrefix(l.Text, render.ConsumedLine)]}
		if e.shared[i] { // functions may have extended the line
			key, _, _ := strings.Cut(l.Text, ":")
			candidates = [][]int{firsts[key]}
		}
		if same {
			candidates = [][]int{{i}}
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
