package lint

import (
	"regexp"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/lintrules"
	"github.com/armature-dev/armature/render"
)

// objects are those of the file that was asked for last.
type objects struct {
	file string
	all  []*krm.Object
}

// of returns the objects of a file.
func (s *objects) of(file string, read func(file string) ([]byte, error)) []*krm.Object {
	if file != s.file {
		s.file, s.all = file, nil
		if data, err := read(file); err == nil { // else a file that a render puts beside another
			render.Objects(render.File{Path: file, Data: data},
				func(o *krm.Object) { s.all = append(s.all, o) })
		}
	}
	return s.all
}

// author finds where a value of an object comes from: what the object was in the
// source, what it was made for, or the patch that sets the value.
func (l *linter) author(u *unit, o *krm.Object, at krm.Node) lintrules.Authored {
	if u.root == "" {
		return l.wrote(o, at)
	}
	var found lintrules.Authored
	rendered := func(file string) ([]byte, error) { return u.manifests[file], nil }
	if before := source(l.rendered.of(o.Origin.File, rendered), o); before != nil {
		found = l.wrote(before, at)
	}
	if found.Object != nil && !found.Generated {
		if n, exact := at.In(found.Object); exact && n.Text() == at.Text() {
			return found
		}
	}
	for _, p := range u.patches {
		if by := p.sets(o, at); by.Object != nil || by.Place != nil {
			return by
		}
	}
	return found
}

// source finds the object of a file that kustomize made one of, which may have been
// given another name and namespace.
func source(of []*krm.Object, made *krm.Object) (found *krm.Object) {
	var alike []*krm.Object
	for _, o := range of {
		switch {
		case o.Kind != made.Kind:
			continue
		case o.Name == made.Name:
			return o
		case strings.Contains(made.Name, o.Name) && (found == nil || len(o.Name) > len(found.Name)):
			found = o
		}
		alike = append(alike, o)
	}
	if found == nil && len(alike) == 1 {
		return alike[0]
	}
	return found
}

// wrote finds what a rendered object was in the source: itself, or what it was made
// for. Of two with one name it is the one that has the value.
func (l *linter) wrote(o *krm.Object, at krm.Node) (found lintrules.Authored) {
	authors := l.authors.of(o.Origin.File, l.src.Content)
	for _, a := range authors {
		if a.Ref != o.Ref {
			continue
		}
		if n, exact := at.In(a); found.Object == nil || exact && n.Text() == at.Text() {
			found.Object = a
		}
	}
	if found.Object != nil {
		return found
	}
	kind, name, _ := strings.Cut(o.Get("metadata", "annotations", keys.RenderedFor).Text(), "/")
	for _, a := range authors {
		if a.Kind == kind && a.Name == name && a.Namespace == o.Namespace {
			return lintrules.Authored{Object: a, Generated: true}
		}
	}
	return lintrules.Authored{}
}

var index = regexp.MustCompile(`\[(\d+)\]`)

// sets finds what in a patch sets a value of an object: a strategic merge patch by
// the same fields, and a JSON patch by its path.
func (p patch) sets(o *krm.Object, at krm.Node) lintrules.Authored {
	var by lintrules.Authored
	render.Objects(render.File{Path: p.file, Data: p.text}, func(merge *krm.Object) {
		merge.Origin.Line += p.line - 1
		if n, exact := at.In(merge); exact && merge.Kind == o.Kind && n.Text() == at.Text() &&
			by.Object == nil {
			by.Object = merge
		}
	})
	if by.Object != nil {
		return by
	}
	var operations []yaml.Node
	if yaml.Unmarshal(p.text, &operations) != nil {
		return lintrules.Authored{}
	}
	pointer := "/" + strings.ReplaceAll(index.ReplaceAllString(at.Path(), "/$1"), ".", "/") + "/"
	for i := range operations {
		var operation struct{ Path, Value yaml.Node }
		if operations[i].Decode(&operation) != nil || operation.Path.Value == "" {
			continue
		}
		set := strings.TrimSuffix(operation.Path.Value, "-")
		if strings.HasPrefix(pointer, strings.TrimSuffix(set, "/")+"/") &&
			(operation.Value.Kind != yaml.ScalarNode || operation.Value.Value == at.Text()) {
			return lintrules.Authored{Place: &finding.Place{File: p.file,
				Line: p.line + operation.Path.Line - 1}}
		}
	}
	return lintrules.Authored{}
}
