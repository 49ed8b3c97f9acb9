// Package apply brings the objects of a rendered package into a cluster, and
// takes out what the package had before and has no more. It observes first,
// decides purely, and acts last:
//
//	look     one LIST for each kind; a dry run for each object that may change
//	plan     create, change, unchanged, prune, conflict, skip; any conflict or
//	         refusal ends it here, with nothing written
//	lease    nobody else applies the package until the second save
//	save     the inventory, as the union of what was and what is to be
//	stages   namespaces and CRDs, hooks that run before, then the rest, each stage at once, or in waves
//	         where objects depend on others of it
//	prune    in the reverse order, guarded by owner label and UID
//	hooks    that run after, once all is healthy
//	save     the inventory, shrunk to what is there
//	wait     until all is healthy
//
// A process that dies at any point leaves an inventory that names at least all
// that it made, so that the next apply, or a delete, finishes the work.
package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-multierror"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/armature-dev/armature/functions/krm"
)

type runtimeObject = runtime.Object

// Options say how to apply. The zero value takes nothing from anybody.
type Options struct {
	// ForceConflicts names the field managers whose fields may be taken over.
	ForceConflicts []string
	// Adopt names the packages whose objects may be taken over.
	Adopt []Package
	// Recreate deletes and creates objects whose change an immutable field forbids.
	Recreate bool
	// Replace allows a plan that prunes all that the package had, which is most
	// likely another package under the same name.
	Replace bool
	// PruneShared allows to prune namespaces and CRDs in which other packages have
	// objects, which go with them.
	PruneShared bool
	// Wait until all objects are healthy, and pruned ones gone.
	Wait bool
	// Timeout of each wait; 0 is five minutes.
	Timeout time.Duration
	// HealthChecks decide in place of kstatus how objects of their kinds fare.
	HealthChecks HealthChecks
	// Nudge pods that mount a changed ConfigMap, so that they see it at once.
	Nudge bool
	// Confirm is called before the first write; nil agrees. Its error ends the apply.
	Confirm func(*Plan) error
	// Tell receives progress messages, from several goroutines; it may be nil.
	Tell func(string)
	// Waiting receives what is not healthy yet, at each check; it may be nil.
	Waiting func([]Waiting)
}

func (o Options) tell(format string, args ...any) {
	if o.Tell != nil {
		o.Tell(fmt.Sprintf(format, args...))
	}
}

func (o Options) timeout() time.Duration {
	if o.Timeout == 0 {
		return 5 * time.Minute
	}
	return o.Timeout
}

// application is one apply.
type application struct {
	Package
	Options
	cluster *Cluster
	old     *Inventory

	wanted   map[ID]*object
	local    map[ID]Object // not for a cluster
	later    map[ID]Object // their CRD comes with the package
	deferred []ID          // the keys of later, in order
	depends  map[ID][]ID   // of wanted, later and what is pruned: what has to be ready before
	ordering ordering      // of wanted and later: the rules of kapp
	ranks    map[ID]rank   // of wanted, later and hooks
	hooks    map[ID]*object
	early    map[ID]bool // of wanted: what hooks that run first need
	mappings map[ID]*meta.RESTMapping
	seen     map[ID]liveObject
	scaled   map[ID]string // by which autoscaler
	unscaled map[ID]string // by one that is pruned
	held     map[ID]string // what others have in a namespace or CRD
	last     ID            // of a delete: the namespace of the inventory

	before      *coordinationv1.Lease // as it was before anything was read
	beforeKnown bool
	made        bool        // the namespace of the inventory was made in this run
	gone        bool        // of a delete: nothing is left
	uncertain   atomic.Bool // a write may have been carried out or not
}

// ErrRefused says that a plan cannot be carried out; its steps say why. Nothing
// was written.
var ErrRefused = errors.New("nothing was applied")

// Plan reports what Apply would do. It sends a dry run of every object that would
// be created or changed to the API server.
func (c *Cluster) Plan(ctx context.Context, p Package, objects []Object, opt Options) (*Plan, error) {
	a, err := c.begin(ctx, p, objects, opt)
	if err != nil {
		return nil, err
	}
	return a.plan(), nil
}

// Apply a package. The plan comes back with what was done, or with what was
// meant to be done where the error is ErrRefused.
func (c *Cluster) Apply(ctx context.Context, p Package, objects []Object, opt Options) (*Plan, error) {
	c, err := c.session(opt.Tell, nil)
	if err != nil {
		return nil, err
	}
	propose := func() (*application, *Plan, error) {
		before, known := c.leaseBefore(ctx, p)
		a, err := c.begin(ctx, p, objects, opt)
		if err != nil {
			return nil, nil, err
		}
		a.before, a.beforeKnown = before, known
		plan := a.plan()
		return a, plan, a.check(plan)
	}
	began := false
	a, plan, err := exclusively(ctx, propose, func(a *application, ctx context.Context, plan *Plan) error {
		began = true
		return a.carryOut(ctx, plan)
	})
	if err == nil && a.Wait {
		began = true
		if err = a.cluster.wait(ctx, p, a.healthTargets(plan), opt); err == nil {
			err = a.forgetPruned(ctx, plan)
		}
	}
	if began && err != nil && ctx.Err() != nil {
		err = fmt.Errorf("interrupted: the next apply finishes the work (%v)", ctx.Err())
	}
	return plan, err
}

