package apply

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Action is what is done to one object.
type Action string

const (
	Create   Action = "create"
	Change   Action = "change"
	Recreate Action = "recreate"
	// Run is a hook, whose Job is created again.
	Run       Action = "run"
	Unchanged Action = "unchanged"
	Prune     Action = "prune"
	// Skip leaves an object alone, for the reason given.
	Skip Action = "skip"
	// Conflict is an object, or fields of it, that somebody else owns.
	Conflict Action = "conflict"
	// Refused is an object that the API server does not accept.
	Refused Action = "refused"
)

// Step is one line of a plan.
type Step struct {
	Action Action `json:"action"`
	ID     `json:"-"`
	// Version of the API that the object is written in.
	Version string `json:"-"`
	// File that contains the object; "" for what is pruned.
	File string `json:"file,omitempty"`
	// Line of the file that it starts in; 0 where nobody knows.
	Line int `json:"line,omitempty"`
	// Reason of everything but a plain create, change or unchanged.
	Reason string `json:"reason,omitempty"`
	// Done says that it was carried out.
	Done bool `json:"done"`
	// Conflicts are the fields that others own.
	Conflicts []FieldConflict `json:"conflicts,omitempty"`

	want  *object
	rank  rank       // when it is carried out
	needs bool       // it is pruned before what it depends on
	ours  bool       // it is skipped, and stays in the inventory
	live  liveObject // as the plan saw it
	next  liveObject // as a dry run left it, or as it will be sent once its CRD is there; nil where there was none
}

// Title names the object of a step for people.
func (s Step) Title() string { return title(s.ID) }

// Place is the file and line of the object of a step.
func (s Step) Place() string { return place(s.File, s.Line) }

// Plan is what an apply is about to do, in order.
type Plan struct {
	Package Package
	Steps   []Step
}

// Count says how many steps have an action.
func (p *Plan) Count(action Action) int {
	n := 0
	for _, s := range p.Steps {
		if s.Action == action {
			n++
		}
	}
	return n
}

// Destructive lists the steps that delete something.
func (p *Plan) Destructive() []Step {
	var out []Step
	for _, s := range p.Steps {
		if s.Action == Prune || s.Action == Recreate {
			out = append(out, s)
		}
	}
	return out
}

// object is one desired object of the package.
type object struct {
	id      ID
	file    string
	line    int
	mapping *meta.RESTMapping
	policy  policy
	bad     error  // of its annotations
	digest  digest // of the author's object
	body    *unstructured.Unstructured
	author  *unstructured.Unstructured // where it differs from body: the author's object

	former       sets.Set[string] // field managers that applied it from the client's side
	formerFields map[string]any

	// The result of a dry run, if one was needed.
	trial   liveObject
	refusal error
	force   bool            // fields are taken from managers whom the user named
	taken   []FieldConflict // those fields
	fits    bool            // it could be created again
	lost    []string        // fields that go with the former managers
	untried string          // why the API server's answer does not count yet

	hook  *hook // nil of what is not one
	ended bool  // the hook's Job is complete

	written liveObject // as the API server stored it; nil until then
}

// decide is pure: what to do about one desired object, given the live one, which
// may be nil, the inventory and the dry run.
func (a *application) decide(o *object) Step {
	live := a.seen[o.id]
	s := Step{ID: o.id, Version: o.mapping.GroupVersionKind.Version, File: o.file, Line: o.line, want: o, rank: a.ranks[o.id], live: live, next: o.trial}
	is := func(action Action, reason string, args ...any) Step {
		s.Action, s.Reason = action, fmt.Sprintf(reason, args...)
		return s
	}
	if o.bad != nil {
		return is(Refused, "%v", o.bad)
	}
	livePolicy, err := policyOf(live)
	if live != nil && err == nil && livePolicy.ignore || o.policy.ignore {
		return is(Skip, "its annotations say that it is to be left alone")
	}
	switch {
	case live == nil && o.refusal != nil:
		return is(Refused, "%s", refusal(o.refusal))
	case live == nil:
		return is(Create, "%s", o.untried)
	case o.policy.ifNotPresent:
		return is(Skip, "it exists, and its annotation says IfNotPresent")
	case a.foreign(live):
		return is(Conflict, "it belongs to the package %s; `armature apply --adopt %s` takes it over", owner(live), owner(live))
	case live.GetDeletionTimestamp() != nil:
		return is(Refused, "it is being deleted: apply again when it is gone")
	}
	conflicts := conflictsOf(o.refusal)
	switch {
	case len(conflicts) > 0:
		s.Conflicts = conflicts
		return is(Conflict, "%s", explain(conflicts))
	case immutable(o.refusal) && (a.Recreate || o.policy.recreate) && !precious(o.id) && o.fits:
		return is(Recreate, "%s", refusal(o.refusal))
	case immutable(o.refusal):
		return is(Refused, "%s", immutableReason(o))
	case o.refusal != nil:
		return is(Refused, "%s", refusal(o.refusal))
	case o.untried != "":
		return is(Change, "%s", o.untried)
	case len(o.former) > 0:
		return is(Change, "%s", inheriting(o))
	case o.trial == nil, equal(live, o.trial):
		return is(Unchanged, "")
	case o.force:
		return is(Change, "%s", taking(o.taken))
	}
	return is(Change, "")
}

