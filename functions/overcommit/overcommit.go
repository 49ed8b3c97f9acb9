// Package overcommit lowers the requests of containers to a part of their
// limits, by classes that pods, namespaces or nobody in particular choose. It is
// what the k8s-overcommit operator does when pods are admitted (source 003), done
// once, in Git.
package overcommit

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/internal/quantity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// Annotations of pods whose requests follow from a class.
const (
	AppliedAnnotation = "overcommit.inditex.dev/applied" // the class's name
	CPUAnnotation     = "overcommit.inditex.dev/cpu"     // its ratios, with four decimals
	MemoryAnnotation  = "overcommit.inditex.dev/memory"
)

// Singleton is the name of the only Overcommit.
const Singleton = "cluster"

// Class is an OvercommitClass that has been checked.
type Class struct {
	Name        string
	CPU, Memory quantity.Ratio
	// File and Line are where its author wrote it.
	File string
	Line int

	excluded  *regexp.Regexp // nil: no namespace
	isDefault bool
}

// Excludes reports whether the class leaves a namespace alone.
func (c *Class) Excludes(namespace string) bool {
	return c.excluded != nil && c.excluded.MatchString(namespace)
}

// Policy is what all Overcommit objects of a package say together. The zero
// Policy changes nothing.
type Policy struct {
	// Label is the key of the label that chooses a class; "" where no Overcommit
	// says which, and then no class applies.
	Label string
	// File and Line are the Overcommit's.
	File string
	Line int

	classes      map[string]*Class
	defaultClass *Class
}

// Active reports whether the policy can change anything.
func (p *Policy) Active() bool { return p.Label != "" }

// Names lists the classes.
func (p *Policy) Names() []string { return slices.Sorted(maps.Keys(p.classes)) }

// maxPattern is the longest regular expression, in bytes.
const maxPattern = 512

// Resolve checks the objects and makes a policy of them.
func Resolve(overcommits []*api.Overcommit,
	classes []*api.OvercommitClass) (Policy, []finding.Finding) {
	r := resolver{policy: Policy{classes: make(map[string]*Class)}}
	for _, o := range overcommits {
		r.overcommit(o)
	}
	for _, c := range classes {
		r.class(c)
	}
	if len(classes) > 0 && len(overcommits) == 0 {
		c := classes[0]
		r.about(finding.Warning, &c.TypeMeta, &c.ObjectMeta, &c.Origin)("no-overcommit", "",
			"no class applies: the package has no Overcommit named cluster, which turns "+
				"overcommit on",
			"add one: {apiVersion: overcommit.inditex.dev/v1alpha1, kind: Overcommit, "+
				"metadata: {name: cluster}, spec: {overcommitLabel: …}}")
	}
	return r.policy, r.findings
}

type resolver struct {
	policy   Policy
	findings []finding.Finding
}

// about returns what reports findings about an object.
func (r *resolver) about(severity finding.Severity, t *api.TypeMeta, m *api.ObjectMeta,
	at *api.Origin) func(rule, field, message, hint string) {
	return func(rule, field, message, hint string) {
		f := finding.Finding{Rule: function + "/" + rule, Severity: severity, Message: message,
			Hint: hint, Place: finding.Place{File: at.File, Line: at.Line, Field: field,
				Object: finding.Ref{APIVersion: t.APIVersion, Kind: t.Kind, Name: m.Name}}}
		if field != "" {
			f.Line = at.LineOf(field)
		}
		r.findings = append(r.findings, f)
	}
}

