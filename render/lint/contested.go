package lint

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/rules"
	"github.com/armature-dev/armature/render"
)

// contests finds fields that one function sets and a later one changes, each
// pair of functions and kind of field once for the package. Only the files that
// changed has are looked at: a function that changes what is there leaves a record.
func contests(src render.Source, opt render.Options, severity krm.Severity, changed map[string]bool) (findings []krm.Finding, err error) {
	if severity == rules.Off || len(changed) == 0 {
		return nil, nil
	}
	s, err := render.NewStages(src, opt)
	if err != nil {
		return nil, err
	}
	functions := s.Rows()
	counts := make(map[string]int)
	for i := range src.Files {
		if path := src.Files[i].Path; !changed[path] && !changed[render.FileBeside(path)] {
			continue
		}
		f, err := s.File(i)
		if err != nil {
			return nil, err
		}
		for _, c := range changes(f) {
			if c.pins() {
				continue
			}
			key := functions[c.first].Name + " " + functions[c.second].Name + " " + c.field
			if counts[key]++; counts[key] > 1 {
				continue
			}
			findings = append(findings, krm.Finding{
				Rule: "lint/" + rules.ContestedField, Severity: severity, Place: krm.Place{File: c.file, Line: c.line, Field: c.field, Object: c.ref},
				Message: fmt.Sprintf("%s sets it to %s, and %s to %s, which takes effect", functions[c.first].Name, c.was, functions[c.second].Name, c.is),
				Hint:    "no action is needed if that is intended; `armature functions` lists them in their order",
			})
		}
	}
	return findings, nil
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
func changes(f render.Staged) (found []change) {
	for ref, v := range f.Versions() {
		byFunctions := len(v.Texts)
		if v.Functions[0] < 0 {
			byFunctions--
		}
		if byFunctions < 2 {
			continue
		}
		before, setter := make(map[string]string), make(map[string]int)
		for i, text := range v.Texts {
			var o krm.Object
			if isObject, err := o.Read(text, krm.Document{End: len(text)}, v.Listed[i], krm.Origin{}); err != nil || !isObject {
				continue
			}
			function := v.Functions[i]
			render.EachField(o.Root(), func(at krm.Node, field string) {
				if at.IsMap() || at.IsList() {
					return
				}
				value := at.Text()
				was, there := before[field]
				before[field] = value
				if function < 0 || there && was == value {
					return
				}
				if first, set := setter[field]; set && there {
					found = append(found, change{ref, f.Path, v.Line, field, first, function, was, value})
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
