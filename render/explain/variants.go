package explain

import (
	"bytes"
	"iter"
	"slices"

	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

// variants render the file that is explained as it would be with other inputs.
type variants struct {
	stages *render.Stages
	index  int           // of the file
	all    render.Source // with no document blanked
	opt    render.Options
	// picked is the Kind/name of the object of the author that is rendered; "" is all.
	picked string
	known  map[string]*values // of objects by their text: see valuesOf
}

// tried renders the file with other settings and returns the scalars of its objects.
func (v *variants) tried(alter func(identity.Settings) identity.Settings) (map[finding.Ref]*values,
	error) {
	text, err := v.stages.Render(v.index, alter)
	if err != nil {
		return nil, err
	}
	return v.valuesOf(text), nil
}

// first returns the objects of the file with the first of several texts that renders.
func (v *variants) first(texts iter.Seq[[]byte],
	stages func([]byte) (*render.Stages, error)) (found map[finding.Ref]*values, rendered bool,
	err error) {
	for text := range texts {
		s, err := stages(text)
		if err != nil {
			return nil, false, err
		}
		if s == nil || finding.Failed(s.Findings()) {
			continue
		}
		out, err := s.Render(v.index, nil)
		if err != nil {
			return nil, false, err
		}
		if !finding.Failed(s.Findings()) {
			return v.valuesOf(out), true, nil
		}
	}
	return nil, false, nil
}

// without renders the file in a package that lacks a resource.
func (v *variants) without(c candidate) (map[finding.Ref]*values, error) {
	data, err := v.all.Content(v.all.Files[c.file].Path)
	if err != nil {
		return nil, err
	}
	text := bytes.Clone(data)
	blank(text, c.start, c.end)
	other, err := v.otherwise(c.file, text)
	if err != nil {
		return nil, err
	}
	out, err := other.Render(v.index, nil)
	return v.valuesOf(out), err
}

// otherwise is the package where a file has another text.
func (v *variants) otherwise(file int, text []byte) (*render.Stages, error) {
	src := v.all
	src.Files = slices.Clone(src.Files)
	src.Files[file].Data = text
	return v.stagesOf(src, v.opt)
}

// stagesOf renders of the file that is explained only what is picked.
func (v *variants) stagesOf(src render.Source, opt render.Options) (*render.Stages, error) {
	s, err := render.NewStages(src, opt)
	if err != nil || v.picked == "" {
		return s, err
	}
	data, err := src.Content(src.Files[v.index].Path)
	if err != nil {
		return nil, err
	}
	text, _ := masked(data, v.picked)
	s.Replace(v.index, text)
	return s, nil
}

func (v *variants) candidates(rendered map[finding.Ref]*values) (found []candidate, err error) {
	for i, f := range v.all.Files {
		if !v.stages.Touches(i) {
			continue
		}
		data, err := v.all.Content(f.Path)
		if err != nil {
			return nil, err
		}
		own := i == v.index
		if !own && !slices.ContainsFunc(v.stages.SharedKinds(),
			func(kind string) bool { return bytes.Contains(data, []byte("kind: "+kind)) }) {
			continue
		}
		render.EachObject(data, func(d krm.Document, listed bool, line int, ref finding.Ref) {
			_, stays := rendered[ref]
			if !listed && len(found) < maxResources &&
				(own && !stays || slices.Contains(v.stages.SharedKinds(), ref.Kind)) {
				found = append(found, candidate{i, line, ref, d.Start, d.End})
			}
		})
	}
	return found, nil
}

// kindOf returns the kind of a resource that expands, or that such a resource refers to.
func (v *variants) kindOf(ref finding.Ref) (contract.Kind, bool) {
	group := (&krm.Object{Ref: ref}).Group()
	for _, row := range v.stages.Rows() {
		for _, k := range row.Kinds {
			of := func(g contract.Group) bool { return g.Name == group || g.Name == "" }
			if k.Name == ref.Kind && (k.Use == contract.Expands || k.Use == contract.Refers) &&
				slices.ContainsFunc(k.Groups, of) {
				return k, true
			}
		}
	}
	return contract.Kind{}, false
}

// valuesOf returns the scalars of a file's objects. It does not read an object again that equals
// the one of the first file, and returns its values.
func (v *variants) valuesOf(text []byte) map[finding.Ref]*values {
	first := v.known == nil
	if first {
		v.known = make(map[string]*values)
	}
	all := make(map[finding.Ref]*values)
	render.EachDocument(text, func(d krm.Document, item bool, line int) {
		if found, ok := v.known[string(text[d.Start:d.End])]; ok {
			all[found.ref] = found
			return
		}
		var o krm.Object
		if isObject, err := o.Read(text, d, item, krm.Origin{}); err == nil && isObject {
			found := &values{o.Ref, make(map[string]string)}
			render.EachField(o.Root(), func(at krm.Node, field string) {
				found.fields[field] = at.Text()
			})
			all[o.Ref] = found
			if first {
				v.known[string(text[d.Start:d.End])] = found
			}
		}
	})
	return all
}

// candidate is a custom resource of the package.
type candidate struct {
	file, line int
	ref        finding.Ref
	start, end int
}

// values are the scalars of one object by their fields; nil has none.
type values struct {
	ref    finding.Ref
	fields map[string]string
}

func (v *values) get(field string) (value string, there bool) {
	if v == nil {
		return "", false
	}
	value, there = v.fields[field]
	return value, there
}