func (c *Cluster) begin(ctx context.Context, p Package, objects []Object, opt Options) (*application, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%w\n  hint: choose another with --name", err)
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("there are no objects to apply\n  hint: to remove the package, run `armature delete %s`", p.Name)
	}
	a := &application{
		Package: p, Options: opt, cluster: c,
		wanted: make(map[ID]*object), local: make(map[ID]Object), later: make(map[ID]Object), mappings: make(map[ID]*meta.RESTMapping),
		hooks: make(map[ID]*object), early: make(map[ID]bool),
		seen: make(map[ID]liveObject), scaled: make(map[ID]string), unscaled: make(map[ID]string),
	}
	c.kinds.forget() // kinds come and go between two applies
	var err error
	if a.old, err = c.Inventory(ctx, p); err != nil {
		return nil, err
	}
	if err := a.take(objects); err != nil {
		return nil, err
	}
	if len(a.wanted)+len(a.later)+len(a.hooks) == 0 {
		return nil, fmt.Errorf("all %d objects are annotated %s or are tests of a Helm chart: there is nothing to apply", len(objects), krm.LocalConfig)
	}
	if err := a.observe(ctx, slices.Collect(maps.Values(a.wanted))); err != nil {
		return nil, err
	}
	return a, a.observeHooks(ctx)
}

// prepare settles what is sent, now that the live object is known. The digest is
// of the author's object without what is left to others, so that it does not move
// with an autoscaler.
func (o *object) prepare(live liveObject, scaler string) error {
	o.policy, o.bad = policyOf(o.body)
	if o.former = clientSide(live); len(o.former) > 0 {
		o.formerFields, _ = ownedBy(live, func(manager, operation, subresource string) bool {
			return o.former.Has(manager) && operation == string(metav1.ManagedFieldsOperationUpdate) && subresource == ""
		})
	}
	ignored, err := ignoredFields(o.body)
	if err != nil && o.bad == nil {
		o.bad = err
	}
	if scaler == "" && len(ignored) == 0 {
		o.digest, err = digestOf(o.body)
		return err
	}
	o.author, o.body = o.body, o.body.DeepCopy() // the plan may be made again
	without := o.body.DeepCopy()
	if scaler != "" {
		unstructured.RemoveNestedField(without.Object, "spec", "replicas")
		leaveReplicas(o.body, live, o.formerFields)
	}
	for _, path := range ignored {
		leave(without.Object, nil, nil, path)
	}
	if live != nil {
		fields, _ := owned(live)
		leaveFields(o.body, live, union(fields, o.formerFields), ignored)
	}
	o.digest, err = digestOf(without)
	return err
}

// check refuses a plan with problems.
func (a *application) check(p *Plan) error {
	if n := p.Count(Conflict) + p.Count(Refused); n > 0 {
		return fmt.Errorf("%w: %d of %d objects cannot be", ErrRefused, n, len(p.Steps))
	}
	kept := 0
	for id := range a.old.Entries {
		if a.wanted[id] != nil || a.later[id].Unstructured != nil {
			kept++
		}
	}
	if pruned := p.Count(Prune); pruned > 0 && kept == 0 && !a.Replace {
		return fmt.Errorf("%w: this would prune all %d objects that the package %s has and keep none of them\n  hint: if this is another package, give it another --name; if it is meant, pass --replace",
			ErrRefused, pruned, a.Package)
	}
	return nil
}

// carryOut does what a plan says, but for the wait.
func (a *application) carryOut(ctx context.Context, p *Plan) error {
	first := !a.old.Exists()
	if err := a.remember(ctx, p); err != nil {
		return err
	}
	for stage := range stages {
		if err := a.stage(ctx, p, stage); err != nil {
			if first && !a.made && !a.uncertain.Load() && !p.did() {
				err = multierror.Append(err, a.cluster.forget(ctx, a.old)) // it would name nothing
			}
			return err
		}
	}
	gone, err := a.prune(ctx, p)
	if err != nil {
		return err
	}
	if err := a.settleReplicas(ctx, p); err != nil {
		return err
	}
	if err := a.runHooks(ctx, p, postSync); err != nil {
		return err
	}
	if err := a.shrink(ctx, p, gone); err != nil {
		return err
	}
	if a.Nudge {
		a.nudge(ctx, p)
	}
	return nil
}

// did reports whether anything of a plan was carried out.
func (p *Plan) did() bool {
	return slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Done })
}