// inheriting says from whom fields are taken that were applied from the client's
// side, and which of them the package has not.
func inheriting(o *object) string {
	text := "takes over what " + strings.Join(slices.Sorted(maps.Keys(o.former)), " and ") + " applied"
	if len(o.lost) > 0 {
		text += ", and removes " + strings.Join(o.lost, ", ")
	}
	return text
}

// decidePrune is pure: what to do about an object that the inventory has and the
// package no longer has. An object that somebody else made under the same name has
// another UID, or no label of ours, and survives.
func (a *application) decidePrune(e Entry) (Step, bool) {
	live := a.seen[e.ID]
	s := Step{Action: Skip, ID: e.ID, Version: e.Version, rank: rank{stage: stageOf(e.GroupKind)}, live: live}
	if live == nil {
		return s, false // gone already
	}
	p, err := policyOf(live)
	switch {
	case owner(live) != a.Package:
		s.Reason = "not pruned: it does not carry the labels of this package, so that it is somebody else's by now"
	case e.UID != "" && e.UID != live.GetUID():
		s.Reason = "not pruned: somebody else deleted it and made it again"
	case e.UID == "" && !appliedByUs(live):
		s.Reason = "not pruned: it was not made by armature"
	case err != nil:
		s.Reason = "not pruned: " + err.Error()
	case p.keep:
		s.Reason = "not pruned: its annotations say that it is to be kept"
	case e.ID == ownNamespace(a.Package) && e.ID != a.last:
		s.ours, s.Reason = true, "not pruned: the inventory of this package is in it, so that it goes with `armature delete`"
	case a.held[e.ID] != "":
		s.Action, s.Reason = Refused, fmt.Sprintf("it would take with it %s; prune it all the same with --prune-shared", a.held[e.ID])
	default:
		s.Action = Prune
	}
	return s, true
}

func appliedByUs(live liveObject) bool {
	_, ok := owned(live)
	return ok
}

// plan decides about everything that was observed.
func (a *application) plan() *Plan {
	p := &Plan{Package: a.Package}
	for _, o := range a.wanted {
		p.Steps = append(p.Steps, a.decide(o))
	}
	for _, id := range a.deferred {
		o := a.later[id]
		p.Steps = append(p.Steps, Step{Action: Create, ID: id, File: o.File, Line: o.Line, Version: o.GroupVersionKind().Version, rank: a.ranks[id], Reason: "once its CRD is there", next: o.Unstructured})
	}
	for id, o := range a.local {
		p.Steps = append(p.Steps, Step{Action: Skip, ID: id, File: o.File, Line: o.Line, Version: o.GroupVersionKind().Version, rank: rank{stage: stageOf(id.GroupKind)}, Reason: notForClusters(o.Unstructured)})
	}
	for _, e := range a.old.Entries {
		if a.wanted[e.ID] == nil && a.hooks[e.ID] == nil && a.later[e.ID].Unstructured == nil {
			if s, exists := a.decidePrune(e); exists {
				p.Steps = append(p.Steps, s)
			}
		}
	}
	changes := slices.ContainsFunc(p.Steps, Step.changes)
	for _, o := range a.hooks {
		p.Steps = append(p.Steps, a.decideHook(o, changes))
	}
	a.arrangePruned(p)
	p.sort()
	return p
}

// changes reports whether a step writes an object.
func (s Step) changes() bool {
	switch s.Action {
	case Create, Change, Recreate, Run, Prune:
		return true
	}
	return false
}

// sort puts what is pruned behind the rest, in the reverse order, and the last hooks
// behind that.
func (p *Plan) sort() {
	part := func(s Step) int {
		switch {
		case s.rank.stage == len(stages):
			return 2
		case s.Action == Prune:
			return 1
		}
		return 0
	}
	slices.SortFunc(p.Steps, func(x, y Step) int {
		if n := cmp.Compare(part(x), part(y)); n != 0 {
			return n
		}
		if x.Action == Prune && y.Action == Prune {
			return cmp.Or(y.rank.compare(x.rank), compareIDs(y.ID, x.ID))
		}
		return cmp.Or(x.rank.compare(y.rank), compareIDs(x.ID, y.ID))
	})
}

// equal reports whether a dry run left an object as it was. Status and other
// managers' bookkeeping may have moved on in between.
func equal(live, trial liveObject) bool {
	before, _ := owned(live)
	after, _ := owned(trial)
	return apiequality.Semantic.DeepEqual(before, after) && apiequality.Semantic.DeepEqual(bare(live).Object, bare(trial).Object)
}

// bare is an object without what the API server keeps books of.
func bare(u liveObject) liveObject {
	out := &unstructured.Unstructured{Object: make(map[string]any, len(u.Object))}
	for k, v := range u.Object {
		if k != "status" {
			out.Object[k] = v
		}
	}
	if m, ok := u.Object["metadata"].(map[string]any); ok {
		metadata := make(map[string]any, len(m))
		for k, v := range m {
			switch k {
			case "managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink":
			default:
				metadata[k] = v
			}
		}
		out.Object["metadata"] = metadata
	}
	return out
}
