// Package explain says of every line of a rendered file which function wrote it,
// and which setting decided it. It works by trying: what a function did is the
// difference to a render without it, and what a setting decides is what differs
// where it is another.
package explain

import (
	"bytes"
	"cmp"
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
	"github.com/armature-dev/armature/render"
)

// Explanation is a rendered file with the origin of each of its lines.
type Explanation struct {
	File  string `json:"file" yaml:"file"`
	Lines []Line `json:"lines" yaml:"lines"`
}

// Line is one line of the rendered file.
type Line struct {
	// Line counts from 1 in the rendered file. Values that functions set on a line with
	// others, in flow style, follow the line with an entry each, their field in front.
	Line int    `json:"line" yaml:"line"`
	Text string `json:"text" yaml:"text"`
	// Object and Field are what the line sets; empty for comments and separators.
	Object finding.Ref `json:"object,omitzero" yaml:"object,omitempty"`
	Field  string      `json:"field,omitempty" yaml:"field,omitempty"`
	// Function wrote the line; "author" where the author did.
	Function string `json:"function" yaml:"function"`
	// Source is the line of the author's file, 0 where a function wrote it.
	Source int `json:"source,omitempty" yaml:"source,omitempty"`
	// Because are the settings that the line would differ without; none where
	// the function writes it in any case.
	Because []identity.Provenance `json:"because,omitempty" yaml:"because,omitempty"`
	// Presence says that Because decide only whether the line is there.
	Presence bool `json:"presence,omitempty" yaml:"presence,omitempty"`
	// Always says why the line is there if no setting decides it.
	Always string `json:"always,omitempty" yaml:"always,omitempty"`
}

// Author takes the place of the function for lines that no function wrote.
const Author = "author"

// ErrNotInPackage is a file that the package does not have, or that no render
// touches.
var ErrNotInPackage = errors.New("no manifest of the package")

// File renders one file of a source and reports who set each of its lines. Nothing
// is explained where a finding is an error.
func File(src render.Source, opt render.Options, file string,
	pick Selection) (Explanation, []finding.Finding, error) {
	i := slices.IndexFunc(src.Files, func(f render.File) bool { return f.Path == file })
	if i < 0 || !render.IsManifest(file) {
		return Explanation{}, nil, fmt.Errorf("%s: %w", file, ErrNotInPackage)
	}
	e := explainer{variants: variants{index: i, all: src, opt: opt}, pick: pick,
		inputs: make(map[finding.Ref]identity.Inputs)}
	opt.Observe = e.watch
	var err error
	if e.variants.stages, err = render.NewStages(src, opt); err != nil {
		return Explanation{}, nil, err
	}
	if !e.variants.stages.Touches(i) {
		return Explanation{}, nil, fmt.Errorf(
			"%s: %w: it holds text for another tool, or spec.exclude leaves it alone", file,
			ErrNotInPackage)
	}
	return e.explain()
}

// explainer works on one file.
type explainer struct {
	variants variants
	pick     Selection

	source   []byte
	rendered []byte
	// lines are those of the file. One more follows for each value that shares a
	// line with others, in flow style.
	lines  []Line
	height int                             // of the file
	shared map[int]bool                    // lines with several values, in flow style
	inputs map[finding.Ref]identity.Inputs // of injected workloads
}

func (e *explainer) explain() (Explanation, []finding.Finding, error) {
	file := e.variants.all.Files[e.variants.index].Path
	source, err := e.variants.all.Content(file)
	if err != nil {
		return Explanation{}, nil, err
	}
	e.source = bytes.Clone(source)
	if e.pick.Object != "" {
		if err := e.only(); err != nil {
			return Explanation{}, nil, err
		}
	}
	staged, err := e.variants.stages.File(e.variants.index)
	if err != nil {
		return Explanation{}, nil, err
	}
	findings := e.variants.stages.Findings()
	if finding.Failed(findings) {
		finding.Sort(findings)
		return Explanation{}, findings, nil
	}
	e.rendered = staged.Texts[len(staged.Texts)-1]
	objects := e.attribute(staged)
	if err := e.causes(objects); err != nil {
		return Explanation{}, nil, err
	}
	if err := e.resources(objects); err != nil {
		return Explanation{}, nil, err
	}
	e.always(objects)
	kept, err := e.selected(objects)
	return Explanation{File: file, Lines: kept}, findings, err
}

// watch notes the settings of the workloads.
func (e *explainer) watch(u *contract.Unit) {
	if u.Injected() {
		e.inputs[u.Object.Ref] = u.Inputs()
	}
}

// only blanks all documents but the one that is picked or that it is made for, so that a
// stream of thousands costs no more than one of them. Lines stay where they are.
func (e *explainer) only() error {
	if _, found := masked(e.source, e.pick.Object); found {
		e.variants.picked = e.pick.Object
	} else if err := e.findMaker(); err != nil {
		return err
	}
	if e.variants.picked != "" {
		text, _ := masked(e.source, e.variants.picked)
		e.variants.stages.Replace(e.variants.index, text)
	}
	return nil
}

