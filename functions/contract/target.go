package contract

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/krm"
)

// Target finds the workload that a custom resource of a function names: the one in the same
// namespace whose file is nearest. If there is none, or more than one, it reports a finding. A
// missing workload that may be in another package is only a warning, unless the package is closed
// or has a similar name.
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

// workloadHint suggests a workload for a targetRef that names an object without pods.
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
	// ConfigMap describes the ConfigMap of a workload; its Of is the function's name. Without
	// Append none is generated.
	ConfigMap ConfigMap
	// Parts returns the origin of a custom resource, to be filled in, and the workload that it
	// names.
	Parts func(*T) (*api.Origin, api.TargetRef)
	// Elsewhere says that the workload may be in another package.
	Elsewhere bool
	// Use applies the custom resource to the settings of a workload.
	Use func(index.ID, *T)
	// Judge returns the errors in a custom resource whose workload was not found.
	Judge func(*krm.Object, *T) []finding.Finding
}

// Steps returns the steps of the function for a package. Two custom resources for one workload are
// an error.
func (f Targeted[T]) Steps(p *Package) Steps {
	type resource struct {
		object *krm.Object
		value  T
	}
	var resources []*resource
	owners := make(map[index.ID]*krm.Object)
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
				o := r.object
				_, ref := f.Parts(&r.value)
				target, ok := p.Target(f.ConfigMap.Of, o, ref, f.Elsewhere)
				switch other := owners[target]; {
				case !ok:
					p.Report.Add(f.Judge(o, &r.value)...)
				case other != nil:
					p.Report.Add(o.Finding(finding.Error, f.ConfigMap.Of+"/two-for-one",
						o.Get("spec", "targetRef"),
						fmt.Sprintf("the %s %s (%s:%d) targets the same workload", other.Kind,
							other.Name, other.Origin.File, other.Origin.Line),
						"merge the two into one"))
				default:
					owners[target] = o
					f.Use(target, &r.value)
				}
			}
		},
		Run: func(u *Unit) { u.configure(&f.ConfigMap, owners[u.ID()]) },
	}
}