// label is the syntax of a label's key: an optional DNS prefix and a name.
var label = text.Pattern(
	`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

func (r *resolver) overcommit(o *api.Overcommit) {
	fail := r.about(finding.Error, &o.TypeMeta, &o.ObjectMeta, &o.Origin)
	switch key := o.Spec.OvercommitLabel; {
	case o.Name != Singleton:
		fail("not-cluster", "metadata.name",
			fmt.Sprintf("there is only one Overcommit, and its name is cluster, not %q", o.Name),
			"name it cluster")
	case r.policy.Label != "":
		fail("two-overcommits", "metadata.name",
			fmt.Sprintf("a second Overcommit: the first is %s:%d", r.policy.File, r.policy.Line),
			"keep one; render folders for different clusters apart")
	case key == "":
		fail("no-label", "spec.overcommitLabel",
			"no key of the label by which a class is chosen",
			"set spec.overcommitLabel, for example to inditex.com/overcommit-class")
	case len(key) > 253+64 || !label().MatchString(key):
		fail("bad-label", "spec.overcommitLabel",
			fmt.Sprintf("%q is not a label key", key), "write it as inditex.com/overcommit-class")
	default:
		r.policy.Label, r.policy.File, r.policy.Line = key, o.Origin.File, o.Origin.Line
	}
}

func (r *resolver) class(c *api.OvercommitClass) {
	fail := r.about(finding.Error, &c.TypeMeta, &c.ObjectMeta, &c.Origin)
	class := &Class{Name: c.Name, File: c.Origin.File, Line: c.Origin.Line, isDefault: c.Spec.IsDefault}
	ratio := func(field string, n *api.Number) (ratio quantity.Ratio) {
		if n == nil {
			fail("no-ratio", field, "the ratio of requests to limits is missing",
				"set it; 1 leaves the requests as they are")
			return quantity.Whole
		}
		ratio, err := quantity.ParseRatio(string(*n))
		if err != nil {
			fail("bad-ratio", field, err.Error(),
				"write a number from 0.0001 to 1 with at most four decimals")
			return quantity.Whole
		}
		return ratio
	}
	class.CPU = ratio("spec.cpuOvercommit", c.Spec.CPUOvercommit)
	class.Memory = ratio("spec.memoryOvercommit", c.Spec.MemoryOvercommit)
	if pattern := c.Spec.ExcludedNamespaces; len(pattern) > maxPattern {
		fail("bad-pattern", "spec.excludedNamespaces",
			fmt.Sprintf("%d characters are more than %d", len(pattern), maxPattern),
			"shorten the regular expression")
	} else if pattern != "" {
		var err error
		if class.excluded, err = regexp.Compile(pattern); err != nil {
			fail("bad-pattern", "spec.excludedNamespaces",
				fmt.Sprintf("no regular expression: %s",
					strings.TrimPrefix(err.Error(), "error parsing regexp: ")),
				"correct it; the syntax is RE2's")
		}
	}
	if other, taken := r.policy.classes[c.Name]; taken {
		fail("two-classes", "metadata.name",
			fmt.Sprintf("a second class %s: the first is %s:%d", c.Name, other.File, other.Line),
			"rename one; render folders for different clusters apart")
		return
	}
	r.policy.classes[c.Name] = class
	if other := r.policy.defaultClass; class.isDefault && other != nil {
		fail("two-defaults", "spec.isDefault",
			fmt.Sprintf("a second default class: the first is %s (%s:%d)", other.Name, other.File,
				other.Line),
			"leave isDefault to one class")
	} else if class.isDefault {
		r.policy.defaultClass = class
	}
}

// Remembered returns the class that an earlier render applied to an object, from
// the annotations of its pods; nil where it applied none.
func Remembered(o *krm.Object) *Class {
	if !krm.ChangedBy(o, function) {
		return nil
	}
	pod, _ := o.PodTemplate()
	name, _ := pod.Annotation(AppliedAnnotation)
	cpu, _ := pod.Annotation(CPUAnnotation)
	memory, _ := pod.Annotation(MemoryAnnotation)
	c := &Class{Name: name}
	var err1, err2 error
	c.CPU, err1 = quantity.ParseRatio(cpu)
	c.Memory, err2 = quantity.ParseRatio(memory)
	if name == "" || err1 != nil || err2 != nil {
		return nil // somebody has edited them
	}
	return c
}

// Apply notes the requests of all containers of a pod template, init containers
// too, and the annotations of its pods. It says whether any container has a limit
// that the class is about; a pod without one stays as it is.
//
// Source: 003, "Resource Management". Requests at ratio 1 stay as they are.
func (c *Class) Apply(o *krm.Object, pod krm.PodTemplate,
	changes *krm.Changes) (limited bool, findings []finding.Finding) {
	for _, list := range [...]string{"initContainers", "containers"} {
		seen := make(map[string]bool)
		for container := range pod.Spec().Get(list).Items() {
			name := container.Get("name")
			limits := container.Get("resources", "limits")
			if limits.IsNull() {
				continue
			}
			if !name.IsScalar() || seen[name.Text()] {
				findings = append(findings, o.Finding(finding.Error, "overcommit/container-name",
					container, "a container without a name of its own",
					"name it: Kubernetes demands it"))
				continue
			}
			seen[name.Text()] = true
			cpu, found := c.request(o, container, "cpu", c.CPU, quantity.CPU, changes)
			findings = append(findings, found...)
			memory, found := c.request(o, container, "memory", c.Memory, quantity.Memory, changes)
			findings = append(findings, found...)
			limited = limited || cpu || memory
		}
	}
	if !limited || finding.Failed(findings) {
		return limited, findings
	}
	for _, a := range [...]struct{ key, value string }{
		{AppliedAnnotation, c.Name}, {CPUAnnotation, c.CPU.String()},
		{MemoryAnnotation, c.Memory.String()},
	} {
		changes.Set(function, pod.Template, []string{"metadata", "annotations"}, a.key, `"`+a.value+`"`)
	}
	return limited, findings
}

// request notes one request of a container, where there is a limit.
func (c *Class) request(o *krm.Object, container krm.Node, name string, ratio quantity.Ratio,
	of func(string, quantity.Ratio) (string, error), changes *krm.Changes) (limited bool,
	findings []finding.Finding) {
	limit := container.Get("resources", "limits", name)
	if limit.IsNull() {
		return false, nil
	}
	request, err := of(limit.Text(), ratio)
	if err != nil {
		return true, []finding.Finding{o.Finding(finding.Error, "overcommit/bad-limit", limit,
			err.Error(), "write a quantity, such as 500m or 512Mi")}
	}
	if ratio.Whole() {
		return true, nil
	}
	if request == "0" && limit.Text() != "0" {
		findings = append(findings, o.Finding(finding.Warning, "overcommit/nothing-requested",
			limit,
			fmt.Sprintf("%s of %s is less than the smallest unit: nothing is requested", ratio,
				limit.Text()),
			"raise the limit, or choose another class"))
	}
	changes.Set(function, container, []string{"resources", "requests"}, name, request)
	return true, findings
}