// findMaker looks in the rendered file for what the object is made for, which may be made
// for another one.
func (e *explainer) findMaker() error {
	text, err := e.variants.stages.Render(e.variants.index, nil)
	if err != nil {
		return err
	}
	clear(e.inputs) // which are those of all workloads
	makers := make(map[string]string)
	render.Objects(render.File{Data: text}, func(o *krm.Object) {
		maker, _ := o.Annotation(keys.RenderedFor)
		makers[strings.ToLower(o.Kind)+"/"+o.Name] = maker
	})
	for at, tries := e.pick.Object, 0; at != "" && tries < 8; tries++ {
		kind, name, _ := strings.Cut(at, "/")
		at = makers[strings.ToLower(kind)+"/"+name]
		if _, found := masked(e.source, at); found {
			e.variants.picked = at
			return nil
		}
	}
	return nil
}

// masked returns a file without the documents of other objects than Kind/name, and reports whether
// it has that one. Items of lists stay: a list has to stay one.
func masked(data []byte, object string) (text []byte, found bool) {
	kind, name, _ := strings.Cut(object, "/")
	text = bytes.Clone(data)
	render.EachDocument(data, func(d krm.Document, item bool, line int) {
		if ref, ok := render.RefOf(data, d, item); ok && strings.EqualFold(ref.Kind, kind) &&
			ref.Name == name {
			found = true
		} else if !item {
			blank(text, d.Start, d.End)
		}
	})
	return text, found
}

// blank leaves nothing of a part of a text but its lines.
func blank(text []byte, from, to int) {
	for i := from; i < to; i++ {
		if text[i] != '\n' {
			text[i] = ' '
		}
	}
}

// PlaceOf returns where a cause is set: "armature.yaml:7", or "default".
func PlaceOf(p identity.Provenance) string {
	return cmp.Or(finding.Place{File: p.File, Line: p.Line}.String(), "default")
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
		words = append(words, p.Setting+" ("+PlaceOf(p)+")")
	}
	if len(words) == 0 && l.Always != "" {
		return l.Function + ": " + l.Always
	}
	if len(words) == 0 {
		return l.Function
	}
	if l.Presence {
		return l.Function + ": there by " + strings.Join(words, ", ")
	}
	return l.Function + ": " + strings.Join(words, ", ")
}

// Selection picks what is explained.
type Selection struct {
	// Object is Kind/name; "" is every object of the file.
	Object string
	// Field is a path such as spec.template.spec.containers[web].ports; "" is all.
	Field string
}

// selected returns the requested lines, in the order of the file.
func (e *explainer) selected(objects []*explained) ([]Line, error) {
	keep := make([]bool, len(e.lines))
	var fields []string
	found := e.pick.Object == "" && e.pick.Field == ""
	for i := range keep {
		keep[i] = found
	}
	mark := func(from, to int) {
		for line := from; line < min(to, e.height); line++ {
			keep[line], found = true, true
		}
	}
	kind, name, _ := strings.Cut(e.pick.Object, "/")
	for _, x := range objects {
		made := x.Get("metadata", "annotations", keys.RenderedFor).Text()
		if e.pick.Object != "" && !(strings.EqualFold(x.Kind, kind) && x.Name == name) &&
			(made != e.pick.Object || e.pick.Field != "") {
			continue
		}
		if e.pick.Field == "" {
			mark(x.from, x.to)
		}
		for _, s := range x.spans {
			if render.Inside(s.field, e.pick.Field) {
				mark(s.line, s.to)
				keep[s.entry] = true
			}
			fields = append(fields, s.field)
		}
	}
	if !found && e.pick.Field == "" {
		return nil, fmt.Errorf("the rendered file has no object %s: write it as Kind/name", e.pick.Object)
	}
	if !found {
		return nil, fmt.Errorf("no object of the rendered file has %s%s", e.pick.Field,
			suggestion(neighbours(fields, e.pick.Field)))
	}
	var lines []Line
	for i, l := range e.lines {
		if keep[i] {
			lines = append(lines, l)
		}
	}
	slices.SortStableFunc(lines, func(a, b Line) int { return a.Line - b.Line })
	return lines, nil
}

// neighbours returns the fields beside one that is not there, or else beside the
// nearest field around it.
func neighbours(fields []string, field string) (near []string) {
	for at := field; at != "" && len(near) == 0; at = parent(at) {
		for _, f := range fields {
			if parent(f) == parent(at) {
				near = append(near, f)
			}
		}
	}
	return near
}

// parent is the field that another one is in. A key that contains dots is
// in brackets.
func parent(field string) string {
	if strings.HasSuffix(field, "]") {
		return field[:max(0, strings.LastIndexByte(field, '['))]
	}
	return field[:max(0, strings.LastIndexByte(field, '.'))]
}

func suggestion(near []string) string {
	slices.Sort(near)
	near = slices.Compact(near)
	if len(near) == 0 {
		return ": leave the field out to see them all"
	}
	return ": there is " + strings.Join(near[:min(len(near), 8)], ", ")
}
