// Package lint checks a rendered package by the rules of functions/lintrules: the output of its
// kustomizations, and plain manifests as they are. Its findings name the author's lines.
package lint

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/lintrules"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/render"
)

// Run renders a source in memory and checks the result by the rules of spec.lint. Its findings name
// the author's lines and include those of the render. Objects that the render refuses are checked
// as written.
func Run(src render.Source, opt render.Options) ([]finding.Finding, render.Stats, error) {
	opt.Workers, opt.ObjectsOnly, opt.Beside = 1, true, true
	var files []render.File
	findings, stats, err := render.Stream(src, opt, func(file string, data []byte) error {
		files = append(files, render.File{Path: file, Data: bytes.Clone(data)})
		return nil
	})
	if err != nil {
		return nil, stats, err
	}
	settings, _ := sidecars.All().Base(opt.Config)
	l := linter{
		src: src, opt: &opt, rules: lintrules.New(opt.Config, settings.Prefix),
		shapes: make(map[string]bool), contested: make(map[string]bool),
		reported: make(map[place]*unit),
	}
	l.rules.Evaluate, l.rules.Schema =
		evaluate, schema{make(map[reflect.Type]map[string]reflect.Type)}.check
	l.unread(findings)
	units, skipped, err := l.units(files)
	if err != nil {
		return nil, stats, err
	}
	findings = append(findings, skipped...)
	for _, u := range units {
		findings = append(findings, l.check(u)...)
	}
	authored, err := l.authored()
	if err != nil {
		return nil, stats, err
	}
	findings = append(findings, authored...)
	contested, err := l.contests()
	findings = append(dropReported(findings), contested...)
	finding.Sort(findings)
	return findings, stats, err
}

// dropReported drops findings of the render that a lint rule reports more precisely, and
// invalid-field at a place where the render reports an error.
func dropReported(findings []finding.Finding) []finding.Finding {
	reported, refused := make(map[finding.Ref]bool), make(map[finding.Place]bool)
	for _, f := range findings {
		switch {
		case f.Rule == "lint/proxy-user":
			reported[f.Object] = true
		case f.Severity == finding.Error && !strings.HasPrefix(f.Rule, "lint/"):
			refused[f.Place] = true
		}
	}
	return slices.DeleteFunc(findings, func(f finding.Finding) bool {
		return f.Rule == "inject/proxy-user" && reported[f.Object] ||
			f.Rule == "lint/invalid-field" && refused[f.Place]
	})
}

type linter struct {
	src   render.Source
	opt   *render.Options
	rules *lintrules.Package // for everything outside of kustomizations

	authors, rendered objects

	shapes    map[string]bool // of objects with fields that functions overwrote
	contested map[string]bool // files with the first object of a shape
	reported  map[place]*unit
}

// place is the rule and the place of a finding.
type place struct {
	rule, file, field string
	line              int
}

// unread passes the text of files that the render could not read to the rules.
func (l *linter) unread(findings []finding.Finding) {
	seen := make(map[string]bool)
	for _, f := range findings {
		if f.Rule != render.SyntaxRule || seen[f.File] {
			continue
		}
		seen[f.File] = true
		if text, err := l.src.Content(f.File); err == nil {
			l.rules.Unread = append(l.rules.Unread, string(text))
		}
	}
}

// check returns the findings on the objects of a unit. A place that two kustomizations build is
// reported once.
func (l *linter) check(u *unit) (findings []finding.Finding) {
	u.each(func(o *krm.Object) {
		for _, f := range u.rules.Check(o,
			func(at krm.Node) lintrules.Authored { return l.author(u, o, at) }) {
			at := place{f.Rule, f.File, f.Field, f.Line}
			if first := l.reported[at]; first != nil && first != u ||
				strings.HasPrefix(f.File, "../") {
				continue
			}
			l.reported[at] = u
			if u.root != "" {
				f.Hint += "; " + u.root + " builds it"
			}
			findings = append(findings, f)
		}
	})
	return findings
}

// authored returns the findings on the objects as their authors wrote them.
func (l *linter) authored() (findings []finding.Finding, err error) {
	for _, f := range l.src.Files {
		if f.AsIs || !render.IsManifest(f.Path) || l.opt.Excludes(f.Path) {
			continue
		}
		data, err := l.src.Content(f.Path)
		if err != nil {
			return nil, err
		}
		render.Objects(render.File{Path: f.Path, Data: data}, func(o *krm.Object) {
			findings = append(findings, l.rules.CheckAuthored(o, l.opt.Lock)...)
		})
	}
	return findings, nil
}

// overwritten records the file of an object with fields that functions overwrote. The fields are
// the same for all objects that the same functions generated alike, so the first of them is enough.
func (l *linter) overwritten(o *krm.Object) {
	fields := krm.Overwritten(o)
	if fields == "" {
		return
	}
	injected, _ := o.Annotation(keys.Injected)
	owner, _ := o.Annotation(keys.RenderedFor) // expanded objects have another shape
	shape := fmt.Sprint(o.Kind, "\n", owner, "\n", injected, "\n", fields)
	if !l.shapes[shape] {
		l.shapes[shape], l.contested[o.Origin.File] = true, true
	}
}

// each visits all objects of files. The render reports files that cannot be read.
func each(files []render.File, visit func(*krm.Object)) {
	for _, f := range files {
		render.Objects(f, visit)
	}
}
