package explain

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
)

// causes tries every setting of the workloads and notes where the render differs.
func (e *explainer) causes(objects []*explained) error {
	if len(e.inputs) == 0 {
		return nil
	}
	baseline, err := e.variants.tried(func(s identity.Settings) identity.Settings { return s })
	if err != nil {
		return err
	}
	workloads := workloads(e.inputs, objects)
	provenance := make(map[finding.Ref]map[string]identity.Provenance)
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
		for _, alter := range [...]func(identity.Settings) identity.Settings{settings[name].Alter,
			settings[name].Clear} {
			if alter == nil {
				continue
			}
			other, err := e.variants.tried(alter)
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
	settle(e.lines)
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
	baseline, err := e.variants.tried(nil)
	if err != nil {
		return err
	}
	candidates, err := e.variants.candidates(baseline)
	if err != nil {
		return err
	}
	open := make([]bool, len(e.lines))
	for i, l := range e.lines {
		open[i] = e.unexplained(l)
	}
	for _, c := range candidates {
		without, err := e.variants.without(c)
		if err != nil {
			return err
		}
		p := identity.Provenance{Setting: c.ref.Kind + " " + c.ref.Name,
			By: identity.Input(c.ref.Kind), File: e.variants.all.Files[c.file].Path, Line: c.line}
		for _, x := range objects {
			e.compareUnexplained(x, baseline[x.Ref], without[x.Ref], p, open)
		}
	}
	if err := e.fields(objects, baseline, candidates, open); err != nil {
		return err
	}
	settleReferred(e.lines, e.variants.stages.Rows())
	return nil
}

// unexplained reports whether a function wrote a line for a reason that is not
// known yet. What the identity functions write without a reason has none.
func (e *explainer) unexplained(l Line) bool {
	return len(l.Because) == 0 && l.Function != Author && e.reasons(l) != contract.Settings
}

// reasons says what decides the values of the function that wrote a line.
func (e *explainer) reasons(l Line) contract.Reasons {
	rows := e.variants.stages.Rows()
	return rows[slices.IndexFunc(rows, func(r functions.Row) bool {
		return r.Name == l.Function
	})].Reasons
}

// always adds to what no setting decides the sentence about why it is there.
func (e *explainer) always(objects []*explained) {
	for _, x := range objects {
		why := "always, if the function changes the object"
		if maker, made := x.Annotation(keys.RenderedFor); made {
			why = "always in what is generated for " + maker
		} else if _, injected := e.inputs[x.Ref]; injected {
			why = "always in an injected workload"
		}
		say := func(i int) {
			if l := &e.lines[i]; l.Function != Author && len(l.Because) == 0 && l.Always == "" {
				l.Always = why
			}
		}
		for line := max(x.from-1, 0); line < min(x.to, e.height); line++ {
			say(line)
		}
		for _, s := range x.spans {
			say(s.entry)
		}
	}
}

// lock explains digests by the lock beside the package.
func (e *explainer) lock() {
	if e.variants.opt.Lock == nil {
		return
	}
	for i := range e.lines {
		if l := &e.lines[i]; e.unexplained(*l) && e.reasons(*l) == contract.Lock {
			l.Because = []identity.Provenance{{Setting: "images", By: "ImageLock",
				File: e.variants.opt.Lock.Origin.File, Line: e.variants.opt.Lock.Origin.Line}}
		}
	}
}

// compareUnexplained notes a resource as the cause of lines that no setting
// decides.
func (e *explainer) compareUnexplained(x *explained, was, other *values, p identity.Provenance,
	open []bool) {
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

// workloads returns, for each object, the workload that it is or that it was made for.
func workloads(inputs map[finding.Ref]identity.Inputs, objects []*explained) []finding.Ref {
	type maker struct{ namespace, title string }
	makers := make(map[maker]finding.Ref, len(inputs))
	for ref := range inputs {
		makers[maker{ref.Namespace, ref.Kind + "/" + ref.Name}] = ref
	}
	of := make([]finding.Ref, len(objects))
	for i, x := range objects {
		if _, ok := inputs[x.Ref]; ok {
			of[i] = x.Ref
		} else {
			of[i] = makers[maker{x.Namespace,
				x.Get("metadata", "annotations", keys.RenderedFor).Text()}]
		}
	}
	return of
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
		for _, op := range difflib.NewMatcherWithJunk(linesOf(before), linesOf(value), false,
			nil).GetOpCodes() {
			for line := op.I1; op.Tag != 'e' && line < op.I2; line++ {
				e.because(s.line+1+line, p, op.I2-op.I1 != op.J2-op.J1)
			}
		}
	}
}

func linesOf(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }

// differing yields the values that functions set and that another render changes; there is false
// for a value that the other render lacks.
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
	if !slices.ContainsFunc(l.Because, func(b identity.Provenance) bool {
		return b.Setting == p.Setting
	}) {
		l.Because = append(l.Because, p)
	}
}

// settle leaves out what explains nothing: a line that is there because of many
// settings, all of them defaults, is there because its container is.
func settle(lines []Line) {
	for i := range lines {
		l := &lines[i]
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
				l.Because = slices.DeleteFunc(l.Because,
					func(p identity.Provenance) bool { return !says(p) })
				break
			}
		}
	}
}

// settleReferred leaves out fields that have no default because a resource that is
// referred to sets them, as a flavor does.
func settleReferred(lines []Line, rows []functions.Row) {
	referred := func(p identity.Provenance) bool {
		return slices.ContainsFunc(rows, func(row functions.Row) bool {
			return slices.ContainsFunc(row.Kinds, func(k contract.Kind) bool {
				return k.Use == contract.Refers && p.By == identity.Input(k.Name)
			})
		})
	}
	for i := range lines {
		if l := &lines[i]; slices.ContainsFunc(l.Because, referred) {
			l.Because = slices.DeleteFunc(l.Because,
				func(p identity.Provenance) bool { return p.By == identity.ByDefault })
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
