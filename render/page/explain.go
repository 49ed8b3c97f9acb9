package page

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/explain"
)

// explanation is the page of a rendered file.
type explanation struct {
	File     string
	Lines    int
	Authored int
	Legend   []writer
	Objects  []object
	Open     bool
}

// writer is a function, or the author, with the colour of its lines.
type writer struct {
	Class, Name, Summary string
	Lines                int
}

// object is a part of the file: an object with the lines around it.
type object struct {
	ID    int
	Name  string
	Lines int
	Added int // by functions
	Runs  []run
}

// run is a row of lines that have one reason.
type run struct {
	Class    string
	Function string
	Presence bool
	Always   string // why it is there, where no cause is known
	Source   string // "web.yaml:5–12" for the author's
	Causes   []cause
	Lines    []line
}

// cause is a setting, where it is set, and by what; with the field where that has
// another name.
type cause struct{ Setting, Place, By string }

type line struct {
	Number int
	Text   string
}

// Explain prints the lines of a rendered file, coloured by the function that wrote
// them, with the reason of each. Values of Secrets are masked.
func Explain(w io.Writer, e explain.Explanation) error {
	return write(w, "explain.html", explanationOf(e))
}

func explanationOf(e explain.Explanation) *explanation {
	p := &explanation{File: e.File, Lines: len(e.Lines), Open: len(e.Lines) <= open}
	written := make(map[string]int)
	x := &assembly{page: p}
	for i := range e.Lines {
		written[e.Lines[i].Function]++
		x.add(&e.Lines[i])
	}
	x.end()
	p.Authored = written[explain.Author]
	p.Legend = append(p.Legend, writer{class(explain.Author), explain.Author,
		"written in the source, at the lines that are named", p.Authored})
	for _, f := range functions.Table() {
		if n := written[f.Name]; n > 0 {
			p.Legend = append(p.Legend, writer{class(f.Name), f.Name, f.Summary, n})
		}
	}
	return p
}

// class of a function is f and its place in the order of the render, so that it has
// the same colour in every page.
func class(function string) string {
	return "f" + strconv.Itoa(slices.Index(functions.Names(), function)+1)
}

// assembly makes objects and runs of lines.
type assembly struct {
	page  *explanation
	at    *object
	ref   finding.Ref   // of the object
	above *explain.Line // the line before, of the same object
	why   string        // its reason
}

// add takes the next line. A separator begins an object, and so does another one
// without a separator, as in a list.
func (x *assembly) add(l *explain.Line) {
	other := l.Object != finding.Ref{} && x.ref != finding.Ref{} && l.Object != x.ref
	if x.at == nil || other || strings.HasPrefix(l.Text, "---") {
		x.end()
		x.at = &object{ID: len(x.page.Objects) + 1}
	}
	if l.Object != (finding.Ref{}) {
		x.ref = l.Object
		x.at.Name = l.Object.String()
	}
	x.at.Lines++
	if l.Function != explain.Author {
		x.at.Added++
	}
	text := masked(l, x.above)
	why := reason(l)
	if last := len(x.at.Runs) - 1; last >= 0 && x.above != nil && why == x.why && follows(l, x.above) {
		x.at.Runs[last].Lines = append(x.at.Runs[last].Lines, line{l.Line, text})
	} else {
		x.at.Runs = append(x.at.Runs, runOf(l, line{l.Line, text}))
	}
	x.above, x.why = l, why
}

// reason of a line, without the number of the author's line.
func reason(l *explain.Line) string {
	if l.Function == explain.Author {
		return explain.Author
	}
	return l.Reason()
}

// follows reports whether a line is the next one of what the line above is of.
func follows(l, above *explain.Line) bool {
	return l.Function != explain.Author || l.Source == above.Source ||
		above.Source > 0 && l.Source == above.Source+1
}

func runOf(l *explain.Line, first line) run {
	r := run{Class: class(l.Function), Function: l.Function, Presence: l.Presence, Always: l.Always,
		Lines: []line{first}}
	if l.Function == explain.Author && l.Source > 0 {
		r.Source = strconv.Itoa(l.Source)
	}
	for _, p := range l.Because {
		c := cause{Setting: p.Setting, Place: explain.PlaceOf(p)}
		if p.By != identity.ByDefault {
			c.By = string(p.By)
			if p.Field != "" && p.Field != "spec."+p.Setting {
				c.By += " " + p.Field
			}
		}
		r.Causes = append(r.Causes, c)
	}
	return r
}

// end finishes the object at hand.
func (x *assembly) end() {
	if x.at == nil {
		return
	}
	if x.at.Name == "" {
		x.at.Name = "no object"
	}
	for i := range x.at.Runs {
		if r := &x.at.Runs[i]; r.Source != "" && len(r.Lines) > 1 {
			first, _ := strconv.Atoi(r.Source)
			r.Source = fmt.Sprintf("%d–%d", first,
				first+r.Lines[len(r.Lines)-1].Number-r.Lines[0].Number)
		}
	}
	x.page.Objects = append(x.page.Objects, *x.at)
	x.at, x.above, x.ref = nil, nil, finding.Ref{}
}

// lastApplied is kubectl's copy of an object, a Secret's values included.
const lastApplied = "metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]"

// masked is the text of a line without the value of a Secret. A page travels further
// than a terminal's text.
func masked(l, above *explain.Line) string {
	key := false
	for _, field := range [...]string{"data", "stringData", lastApplied} {
		key = key || render.Inside(l.Field, field)
	}
	indent := l.Text[:len(l.Text)-len(strings.TrimLeft(l.Text, " "))]
	if l.Object.Kind == "Secret" && strings.ContainsAny(l.Text, "{}") {
		key = true // in flow style, a line has more fields than one
	}
	if l.Object.Kind != "Secret" || !key {
		return l.Text
	}
	if above != nil && above.Field == l.Field && above.Object == l.Object && above.Line != l.Line {
		return indent + "***" // of a text of many lines
	}
	if l.Field == "data" || l.Field == "stringData" {
		if strings.TrimSpace(l.Text) == l.Field+":" {
			return l.Text
		}
	}
	// The key may be shown where it is one: a value in quotes may have a colon, too.
	name, _, ok := strings.Cut(l.Text, ": ")
	bare := strings.TrimRight(strings.TrimLeft(name, ` "'`), ` "'`)
	if ok && (bare == l.Field || bare == last(l.Field)) {
		return name + ": ***"
	}
	return indent + "***"
}

// last is the last step of a field: token of stringData.token, a.b of data[a.b].
func last(field string) string {
	if inner, ok := strings.CutSuffix(field, "]"); ok {
		return inner[strings.IndexByte(inner, '[')+1:]
	}
	return field[strings.LastIndexByte(field, '.')+1:]
}
