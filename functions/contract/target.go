package contract

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
)

// Target finds the workload that a custom resource of a function names: the one
// in the same namespace whose file is nearest. Where there is none, or more than
// one, a finding says so. One that may be in another package is only a warning, unless the
// package is closed or has something like it.
func (p *Package) Target(function string, o *krm.Object, ref api.TargetRef,
	elsewhere bool) (index.ID, bool) {
	severity := finding.Error
	report := func(rule, message, hint string) (index.ID, bool) {
		f := o.Finding(severity, function+"/"+rule, o.At("spec.targetRef"), message, hint)
		f.Field = "spec.targetRef"
		p.Report.Add(f)
		return 0, false
	}
	if ref.Kind == "" || ref.Name == "" {
		return report("target-ref", "targetRef needs a kind and a name",
			"name the workload: {apiVersion: apps/v1, kind: Deployment, name: …}")
	}
	found := p.Index.Targets(o, ref)
	switch len(found) {
	case 1:
		return found[0], true
	case 0:
		if p.Index.Broken(o.Namespace, ref.Name) {
			return 0, false // once that is fixed, it generates the workload
		}
		message := fmt.Sprintf("the package has no %s %s", ref.Kind, ref.Name)
		if o.Namespace != "" {
			message += " in namespace " + o.Namespace
		}
		hint := p.Index.Suggest(ref, o.Namespace)
		switch {
		case hint != "" || !elsewhere:
			hint = cmp.Or(hint, "correct the name, or add the workload to the package")
		case p.Closed:
			hint = "correct the name, add the workload to the package, or render without --closed"
		default:
			severity = finding.Warning
			message += ": it is assumed to be in another package"
			hint = "correct the name if it is wrong; `armature render --closed` makes this an error"
		}
		if meant := p.Index.Misspelt(ref.Kind, o.Namespace, ref.Name); meant != "" {
			hint = "did you mean " + meant + "?"
		}
		return report("no-target", message, hint)
	}
	return report("two-targets",
		fmt.Sprintf("%s %s is in %s and in %s", ref.Kind, ref.Name, p.Index.Entry(found[0]).Place(),
			p.Index.Entry(found[1]).Place()),
		"render the two folders apart, or move the resource next to the workload it means")
}

// workloadHint says what a targetRef should name in place of an object that runs
// no pods.
func (p *Package) workloadHint(r finding.Ref) string {
	for _, kind := range slices.Sorted(p.Index.WorkloadKinds()) {
		if kind != r.Kind &&
			p.Index.Has(index.Key{Kind: kind, Namespace: r.Namespace, Name: r.Name}) {
			return fmt.Sprintf("name the %s %s", kind, r.Name)
		}
	}
	return "name a workload: a Deployment, StatefulSet, DaemonSet, Job, CronJob, or another " +
		"kind with a pod template"
}

// Targeted is a function whose custom resources each name one workload in
// spec.targetRef, configure it, and become its ConfigMap.
type Targeted[T any] struct {
	// ConfigMap is what a workload gets; its Of is the function's name. Without Append
	// there is none.
	ConfigMap ConfigMap
	// Parts returns the place of a custom resource, to be filled in, and the workload
	// that it names.
	Parts func(*T) (*api.Origin, api.TargetRef)
	// Elsewhere says that the workload may be in another package.
	Elsewhere bool
	// Use sets for a workload the settings of its custom resource.
	Use func(index.ID, *T)
	// Judge returns the errors in a custom resource whose workload was not found.
	Judge func(*krm.Object, *T) []finding.Finding
}

// Steps returns the steps of the function for a package. Two custom resources for one
// workload are an error.
func (f Targeted[T]) Steps(p *Package) Steps {
	type resource struct {
		object *krm.Object
		value  T
	}
	var resources []*resource
	own := owners{p, &f.ConfigMap, make(map[index.ID]*krm.Object)}
	return Steps{
		Collect: func(o *krm.Object) {
			r := &resource{object: o}
			p.Report.Decode(o, f.ConfigMap.Of+"/field", &r.value)
			origin, _ := f.Parts(&r.value)
			*origin = OriginOf(o)
			resources = append(resources, r)
		},
		Resolve: func() {
			for _, r := range resources {
				_, ref := f.Parts(&r.value)
				target, ok := p.Target(f.ConfigMap.Of, r.object, ref, f.Elsewhere)
				if !ok {
					p.Report.Add(f.Judge(r.object, &r.value)...)
				} else if own.claim(target, r.object) {
					f.Use(target, &r.value)
				}
			}
		},
		Run: own.run,
	}
}

// owners are the custom resources of a function, by the workload that each one
// targets.
type owners struct {
	pkg       *Package
	configMap *ConfigMap
	of        map[index.ID]*krm.Object
}

// claim assigns a custom resource to its workload. A second one is an error.
func (own owners) claim(target index.ID, o *krm.Object) bool {
	if other := own.of[target]; other != nil {
		own.pkg.Report.Add(o.Finding(finding.Error, own.configMap.Of+"/two-for-one",
			o.Get("spec", "targetRef"),
			fmt.Sprintf("the %s %s (%s:%d) targets the same workload", other.Kind, other.Name,
				other.Origin.File, other.Origin.Line),
			"merge the two into one"))
		return false
	}
	own.of[target] = o
	return true
}

// unread reports whether nothing would read the ConfigMap of a workload: it is for
// sidecars, these are all off, and it has no custom resource to remember.
func (own owners) unread(u *Unit, from *krm.Object) bool {
	c := own.configMap
	return c.Sidecars && from == nil && (c.Beside == nil || c.Beside(u.ID()) == nil) &&
		!u.Settings().HasSidecars()
}

// run generates the ConfigMap of an injected workload, or says that the custom
// resource of an object that is not injected has no effect.
func (own owners) run(u *Unit) {
	from, c := own.of[u.ID()], own.configMap
	if u.Injected() && !(c.Sidecars && u.Settings().TraceOnly) {
		if c.Append != nil && (c.Needed == nil || c.Needed(u.Settings())) && !own.unread(u, from) {
			u.GenerateConfigMap(c, from)
		}
		return
	}
	if from == nil {
		return
	}
	if _, ok := u.Object.PodTemplate(); !ok {
		u.Findings = append(u.Findings,
			from.Finding(finding.Error, c.Of+"/no-pod-template", from.Get("spec", "targetRef"),
				fmt.Sprintf("%s (%s:%d) has no pod template with containers, so this has no effect",
					u.Object.Ref, u.Object.Origin.File, u.Object.Origin.Line),
				u.pkg.workloadHint(u.Object.Ref)))
		return
	}
	if what, hint, refuses := u.pkg.Identity.Refuses(&u.identity, !c.Sidecars); refuses {
		o := u.Object
		u.Findings = append(u.Findings,
			from.Finding(finding.Warning, c.Of+"/target-not-injected",
				from.Get("spec", "targetRef"),
				fmt.Sprintf("%s (%s:%d) %s, so this has no effect", o.Ref, o.Origin.File,
					o.Origin.Line, what), hint))
	}
}
