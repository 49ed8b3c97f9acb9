package explain

import (
	"bytes"
	"slices"
	"strings"

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
		other, err := e.tried(settings[name].Alter)
		if err != nil {
			return err
		}
		for _, x := range objects {
			if p, ok := provenance[e.workload(x)][name]; ok && !p.Derived {
				e.compare(x, baseline[x.Ref], other[x.Ref], p)
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

func (e *explainer) candidates(rendered map[krm.Ref]map[string]string) (found []candidate, err error) {
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
func (e *explainer) without(c candidate) (map[krm.Ref]map[string]string, error) {
	src := e.all
	src.Files = slices.Clone(src.Files)
	data, err := e.all.Content(src.Files[c.file].Path)
	if err != nil {
		return nil, err
	}
	data = bytes.Clone(data)
	for i := c.start; i < c.end; i++ {
		if data[i] != '\n' {
			data[i] = ' '
		}
	}
	src.Files[c.file].Data = data
	other, err := render.NewStages(src, e.opt)
	if err != nil {
		return nil, err
	}
	text, err := other.Render(e.index, nil)
	return valuesOf(text), err
}

// compareUnexplained notes a resource as the cause of lines that no setting
// decides.
func (e *explainer) compareUnexplained(x *explained, was, other map[string]string, p identity.Provenance, open []bool) {
	for _, s := range x.spans {
		if s.function < 0 || s.entry >= len(e.lines) {
			continue
		}
		value, there := other[s.field]
		if there && value == was[s.field] {
			continue
		}
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

// workload is the one that an object is, or was made for.
func (e *explainer) workload(x *explained) krm.Ref {
	if _, ok := e.inputs[x.Ref]; ok {
		return x.Ref
	}
	made := x.Get("metadata", "annotations", keys.RenderedFor).Text()
	for ref := range e.inputs {
		if ref.Kind+"/"+ref.Name == made && ref.Namespace == x.Namespace {
			return ref
		}
	}
	return krm.Ref{}
}

// tried renders the file with other settings and gives the scalars of its objects.
func (e *explainer) tried(alter func(identity.Settings) identity.Settings) (map[krm.Ref]map[string]string, error) {
	text, err := e.stages.Render(e.index, alter)
	if err != nil {
		return nil, err
	}
	return valuesOf(text), nil
}

func valuesOf(text []byte) map[krm.Ref]map[string]string {
	all := make(map[krm.Ref]map[string]string)
	render.EachDocument(text, func(d krm.Document, item bool, line int) {
		var o krm.Object
		if isObject, err := o.Read(text, d, item, krm.Origin{}); err == nil && isObject {
			values := make(map[string]string)
			render.EachField(o.Root(), func(at krm.Node, field string) { values[field] = at.Text() })
			all[o.Ref] = values
		}
	})
	return all
}

// compare notes a setting as the cause of the lines that differ with another
// value of it.
func (e *explainer) compare(x *explained, was, other map[string]string, p identity.Provenance) {
	for _, s := range x.spans {
		if s.function < 0 {
			continue
		}
		value, there := other[s.field]
		switch {
		case other == nil || !there:
			e.because(s.entry, p, true)
		case value == was[s.field]:
		case s.to-s.line > 1: // a text of many lines
			for _, c := range changedLines(was[s.field], value) {
				e.because(s.line+1+c.line, p, c.gone)
			}
		default:
			e.because(s.entry, p, false)
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
			return strings.Compare(rank(a), rank(b))
		})
		if !l.Presence {
			continue
		}
		set := slices.DeleteFunc(slices.Clone(l.Because), func(p identity.Provenance) bool { return p.By == identity.ByDefault })
		if len(set) > 0 {
			l.Because = set
			continue
		}
		own := slices.DeleteFunc(slices.Clone(l.Because), func(p identity.Provenance) bool { return !strings.HasPrefix(p.Setting, "components.") })
		if len(own) > 0 {
			l.Because = own
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
func rank(p identity.Provenance) string {
	if p.By == identity.ByDefault {
		return "1 " + p.Setting
	}
	return "0 " + p.Setting
}

// changedLine is a line of a text, from 0, that another text does not have at
// its place.
type changedLine struct {
	line int
	gone bool // nothing replaces it
}

// changedLines compares by a longest common subsequence. As many lines for as
// many are other values of the same; otherwise lines have gone.
func changedLines(was, is string) (changed []changedLine) {
	a, b := strings.Split(strings.TrimSuffix(was, "\n"), "\n"), strings.Split(strings.TrimSuffix(is, "\n"), "\n")
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		fromA, fromB := i, j
		for i < len(a) || j < len(b) {
			if i < len(a) && j < len(b) && a[i] == b[j] {
				break
			}
			if j < len(b) && (i == len(a) || common[i][j+1] >= common[i+1][j]) {
				j++
			} else {
				i++
			}
		}
		for line := fromA; line < i; line++ {
			changed = append(changed, changedLine{line, i-fromA != j-fromB})
		}
		i, j = i+1, j+1
	}
	return changed
}
