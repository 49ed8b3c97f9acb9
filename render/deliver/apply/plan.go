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
	// Run creates the Job of a hook again.
	Run       Action = "run"
	Unchanged Action = "unchanged"
	Prune     Action = "prune"
	// Skip leaves an object unchanged, for the given reason.
	Skip Action = "skip"
	// Conflict is an object with fields that another manager owns, or with another owner.
	Conflict Action = "conflict"
	// Refused is an object that the API server does not accept.
	Refused Action = "refused"
)

// Step is one line of a plan: an object of the package, or an object that only its inventory has.
type Step struct {
	Action Action `json:"action"`
	ID     `json:"-"`
	// Version of the API that the object is written in.
	Version string `json:"-"`
	// File that contains the object; "" for objects that are pruned.
	File string `json:"file,omitempty"`
	// Line of the file where the object starts; 0 if unknown.
	Line int `json:"line,omitempty"`
	// Reason of each action other than a plain create, change or unchanged.
	Reason string `json:"reason,omitempty"`
	// Done means that the step was carried out.
	Done bool `json:"done"`
	// Conflicts are the fields that other managers own.
	Conflicts []FieldConflict `json:"conflicts,omitempty"`

	rank  rank // when it is carried out
	want  desired
	seen  observed
	dry   trial
	after outcome
}

// desired is the state of an object in the package.
type desired struct {
	author  liveObject // as written; nil if the package no longer contains the object
	body    liveObject // as sent: author, unless fields are left to others
	local   string     // why it does not belong in a cluster, or ""
	later   bool       // its CRD comes with the package
	early   bool       // hooks that run first need it
	hook    *hook      // nil if it is not a hook
	depends []ID       // objects that have to be ready before it, or are pruned after it
	policy  policy
	bad     error // an error in its annotations
	digest  fields.Digest
}

// observed is the state of an object in the cluster.
type observed struct {
	// Version to read the object in; zero if the kind is not served yet.
	reads    schema.GroupVersionKind
	live     liveObject       // when planned; nil if it did not exist
	seal     string           // of the live object
	former   sets.Set[string] // field managers that applied it from the client's side
	retained []string         // objects of other packages in a namespace or of a CRD
	scaled   bool             // by an autoscaler
	unscaled bool             // by an autoscaler that is pruned
}

// trial is the result of a dry run, if one is needed.
type trial struct {
	object  liveObject
	refusal error
	force   bool            // take fields from managers that the user named
	taken   []FieldConflict // those fields
	fits    bool            // it could be created again
	untried string          // why the API server's answer does not count yet
}

// outcome is the result of carrying out a step.
type outcome struct {
	written liveObject // as the API server stored it; nil until then
	latest  liveObject // as a wait last saw it
	stays   bool       // it is not pruned and stays in the inventory
	deleted bool       // it no longer exists
	ended   bool       // the hook's Job is complete
}

// Title returns the kind, namespace and name of the object for people.
func (s *Step) Title() string { return title(s.ID) }

// Place returns the file and line of the object.
func (s *Step) Place() string { return place(s.File, s.Line) }

// now returns the object as a write left it, or else as it was when planned.
func (s *Step) now() liveObject {
	if s.after.written != nil {
		return s.after.written
	}
	return s.seen.live
}

// Plan lists the steps of an apply or delete in order.
type Plan struct {
	Package Package
	Steps   []*Step

	opt     Options
	old     *Inventory
	wanted  map[ID]*Step // the steps for objects of the package
	deletes bool         // it is the plan of a delete
	deleted bool         // a delete has deleted all objects
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

// Count returns the number of steps with an action.
func (p *Plan) Count(action Action) int { return len(having(p.Steps, action)) }

// Destructive returns the steps that delete an object.
func (p *Plan) Destructive() []*Step { return having(p.Steps, Prune, Recreate) }

// applied returns the steps whose objects are in the cluster after the plan is carried out, without
// hooks.
func (p *Plan) applied() []*Step {
	return slices.DeleteFunc(having(p.Steps, Create, Change, Recreate, Unchanged),
		func(s *Step) bool { return s.want.hook != nil })
}

// groups returns the steps of each rank, in order.
func (p *Plan) groups() (all [][]*Step) {
	for i, s := range p.Steps {
		if i == 0 || s.rank != p.Steps[i-1].rank {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], s)
	}
	return all
}

// check returns an error if the plan must not be carried out.
func (p *Plan) check() error {
	switch n := p.Count(Conflict) + p.Count(Refused); {
	case n > 0 && p.deletes:
		return fmt.Errorf("nothing was deleted: %d of %d objects cannot be", n, len(p.Steps))
	case n > 0:
		return fmt.Errorf("%w: %d of %d objects cannot be", ErrRefused, n, len(p.Steps))
	}
	retained := 0
	for id := range p.old.Entries {
		if s := p.wanted[id]; s != nil && s.want.hook == nil {
			retained++
		}
	}
	if pruned := p.Count(Prune); pruned > 0 && retained == 0 && !p.opt.Replace && !p.deletes {
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
	return !p.deletes && !p.changes() && // a delete deletes at least the inventory
		p.old.stored != nil && p.old.Complete && maps.Equal(p.remaining(), p.old.Entries) &&
		maps.Equal(p.hooksDone(), p.old.Hooks)
}

// decideAll decides every step. Hooks are last, since they run if another object changes.
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

// decide returns the action for a desired object. It is pure: the action follows from the live
// object, which may be nil, the inventory and the dry run. changes means that another object
// changes, so that a hook runs.
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
