// Package overcommit lowers the requests of containers to a part of their limits. Labels of pods or
// namespaces choose the class, or else the default class applies. It does what the k8s-overcommit
// operator does when pods are admitted (source 003), once and in Git.
package overcommit

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/internal/quantity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

//go:embed README.md
var page string

const function = "overcommit"

// Function lowers requests.
func Function() contract.Function {
	kind := contract.Kind{Name: "Overcommit", Groups: []contract.Group{{Name: api.OvercommitGroup}},
		Versions: []string{"v1alpha1", "v1alphav1"}, Own: true, Shared: true}
	classes := kind
	classes.Name = "OvercommitClass"
	return contract.Function{
		Name:    function,
		Summary: "lower requests to a part of the limits, by OvercommitClasses",
		Page:    page,
		Kinds:   []contract.Kind{kind, classes},
		New: func(p *contract.Package) contract.Steps {
			s := &state{pkg: p, classes: make(map[string]*Class), counts: make(map[string]int),
				remembered: make(map[index.Key]*Class), seen: make(map[string]*krm.Object)}
			return contract.Steps{Collect: s.collect, Rendered: s.rendered, Resolve: s.resolve,
				Run: s.run, Finish: s.summary}
		},
	}
}

// singleton is the name of the only Overcommit.
const singleton = "cluster"

// state holds the overcommit resources of a package and the results.
type state struct {
	pkg *contract.Package
	// label is the key of the label that chooses a class, and on is the Overcommit that defines it.
	// Without one no class applies.
	label        string
	on           *krm.Object
	classes      map[string]*Class
	defaultClass *Class

	seen       map[string]*krm.Object // the first object of a kind
	remembered map[index.Key]*Class   // applied by an earlier render to generated workloads
	failed     bool                   // a resource has an error

	mu     sync.Mutex
	counts map[string]int // of workloads, by class or by the reason why none applied
}

// fail reports an error in a field of an object.
func (s *state) fail(o *krm.Object, rule, field, hint, message string, values ...any) {
	f := o.Finding(finding.Error, function+"/"+rule, o.At(field), fmt.Sprintf(message, values...),
		hint)
	f.Field = field
	s.pkg.Report.Add(f)
	s.failed = true
}

