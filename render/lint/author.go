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

// objects caches the objects of the file that was requested last.
type objects struct {
	file string
	all  []*krm.Object
}

// of returns the objects of a file.
func (s *objects) of(file string, read func(file string) ([]byte, error)) []*krm.Object {
	if file != s.file {
		s.file, s.all = file, nil
		if data, err := read(file); err == nil { // else a file that only the render creates
			render.Objects(render.File{Path: file, Data: data},
				func(o *krm.Object) { s.all = append(s.all, o) })
		}
	}
	return s.all
}

// author returns the origin of a value of a built object: the object in the source, the resource
// from which it was generated, or the patch that sets the value.
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

// source returns the object of a file from which kustomize built an object. kustomize may have
// changed its name and namespace.
func source(candidates []*krm.Object, built *krm.Object) (found *krm.Object) {
	var sameKind []*krm.Object
	for _, o := range candidates {
		switch {
		case o.Kind != built.Kind:
			continue
		case o.Name == built.Name:
			return o
		case strings.Contains(built.Name, o.Name) && (found == nil || len(o.Name) > len(found.Name)):
			found = o
		}
		sameKind = append(sameKind, o)
	}
	if found == nil && len(sameKind) == 1 {
		return sameKind[0]
	}
	return found
}

// wrote returns the origin of a rendered object in the source: the object itself, or the resource
// from which it was generated. Of two objects with one name it returns the one with the value.
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

// sets returns the place in a patch that sets a value of an object: the same field of a strategic
// merge patch, or the path of a JSON patch.
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
