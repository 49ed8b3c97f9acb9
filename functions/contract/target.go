package contract

import (
	"fmt"
	"slices"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
)

// Target finds the workload that a custom resource of a function names: the one
// in the same namespace whose file is nearest. Where there is none, or more than
// one, a finding says so.
func (p *Package) Target(function string, o *krm.Object, ref api.TargetRef) (index.ID, bool) {
	report := func(rule, message, hint string) (index.ID, bool) {
		f := o.Finding(krm.Error, function+"/"+rule, o.At("spec.targetRef"), message, hint)
		f.Field = "spec.targetRef"
		p.Report.Add(f)
		return 0, false
	}
	if ref.Kind == "" || ref.Name == "" {
		return report("target-ref", "targetRef needs a kind and a name", "name the workload: {apiVersion: apps/v1, kind: Deployment, name: …}")
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
		return report("no-target", message, p.Index.Suggest(ref, o.Namespace))
	}
	return report("two-targets", fmt.Sprintf("%s %s is in %s and in %s", ref.Kind, ref.Name, p.Index.Entry(found[0]).Place(), p.Index.Entry(found[1]).Place()),
		"render the two folders apart, or move the resource next to the workload it means")
}

// workloadHint says what a targetRef should name in place of an object that runs
// no pods.
func (p *Package) workloadHint(r krm.Ref) string {
	for _, kind := range slices.Sorted(p.Index.WorkloadKinds()) {
		if kind != r.Kind && p.Index.Has(index.Key{Kind: kind, Namespace: r.Namespace, Name: r.Name}) {
			return fmt.Sprintf("name the %s %s", kind, r.Name)
		}
	}
	return "name a workload: a Deployment, StatefulSet, DaemonSet, Job, CronJob, or another kind with a pod template"
}

// Owners are the custom resources of a function, by the workload that each one
// targets.
type Owners map[index.ID]*krm.Object

// Claim gives a workload its custom resource. A second one is an error.
func (owners Owners) Claim(p *Package, function string, target index.ID, o *krm.Object) bool {
	if other := owners[target]; other != nil {
		p.Report.Add(o.Finding(krm.Error, function+"/two-for-one", o.Get("spec", "targetRef"),
			fmt.Sprintf("the %s %s (%s:%d) targets the same workload", other.Kind, other.Name, other.Origin.File, other.Origin.Line),
			"merge the two into one"))
		return false
	}
	owners[target] = o
	return true
}

// Run generates the ConfigMap of an injected workload, or says that the custom
// resource of an object that is not injected has no effect.
func (owners Owners) Run(u *Unit, c *ConfigMap) {
	from := owners[u.ID()]
	if u.Injected() && !(c.Sidecars && u.Settings().TraceOnly) {
		u.GenerateConfigMap(c, from)
		return
	}
	if from == nil {
		return
	}
	if _, ok := u.Object.PodTemplate(); !ok {
		u.Findings = append(u.Findings, from.Finding(krm.Error, c.Of+"/no-pod-template", from.Get("spec", "targetRef"),
			fmt.Sprintf("%s (%s:%d) has no pod template with containers, so this has no effect", u.Object.Ref, u.Object.Origin.File, u.Object.Origin.Line), u.pkg.workloadHint(u.Object.Ref)))
		return
	}
	if what, hint, refuses := u.pkg.Identity.Refuses(&u.identity, !c.Sidecars); refuses {
		o := u.Object
		u.Findings = append(u.Findings, from.Finding(krm.Warning, c.Of+"/target-not-injected", from.Get("spec", "targetRef"),
			fmt.Sprintf("%s (%s:%d) %s, so this has no effect", o.Ref, o.Origin.File, o.Origin.Line, what), hint))
	}
}
