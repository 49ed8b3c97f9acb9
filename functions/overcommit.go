package functions

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/overcommit"
)

// overcommitPolicy is what a package says about overcommit, and what came of it.
type overcommitPolicy struct {
	overcommit.Policy

	failed      bool // it is not what its author meant
	overcommits []*api.Overcommit
	classes     []*api.OvercommitClass

	mu      sync.Mutex
	applied map[string]int // workloads by class
	other   map[string]int // and by the reason for which none was
}

// Reasons for which no class changed a workload.
const (
	excludedNamespace = "in an excluded namespace"
	noClass           = "without a class"
	noLimits          = "without limits"
)

// resolve ends the first pass.
func (p *overcommitPolicy) resolve(namespaces map[string][]namespace) (findings []krm.Finding) {
	p.Policy, findings = overcommit.Resolve(p.overcommits, p.classes)
	p.applied, p.other = make(map[string]int), make(map[string]int)
	if !p.Active() {
		return findings
	}
	for _, all := range namespaces {
		for _, ns := range all {
			if n := ns.object.Get("metadata", "labels", p.Label); n.Exists() {
				if _, known := p.Class(n.Text()); !known {
					findings = append(findings, p.unknown(ns.object, n))
				}
			}
		}
	}
	p.failed = krm.Failed(findings)
	return findings
}

// unknown is the finding about a label that names no class.
func (p *overcommitPolicy) unknown(o *krm.Object, label krm.Node) krm.Finding {
	hint := "the package has no OvercommitClass: add the class"
	if names := p.Names(); len(names) > 0 {
		hint = "choose from " + strings.Join(names, ", ") + ", or add the class"
	}
	return o.Finding(krm.Error, "overcommit/unknown-class", label, fmt.Sprintf("there is no OvercommitClass %q", label.Text()), hint)
}

func (p *overcommitPolicy) count(of map[string]int, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of[what]++
}

// summary says how many workloads each class changed.
func (p *overcommitPolicy) summary() []krm.Finding {
	total := 0
	var parts []string
	for _, name := range p.Names() {
		n := p.applied[name]
		total += n
		class, _ := p.Class(name)
		parts = append(parts, fmt.Sprintf("%s %d (cpu %s, memory %s)", name, n, class.CPU, class.Memory))
	}
	for _, why := range slices.Sorted(maps.Keys(p.other)) {
		total += p.other[why]
		parts = append(parts, fmt.Sprintf("%s %d", why, p.other[why]))
	}
	if total == 0 || p.failed || !p.Active() {
		return nil
	}
	noun := "workloads"
	if total == 1 {
		noun = "workload"
	}
	return []krm.Finding{{
		Rule: "overcommit/summary", Severity: krm.Info, File: p.File, Line: p.Line,
		Message: fmt.Sprintf("overcommit of %d %s: %s", total, noun, strings.Join(parts, ", ")),
		Object:  krm.Ref{APIVersion: p.overcommits[0].APIVersion, Kind: "Overcommit", Name: overcommit.Singleton},
	}}
}

// runOvercommit gives a workload the requests of its class, injected containers
// included, whether or not it opted in to the injection.
func runOvercommit(u *Unit) {
	u.consume("Overcommit")
	u.consume("OvercommitClass")
	p := &u.overcommit
	class := u.remembered
	if class == nil { // the workload takes the place of one that was generated
		class = u.classes[key{u.Kind, u.Namespace, u.Name}]
	}
	if !p.Active() && (class == nil || len(p.overcommits)+len(p.classes) > 0) {
		return // else a host has dropped the classes since
	}
	pod, ok := u.PodTemplate()
	if !ok {
		return
	}
	if p.Active() {
		if class, ok = u.overcommitClass(pod); !ok {
			return
		}
	}
	switch {
	case class == nil:
		p.count(p.other, noClass)
		return
	case class.Excludes(u.Namespace):
		p.count(p.other, excludedNamespace)
		return
	}
	if !u.settle() {
		return
	}
	pod, _ = u.PodTemplate()
	limited, findings := class.Apply(u.Object, pod, &u.changes)
	u.Findings = append(u.Findings, findings...)
	if !limited {
		p.count(p.other, noLimits)
		return
	}
	p.count(p.applied, class.Name)
}

// overcommitClass finds the class of a workload: its pods' label decides, then
// that of its namespace, then the default. No class is nil.
//
// Source: 003, "Webhook Decision Logic".
func (u *Unit) overcommitClass(pod krm.PodTemplate) (class *overcommit.Class, ok bool) {
	key := u.overcommit.Label
	if n := pod.Template.Get("metadata", "labels", key); n.Exists() {
		if class, ok = u.overcommit.Class(n.Text()); !ok {
			u.Findings = append(u.Findings, u.overcommit.unknown(u.Object, n))
		}
		return class, ok
	}
	if n := u.Get("metadata", "labels", key); n.Exists() {
		u.report(krm.Warning, "overcommit/label-not-on-pods", n, "the label counts on pods only, and they do not have it", "move it to the pod template's labels")
	}
	if ns, found := u.namespaceOf(u.Object); found {
		if n := ns.object.Get("metadata", "labels", key); n.Exists() {
			return u.overcommit.Class(n.Text()) // an unknown one has been reported
		}
	}
	return u.overcommit.Default(), true
}
