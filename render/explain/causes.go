package explain

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

// settings alters each setting of the workloads and records which lines of the render differ.
func (e *explainer) settings() error {
	all := make(map[string]identity.Setting)
	byObject := make(map[finding.Ref]map[string]identity.Setting)
	type resource struct{ namespace, title string }
	makers := make(map[resource]finding.Ref)
	for ref, in := range e.inputs {
		byObject[ref] = make(map[string]identity.Setting)
		makers[resource{ref.Namespace, ref.Kind + "/" + ref.Name}] = ref
		for _, x := range in.Explain() {
			byObject[ref][x.Setting] = x
			if all[x.Setting].Clear == nil {
				all[x.Setting] = x
			}
		}
	}
	for _, x := range e.objects {
		own := false
		if x.settings, own = byObject[x.Ref]; !own {
			maker, _ := x.Annotation(keys.RenderedFor)
			x.settings = byObject[makers[resource{x.Namespace, maker}]]
		}
	}

	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, alter := range [...]func(identity.Settings) identity.Settings{all[name].Alter,
			all[name].Clear} {
			if alter == nil {
				continue
			}
			text, err := e.stages.Render(e.index, alter)
			if err != nil {
				return err
			}
			e.compare(text, func(x *explained, s span, value string, exists bool) {
				if set, ok := x.settings[name]; ok && !set.Derived {
					e.decides(x, s, set.Provenance, value, exists)
				}
			})
		}
	}
	settle(e.lines)
	return nil
}

// decides records a setting as the cause of the lines of a value, which changes or disappears with
// another value of the setting.
func (e *explainer) decides(x *explained, s span, p identity.Provenance, value string,
	exists bool) {
	if !exists || s.to-s.line <= 1 {
		e.because(s.entry, p, !exists)
		return
	}
	// In a text of many lines, equally many replaced lines are changed values. Otherwise lines were
	// removed.
	for _, op := range difflib.NewMatcherWithJunk(linesOf(x.values[s.field]), linesOf(value),
		false, nil).GetOpCodes() {
		for line := op.I1; op.Tag != 'e' && line < op.I2; line++ {
			e.because(s.line+1+line, p, op.I2-op.I1 != op.J2-op.J1)
		}
	}
}

// compare visits the values that functions set and that differ in another render of the file.
// exists is false for a value that the other render lacks.
func (e *explainer) compare(text []byte,
	visit func(x *explained, s span, value string, exists bool)) {
	if bytes.Equal(text, e.rendered) {
		return
	}
	type document struct {
		krm.Document
		item bool
	}
	others := make(map[finding.Ref]document)
	render.EachObject(text, func(d krm.Document, item bool, _ int, ref finding.Ref) {
		others[ref] = document{d, item}
	})
	for _, x := range e.objects {
		d := others[x.Ref]
		if bytes.Equal(text[d.Start:d.End], x.text) {
			continue
		}
		var o krm.Object
		values := make(map[string]string)
		if isObject, err := o.Read(text, d.Document, d.item, krm.Origin{}); err == nil && isObject {
			render.EachField(o.Root(), func(at krm.Node, field string) {
				values[field] = at.Text()
			})
		}
		for _, s := range x.spans {
			value, exists := values[s.field]
			if s.function != Author && s.entry < len(e.lines) &&
				(!exists || value != x.values[s.field]) {
				visit(x, s, value, exists)
			}
		}
	}
}

// maxResources is the maximum number of custom resources that are removed in turn.
const maxResources = 64

// resources explains lines that no setting decides. It removes one custom resource at a time, those
// of the file and shared ones, and records which lines of the render differ.
func (e *explainer) resources() error {
	if !slices.ContainsFunc(e.lines, e.unexplained) {
		return nil
	}
	e.lock()
	found, err := e.candidates()
	if err != nil {
		return err
	}
	open := make([]bool, len(e.lines))
	for i, l := range e.lines {
		open[i] = e.unexplained(l)
	}
	for _, c := range found {
		text := bytes.Clone(c.data)
		blank(text, c.Start, c.End)
		stages, err := e.otherwise(c.file, text)
		if err != nil {
			return err
		}
		without, err := stages.Render(e.index, nil)
		if err != nil {
			return err
		}
		p := identity.Provenance{Setting: c.ref.Kind + " " + c.ref.Name,
			By: identity.Input(c.ref.Kind), File: e.src.Files[c.file].Path, Line: c.line}
		e.compare(without, func(x *explained, s span, _ string, exists bool) {
			for line := s.entry; line < max(s.entry+1, min(s.to, e.height)); line++ {
				if open[line] {
					e.because(line, p, !exists)
				}
				if !s.leaf {
					break
				}
			}
		})
	}
	if err := e.fields(found, open); err != nil {
		return err
	}
	settleReferred(e.lines, e.stages.Rows())
	return nil
}

// candidate is a custom resource of the package.
type candidate struct {
	krm.Document
	file int
	data []byte // of the file
	line int
	ref  finding.Ref
}

