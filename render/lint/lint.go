// Package lint judges what a render makes of a package, by the rules of
// functions/lint. Its findings name the author's lines.
package lint

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	rules "github.com/armature-dev/armature/functions/lint"
	"github.com/armature-dev/armature/render"
)

// Run renders a source in memory and judges what came out by the rules of
// spec.lint. Its findings, which name the author's lines, join those of the
// render. Objects that a render refuses are checked as their author wrote them.
func Run(src render.Source, opt render.Options) ([]krm.Finding, render.Stats, error) {
	opt.Workers, opt.ObjectsOnly, opt.Beside = 1, true, true
	var files []render.File
	findings, stats, err := render.Stream(src, opt, func(file string, data []byte) error {
		files = append(files, render.File{Path: file, Data: bytes.Clone(data)})
		return nil
	})
	if err != nil {
		return nil, stats, err
	}
	l := linter{src: src, rules: rules.New(opt.Config, labelPrefix(opt)), shapes: make(map[string]bool), contested: make(map[string]bool)}
	beside, err := kustomizations(src)
	if err != nil {
		return nil, stats, err
	}
	l.rules.Kustomize(beside)
	l.unread(findings)
	l.each(files, l.rules.Collect)
	l.rules.Link()
	l.each(files, func(o *krm.Object) {
		l.overwritten(o)
		findings = append(findings, l.rules.Check(o, func() (*krm.Object, bool) { return l.author(o) })...)
	})
	if l.failed != nil {
		return nil, stats, l.failed
	}
	contested, err := contests(src, opt, l.rules.Severity(rules.ContestedField), l.contested)
	findings = append(dropReported(findings), contested...)
	krm.SortFindings(findings)
	return findings, stats, err
}

// labelPrefix is the prefix that a render with the options takes.
func labelPrefix(opt render.Options) string {
	settings, _ := identity.Base(opt.Config)
	return settings.Prefix
}

// dropReported drops render findings that a lint rule reports more precisely.
func dropReported(findings []krm.Finding) (left []krm.Finding) {
	reported := make(map[krm.Ref]bool)
	for _, f := range findings {
		if f.Rule == "lint/proxy-user" {
			reported[f.Object] = true
		}
	}
	for _, f := range findings {
		if f.Rule != "inject/proxy-user" || !reported[f.Object] {
			left = append(left, f)
		}
	}
	return left
}

type linter struct {
	src    render.Source
	rules  *rules.Package
	object krm.Object
	failed error

	file    string // whose authored objects are known
	authors []*krm.Object

	shapes    map[string]bool // of objects that functions overwrote fields of
	contested map[string]bool // files that have the first object of a shape
}

// overwritten notes the file of an object that functions overwrote fields of.
// Those of objects that the same functions made alike are the same, so that the
// first of them is enough.
func (l *linter) overwritten(o *krm.Object) {
	fields := krm.Overwritten(o)
	if fields == "" {
		return
	}
	injected, _ := o.Annotation(keys.Injected)
	owner, _ := o.Annotation(keys.RenderedFor) // what was expanded is a shape of its own
	shape := fmt.Sprint(o.Kind, "\n", owner, "\n", injected, "\n", fields)
	if !l.shapes[shape] {
		l.shapes[shape], l.contested[o.Origin.File] = true, true
	}
}

// each reads all objects of the rendered files, one after the other into the
// same memory.
func (l *linter) each(files []render.File, visit func(*krm.Object)) {
	for _, f := range files {
		render.EachDocument(f.Data, func(d krm.Document, item bool, line int) {
			o := &l.object
			if isObject, err := o.Read(f.Data, d, item, krm.Origin{File: f.Path, Line: line}); err == nil && isObject {
				visit(o) // the render reports what cannot be read
			}
		})
	}
}

// author finds what an object was in the source: itself, or what it was made for.
func (l *linter) author(o *krm.Object) (*krm.Object, bool) {
	file := o.Origin.File
	if file != l.file {
		l.file, l.authors = file, nil
		data, err := l.src.Content(file)
		if err != nil {
			return nil, false // a file that a render puts beside another
		}
		render.EachDocument(data, func(d krm.Document, item bool, line int) {
			a := new(krm.Object)
			if isObject, err := a.Read(data, d, item, krm.Origin{File: file, Line: line}); err == nil && isObject {
				l.authors = append(l.authors, a)
			}
		})
	}
	for _, a := range l.authors {
		if a.Ref == o.Ref {
			return a, true
		}
	}
	kind, name, _ := strings.Cut(o.Get("metadata", "annotations", keys.RenderedFor).Text(), "/")
	for _, a := range l.authors {
		if a.Kind == kind && a.Name == name && a.Namespace == o.Namespace {
			return a, false
		}
	}
	return nil, false
}