// configure generates the ConfigMap of an injected workload. For an object that is not injected it
// reports that the custom resource has no effect. from is the resource, or nil.
func (u *Unit) configure(c *ConfigMap, from *krm.Object) {
	if u.Injected() && !(c.Sidecars && u.Settings().TraceOnly) {
		// Without sidecars, and without a custom resource to record, nothing would read it.
		unread := c.Sidecars && from == nil && (c.Beside == nil || c.Beside(u.ID()) == nil) &&
			!u.Settings().HasSidecars()
		if c.Append != nil && (c.Needed == nil || c.Needed(u.Settings())) && !unread {
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

// ConfigMap describes how a function writes the ConfigMap of a workload.
type ConfigMap struct {
	// Of is the function's name.
	Of string
	// Sidecars says that it is for the sidecars, so that a workload with tracing settings only has
	// none.
	Sidecars bool
	// Needed reports whether a workload gets it; nil means that all do.
	Needed func(*identity.Settings) bool
	// Name returns the name of the ConfigMap, and Append appends its text.
	Name   func(*identity.Settings) string
	Append func([]byte, *identity.Settings) []byte
	// Beside returns another custom resource that contributes to a workload's ConfigMap, or nil. A
	// nil Beside means that there is none.
	Beside func(index.ID) *krm.Object
}

// GenerateConfigMap generates the ConfigMap of an injected workload. from is the custom resource
// that it was made from, or nil. The ConfigMap records it and the one that Beside returns, so that
// a later render of a host's copy has the same result.
func (u *Unit) GenerateConfigMap(c *ConfigMap, from *krm.Object) {
	s := u.Settings()
	if u.taken(func() string { return c.Name(s) }) {
		return
	}
	resources := []*krm.Object{from}
	if c.Beside != nil {
		resources = append(resources, c.Beside(u.ID()))
	}
	var sources []string
	for _, from := range resources {
		if from == nil {
			continue
		}
		source, err := sourceJSON(from, u.Object.Name)
		if err != nil {
			u.Findings = append(u.Findings,
				from.Finding(finding.Error, "package/source", krm.Node{}, err.Error(), ""))
			continue
		}
		sources = append(sources, string(source))
	}
	var annotation []byte
	if text := strings.Join(sources, ","); text != "" {
		if len(sources) > 1 {
			text = "[" + text + "]"
		}
		text = strings.ReplaceAll(text, "'", "''")
		annotation = []byte("    " + keys.Source + ": '" + text + "'\n")
	}
	u.generate(c, annotation)
}

// GenerateAccount generates the ServiceAccount of an injected workload, unless its author wrote one
// of that name. It reports whether it did.
func (u *Unit) GenerateAccount(account *ConfigMap) bool {
	s := u.Settings()
	_, authored := u.pkg.Index.Authored(index.Key{Kind: "ServiceAccount",
		Namespace: s.Subject.Namespace, Name: s.Subject.ServiceAccount}, u.Object.Origin.File)
	if !authored {
		u.generate(account, nil)
	}
	return !authored
}

// generate composes an object with additional lines of annotations.
func (u *Unit) generate(c *ConfigMap, annotations []byte) {
	from := len(u.composed)
	u.composed = c.Append(u.composed, u.Settings())
	text := slices.Clip(u.composed[from:])
	if annotations = append(u.phase(), annotations...); len(annotations) > 0 {
		lead := []byte("  annotations:\n")
		text = bytes.Replace(text, lead, append(lead, annotations...), 1)
	}
	u.Generated = append(u.Generated, text)
}

// phase returns the lines of the workload's annotations by which Helm and Argo CD create an object
// before or after the rest of a release, or keep it when the release is deleted. Its ConfigMaps
// have to exist at the same time: a pod does not start without them.
func (u *Unit) phase() (lines []byte) {
	annotations := u.Object.Get("metadata", "annotations")
	if annotations.Len() == 0 {
		return nil
	}
	for _, key := range [...]string{
		"helm.sh/hook", "helm.sh/hook-weight", "helm.sh/hook-delete-policy",
		"helm.sh/resource-policy", "argocd.argoproj.io/hook",
		"argocd.argoproj.io/hook-delete-policy", "argocd.argoproj.io/sync-wave",
	} {
		if value := annotations.Get(key); value.Exists() {
			lines = append(append(append(lines, "    "...), key...), ": "...)
			lines = append(scalar.AppendYAML(lines, value.Text()), '\n')
		}
	}
	return lines
}

// Generate adds a ConfigMap, unless the author wrote one of that name.
func (u *Unit) Generate(name string, text []byte) {
	if !u.taken(func() string { return name }) {
		u.Generated = append(u.Generated, text)
	}
}

// taken reports whether the author wrote a ConfigMap of a name.
func (u *Unit) taken(name func() string) bool {
	if !u.pkg.Index.HasAuthoredConfigMaps() {
		return false
	}
	place, taken := u.pkg.Index.Authored(index.Key{Kind: "ConfigMap", Namespace: u.Object.Namespace,
		Name: name()}, u.Object.Origin.File)
	if taken {
		u.Report(finding.Error, "package/name-taken", u.Object.Get("metadata", "name"),
			fmt.Sprintf("its ConfigMap %s already exists in %s", name(), place), "rename that object")
	}
	return taken
}

// sourceJSON returns the resource with the current name of its workload, and without the
// annotations of a host.
func sourceJSON(c *krm.Object, workload string) ([]byte, error) {
	value, err := c.Value()
	if err != nil {
		return nil, err
	}
	krm.DropHostAnnotations(value)
	object, _ := value.(map[string]any)
	spec, _ := object["spec"].(map[string]any)
	if ref, ok := spec["targetRef"].(map[string]any); ok {
		ref["name"] = workload
	}
	return json.Marshal(value)
}
