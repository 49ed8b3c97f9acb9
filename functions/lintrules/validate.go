package lintrules

import (
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/functions/workload"
)

//go:embed validate.md
var validatePage string

const functionValidate = "validate"

// Validate checks the rendered objects for labels and kinds that look like known ones but are not
// read, which would go unnoticed. It is a function, not a rule that a configuration can disable.
func Validate() contract.Function {
	return contract.Function{
		Name:    functionValidate,
		Summary: "check the result for labels and kinds that nothing reads",
		Page:    validatePage,
		New:     beginValidate,
	}
}

// validator checks the objects of a package.
type validator struct{ pkg *contract.Package }

func beginValidate(p *contract.Package) contract.Steps {
	s := &validator{pkg: p}
	return contract.Steps{Run: func(u *contract.Unit) {
		s.unreadKind(u)
		s.wrongKind(u)
		if o := u.Object; o.Kind == "Agent" && o.APIVersion == keys.Kagent1+"/v1alpha3" {
			u.Report(finding.Info, "validate/substrate", o.Get("kind"), "nothing is injected: "+
				"kagent 1.0 runs this agent on Agent Substrate, not in a pod of the package", "")
		}
		if u.Object.Contains(stem(p.Prefix())) || u.Object.Contains("/inj") {
			s.unreadLabels(u)
		}
	}}
}

// unreadLabels reports labels that look like opting in or out and have no effect.
func (s *validator) unreadLabels(u *contract.Unit) {
	o := u.Object
	opt, prefix := s.pkg.Prefix()+"/inject", s.pkg.Prefix()+"/"
	if n := o.Get("metadata", "annotations", opt); n.Exists() {
		u.Report(finding.Warning, "validate/not-a-label", n, "opting in requires "+
			"a label; this annotation has no effect", "move it to metadata.labels")
	}
	own := o.Get("metadata", "labels")
	unread := func(n krm.Node, hint string) {
		u.Report(finding.Warning, "validate/unread-label", n, "nothing reads this label here", hint)
	}
	if n := own.Get(opt); n.Exists() && o.Kind == "Namespace" {
		u.Report(finding.Error, "validate/namespace-label", n, "this label is for "+
			"workloads, and not for Namespaces", fmt.Sprintf("write %sinjection: "+
			"disabled to keep the workloads of the Namespace from being injected", prefix))
		return
	}
	if n := o.Get("spec", "jobTemplate", "metadata", "labels", opt); n.Exists() {
		unread(n, "move it to metadata.labels of the CronJob, or of the pod template")
	}
	pod, workload := o.PodTemplate()
	if template := pod.Template.Get("metadata", "labels", opt); workload &&
		!own.Get(opt).Exists() && !template.Exists() {
		// The label exists, so it is not misspelt.
		for _, labels := range pod.Metadata(o, "labels") {
			for key, n := range labels.Fields() {
				if meansInject(key, s.pkg.Prefix()) {
					unread(n, "did you mean "+opt+"?")
				}
			}
		}
		for _, annotations := range pod.Metadata(o, "annotations") {
			for key, n := range annotations.Fields() {
				if meansInject(key, s.pkg.Prefix()) {
					u.Report(finding.Warning, "validate/not-a-label", n,
						"nothing reads this annotation",
						"opting in requires a label: did you mean "+opt+"?")
				}
			}
		}
	}
	for _, labels := range pod.Metadata(o, "labels") {
		for n := range labels.Prefixed(prefix) {
			name := strings.TrimPrefix(n.Key(), prefix)
			switch {
			case workload && name == "injection":
				unread(n, "did you mean "+opt+"?")
			case o.Kind == "Namespace" && text.Near(name, "injection"):
				unread(n, "did you mean "+prefix+"injection?")
			}
		}
		for _, of := range keys.Prefixes() {
			for _, name := range []string{"inject", "injection"} {
				if n := labels.Get(of + "/" + name); n.Exists() && of+"/" != prefix {
					unread(n, fmt.Sprintf("write %s%s, or set spec.profile "+
						"or spec.labelPrefix in the configuration", prefix, name))
				}
			}
		}
	}
	if n := own.Get(
		opt); !workload && !s.pkg.Kinds.Expand(o.APIVersion, o.Kind) && n.Is("enabled") {
		s.withoutContainers(u, n)
	}
}

