package functions

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/inject"
	"github.com/armature-dev/armature/functions/krm"
)

// runValidate judges an object by what nobody would read in it.
func runValidate(u *Unit) {
	u.unreadKind()
	if u.Contains("/inj") {
		u.unreadLabels()
	}
}

// unreadLabels finds labels that are meant to opt in or out, and do not.
func (u *Unit) unreadLabels() {
	opt, prefix := u.Prefix()+"/inject", u.Prefix()+"/"
	if n := u.Get("metadata", "annotations", opt); n.Exists() {
		u.report(krm.Warning, "validate/not-a-label", n, "opting in takes a label; this annotation does nothing", "move it to metadata.labels")
	}
	own := u.Get("metadata", "labels")
	unread := func(n krm.Node, hint string) {
		u.report(krm.Warning, "validate/unread-label", n, "nothing reads this label here", hint)
	}
	if n := own.Get(opt); n.Exists() && u.Kind == "Namespace" {
		u.report(krm.Error, "validate/namespace-label", n, "this label is for workloads, and not for Namespaces",
			fmt.Sprintf("write %sinjection: disabled to keep the workloads of the Namespace from being injected", prefix))
		return
	}
	if n := u.Get("spec", "jobTemplate", "metadata", "labels", opt); n.Exists() {
		unread(n, "move it to metadata.labels of the CronJob, or of the pod template")
	}
	pod, workload := u.PodTemplate()
	for _, labels := range [...]krm.Node{own, pod.Template.Get("metadata", "labels")} {
		for n := range labels.Prefixed(prefix) {
			name := strings.TrimPrefix(n.Key(), prefix)
			switch {
			case workload && (identity.Near(name, "inject") || name == "injection"):
				unread(n, "did you mean "+opt+"?")
			case u.Kind == "Namespace" && identity.Near(name, "injection"):
				unread(n, "did you mean "+prefix+"injection?")
			}
		}
		for _, label := range profileLabels {
			if n := labels.Get(label); n.Exists() && !strings.HasPrefix(label, prefix) {
				unread(n, fmt.Sprintf("write %s%s, or set spec.profile or spec.labelPrefix in the configuration", prefix, path.Base(label)))
			}
		}
		if pod.Path == "" {
			break // a Pod is its own template
		}
	}
	if n := own.Get(opt); !workload && u.expansion(u.APIVersion, u.Kind) == nil && n.Is("enabled") {
		hint := "remove the label"
		if workloadKinds[u.Kind] {
			hint = "give it a pod template with containers, or remove the label"
		}
		u.report(krm.Error, "validate/nothing-to-inject", n, fmt.Sprintf("%s asks for injection but has no pod template", u.Ref), hint)
	}
}

// profileLabels are the labels of the profiles that opt in or out.
var profileLabels = [...]string{"kagenti.io/inject", "kagenti.io/injection", "rossoctl.io/inject", "rossoctl.io/injection"}

// unreadKind finds custom resources that look like those that are read, and are not.
func (u *Unit) unreadKind() {
	group := u.Group()
	unread := func(hint string) {
		u.report(krm.Warning, "validate/unread-kind", u.Get("kind"), fmt.Sprintf("nothing reads %s of %s", u.Kind, u.APIVersion), hint)
	}
	switch u.Kind {
	case "TokenExchange", "AgentTrace", "AgentCard":
		if !u.wants(u.APIVersion, u.Kind) {
			unread(fmt.Sprintf("write apiVersion: %s/v1alpha1, or set spec.profile or spec.labelPrefix in the configuration", u.Prefix()))
		}
		return
	case "Overcommit", "OvercommitClass":
		if group != api.OvercommitGroup {
			unread("write apiVersion: " + api.OvercommitGroup + "/v1alpha1")
		}
		return
	case "AsyncActor":
		if !u.wants(u.APIVersion, u.Kind) {
			unread("write apiVersion: asya.sh/v1alpha1")
		}
		return
	case "RenderConfig":
		if folder := path.Dir(u.Origin.File); path.Base(u.Origin.File) == "armature.yaml" && folder != "." {
			u.report(krm.Info, "validate/inner-config", krm.Node{}, "this is the configuration of another package, and not of this one",
				"render "+folder+" by itself, or keep one configuration at the root")
		}
		return
	}
	var known []string
	switch {
	case u.pillarGroup(u.APIVersion):
		known = []string{"TokenExchange", "AgentTrace", "AgentCard", "Agent"}
	case u.agentGroup(u.APIVersion):
		known = []string{"Agent", "AgentBuild", "AgentCard"}
	case group == api.OvercommitGroup:
		known = []string{"Overcommit", "OvercommitClass"}
	case strings.HasPrefix(u.APIVersion, "asya.sh/"):
		known = []string{"AsyncActor"}
	default:
		return
	}
	if slices.Contains(known, u.Kind) || slices.Contains(known, strings.TrimSuffix(u.Kind, "List")) {
		return
	}
	unread("known are " + strings.Join(known, ", "))
}

// OptsIn reports whether an object is a workload that gets the identity
// infrastructure.
func (p *Package) OptsIn(o *krm.Object) bool {
	pod, ok := o.PodTemplate()
	if !ok {
		return false
	}
	opt, _ := inject.Labels(o, pod, p.Prefix(), p.Config.RequireSpiffeLabel != nil && *p.Config.RequireSpiffeLabel)
	_, out := p.optedOut(o)
	return opt.Inject && !out
}

// twins finds other injected workloads whose ConfigMaps have the names of this
// one's: of another kind, or of the same one in the same folder. Folders side by
// side may hold one workload for several clusters.
func (u *Unit) twins() {
	if u.entry == 0 {
		return
	}
	for kind := range u.kinds {
		for i := u.first[key{kind, u.Namespace, u.Name}]; i != 0; i = u.entries[i].next {
			e := &u.entries[i]
			same := kind == u.Kind
			if i == u.entry || e.generated && !e.made || same && path.Dir(e.file) != path.Dir(u.Origin.File) || !u.injects(e) && u.traceOf[i] == nil {
				continue
			}
			message, hint := fmt.Sprintf("its ConfigMaps have the names of those of the %s %s (%s:%d)", e.kind, e.name, e.file, e.line), "rename one of the two"
			if same {
				message, hint = fmt.Sprintf("%s stands in %s:%d as well", u.Ref, e.file, e.line), "remove one of the two"
			}
			u.report(krm.Error, "inject/two-of-a-name", u.Get("metadata", "name"), message, hint)
		}
	}
}

// injects reports whether an entry of the package is an injected workload, which
// its head does not say.
func (p *Package) injects(e *entry) bool {
	if r := p.madeBy[e.key]; e.made && r != nil {
		for _, text := range r.texts {
			var o krm.Object
			if isObject, err := o.ReadMade(text, r.Object); err == nil && isObject && o.Kind == e.kind && o.Name == e.name {
				return p.OptsIn(&o)
			}
		}
		return false
	}
	if p.Find == nil {
		return false
	}
	o := p.Find(krm.Origin{File: e.file, Line: int(e.line)}, krm.Ref{APIVersion: e.apiVersion, Kind: e.kind, Namespace: e.namespace, Name: e.name})
	return o != nil && p.OptsIn(o)
}
