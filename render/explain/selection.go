package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render"
)

// Selection picks what is explained.
type Selection struct {
	// Object is Kind/name; "" is every object of the file.
	Object string
	// Field is a path such as spec.template.spec.containers[web].ports; "" is all.
	Field string
}

// selected gives the requested lines, in the order of the file.
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
		if e.pick.Object != "" && !(strings.EqualFold(x.Kind, kind) && x.Name == name) && (made != e.pick.Object || e.pick.Field != "") {
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
		return nil, fmt.Errorf("no object of the rendered file has %s%s", e.pick.Field, suggestion(neighbours(fields, e.pick.Field)))
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

// neighbours gives the fields beside one that is not there, or else beside the
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