// withoutContainers reports an object that opts in and has no list of containers.
func (s *validator) withoutContainers(u *contract.Unit, label krm.Node) {
	o := u.Object
	message, hint, at := "has no pod template", "remove the label", label
	if kind := workload.Find(o.Kind); kind != nil {
		hint = "give it a pod template with containers, or remove the label"
		path := workload.SpecOf(o.Kind)
		if pod := o.Get(path...); pod.IsMap() {
			message, at = strings.Join(path, ".")+" has no list of containers", pod
			hint = "write a list containers there, or remove the label " + label.Key()
			for key := range pod.Fields() {
				if text.Near(key, "containers") {
					at, hint = pod.Get(key), "did you mean containers?"
				}
			}
		}
	}
	u.Report(finding.Error, "validate/nothing-to-inject", at,
		fmt.Sprintf("%s asks for injection, but %s", o.Ref, message), hint)
}

// wrongKind reports a workload without a name, and one of a kind or an API version that no API
// server has. Groups with a dot may be those of custom resources.
func (s *validator) wrongKind(u *contract.Unit) {
	o := u.Object
	pod, template := o.PodTemplate()
	kind := workload.Find(o.Kind)
	group, _, _ := strings.Cut(o.APIVersion, "/")
	if !strings.Contains(group, ".") && (kind == nil || o.APIVersion != kind.APIVersion) {
		meant := workload.Find(text.Nearest(o.Kind, workload.Names()))
		message := fmt.Sprintf("Kubernetes has no %s of %s", o.Kind, o.APIVersion)
		switch {
		case kind != nil:
			u.Report(finding.Error, "validate/no-kind", o.Get("apiVersion"), message,
				"write apiVersion: "+kind.APIVersion)
		case meant != nil:
			u.Report(finding.Error, "validate/no-kind", o.Get("kind"), message,
				fmt.Sprintf("did you mean %s of %s?", meant.Name, meant.APIVersion))
		case template && pod.Path != "" && o.Kind != "PodTemplate":
			u.Report(finding.Error, "validate/no-kind", o.Get("kind"), message, "correct it: the "+
				"kinds with a pod template are "+strings.Join(workload.Names(), ", "))
		}
	}
	metadata := o.Get("metadata")
	nameless := func(f finding.Finding) bool { return f.Rule == "inject/no-name" }
	if kind != nil && template && o.Name == "" && metadata.Get("generateName").Text() == "" &&
		!slices.ContainsFunc(u.Findings, nameless) {
		u.Report(finding.Error, "validate/no-name", metadata,
			o.Kind+" has no name, which the API server requires", "write metadata.name")
	}
}

// meansInject reports whether a label or annotation is one edit away from the one that opts in: in
// its name, in its prefix, or with a prefix without the end of the domain. A key with Armature's
// own domain, or named enabled, also counts.
func meansInject(key, prefix string) bool {
	domain, name, ok := strings.Cut(key, "/")
	if key == prefix+"/enabled" || key == keys.Group+"/inject" {
		return true
	}
	return ok && (name == "inject" || text.Near(name, "inject")) && (domain == prefix &&
		name != "inject" || domain == stem(prefix) || text.Near(domain, prefix))
}

// stem returns the first label of a prefix: kagenti of kagenti.io.
func stem(prefix string) string {
	first, _, _ := strings.Cut(prefix, ".")
	return first
}

// unreadKind reports custom resources that look like known ones but are not read.
func (s *validator) unreadKind(u *contract.Unit) {
	o, kinds := u.Object, s.pkg.Kinds
	unread := func(hint string) {
		u.Report(finding.Warning, "validate/unread-kind", o.Get("kind"),
			fmt.Sprintf("nothing reads %s of %s", o.Kind, o.APIVersion), hint)
	}
	if o.Kind == "RenderConfig" {
		s.secondConfig(u)
		return
	}
	if kinds.Read(o.APIVersion, o.Kind) {
		return
	}
	if hint, own := kinds.Own(o.Kind); own {
		unread(hint)
		return
	}
	known := kinds.InGroup(o.APIVersion)
	if len(known) == 0 || slices.Contains(known, o.Kind) ||
		slices.Contains(known, strings.TrimSuffix(o.Kind, "List")) {
		return
	}
	unread("known are " + strings.Join(known, ", "))
}

// secondConfig reports a configuration below the rendered folder. The configuration of the folder
// itself is not a second one, even if a flag names another.
func (s *validator) secondConfig(u *contract.Unit) {
	file := u.Object.Origin.File
	if name := path.Base(file); file == "armature.yaml" ||
		name != "armature.yaml" && name != "armature.yml" {
		return
	}
	message := "a configuration below the folder that is rendered, which has none itself"
	if s.pkg.Place != nil {
		message = fmt.Sprintf("a second configuration: "+
			"%s:%d is that of the folder that is rendered", s.pkg.Place.File, s.pkg.Place.Line)
	}
	u.Report(finding.Error, "validate/inner-config", krm.Node{}, message,
		"keep one, or render "+path.Dir(file)+" by itself and exclude it here by spec.exclude")
}
