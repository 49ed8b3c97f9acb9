package apply

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/armature-dev/armature/render/deliver/apply/fields"
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

// Step is one line of a plan: an object of the package, or of its inventory alone.
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

	rank  rank // when it is carried out
	want  desired
	seen  observed
	dry   trial
	after outcome
}

// desired is what the package says about an object.
type desired struct {
	author  liveObject // what the author wrote; nil of what the package no longer contains
	body    liveObject // what is sent: author, unless fields are left to others
	local   string     // why it does not belong in a cluster; "" where it does
	later   bool       // its CRD comes with the package
	early   bool       // hooks that run first need it
	hook    *hook      // nil of what is not one
	depends []ID       // what has to be ready before it, or what is pruned after it
	policy  policy
	bad     error // of its annotations
	digest  fields.Digest
}

// observed is what the cluster says about an object.
type observed struct {
	// the version to read it in; zero where the kind is not served yet
	reads    schema.GroupVersionKind
	live     liveObject       // as the plan saw it; nil if it does not exist
	seal     string           // of the live object
	former   sets.Set[string] // field managers that applied it from the client's side
	held     []string         // what others have in a namespace or CRD
	scaled   bool             // by an autoscaler
	unscaled bool             // by one that is pruned
}

// trial is the result of a dry run, if one was needed.
type trial struct {
	object  liveObject
	refusal error
	force   bool            // fields are taken from managers whom the user named
	taken   []FieldConflict // those fields
	fits    bool            // it could be created again
	untried string          // why the API server's answer does not count yet
}

// outcome is what carrying out a step left.
type outcome struct {
	written liveObject // as the API server stored it; nil until then
	latest  liveObject // as a wait last saw it
	ours    bool       // it is not pruned, but stays in the inventory
	gone    bool       // it was deleted
	ended   bool       // the hook's Job is complete
}

// Title names the object of a step for people.
func (s *Step) Title() string { return title(s.ID) }

// Place is the file and line of the object of a step.
func (s *Step) Place() string { return place(s.File, s.Line) }

// now is the object as a write left it, or else as the plan saw it.
func (s *Step) now() liveObject {
	if s.after.written != nil {
		return s.after.written
	}
	return s.seen.live
}

// Plan is what an apply is about to do, in order.
type Plan struct {
	Package Package
	Steps   []*Step

	opt     Options
	old     *Inventory
	wanted  map[ID]*Step // those of the package
	deletes bool         // the plan of a delete
	gone    bool         // of a delete: nothing is left
}

// having returns the steps with one of some actions, in order.
func having(steps []*Step, actions ...Action) (some []*Step) {
	for _, s := range steps {
		if slices.Contains(actions, s.Action) {
			some = append(some, s)
		}
	}
	return some
}

// Count says how many steps have an action.
func (p *Plan) Count(action Action) int { return len(having(p.Steps, action)) }

// Destructive lists the steps that delete something.
func (p *Plan) Destructive() []*Step { return having(p.Steps, Prune, Recreate) }

// applied are the steps whose objects are in the cluster once a plan is carried out,
// without hooks.
func (p *Plan) applied() []*Step {
	return slices.DeleteFunc(having(p.Steps, Create, Change, Recreate, Unchanged),
		func(s *Step) bool { return s.want.hook != nil })
}

// groups are the steps of each rank, in order.
func (p *Plan) groups() (all [][]*Step) {
	for i, s := range p.Steps {
		if i == 0 || s.rank != p.Steps[i-1].rank {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], s)
	}
	return all
}

// check refuses a plan with problems.
func (p *Plan) check() error {
	switch n := p.Count(Conflict) + p.Count(Refused); {
	case n > 0 && p.deletes:
		return fmt.Errorf("nothing was deleted: %d of %d objects cannot be", n, len(p.Steps))
	case n > 0:
		return fmt.Errorf("%w: %d of %d objects cannot be", ErrRefused, n, len(p.Steps))
	}
	kept := 0
	for id := range p.old.Entries {
		if s := p.wanted[id]; s != nil && s.want.hook == nil {
			kept++
		}
	}
	if pruned := p.Count(Prune); pruned > 0 && kept == 0 && !p.opt.Replace && !p.deletes {
		return fmt.Errorf("%w: this would prune all %d objects that the package %s has and keep "+
			"none of them\n  hint: if this is another package, give it another --name; if it is "+
			"intended, pass --allow replace",
			ErrRefused, pruned, p.Package)
	}
	return nil
}

