package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// dependsOn is the annotation of kpt and cli-utils that names the objects which have
// to be ready before an object is applied ("depends-on", cli-utils).
const dependsOn = "config.kubernetes.io/depends-on"

// rank is when an object is applied: the waves of a stage come one after the other.
// Without dependencies there is one wave.
type rank struct{ stage, wave int }

func (r rank) compare(other rank) int {
	return cmp.Or(cmp.Compare(r.stage, other.stage), cmp.Compare(r.wave, other.wave))
}

// parseDependencies reads the value of the annotation: references with commas
// between them, GROUP/namespaces/NAMESPACE/KIND/NAME or, to an object without
// namespace, GROUP/KIND/NAME. GROUP is empty for Kubernetes's core kinds.
func parseDependencies(value string) ([]ID, error) {
	var out []ID
	for _, text := range strings.Split(value, ",") {
		text = strings.TrimSpace(text)
		parts := strings.Split(text, "/")
		var id ID
		switch {
		case len(parts) == 3:
			id = ID{GroupKind: schema.GroupKind{Group: parts[0], Kind: parts[1]}, Name: parts[2]}
		case len(parts) == 5 && parts[1] == "namespaces" && parts[2] != "":
			id = ID{GroupKind: schema.GroupKind{Group: parts[0], Kind: parts[3]}, Namespace: parts[2], Name: parts[4]}
		}
		if id.GroupKind.Kind == "" || id.Name == "" {
			return nil, fmt.Errorf("%q is not a reference\n  hint: write GROUP/namespaces/NAMESPACE/KIND/NAME, or GROUP/KIND/NAME of an object without namespace; GROUP is empty for core kinds, and commas separate references", text)
		}
		if slices.Contains(out, id) {
			return nil, fmt.Errorf("%q is in it twice\n  hint: remove one", text)
		}
		out = append(out, id)
	}
	return out, nil
}

// reference is how the annotation names an object.
func reference(id ID) string {
	if id.Namespace == "" {
		return id.GroupKind.Group + "/" + id.GroupKind.Kind + "/" + id.Name
	}
	return id.GroupKind.Group + "/namespaces/" + id.Namespace + "/" + id.GroupKind.Kind + "/" + id.Name
}

// arrange reads the dependencies of the desired objects and decides their order.
// What depends on something outside of the package, or on itself, is an error.
func (a *application) arrange() error {
	bodies := make(map[ID]*unstructured.Unstructured)
	for id, o := range a.wanted {
		bodies[id] = o.body
	}
	for id, o := range a.later {
		bodies[id] = o.Unstructured
	}
	ids := slices.SortedFunc(maps.Keys(bodies), compareIDs)
	a.depends = make(map[ID][]ID)
	pruned := make(map[ID][]ID) // the order in which all of them would be deleted
	var failed *multierror.Error
	wrong := func(id ID, err error) {
		failed = multierror.Append(failed, fmt.Errorf("%s: %s: %w", a.placeOf(id), title(id), err))
	}
	for _, id := range ids {
		value, ok := bodies[id].GetAnnotations()[dependsOn]
		if !ok {
			continue
		}
		all, err := parseDependencies(value)
		if err != nil {
			wrong(id, fmt.Errorf("annotation %s: %w", dependsOn, err))
			continue
		}
		for _, other := range all {
			switch {
			case bodies[other] == nil:
				wrong(id, fmt.Errorf("annotation %s: %w", dependsOn, a.outside(other, ids)))
			case stageOf(id.GroupKind) == 0 && stageOf(other.GroupKind) > 0:
				wrong(id, fmt.Errorf("annotation %s: %s come before everything else, %s too\n  hint: remove the reference", dependsOn, stages[0].name, title(other)))
			}
		}
		a.depends[id], pruned[id] = all, slices.Clone(all)
	}
	a.ordering = readOrdering(bodies, wrong)
	a.ordering.check(wrong)
	if err := failed.ErrorOrNil(); err != nil {
		return err
	}
	a.ordering.add(a.depends, false)
	a.ordering.add(pruned, true)
	var cycle []ID
	if a.ranks, cycle = ranksOf(ids, a.depends); cycle != nil {
		return a.cyclic(cycle, "depends on")
	}
	if _, cycle = ranksOf(ids, pruned); cycle != nil {
		return a.cyclic(cycle, "is pruned before")
	}
	for id, o := range a.hooks {
		a.ranks[id] = o.hook.rank()
	}
	return nil
}

// outside says what is wrong with a reference to an object that is not applied.
func (a *application) outside(id ID, ids []ID) error {
	for local, o := range a.local {
		if local.GroupKind == id.GroupKind && local.Name == id.Name {
			return fmt.Errorf("%s is not applied (%s): %s\n  hint: remove the reference", title(id), place(o.File, o.Line), notForClusters(o.Unstructured))
		}
	}
	if a.hooks[id] != nil {
		return fmt.Errorf("%s is a hook, which runs before or after all others (%s)\n  hint: remove the reference", title(id), a.placeOf(id))
	}
	for _, other := range ids {
		if other.GroupKind.Kind == id.GroupKind.Kind && other.Name == id.Name {
			return fmt.Errorf("the package has no %q\n  hint: write %q", reference(id), reference(other))
		}
	}
	return fmt.Errorf("the package has no %q\n  hint: add the object to the package, or remove the reference and see to it that the object is there before", reference(id))
}