// labelKey is the syntax of a label's key: an optional DNS prefix and a name.
var labelKey = text.Pattern(
	`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

func (s *state) collect(o *krm.Object) {
	s.seen[o.Kind] = cmp.Or(s.seen[o.Kind], o)
	if o.Kind != "Overcommit" {
		s.collectClass(o)
		return
	}
	var in api.Overcommit
	s.pkg.Report.Decode(o, function+"/field", &in)
	switch key := in.Spec.OvercommitLabel; {
	case o.Name != singleton:
		s.fail(o, "not-cluster", "metadata.name", "name it cluster",
			"there is only one Overcommit, and its name is cluster, not %q", o.Name)
	case s.on != nil:
		s.fail(o, "two-overcommits", "metadata.name",
			"keep one; render folders for different clusters apart",
			"a second Overcommit: the first is %s", placeOf(s.on))
	case key == "":
		s.fail(o, "no-label", "spec.overcommitLabel",
			"set spec.overcommitLabel, for example to inditex.com/overcommit-class",
			"no key of the label by which a class is chosen")
	case len(key) > 253+64 || !labelKey().MatchString(key):
		s.fail(o, "bad-label", "spec.overcommitLabel", "write it as inditex.com/overcommit-class",
			"%q is not a label key", key)
	default:
		s.label, s.on = key, o
	}
}

func placeOf(o *krm.Object) string { return fmt.Sprintf("%s:%d", o.Origin.File, o.Origin.Line) }

// maxPattern is the maximum length of a regular expression, in bytes.
const maxPattern = 512

func (s *state) collectClass(o *krm.Object) {
	var in api.OvercommitClass
	s.pkg.Report.Decode(o, function+"/field", &in)
	class := &Class{name: o.Name, place: placeOf(o)}
	ratio := func(field string, n *api.Number) quantity.Ratio {
		if n == nil {
			s.fail(o, "no-ratio", field, "set it; 1 leaves the requests as they are",
				"the ratio of requests to limits is missing")
			return quantity.Whole
		}
		ratio, err := quantity.ParseRatio(string(*n))
		if err != nil {
			s.fail(o, "bad-ratio", field,
				"write a number from 0.0001 to 1 with at most four decimals", "%v", err)
			return quantity.Whole
		}
		return ratio
	}
	class.cpu = ratio("spec.cpuOvercommit", in.Spec.CPUOvercommit)
	class.memory = ratio("spec.memoryOvercommit", in.Spec.MemoryOvercommit)
	if pattern := in.Spec.ExcludedNamespaces; len(pattern) > maxPattern {
		s.fail(o, "bad-pattern", "spec.excludedNamespaces", "shorten the regular expression",
			"%d characters are more than %d", len(pattern), maxPattern)
	} else if pattern != "" {
		var err error
		if class.excluded, err = regexp.Compile(pattern); err != nil {
			s.fail(o, "bad-pattern", "spec.excludedNamespaces",
				"correct it; the syntax is RE2's", "no regular expression: %s",
				strings.TrimPrefix(err.Error(), "error parsing regexp: "))
		}
	}
	if other, taken := s.classes[o.Name]; taken {
		s.fail(o, "two-classes", "metadata.name",
			"rename one; render folders for different clusters apart",
			"a second class %s: the first is %s", o.Name, other.place)
		return
	}
	s.classes[o.Name] = class
	if other := s.defaultClass; in.Spec.IsDefault && other != nil {
		s.fail(o, "two-defaults", "spec.isDefault", "leave isDefault to one class",
			"a second default class: the first is %s (%s)", other.name, other.place)
	} else if in.Spec.IsDefault {
		s.defaultClass = class
	}
}

// rendered records the class of a generated workload, which another workload may replace in this
// render.
func (s *state) rendered(o *krm.Object) {
	if class := remembered(o); class != nil {
		s.remembered[index.KeyOf(o.Ref)] = class
	}
}

func (s *state) resolve() {
	if c := s.seen["OvercommitClass"]; c != nil && s.seen["Overcommit"] == nil {
		s.pkg.Report.Add(c.Finding(finding.Warning, function+"/no-overcommit", krm.Node{},
			"no class applies: the package has no Overcommit named cluster, which turns "+
				"overcommit on",
			"add one: {apiVersion: overcommit.inditex.dev/v1alpha1, kind: Overcommit, "+
				"metadata: {name: cluster}, spec: {overcommitLabel: …}}"))
	}
	if s.on == nil {
		return
	}
	for ns := range s.pkg.Index.Namespaces() {
		if n := ns.Get("metadata", "labels", s.label); n.Exists() && s.classes[n.Text()] == nil {
			s.pkg.Report.Add(s.unknown(ns, n))
			s.failed = true
		}
	}
}

// unknown returns the finding about a label that names no class.
func (s *state) unknown(o *krm.Object, label krm.Node) finding.Finding {
	hint := "the package has no OvercommitClass: add the class"
	if names := slices.Sorted(maps.Keys(s.classes)); len(names) > 0 {
		hint = "choose from " + strings.Join(names, ", ") + ", or add the class"
	}
	return o.Finding(finding.Error, "overcommit/unknown-class", label,
		fmt.Sprintf("OvercommitClass %q does not exist", label.Text()), hint)
}

// Reasons why no class changed a workload.
const (
	excludedNamespace = "in an excluded namespace"
	noClass           = "without a class"
	noLimits          = "without limits"
)

// run sets the requests of a workload's class, for injected containers as well. The workload need
// not opt in to the injection.
func (s *state) run(u *contract.Unit) {
	pod, ok := u.Object.PodTemplate()
	var class *Class
	switch {
	case !ok:
		return
	case s.on != nil:
		if class, ok = s.class(u, pod); !ok {
			return
		}
	case len(s.seen) > 0:
		return
	default:
		// A host may have dropped the classes since an earlier render, and the workload may
		// replace a generated one.
		class = cmp.Or(remembered(u.Before), s.remembered[index.KeyOf(u.Object.Ref)])
		if class == nil {
			return
		}
	}
	what := noClass
	switch {
	case class == nil:
	case class.excluded != nil && class.excluded.MatchString(u.Object.Namespace):
		what = excludedNamespace
	case !u.Settle():
		return
	case class.apply(u):
		what = class.name
	default:
		what = noLimits
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// class returns the class of a workload: the label of its pods decides, then the label of its
// namespace, then the default. nil is no class.
//
// Source: 003, "Webhook Decision Logic".
func (s *state) class(u *contract.Unit, pod krm.PodTemplate) (class *Class, ok bool) {
	if n := pod.Template.Get("metadata", "labels", s.label); n.Exists() {
		if class, ok = s.classes[n.Text()]; !ok {
			u.Findings = append(u.Findings, s.unknown(u.Object, n))
		}
		return class, ok
	}
	if n := u.Object.Get("metadata", "labels", s.label); n.Exists() {
		u.Report(finding.Warning, "overcommit/label-not-on-pods", n,
			"the label counts on pods only, and they do not have it",
			"move it to the pod template's labels")
	}
	if ns := s.pkg.Index.Namespace(u.Object); ns != nil {
		if n := ns.Get("metadata", "labels", s.label); n.Exists() {
			class, ok = s.classes[n.Text()] // an unknown one has been reported
			return class, ok
		}
	}
	return s.defaultClass, true
}

// summary returns a finding with the number of workloads that each class changed.
func (s *state) summary() []finding.Finding {
	total := 0
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(s.classes)) {
		total += s.counts[name]
		class := s.classes[name]
		parts = append(parts, fmt.Sprintf("%s %d (cpu %s, memory %s)", name, s.counts[name],
			class.cpu, class.memory))
	}
	for _, why := range [...]string{excludedNamespace, noClass, noLimits} {
		if n := s.counts[why]; n > 0 {
			total += n
			parts = append(parts, fmt.Sprintf("%s %d", why, n))
		}
	}
	if total == 0 || s.failed || s.on == nil {
		return nil
	}
	return []finding.Finding{s.on.Finding(finding.Info, "overcommit/summary", krm.Node{},
		fmt.Sprintf("overcommit of %s: %s", text.Count(total, "workload"),
			strings.Join(parts, ", ")), "")}
}
