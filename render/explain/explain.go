// Package explain reports which function wrote each line of a rendered file, and which setting
// decided it. It renders again: the effect of a function is the difference to a render without it,
// and a setting decides the lines that differ with another value.
package explain

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
)

// Explanation is a rendered file with the origin of each of its lines.
type Explanation struct {
	File  string `json:"file" yaml:"file"`
	Lines []Line `json:"lines" yaml:"lines"`
}

// Line is one line of the rendered file.
type Line struct {
	// Line counts from 1 in the rendered file. In flow style, each value that functions set on a
	// line with others has an entry after the line, beginning with its field.
	Line int    `json:"line" yaml:"line"`
	Text string `json:"text" yaml:"text"`
	// Object and Field that the line sets; empty for comments and separators.
	Object finding.Ref `json:"object,omitzero" yaml:"object,omitempty"`
	Field  string      `json:"field,omitempty" yaml:"field,omitempty"`
	// Function that wrote the line; "author" for the author's lines.
	Function string `json:"function" yaml:"function"`
	// Source is the line of the author's file; 0 if a function wrote it.
	Source int `json:"source,omitempty" yaml:"source,omitempty"`
	// Because are the settings without which the line would differ; none if the function always
	// writes the line.
	Because []identity.Provenance `json:"because,omitempty" yaml:"because,omitempty"`
	// Presence means that Because decide only whether the line exists.
	Presence bool `json:"presence,omitempty" yaml:"presence,omitempty"`
	// Always is the reason for the line if no setting decides it.
	Always string `json:"always,omitempty" yaml:"always,omitempty"`
}

// Author is the function of lines that no function wrote.
const Author = "author"

// ErrNotInPackage means that the package does not contain a file, or that no render changes it.
var ErrNotInPackage = errors.New("no manifest of the package")

// File renders one file of a source and reports the origin of each of its lines. If a finding is an
// error, the Explanation is empty.
func File(src render.Source, opt render.Options, file string,
	pick Selection) (Explanation, []finding.Finding, error) {
	i := slices.IndexFunc(src.Files, func(f render.File) bool { return f.Path == file })
	if i < 0 || !render.IsManifest(file) {
		return Explanation{}, nil, fmt.Errorf("%s: %w", file, ErrNotInPackage)
	}
	e := explainer{src: src, opt: opt, index: i, pick: pick,
		inputs: make(map[finding.Ref]identity.Inputs)}
	opt.Observe = func(u *contract.Unit) {
		if u.Injected() {
			e.inputs[u.Object.Ref] = u.Inputs()
		}
	}
	var err error
	if e.stages, err = render.NewStages(src, opt); err != nil {
		return Explanation{}, nil, err
	}
	if !e.stages.Touches(i) {
		return Explanation{}, nil, fmt.Errorf(
			"%s: %w: it holds text for another tool, or spec.exclude leaves it alone", file,
			ErrNotInPackage)
	}
	lines, findings, err := e.explain()
	if err != nil || finding.Failed(findings) {
		finding.Sort(findings)
		return Explanation{}, findings, err
	}
	return Explanation{File: file, Lines: lines}, findings, nil
}

// explainer explains one file.
type explainer struct {
	src    render.Source // with all documents
	opt    render.Options
	index  int // of the file
	pick   Selection
	stages *render.Stages
	// picked is the Kind/name of the author's object that is rendered; "" is all.
	picked string

	source   []byte
	rendered []byte
	// lines of the file. They are followed by one entry for each value that shares a line in flow
	// style.
	lines   []Line
	height  int          // of the file
	shared  map[int]bool // lines with several values, in flow style
	objects []*explained
	inputs  map[finding.Ref]identity.Inputs // of injected workloads
}

func (e *explainer) explain() (lines []Line, findings []finding.Finding, err error) {
	if e.source, err = e.src.Content(e.src.Files[e.index].Path); err != nil {
		return nil, nil, err
	}
	if err := e.only(); err != nil {
		return nil, nil, err
	}
	var versions map[finding.Ref]*render.Versions
	if e.rendered, versions, err = e.stages.Versions(e.index); err != nil {
		return nil, nil, err
	}
	findings = e.stages.Findings()
	if finding.Failed(findings) {
		return nil, findings, nil
	}
	e.attribute(versions)
	if err := e.settings(); err != nil {
		return nil, nil, err
	}
	if err := e.resources(); err != nil {
		return nil, nil, err
	}
	e.always()
	lines, err = e.selected()
	return lines, findings, err
}