// cyclic says how objects depend on themselves, or are pruned before themselves.
func (a *application) cyclic(cycle []ID, verb string) error {
	text := a.placeOf(cycle[0]) + ": " + title(cycle[0]) + " " + verb + " itself"
	for i := range cycle {
		next := cycle[(i+1)%len(cycle)]
		link := ", which "
		if i == 0 {
			link = ": it "
		}
		text += link + verb + " " + title(next) + " (" + a.placeOf(next) + ")"
	}
	return fmt.Errorf("%s\n  hint: remove one of the annotations %s or %s that say so", text, dependsOn, changeRule)
}

// ranksOf decides when objects come: in the stage of their kind, but never before
// what they depend on. Where objects depend on themselves, one such cycle is given,
// and one of its dependencies does not count.
func ranksOf(ids []ID, depends map[ID][]ID) (ranks map[ID]rank, cycle []ID) {
	ranks = make(map[ID]rank, len(ids))
	var path []ID
	var visit func(ID) rank
	visit = func(id ID) rank {
		if r, known := ranks[id]; known {
			return r
		}
		path = append(path, id)
		r := rank{stage: stageOf(id.GroupKind)}
		for _, other := range depends[id] {
			if at := slices.Index(path, other); at >= 0 {
				if cycle == nil {
					cycle = slices.Clone(path[at:])
				}
				continue
			}
			if d := visit(other); d.compare(r) >= 0 {
				r = rank{d.stage, d.wave + 1}
			}
		}
		path = path[:len(path)-1]
		ranks[id] = r
		return r
	}
	for _, id := range ids {
		visit(id)
	}
	return ranks, cycle
}

// waves is how many waves a stage has.
func (a *application) waves(stage int) int {
	n := 1
	for _, r := range a.ranks {
		if r.stage == stage {
			n = max(n, r.wave+1)
		}
	}
	return n
}

// awaitDependencies waits until all that some steps depend on is ready.
func (a *application) awaitDependencies(ctx context.Context, p *Plan, work []*Step) error {
	needed := make(map[ID]bool)
	var waiting []*Step
	for _, s := range work {
		for _, id := range a.depends[s.ID] {
			needed[id] = true
		}
		if len(a.depends[s.ID]) > 0 {
			waiting = append(waiting, s)
		}
	}
	if len(needed) == 0 {
		return nil
	}
	var targets []*target
	for i := range p.Steps {
		if s := &p.Steps[i]; s.want != nil && needed[s.ID] {
			t := a.targetOf(s)
			t.finishes = true
			targets = append(targets, t)
		}
	}
	if err := a.cluster.refresh(ctx, a.Package, targets); err != nil { // earlier waves may have taken long
		return err
	}
	err := a.cluster.wait(ctx, a.Package, targets, a.Options)
	if err == nil || ctx.Err() != nil {
		return err
	}
	all := multierror.Append(nil, err)
	for i, s := range waiting {
		if i == mostWaiting {
			return multierror.Append(all, fmt.Errorf("and %d more were not applied", len(waiting)-i))
		}
		if s.Action == Prune {
			all = multierror.Append(all, errors.New(title(s.ID)+": not pruned, because it comes after what is not ready"))
			continue
		}
		all = multierror.Append(all, errors.New(s.Place()+": "+title(s.ID)+": not applied, because it depends on what is not ready"))
	}
	return all
}

// arrangePruned orders what is pruned by the dependencies and rules that the live
// objects have. Their authors cannot be asked, so that what cannot be read, and what
// closes a cycle, does not count.
func (a *application) arrangePruned(p *Plan) {
	pruned := make(map[ID]*Step)
	bodies := make(map[ID]*unstructured.Unstructured)
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Action == Prune {
			pruned[s.ID], bodies[s.ID] = s, s.live
		}
	}
	depends := make(map[ID][]ID)
	for id, s := range pruned {
		value, ok := s.live.GetAnnotations()[dependsOn]
		if all, err := parseDependencies(value); ok && err == nil {
			depends[id] = all
		}
	}
	old := readOrdering(bodies, func(ID, error) {})
	old.add(depends, true)
	for id, all := range depends {
		depends[id] = slices.DeleteFunc(all, func(other ID) bool {
			return pruned[other] == nil || other == id || stageOf(id.GroupKind) == 0
		})
	}
	ranks, _ := ranksOf(slices.SortedFunc(maps.Keys(pruned), compareIDs), depends)
	for id, s := range pruned {
		s.rank, s.needs = ranks[id], len(depends[id]) > 0
	}
	for id, all := range awaited(a.ordering, old) {
		a.depends[id] = all
	}
}
