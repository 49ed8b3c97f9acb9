package functions

import (
	"iter"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
)

// Files returns the files other than manifests that functions read.
func (p *Package) Files() iter.Seq[*contract.File] {
	return func(yield func(*contract.File) bool) {
		for i := range p.rows {
			if f := p.rows[i].steps.File; f != nil && !yield(f) {
				return
			}
		}
	}
}

// Resolve ends the first pass: it expands the custom resources of the functions that run, and calls
// the Resolve step of each function. It returns the findings about the configuration and all custom
// resources.
func (p *Package) Resolve(run []Row) []finding.Finding {
	p.Expansions.ResolveSources(p.collectKind)
	runs := func(function string) bool {
		return slices.ContainsFunc(run, func(r Row) bool { return r.Name == function })
	}
	base := expand.Resource{Prefix: p.Prefix()}
	for i := range p.rows {
		if lock := p.rows[i].steps.Lock; lock != nil {
			base.Lock, p.shared.Pinned = lock, lock.Image
		}
	}
	p.Expansions.Resolve(base, runs)
	p.report.Add(p.shared.Identity.ReadNamespaces()...)
	for i := range p.rows {
		if resolve := p.rows[i].steps.Resolve; resolve != nil {
			resolve()
		}
	}
	return p.report.Findings()
}

// ReadWith sets how expanding custom resources read other objects of the package. read is the same
// function as for Look.
func (p *Package) ReadWith(read func(ids map[Place]index.ID, visit func(index.ID, *krm.Object))) {
	p.Expansions.Read = func(id index.ID) (found *krm.Object) {
		e := p.shared.Index.Entry(id)
		read(map[Place]index.ID{placeOf(e): id},
			func(_ index.ID, o *krm.Object) { found = o.Clone() })
		return found
	}
}

// Undo returns the annotation in which a function records its changes to an object during an
// earlier render, and the function that reverts them, or nil if the object has none.
func (p *Package) Undo(o *krm.Object) (record krm.Node, undo contract.Undo) {
	for i := range p.rows {
		if f := &p.rows[i].Function; f.Undo != nil {
			if record = o.Get("metadata", "annotations", f.Record); record.Exists() {
				return record, f.Undo
			}
		}
	}
	return record, nil
}

// MentionsOptIn reports whether an object that cannot be read whole may opt in.
func (p *Package) MentionsOptIn(o *krm.Object) bool { return p.shared.Identity.MentionsOptIn(o) }

// FromInput reports whether an object was rendered for a custom resource that is an input:
// "AgentCard/weather".
func (p *Package) FromInput(rendered string) bool {
	kind, _, _ := strings.Cut(rendered, "/")
	return p.shared.Kinds.Input(kind)
}

// Expands returns the function that expands an object of a kind.
func (p *Package) Expands(ref finding.Ref) (f contract.Function, expands bool) {
	kind, read := p.shared.Kinds.Find(ref.APIVersion, ref.Kind)
	if !read || kind.Use != contract.Expands {
		return contract.Function{}, false
	}
	return p.rows[kind.Row].Function, true
}

// SharedKinds returns the kinds of custom resources that affect objects in other files.
func (p *Package) SharedKinds() []string { return p.shared.Kinds.Shared() }

// Look passes objects to the functions that have to read them before the second pass, because the
// index has only their names. read reads objects of the package again and visits those that it
// finds.
func (p *Package) Look(read func(ids map[Place]index.ID, visit func(index.ID, *krm.Object))) {
	for i := range p.rows {
		steps := &p.rows[i].steps
		if steps.Unsure == nil {
			continue
		}
		ids := make(map[Place]index.ID)
		for _, id := range steps.Unsure() {
			e := p.shared.Index.Entry(id)
			if !e.Made {
				ids[placeOf(e)] = id
			} else if o := p.Expansions.Made(e.Key); o != nil {
				steps.Look(id, o)
			}
		}
		if len(ids) > 0 {
			read(ids, steps.Look)
		}
	}
}

// Place identifies an object of the package.
type Place = expand.Place

func placeOf(e *index.Entry) Place {
	return Place{Origin: krm.Origin{File: e.File, Line: int(e.Line)}, Ref: e.Ref()}
}

// Start begins the second pass of an object. before is the object with the changes of an earlier
// render.
func (p *Package) Start(u *contract.Unit, o, before *krm.Object) { u.Start(&p.shared, o, before) }

// Run applies the function to an object.
func (r *Row) Run(u *contract.Unit) {
	if kind, read := u.Kind(r.place); read {
		switch kind.Use {
		case contract.Expands:
			if texts, expanded := r.set.Texts(u.Object); expanded {
				u.Expansion, u.Consumed = texts, !r.keep
			}
		case contract.Input:
			u.Consumed = u.Consumed || !r.keep
		}
	}
	if r.steps.Run != nil {
		r.steps.Run(u)
	}
}

// Finish returns the findings that need the whole package, after its last object.
func (p *Package) Finish() (findings []finding.Finding) {
	for i := range p.rows {
		if finish := p.rows[i].steps.Finish; finish != nil {
			findings = append(findings, finish()...)
		}
	}
	return findings
}

// WithoutEchoes drops the findings about custom resources that may be consequences of faults in the
// same resource's fields.
func (p *Package) WithoutEchoes(findings []finding.Finding) []finding.Finding {
	return p.report.WithoutEchoes(findings)
}
