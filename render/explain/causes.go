package explain

import (
	"bytes"
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

// causes tries every setting of the workloads and notes where the render differs.
func (e *explainer) causes(objects []*explained) error {
	if len(e.inputs) == 0 {
		return nil
	}
	baseline, err := e.tried(func(s identity.Settings) identity.Settings { return s })
	if err != nil {
		return err
	}
	workloads := e.workloads(objects)
	provenance := make(map[krm.Ref]map[string]identity.Provenance)
	settings := make(map[string]identity.Setting)
	var order []string
	for ref, in := range e.inputs {
		provenance[ref] = make(map[string]identity.Provenance)
		for _, p := range in.Explain() {
			provenance[ref][p.Setting] = p
		}
		for _, x := range in.Settings.All() {
			if _, known := settings[x.Name]; !known {
				settings[x.Name] = x
				order = append(order, x.Name)
			}
		}
	}
	slices.Sort(order)
	for _, name := range order {
		for _, alter := range [...]func(identity.Settings) identity.Settings{settings[name].Alter, settings[name].Clear} {
			if alter == nil {
				continue
			}
			other, err := e.tried(alter)
			if err != nil {
				return err
			}
			for i, x := range objects {
				if p, ok := provenance[workloads[i]][name]; ok && !p.Derived {
					e.compare(x, baseline[x.Ref], other[x.Ref], p)
				}
			}
		}
	}
	e.settle()
	return nil
}

// maxResources bounds how many custom resources are tried.
const maxResources = 64

// resources explains what no setting decides: it leaves out one custom resource
// after the other, those of the file itself and those that others share, and
// notes where the render differs.
func (e *explainer) resources(objects []*explained) error {
	if !slices.ContainsFunc(e.lines, e.unexplained) {
		return nil
	}
	e.lock()
	baseline, err := e.tried(nil)
	if err != nil {
		return err
	}
	candidates, err := e.candidates(baseline)
	if err != nil {
		return err
	}
	open := make([]bool, len(e.lines))
	for i, l := range e.lines {
		open[i] = e.unexplained(l)
	}
	for _, c := range candidates {
		without, err := e.without(c)
		if err != nil {
			return err
		}
		p := identity.Provenance{Setting: c.ref.Kind + " " + c.ref.Name, By: identity.Input(c.ref.Kind), File: e.all.Files[c.file].Path, Line: c.line}
		for _, x := range objects {
			e.compareUnexplained(x, baseline[x.Ref], without[x.Ref], p, open)
		}
	}
	if err := e.fields(objects, baseline, candidates, open); err != nil {
		return err
	}
	e.settleReferred()
	return nil
}

// unexplained reports whether a function wrote a line for a reason that is not
// known yet. What the identity functions write without a reason has none.
func (e *explainer) unexplained(l Line) bool {
	return len(l.Because) == 0 && l.Function != Author && e.reasons(l) != contract.Settings
}

// reasons says what decides the values of the function that wrote a line.
func (e *explainer) reasons(l Line) contract.Reasons {
	rows := e.stages.Rows()
	return rows[slices.IndexFunc(rows, func(r functions.Row) bool { return r.Name == l.Function })].Reasons
}

// lock explains digests by the lock beside the package.
func (e *explainer) lock() {
	if e.opt.Lock == nil {
		return
	}
	for i := range e.lines {
		if l := &e.lines[i]; e.unexplained(*l) && e.reasons(*l) == contract.Lock {
			l.Because = []identity.Provenance{{Setting: "images", By: "ImageLock", File: e.opt.Lock.Origin.File, Line: e.opt.Lock.Origin.Line}}
		}
	}
}

// candidate is a custom resource of the package.
type candidate struct {
	file, line int
	ref        krm.Ref
	start, end int
}

func (e *explainer) candidates(rendered map[krm.Ref]*values) (found []candidate, err error) {
	for i, f := range e.all.Files {
		if !e.stages.Touches(i) {
			continue
		}
		data, err := e.all.Content(f.Path)
		if err != nil {
			return nil, err
		}
		own := i == e.index
		if !own && !slices.ContainsFunc(e.stages.SharedKinds(), func(kind string) bool { return bytes.Contains(data, []byte("kind: "+kind)) }) {
			continue
		}
		render.EachObject(data, func(d krm.Document, listed bool, line int, ref krm.Ref) {
			_, stays := rendered[ref]
			if !listed && len(found) < maxResources && (own && !stays || slices.Contains(e.stages.SharedKinds(), ref.Kind)) {
				found = append(found, candidate{i, line, ref, d.Start, d.End})
			}
		})
	}
	return found, nil
}

// without renders the file in a package that lacks a resource.
func (e *explainer) without(c candidate) (map[krm.Ref]*values, error) {
	data, err := e.all.Content(e.all.Files[c.file].Path)
	if err != nil {
		return nil, err
	}
	text := bytes.Clone(data)
	blank(text, c.start, c.end)
	other, err := e.otherwise(c.file, text)
	if err != nil {
		return nil, err
	}
	out, err := other.Render(e.index, nil)
	return e.valuesOf(out), err
}

// otherwise is the package where a file has another text.
func (e *explainer) otherwise(file int, text []byte) (*render.Stages, error) {
	src := e.all
	src.Files = slices.Clone(src.Files)
	src.Files[file].Data = text
	return e.stagesOf(src, e.opt)
}

// stagesOf renders of the file that is explained only what is picked.
func (e *explainer) stagesOf(src render.Source, opt render.Options) (*render.Stages, error) {
	s, err := render.NewStages(src, opt)
	if err != nil || e.picked == "" {
		return s, err
	}
	data, err := src.Content(src.Files[e.index].Path)
	if err != nil {
		return nil, err
	}
	text, _ := masked(data, e.picked)
	s.Replace(e.index, text)
	return s, nil
}

// compareUnexplained notes a resource as the cause of lines that no setting
// decides.
func (e *explainer) compareUnexplained(x *explained, was, other *values, p identity.Provenance, open []bool) {
	for s, there := range e.differing(x, was, other) {
		for line := s.entry; line < max(s.entry+1, min(s.to, e.height)); line++ {
			if open[line] {
				e.because(line, p, !there)
			}
			if !s.leaf {
				break
			}
		}
	}
}

// workloads gives the one that each object is, or was made for.
func (e *explainer) workloads(objects []*explained) []krm.Ref {
	type maker struct{ namespace, title string }
	makers := make(map[maker]krm.Ref, len(e.inputs))
	for ref := range e.inputs {
		makers[maker{ref.Namespace, ref.Kind + "/" + ref.Name}] = ref
	}
	of := make([]krm.Ref, len(objects))
	for i, x := range objects {
		if _, ok := e.inputs[x.Ref]; ok {
			of[i] = x.Ref
		} else {
			of[i] = makers[maker{x.Namespace, x.Get("metadata", "annotations", keys.RenderedFor).Text()}]
		}
	}
	return of
}

// values are the scalars of one object by their fields; nil has none.
type values struct {
	ref    krm.Ref
	fields map[string]string
}

func (v *values) get(field string) (value string, there bool) {
	if v == nil {
		return "", false
	}
	value, there = v.fields[field]
	return value, there
}

// tried renders the file with other settings and gives the scalars of its objects.
func (e *explainer) tried(alter func(identity.Settings) identity.Settings) (map[krm.Ref]*values, error) {
	text, err := e.stages.Render(e.index, alter)
	if err != nil {
		return nil, err
	}
	return e.valuesOf(text), nil
}

// valuesOf gives the scalars of a file's objects. An object that is as in the first
// file that it saw is not read again, and has the same values.
func (e *explainer) valuesOf(text []byte) map[krm.Ref]*values {
	first := e.known == nil
	if first {
		e.known = make(map[string]*values)
	}
	all := make(map[krm.Ref]*values)
	render.EachDocument(text, func(d krm.Document, item bool, line int) {
		if v, ok := e.known[string(text[d.Start:d.End])]; ok {
			all[v.ref] = v
			return
		}
		var o krm.Object
		if isObject, err := o.Read(text, d, item, krm.Origin{}); err == nil && isObject {
			v := &values{o.Ref, make(map[string]string)}
			render.EachField(o.Root(), func(at krm.Node, field string) { v.fields[field] = at.Text() })
			all[o.Ref] = v
			if first {
				e.known[string(text[d.Start:d.End])] = v
			}
		}
	})
	return all
}

// compare notes a setting as the cause of the lines that differ with another
// value of it.
func (e *explainer) compare(x *explained, was, other *values, p identity.Provenance) {
	for s, there := range e.differing(x, was, other) {
		if !there || s.to-s.line <= 1 {
			e.because(s.entry, p, !there)
			continue
		}
		// Of a text of many lines, as many lines for as many are other values of the same;
		// otherwise lines have gone.
		before, _ := was.get(s.field)
		value, _ := other.get(s.field)
		for _, op := range difflib.NewMatcherWithJunk(linesOf(before), linesOf(value), false, nil).GetOpCodes() {
			for line := op.I1; op.Tag != 'e' && line < op.I2; line++ {
				e.because(s.line+1+line, p, op.I2-op.I1 != op.J2-op.J1)
			}
		}
	}
}

func linesOf(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }

// differing gives the values that functions set and that another render has differently, or,
// where there is false, not at all.
func (e *explainer) differing(x *explained, was, other *values) iter.Seq2[span, bool] {
	return func(yield func(s span, there bool) bool) {
		if was == other {
			return
		}
		for _, s := range x.spans {
			if s.function < 0 || s.entry >= len(e.lines) {
				continue
			}
			value, there := other.get(s.field)
			if before, _ := was.get(s.field); there && value == before {
				continue
			}
			if !yield(s, there) {
				return
			}
		}
	}
}

// because adds a cause to a line. Settings that decide its value count for more
// than those that decide whether it is there.
func (e *explainer) because(entry int, p identity.Provenance, presence bool) {
	if entry >= len(e.lines) || e.lines[entry].Function == Author {
		return
	}
	l := &e.lines[entry]
	switch {
	case len(l.Because) == 0:
		l.Presence = presence
	case presence && !l.Presence:
		return
	case !presence && l.Presence:
		l.Because, l.Presence = nil, false
	}
	if !slices.ContainsFunc(l.Because, func(b identity.Provenance) bool { return b.Setting == p.Setting }) {
		l.Because = append(l.Because, p)
	}
}

// settle leaves out what explains nothing: a line that is there because of many
// settings, all of them defaults, is there because its container is.
func (e *explainer) settle() {
	for i := range e.lines {
		l := &e.lines[i]
		slices.SortStableFunc(l.Because, func(a, b identity.Provenance) int {
			return cmp.Or(rank(a)-rank(b), strings.Compare(a.Setting, b.Setting))
		})
		if !l.Presence {
			continue
		}
		for _, says := range [...]func(identity.Provenance) bool{
			func(p identity.Provenance) bool { return p.By != identity.ByDefault },
			func(p identity.Provenance) bool { return strings.HasPrefix(p.Setting, "components.") },
		} {
			if slices.ContainsFunc(l.Because, says) {
				l.Because = slices.DeleteFunc(l.Because, func(p identity.Provenance) bool { return !says(p) })
				break
			}
		}
	}
}

// settleReferred leaves out fields that have no default because a resource that is
// referred to sets them, as a flavor does.
func (e *explainer) settleReferred() {
	referred := func(p identity.Provenance) bool {
		return slices.ContainsFunc(e.stages.Rows(), func(row functions.Row) bool {
			return slices.ContainsFunc(row.Kinds, func(k contract.Kind) bool {
				return k.Use == contract.Refers && p.By == identity.Input(k.Name)
			})
		})
	}
	for i := range e.lines {
		if l := &e.lines[i]; slices.ContainsFunc(l.Because, referred) {
			l.Because = slices.DeleteFunc(l.Because, func(p identity.Provenance) bool { return p.By == identity.ByDefault })
		}
	}
}

// rank sorts explicit settings before defaults.
func rank(p identity.Provenance) int {
	if p.By == identity.ByDefault {
		return 1
	}
	return 0
}