// changes reports whether a plan writes an object.
func (p *Plan) changes() bool {
	return len(having(p.Steps, Create, Change, Recreate, Run, Prune)) > 0
}

// idle reports whether a plan leaves the cluster and the inventory as they are.
func (p *Plan) idle() bool {
	return !p.deletes && !p.changes() && // a delete takes out the inventory at least
		p.old.stored != nil && p.old.Complete && maps.Equal(p.remaining(), p.old.Entries) &&
		maps.Equal(p.hooksDone(), p.old.Hooks)
}

// decideAll decides every step: hooks last, since they run if another object changes.
func (p *Plan) decideAll() {
	for _, s := range p.Steps {
		if s.want.author == nil {
			s.Action, s.Reason = p.decidePrune(s)
		} else if s.want.hook == nil {
			s.Action, s.Reason = p.decide(s, false)
		}
	}
	changes := p.changes()
	for _, s := range p.Steps {
		if s.want.hook != nil {
			s.Action, s.Reason = p.decide(s, changes)
		}
	}
	p.rankPruned()
	slices.SortFunc(p.Steps, func(x, y *Step) int {
		return cmp.Or(x.rank.compare(y.rank), compareIDs(x.ID, y.ID))
	})
}

// decide is pure: what to do about one desired object, given the live one, which
// may be nil, the inventory and the dry run. Changes says of a hook whether it runs
// because of another object.
func (p *Plan) decide(s *Step, changes bool) (Action, string) {
	livePolicy, err := policyOf(s.seen.live)
	s.Conflicts = conflictsOf(s.dry.refusal)
	switch live := s.seen.live; {
	case s.want.local != "":
		return Skip, s.want.local
	case s.want.bad != nil:
		return Refused, s.want.bad.Error()
	case live != nil && err == nil && livePolicy.ignore || s.want.policy.ignore:
		return Skip, "its annotations exclude it from updates"
	case live != nil && s.want.policy.ifNotPresent && s.want.hook == nil:
		return Skip, "it exists, and its annotation is IfNotPresent"
	case live != nil && p.foreign(live):
		return Conflict, fmt.Sprintf("it belongs to the package %[1]s: apply with `--name %[2]s "+
			"-n %[3]s` to update that package, or with `--allow adopt=%[1]s` to take the "+
			"object over", owner(live), owner(live).Name, owner(live).Namespace)
	case live != nil && s.want.hook != nil && owner(live) == Package{}:
		return Refused,
			"another client created a Job of this name, which the hook would delete: delete it, " +
				"or rename the hook"
	case live != nil && s.want.hook == nil && live.GetDeletionTimestamp() != nil:
		return Refused, "it is being deleted: apply again when it is deleted"
	case len(s.Conflicts) > 0:
		return Conflict, explain(s.Conflicts)
	case live != nil && immutable(s.dry.refusal) && (p.opt.Recreate || s.want.policy.recreate) &&
		!precious(s.ID) && s.dry.fits:
		return Recreate, refusal(s.dry.refusal)
	case live != nil && immutable(s.dry.refusal):
		return Refused, immutableReason(s)
	case s.dry.refusal != nil:
		return Refused, refusal(s.dry.refusal)
	case s.want.hook != nil && !changes && p.old.Complete && p.old.Hooks[s.ID].Seal == s.record():
		return Unchanged, ""
	case s.want.hook != nil:
		return Run, map[string]string{preSync: "before the other objects",
			postSync: "after the other objects"}[s.want.hook.phase]
	case live == nil:
		return Create, s.dry.untried
	case s.dry.untried != "":
		return Change, s.dry.untried
	case len(s.seen.former) > 0:
		return Change, "takes over what " + strings.Join(sets.List(s.seen.former), " and ") +
			" applied, and removes the fields that the package lacks"
	case s.dry.object == nil, fields.Equal(live, s.dry.object):
		return Unchanged, ""
	}
	return Change, taking(s.dry.taken)
}