// candidates returns the custom resources that may decide lines: those of the file that are
// consumed, and those of kinds that decide about objects of other files.
func (e *explainer) candidates() (found []candidate, err error) {
	shared := e.stages.SharedKinds()
	stays := func(ref finding.Ref) bool {
		return slices.ContainsFunc(e.objects, func(x *explained) bool { return x.Ref == ref })
	}
	for i, f := range e.src.Files {
		if !e.stages.Touches(i) {
			continue
		}
		data, err := e.src.Content(f.Path)
		if err != nil {
			return nil, err
		}
		if i != e.index && !slices.ContainsFunc(shared,
			func(kind string) bool { return bytes.Contains(data, []byte("kind: "+kind)) }) {
			continue
		}
		render.EachObject(data, func(d krm.Document, listed bool, line int, ref finding.Ref) {
			if !listed && len(found) < maxResources &&
				(slices.Contains(shared, ref.Kind) || i == e.index && !stays(ref)) {
				found = append(found, candidate{d, i, data, line, ref})
			}
		})
	}
	return found, nil
}

// otherwise returns the stages of the package with another text of a file.
func (e *explainer) otherwise(file int, text []byte) (*render.Stages, error) {
	src := e.src
	src.Files = slices.Clone(src.Files)
	src.Files[file].Data = text
	return e.stagesOf(src, e.opt)
}

// stagesOf returns the stages of a source. In the explained file they render only the selected
// object.
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

// unexplained reports whether a function wrote a line for a reason that is not known yet. Lines
// that the identity functions write without a setting have no reason.
func (e *explainer) unexplained(l Line) bool {
	return len(l.Because) == 0 && l.Function != Author && e.reasons(l) != contract.Settings
}

// reasons returns what decides the values of the function that wrote a line.
func (e *explainer) reasons(l Line) contract.Reasons {
	rows := e.stages.Rows()
	return rows[slices.IndexFunc(rows, func(r functions.Row) bool {
		return r.Name == l.Function
	})].Reasons
}

// always adds to lines that no setting decides a sentence about why they exist.
func (e *explainer) always() {
	for _, x := range e.objects {
		why := "always, if the function changes the object"
		if maker, made := x.Annotation(keys.RenderedFor); made {
			why = "always in what is generated for " + maker
		} else if _, injected := e.inputs[x.Ref]; injected {
			why = "always in an injected workload"
		}
		explain := func(i int) {
			if l := &e.lines[i]; l.Function != Author && len(l.Because) == 0 && l.Always == "" {
				l.Always = why
			}
		}
		for line := max(x.from-1, 0); line < min(x.to, e.height); line++ {
			explain(line)
		}
		for _, s := range x.spans {
			explain(s.entry)
		}
	}
}

// lock explains digests by the lock of the package.
func (e *explainer) lock() {
	if e.opt.Lock == nil {
		return
	}
	for i := range e.lines {
		if l := &e.lines[i]; e.unexplained(*l) && e.reasons(*l) == contract.Lock {
			l.Because = []identity.Provenance{{Setting: "images", By: "ImageLock",
				File: e.opt.Lock.Origin.File, Line: e.opt.Lock.Origin.Line}}
		}
	}
}

// because adds a cause to a line. Settings that decide its value take precedence over those that
// decide whether it exists.
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

func byDefault(p identity.Provenance) bool { return p.By == identity.ByDefault }

// settle sorts explicit settings before defaults and removes uninformative causes: a line that
// exists because of many settings, all of them defaults, exists because its container does.
func settle(lines []Line) {
	key := func(p identity.Provenance) string {
		if byDefault(p) {
			return "1" + p.Setting
		}
		return "0" + p.Setting
	}
	for i := range lines {
		l := &lines[i]
		slices.SortFunc(l.Because, func(a, b identity.Provenance) int {
			return strings.Compare(key(a), key(b))
		})
		if !l.Presence {
			continue
		}
		for _, less := range [...]func(identity.Provenance) bool{
			byDefault,
			func(p identity.Provenance) bool {
				return !strings.HasPrefix(p.Setting, "components.")
			},
		} {
			if left := slices.DeleteFunc(slices.Clone(l.Because), less); len(left) > 0 {
				l.Because = left
				break
			}
		}
	}
}

// settleReferred removes fields without a default as causes if a referenced resource sets them, for
// example a flavor.
func settleReferred(lines []Line, rows []functions.Row) {
	var refers []identity.Input
	for _, row := range rows {
		for _, k := range row.Kinds {
			if k.Use == contract.Refers {
				refers = append(refers, identity.Input(k.Name))
			}
		}
	}
	for i := range lines {
		if l := &lines[i]; slices.ContainsFunc(l.Because, func(p identity.Provenance) bool {
			return slices.Contains(refers, p.By)
		}) {
			l.Because = slices.DeleteFunc(l.Because, byDefault)
		}
	}
}