// remember stores the union of what was and what is to be, where an object is
// new to the inventory. What is recreated loses its UID there: it will have
// another one.
func (a *application) remember(ctx context.Context, p *Plan) error {
	grown := false
	for _, s := range p.Steps {
		old, known := a.old.Entries[s.ID]
		switch {
		case s.Action == Recreate, s.Action == Run, s.Action == Create && old.UID != "":
			old.UID = ""
		case s.Action == Unchanged && s.want.hook != nil:
			continue
		case s.Action == Create, s.Action == Change, s.Action == Unchanged:
			if known && (s.live == nil || old.UID == s.live.GetUID()) {
				continue
			}
			if s.live != nil {
				old.UID = s.live.GetUID()
			}
		default:
			continue
		}
		grown = true
		a.old.Entries[s.ID] = Entry{ID: s.ID, Version: s.Version, UID: old.UID}
	}
	if !grown {
		return nil
	}
	a.old.Complete, a.old.Deleting = false, false
	return a.cluster.save(ctx, a.old)
}

// stage applies what belongs to one stage, wave by wave, each once what it depends
// on is ready. After the first stage its CRDs are served, and hooks run.
func (a *application) stage(ctx context.Context, p *Plan, stage int) error {
	for wave := range a.waves(stage) {
		work := p.work(func(s *Step) bool { return s.rank == (rank{stage, wave}) })
		if err := a.awaitDependencies(ctx, p, work); err != nil {
			return err
		}
		if err := a.wave(ctx, work, stages[stage].name); err != nil {
			return err
		}
	}
	if stage > 0 {
		return nil
	}
	if err := a.definitionsDone(ctx, p); err != nil {
		return err
	}
	for needed := 1; needed < workloads; needed++ {
		work := p.work(func(s *Step) bool { return s.rank.stage == needed && a.early[s.ID] })
		if err := a.wave(ctx, work, "what hooks need"); err != nil {
			return err
		}
	}
	return a.runHooks(ctx, p, preSync)
}

// work gives the steps of some that are still to be applied.
func (p *Plan) work(of func(*Step) bool) (work []*Step) {
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.want != nil && s.done() == nil && (s.Action == Create || s.Action == Change || s.Action == Recreate) && of(s) {
			work = append(work, s)
		}
	}
	return work
}

// definitionsDone waits for new CRDs, and plans and remembers what they define.
func (a *application) definitionsDone(ctx context.Context, p *Plan) error {
	if err := a.cluster.established(ctx, p, a.Options); err != nil {
		return err
	}
	if len(a.deferred) == 0 {
		return nil
	}
	a.cluster.kinds.forget()
	var now []*object
	for _, id := range a.deferred {
		o := a.later[id]
		m, err := a.cluster.served(ctx, o.GroupVersionKind(), a.timeout())
		if err != nil {
			return fmt.Errorf("%s: %s: %w", place(o.File, o.Line), title(id), err)
		}
		a.wanted[id] = &object{id: id, file: o.File, line: o.Line, mapping: m, body: o.Unstructured}
		now = append(now, a.wanted[id])
	}
	if err := a.observe(ctx, now); err != nil {
		return err
	}
	p.Steps = slices.DeleteFunc(p.Steps, func(s Step) bool { _, ok := a.later[s.ID]; return ok })
	var problems []string
	for _, o := range now {
		s := a.decide(o)
		p.Steps = append(p.Steps, s)
		if s.Action == Conflict || s.Action == Refused {
			problems = append(problems, fmt.Sprintf("%s: %s: %s", s.Place(), title(s.ID), s.Reason))
		}
	}
	p.sort()
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "\n"))
	}
	return a.remember(ctx, p)
}

// shrink stores what is there at the end.
func (a *application) shrink(ctx context.Context, p *Plan, gone map[ID]bool) error {
	a.old.Entries = a.remaining(p, gone)
	a.old.Hooks = a.hooksDone()
	a.old.Complete, a.old.Deleting = true, false
	return a.cluster.save(ctx, a.old)
}

// remaining is what the inventory has when a plan was carried out.
func (a *application) remaining(p *Plan, gone map[ID]bool) map[ID]Entry {
	entries := maps.Clone(a.old.Entries)
	for _, s := range p.Steps {
		switch {
		case s.want != nil && s.want.hook != nil:
			if w := s.done(); w != nil {
				entries[s.ID] = Entry{ID: s.ID, Version: s.Version, UID: w.GetUID()}
			}
			if s.want.ended && s.want.hook.deleted {
				delete(entries, s.ID)
			}
		case s.Action == Skip && s.want == nil && !s.ours:
			delete(entries, s.ID) // not ours any more
		case s.Action == Skip, s.want == nil:
		default:
			live := s.live
			if w := s.done(); w != nil {
				live = w
			}
			entries[s.ID] = Entry{ID: s.ID, Version: s.Version, UID: live.GetUID(), Seal: seal(s.want.digest, live)}
		}
	}
	for id := range entries {
		if a.wanted[id] == nil && a.hooks[id] == nil && (gone[id] || a.seen[id] == nil) {
			delete(entries, id)
		}
	}
	return entries
}
