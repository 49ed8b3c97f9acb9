package overcommit

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

//go:embed README.md
var page string

const function = "overcommit"

// Function lowers requests.
func Function() contract.Function {
	group := []contract.Group{{Name: api.OvercommitGroup}}
	versions := []string{"v1alpha1", "v1alphav1"}
	return contract.Function{
		Name:    function,
		Summary: "lower requests to a part of the limits, by OvercommitClasses",
		Page:    page,
		Kinds: []contract.Kind{{Name: "Overcommit", Groups: group, Versions: versions, Own: true,
			Shared: true}, {Name: "OvercommitClass", Groups: group, Versions: versions, Own: true,
			Shared: true}},
		New: begin,
	}
}

// state is what a package says about overcommit, and what came of it.
type state struct {
	pkg         *contract.Package
	overcommits []*api.Overcommit
	classes     []*api.OvercommitClass
	remembered  map[index.Key]*Class // that an earlier render applied to generated workloads
	policy      Policy
	failed      bool // it is not what its author meant

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

func begin(p *contract.Package) contract.Steps {
	s := &state{pkg: p, remembered: make(map[index.Key]*Class), applied: make(map[string]int),
		other: make(map[string]int)}
	return contract.Steps{
		Collect: s.collect, Rendered: s.rendered, Resolve: s.resolve, Run: s.run, Finish: s.summary,
	}
}

func (s *state) collect(o *krm.Object) {
	const rule = function + "/field"
	if o.Kind == "Overcommit" {
		s.overcommits = append(s.overcommits, &api.Overcommit{Origin: contract.OriginOf(o)})
		s.pkg.Report.Decode(o, rule, s.overcommits[len(s.overcommits)-1])
	} else {
		s.classes = append(s.classes, &api.OvercommitClass{Origin: contract.OriginOf(o)})
		s.pkg.Report.Decode(o, rule, s.classes[len(s.classes)-1])
	}
}

// rendered remembers the class of a generated workload, whose place another may
// take in this render.
func (s *state) rendered(o *krm.Object) {
	if class := Remembered(o); class != nil {
		s.remembered[index.KeyOf(o.Ref)] = class
	}
}

func (s *state) resolve() {
	var findings []finding.Finding
	s.policy, findings = Resolve(s.overcommits, s.classes)
	if s.policy.Active() {
		for ns := range s.pkg.Index.Namespaces() {
			if n := ns.Get("metadata", "labels", s.policy.Label); n.Exists() {
				if _, known := s.policy.classes[n.Text()]; !known {
					findings = append(findings, s.unknown(ns, n))
				}
			}
		}
		s.failed = finding.Failed(findings)
	}
	s.pkg.Report.Add(findings...)
}

// unknown is the finding about a label that names no class.
func (s *state) unknown(o *krm.Object, label krm.Node) finding.Finding {
	hint := "the package has no OvercommitClass: add the class"
	if names := s.policy.Names(); len(names) > 0 {
		hint = "choose from " + strings.Join(names, ", ") + ", or add the class"
	}
	return o.Finding(finding.Error, "overcommit/unknown-class", label,
		fmt.Sprintf("OvercommitClass %q does not exist", label.Text()), hint)
}

func (s *state) count(of map[string]int, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of[what]++
}

// summary says how many workloads each class changed.
func (s *state) summary() []finding.Finding {
	total := 0
	var parts []string
	for _, class := range s.policy.Names() {
		n := s.applied[class]
		total += n
		ratios := s.policy.classes[class]
		parts = append(parts, fmt.Sprintf("%s %d (cpu %s, memory %s)", class, n, ratios.CPU,
			ratios.Memory))
	}
	for _, why := range slices.Sorted(maps.Keys(s.other)) {
		total += s.other[why]
		parts = append(parts, fmt.Sprintf("%s %d", why, s.other[why]))
	}
	if total == 0 || s.failed || !s.policy.Active() {
		return nil
	}
	return []finding.Finding{{
		Rule: "overcommit/summary", Severity: finding.Info,
		Message: fmt.Sprintf("overcommit of %s: %s", text.Count(total, "workload"),
			strings.Join(parts, ", ")),
		Place: finding.Place{File: s.policy.File, Line: s.policy.Line,
			Object: finding.Ref{APIVersion: s.overcommits[0].APIVersion, Kind: "Overcommit",
				Name: Singleton}},
	}}
}

// run sets on a workload the requests of its class, injected containers included,
// whether or not it opted in to the injection.
func (s *state) run(u *contract.Unit) {
	o := u.Object
	pod, ok := o.PodTemplate()
	var class *Class
	switch {
	case !ok:
		return
	case s.policy.Active():
		if class, ok = s.class(u, pod); !ok {
			return
		}
	case len(s.overcommits)+len(s.classes) > 0:
		return
	default: // a host may have dropped the classes since an earlier render
		// the workload takes the place of one that was generated
		class = cmp.Or(Remembered(u.Before), s.remembered[index.KeyOf(o.Ref)])
		if class == nil {
			return
		}
	}
	switch {
	case class == nil:
		s.count(s.other, noClass)
		return
	case class.Excludes(o.Namespace):
		s.count(s.other, excludedNamespace)
		return
	}
	if !u.Settle() {
		return
	}
	pod, _ = u.Object.PodTemplate()
	limited, findings := class.Apply(u.Object, pod, &u.Changes)
	u.Findings = append(u.Findings, findings...)
	if !limited {
		s.count(s.other, noLimits)
		return
	}
	s.count(s.applied, class.Name)
}

// class finds the class of a workload: its pods' label decides, then that of its
// namespace, then the default. No class is nil.
//
// Source: 003, "Webhook Decision Logic".
func (s *state) class(u *contract.Unit, pod krm.PodTemplate) (class *Class, ok bool) {
	key := s.policy.Label
	if n := pod.Template.Get("metadata", "labels", key); n.Exists() {
		if class, ok = s.policy.classes[n.Text()]; !ok {
			u.Findings = append(u.Findings, s.unknown(u.Object, n))
		}
		return class, ok
	}
	if n := u.Object.Get("metadata", "labels", key); n.Exists() {
		u.Report(finding.Warning, "overcommit/label-not-on-pods", n,
			"the label counts on pods only, and they do not have it",
			"move it to the pod template's labels")
	}
	if ns := s.pkg.Index.Namespace(u.Object); ns != nil {
		if n := ns.Get("metadata", "labels", key); n.Exists() {
			class, ok = s.policy.classes[n.Text()] // an unknown one has been reported
			return class, ok
		}
	}
	return s.policy.defaultClass, true
}