// only blanks all documents except the selected one or the one from which it is generated, so that
// a stream of thousands of documents costs no more than one of them. Lines keep their numbers. The
// rendered file names the resource from which an object is generated, which may itself be generated
// from another one.
func (e *explainer) only() error {
	var makers map[string]string
	for at, tries := e.pick.Object, 0; at != "" && tries < 8; tries++ {
		if text, found := masked(e.source, at); found {
			e.picked = at
			e.stages.Replace(e.index, text)
			return nil
		}
		if makers == nil {
			text, err := e.stages.Render(e.index, nil)
			if err != nil {
				return err
			}
			clear(e.inputs) // they are of all workloads
			makers = make(map[string]string)
			render.Objects(render.File{Data: text}, func(o *krm.Object) {
				maker, _ := o.Annotation(keys.RenderedFor)
				makers[strings.ToLower(o.Kind)+"/"+o.Name] = maker
			})
		}
		kind, name, _ := strings.Cut(at, "/")
		at = makers[strings.ToLower(kind)+"/"+name]
	}
	return nil
}

// masked returns a file in which all objects except Kind/name are blank, and reports whether it
// contains that object. Items of lists stay, because a list has to remain one.
func masked(data []byte, object string) (left []byte, found bool) {
	kind, name, _ := strings.Cut(object, "/")
	left = bytes.Clone(data)
	render.EachDocument(data, func(d krm.Document, item bool, line int) {
		if ref, ok := render.RefOf(data, d, item); ok && strings.EqualFold(ref.Kind, kind) &&
			ref.Name == name {
			found = true
		} else if !item {
			blank(left, d.Start, d.End)
		}
	})
	return left, found
}

// blank replaces a part of a text by spaces, and keeps its line breaks.
func blank(text []byte, from, to int) {
	for i := from; i < to; i++ {
		if text[i] != '\n' {
			text[i] = ' '
		}
	}
}

// Reason returns the causes of a line for people: "inject: inbound.port (armature.yaml:7)".
func (l *Line) Reason() string {
	if l.Function == Author {
		if l.Source == 0 {
			return Author
		}
		return Author + ":" + strconv.Itoa(l.Source)
	}
	var words []string
	for _, p := range l.Because {
		words = append(words, p.Setting+" ("+p.Place()+")")
	}
	switch {
	case len(words) == 0 && l.Always == "":
		return l.Function
	case len(words) == 0:
		return l.Function + ": " + l.Always
	case l.Presence:
		return l.Function + ": there by " + strings.Join(words, ", ")
	}
	return l.Function + ": " + strings.Join(words, ", ")
}

// Selection selects what is explained.
type Selection struct {
	// Object is Kind/name; "" is every object of the file.
	Object string
	// Field is a path such as spec.template.spec.containers[web].ports; "" is all.
	Field string
}

// selected returns the requested lines, in the order of the file.
func (e *explainer) selected() ([]Line, error) {
	keep := make([]bool, len(e.lines))
	mark := func(from, to int) {
		for line := from; line < min(to, e.height); line++ {
			keep[line] = true
		}
	}
	var fields []string
	kind, name, _ := strings.Cut(e.pick.Object, "/")
	for _, x := range e.objects {
		made := x.Get("metadata", "annotations", keys.RenderedFor).Text()
		if e.pick.Object != "" && !(strings.EqualFold(x.Kind, kind) && x.Name == name) &&
			(made != e.pick.Object || e.pick.Field != "") {
			continue
		}
		if e.pick.Field == "" {
			mark(x.from, x.to)
		}
		for _, s := range x.spans {
			if text.Inside(s.field, e.pick.Field) {
				mark(s.line, s.to)
				keep[s.entry] = true
			}
			fields = append(fields, s.field)
		}
	}
	all := e.pick == Selection{}
	switch {
	case all || slices.Contains(keep, true):
	case e.pick.Field == "":
		return nil, fmt.Errorf("the rendered file has no object %s: write it as Kind/name",
			e.pick.Object)
	default:
		return nil, fmt.Errorf("no object of the rendered file has %s%s", e.pick.Field,
			suggestion(fields, e.pick.Field))
	}
	var lines []Line
	for i, l := range e.lines {
		if all || keep[i] {
			lines = append(lines, l)
		}
	}
	slices.SortStableFunc(lines, func(a, b Line) int { return a.Line - b.Line })
	return lines, nil
}

// suggestion lists the existing siblings of a field that does not exist, or else the siblings of
// its nearest parent.
func suggestion(fields []string, field string) string {
	var siblings []string
	for at := field; at != "" && len(siblings) == 0; at = parent(at) {
		for _, f := range fields {
			if parent(f) == parent(at) {
				siblings = append(siblings, f)
			}
		}
	}
	slices.Sort(siblings)
	siblings = slices.Compact(siblings)
	if len(siblings) == 0 {
		return ": leave the field out to see them all"
	}
	return ": there is " + strings.Join(siblings[:min(len(siblings), 8)], ", ")
}

// parent returns the field that contains another one. A key that contains dots is in brackets.
func parent(field string) string {
	if strings.HasSuffix(field, "]") {
		return field[:max(0, strings.LastIndexByte(field, '['))]
	}
	return field[:max(0, strings.LastIndexByte(field, '.'))]
}
