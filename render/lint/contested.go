package lint

import (
	"cmp"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/lintrules"
	"github.com/armature-dev/armature/render"
)

// contests returns findings for fields that one function sets and a later one changes, one per pair
// of functions and kind of field. It reads only the files in l.contested, because a function
// records that it changes an existing field.
func (l *linter) contests() (findings []finding.Finding, err error) {
	if l.rules.Severity(lintrules.ContestedField) == lintrules.Off || len(l.contested) == 0 {
		return nil, nil
	}
	s, err := render.NewStages(l.src, *l.opt)
	if err != nil {
		return nil, err
	}

	functions := s.Rows()
	counts := make(map[string]int)
	for i := range l.src.Files {
		if path := l.src.Files[i].Path; !l.contested[path] &&
			!l.contested[render.FileBeside(path)] {
			continue
		}
		_, versions, err := s.Versions(i)
		if err != nil {
			return nil, err
		}
		for _, c := range changes(l.src.Files[i].Path, versions) {
			key := functions[c.first].Name + " " + functions[c.second].Name + " " + c.Field
			if counts[key]++; counts[key] == 1 {
				findings = append(findings, l.rules.Contested(c.Place, functions[c.first].Name,
					c.was, functions[c.second].Name, c.is))
			}
		}
	}
	return findings, nil
}

// change is a field that function first set and function second changed. Both are indexes of the
// pipeline.
type change struct {
	finding.Place
	first, second int
	was, is       string
}

// changes returns the fields that two functions set, by object and field. It omits digests of
// images.
func changes(file string, objects map[finding.Ref]*render.Versions) (found []change) {
	for ref, v := range objects {
		byFunctions := len(v.Texts)
		if v.Functions[0] < 0 {
			byFunctions--
		}
		if byFunctions < 2 {
			continue
		}
		setter := make(map[string]int)
		v.Each(func(function int, at krm.Node, field, before string, there bool) {
			if at.IsMap() || at.IsList() || function < 0 {
				return
			}
			if first, set := setter[field]; set && there &&
				!strings.HasPrefix(at.Text(), before+"@") {
				found = append(found, change{finding.Place{File: file, Line: v.Line, Field: field,
					Object: ref}, first, function, before, at.Text()})
			}
			setter[field] = function
		})
	}
	slices.SortFunc(found, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Object.Name, b.Object.Name),
			cmp.Compare(a.Field, b.Field))
	})
	return found
}
