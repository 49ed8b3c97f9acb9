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
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/explain"
)

// explanation is the data of the page of a rendered file.
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

// run is a sequence of lines with the same reason, which is that of the first line.
type run struct {
	*explain.Line
	Lines []line
}

type line struct {
	Number int
	Text   string
}

// Explain writes a page with the lines of a rendered file, colored by the function that wrote them,
// and the reason of each. Values of Secrets are masked.
func Explain(w io.Writer, e explain.Explanation) error {
	return write(w, "explain.html", explanationOf(e))
}

// explanationOf groups lines into objects and runs. An object begins at a separator, and also
// without one if the object changes, as in a list.
func explanationOf(e explain.Explanation) *explanation {
	p := &explanation{File: e.File, Lines: len(e.Lines), Open: len(e.Lines) <= open}
	written := make(map[string]int)
	var none, at finding.Ref
	var above *explain.Line // the line before, of the same object
	why := ""               // its reason
	for i := range e.Lines {
		l := &e.Lines[i]
		written[l.Function]++
		other := l.Object != none && at != none && l.Object != at
		if i == 0 || other || strings.HasPrefix(l.Text, "---") {
			p.Objects = append(p.Objects, object{ID: len(p.Objects) + 1, Name: "no object"})
			above, at = nil, none
		}
		o := &p.Objects[len(p.Objects)-1]
		if l.Object != none {
			at, o.Name = l.Object, l.Object.String()
		}
		if o.Lines++; l.Function != explain.Author {
			o.Added++
		}
		reason := reason(l)
		if above == nil || reason != why || !follows(l, above) {
			o.Runs = append(o.Runs, run{Line: l})
		}
		r := &o.Runs[len(o.Runs)-1]
		r.Lines = append(r.Lines, line{l.Line, masked(l, above)})
		above, why = l, reason
	}
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

// class returns the CSS class of a function, which is f and its position in the order of the
// render, so that its color is the same on every page.
func class(function string) string {
	return "f" + strconv.Itoa(slices.Index(functions.Names(), function)+1)
}

// reason returns the reason of a line without the number of the author's line.
func reason(l *explain.Line) string {
	if l.Function == explain.Author {
		return explain.Author
	}
	return l.Reason()
}

// follows reports whether a line continues the run of the line above.
func follows(l, above *explain.Line) bool {
	return l.Function != explain.Author || l.Source == above.Source ||
		above.Source > 0 && l.Source == above.Source+1
}

// Class returns the class of the function that wrote the lines.
func (r run) Class() string { return class(r.Function) }

// Written returns the lines of the author's file, such as "5–12", or "" if a function wrote them.
func (r run) Written() string {
	switch more := r.Lines[len(r.Lines)-1].Number - r.Line.Line; {
	case r.Function != explain.Author || r.Source == 0:
		return ""
	case len(r.Lines) == 1:
		return strconv.Itoa(r.Source)
	default:
		return fmt.Sprintf("%d–%d", r.Source, r.Source+more)
	}
}

// by returns the input that set a setting, with its field if that has another name.
func by(p identity.Provenance) string {
	switch {
	case p.By == identity.ByDefault:
		return ""
	case p.Field == "" || p.Field == "spec."+p.Setting:
		return string(p.By)
	}
	return string(p.By) + " " + p.Field
}

// lastApplied is the field with kubectl's copy of an object, including the values of a Secret.
const lastApplied = "metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]"

// masked returns the text of a line without the value of a Secret, because a page is shared more
// widely than the output of a terminal.
func masked(l, above *explain.Line) string {
	secret := strings.ContainsAny(l.Text, "{}") || // in flow style, a line has several fields
		slices.ContainsFunc([]string{"data", "stringData", lastApplied},
			func(of string) bool { return text.Inside(l.Field, of) })
	if l.Object.Kind != "Secret" || !secret {
		return l.Text
	}
	indent := l.Text[:len(l.Text)-len(strings.TrimLeft(l.Text, " "))]
	if above != nil && above.Field == l.Field && above.Object == l.Object && above.Line != l.Line {
		return indent + "***" // a line of a longer text
	}
	if (l.Field == "data" || l.Field == "stringData") && strings.TrimSpace(l.Text) == l.Field+":" {
		return l.Text
	}
	// The text before the colon is shown only if it is the key, because a quoted value may contain
	// a colon.
	name, _, ok := strings.Cut(l.Text, ": ")
	bare := strings.TrimRight(strings.TrimLeft(name, ` "'`), ` "'`)
	if ok && (bare == l.Field || bare == last(l.Field)) {
		return name + ": ***"
	}
	return indent + "***"
}

// last returns the last step of a field: token of stringData.token, a.b of data[a.b].
func last(field string) string {
	if inner, ok := strings.CutSuffix(field, "]"); ok {
		return inner[strings.IndexByte(inner, '[')+1:]
	}
	return field[strings.LastIndexByte(field, '.')+1:]
}
