package functions

import (
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/inject"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/overcommit"
	"github.com/armature-dev/armature/functions/scalar"
)

// Unit is one object on its way through the functions. A Unit is used for one
// object after the other; it keeps scratch memory between them.
type Unit struct {
	*krm.Object
	*Package

	// Findings are about this object.
	Findings []krm.Finding
	// Generated are the documents that belong behind the object.
	Generated []Generated
	// Hosted says that a host passes the objects, in a ResourceList.
	Hosted bool
	// Alter changes the settings of a workload before what follows from them is
	// worked out; nil changes nothing. What a setting decides is what differs.
	Alter func(identity.Settings) identity.Settings
	// Consumed says that the object was input and leaves the output.
	Consumed bool
	// Expansion are the texts of the objects that it stands for.
	Expansion [][]byte

	entry    int32 // in the package
	workload bool
	settings identity.Settings
	said     []identity.Annotation // by the workload

	injector inject.Injector
	common   map[common]*krm.Block
	scratch  []byte

	settled krm.Object // what functions after the injection see
	text    []byte     // of it
	changes krm.Changes
	// remembered is the class that an earlier render applied.
	remembered *overcommit.Class
}

// Remember notes what an object tells of an earlier render that cannot be seen
// once that render is undone. It is called before Start.
func (u *Unit) Remember(o *krm.Object) { u.remembered = overcommit.Remembered(o) }

// Start makes the unit ready for its next object and decides whether it is a
// workload that gets the identity infrastructure.
func (u *Unit) Start(p *Package, o *krm.Object) {
	u.Object, u.Package = o, p
	u.Findings, u.Generated = u.Findings[:0], u.Generated[:0]
	u.Consumed, u.workload, u.Expansion = false, false, nil
	u.changes.Reset()
	u.changes.Version, u.changes.Hosted = p.Version, u.Hosted
	u.injector.Version, u.injector.Classic, u.injector.Hosted = p.Version, p.Classic(), u.Hosted
	if !o.Contains(p.Prefix()+"/") && len(p.exchangeOf)+len(p.traceOf) == 0 {
		return
	}
	u.identify()
}

// settle applies the edits that wait, so that a function sees every container,
// injected ones too.
func (u *Unit) settle() bool {
	if u.Object == &u.settled || !u.Edited() {
		return true
	}
	var err error
	if u.text, err = u.settled.Settle(u.Object, u.text); err != nil {
		u.report(krm.Error, "package/layout", krm.Node{}, err.Error(), "write the object in block style")
		return false
	}
	u.Object = &u.settled
	return true
}

// Finish makes the changes that functions noted, after the last of them.
func (u *Unit) Finish() {
	if krm.Failed(u.Findings) {
		return
	}
	if err := u.changes.Apply(u.Object); err != nil {
		u.report(krm.Error, "package/layout", krm.Node{}, err.Error(), "write the object in block style, with each value on one line")
		return
	}
	if why, rewritten := u.Rewritten(); rewritten && u.changes.Any() {
		u.reportRewritten("package/rewritten", why)
	}
}

// reportRewritten says that not only the lines that had to change did.
func (u *Unit) reportRewritten(rule, why string) {
	message := fmt.Sprintf("written anew in block style, because of %s", why)
	if !u.Hosted {
		message += "; `armature uninject` gives the original back"
	}
	u.report(krm.Info, rule, krm.Node{}, message, "")
}

func (u *Unit) report(severity krm.Severity, rule string, at krm.Node, message, hint string) {
	u.Findings = append(u.Findings, u.Finding(severity, rule, at, message, hint))
}

// identify reads the labels and computes the settings of a workload.
func (u *Unit) identify() {
	pod, ok := u.PodTemplate()
	if !ok {
		if strings.HasSuffix(u.Kind, "List") && u.Get("items").IsList() && u.Contains(u.Prefix()+"/inject") {
			reason := "because it is in a list itself"
			if why, _ := u.Rewritten(); why != "" {
				reason = "because of " + why
			}
			u.report(krm.Error, "package/list-layout", u.Get("items"),
				fmt.Sprintf("the items of this %s cannot be rendered one by one, %s", u.Kind, reason), "write its items as documents of their own")
		}
		return
	}
	u.entry = u.index(u.Object)
	exchange, trace := u.exchangeOf[u.entry], u.traceOf[u.entry]
	opt, findings := inject.Labels(u.Object, pod, u.Prefix(), u.Config.RequireSpiffeLabel != nil && *u.Config.RequireSpiffeLabel)
	u.Findings = append(u.Findings, findings...)
	ns, out := u.optedOut(u.Object)
	if out && opt.Inject {
		u.report(krm.Info, "inject/namespace-opts-out", u.Get("metadata", "namespace"),
			fmt.Sprintf("not injected: the Namespace %s says no (%s)", ns.Name, ns.label), "")
	}
	alone := out || !opt.Inject
	if alone {
		if exchange != nil {
			u.unused("token-exchange", exchange.Object, opt, ns, out)
			exchange = nil
		}
		if trace == nil {
			return
		}
		if out || opt.Refused {
			u.unused("agent-trace", trace.Object, opt, ns, out)
			return
		}
	}
	workload := identity.Workload{
		APIVersion: u.APIVersion, Kind: u.Kind, Namespace: u.Namespace, Name: u.Name,
		ServiceAccount: pod.Spec().Get("serviceAccountName").Text(),
		SPIFFE:         opt.Spiffe,
		ProbePaths:     probePaths(pod),
		Volumes:        inject.AuthorVolumes(pod),
		TraceOnly:      alone,
		File:           u.Origin.File, Line: u.Origin.Line,
		Alter: u.Alter,
	}
	if u.said = nil; !alone {
		u.said = u.annotations(pod)
	}
	var te *api.TokenExchange
	if exchange != nil {
		te = &exchange.value
	}
	var at *api.AgentTrace
	if trace != nil {
		at = &trace.value
	}
	u.settings, findings = identity.Resolve(&u.base, workload, te, at, u.said)
	u.Findings = append(u.Findings, findings...)
	for _, key := range [...]string{"name", "namespace"} {
		// What starts with a letter and is no word for yes or no is surely a text.
		if n := u.Get("metadata", key); n.IsScalar() && !scalar.Plain(n.Text()) && !n.IsText() {
			u.report(krm.Error, "inject/no-text", n, fmt.Sprintf("the %s %s is no text for the API server, but a number, or yes or no", key, n.Text()), "put it between quotes")
			return
		}
	}
	if u.Name == "" {
		u.report(krm.Error, "inject/no-name", u.Get("metadata"), "the workload has no metadata.name, after which its ConfigMaps are named", "name it")
		return
	}
	u.workload = true
}

// unused warns about a custom resource whose workload does not get what it
// configures, and says what to add.
func (u *Unit) unused(function string, o *krm.Object, opt inject.OptIn, ns namespace, out bool) {
	what, hint := "does not opt in", fmt.Sprintf("label it %s/inject: enabled", u.Prefix())
	if u.Config.RequireSpiffeLabel != nil && *u.Config.RequireSpiffeLabel {
		hint += fmt.Sprintf(" and %s/spiffe: enabled", u.Prefix())
	}
	switch {
	case out:
		what, hint = fmt.Sprintf("is in the Namespace %s, which says no (%s)", ns.Name, ns.label), "change that label, or remove this"
	case opt.Refused:
		what, hint = "opts out", fmt.Sprintf("label it %s/inject: enabled, or remove this", u.Prefix())
	case opt.NoSPIFFELabel:
		what, hint = fmt.Sprintf("lacks the label %s/spiffe", u.Prefix()), fmt.Sprintf("label it %s/spiffe: enabled as well", u.Prefix())
	}
	u.Findings = append(u.Findings, o.Finding(krm.Warning, function+"/target-not-injected", o.Get("spec", "targetRef"),
		fmt.Sprintf("%s (%s:%d) %s, so this has no effect", u.Ref, u.Origin.File, u.Origin.Line, what), hint))
}

// annotations gathers what the workload and its pod template say under our prefix.
func (u *Unit) annotations(pod krm.PodTemplate) (found []identity.Annotation) {
	prefix := u.Prefix() + "/"
	own, template := u.Get("metadata", "annotations"), pod.Template.Get("metadata", "annotations")
	for _, at := range [...]krm.Node{own, template} {
		for v := range at.Prefixed(prefix) {
			found = append(found, identity.Annotation{Key: v.Key(), Value: v.Text(), Field: at.Path(), Line: v.Line()})
		}
		if pod.Path == "" {
			break // a Pod is its own template
		}
	}
	return found
}

// grpcHealth is where a gRPC probe goes: grpc.health.v1, "GRPC Health Checking
// Protocol".
const grpcHealth = "/grpc.health.v1.Health/Check"

// probePaths gathers what the kubelet asks for without a token.
func probePaths(pod krm.PodTemplate) (paths []string) {
	for c := range pod.Spec().Get("containers").Items() {
		for _, probe := range [...]string{"livenessProbe", "readinessProbe", "startupProbe"} {
			p := c.Get(probe)
			if !p.Exists() {
				continue
			}
			http, grpc := p.Get("httpGet"), p.Get("grpc")
			if path := http.Get("path"); path.IsScalar() {
				paths = append(paths, path.Text())
			} else if http.IsMap() {
				paths = append(paths, "/")
			}
			if grpc.IsMap() && !slices.Contains(paths, grpcHealth) {
				paths = append(paths, grpcHealth)
			}
		}
	}
	return paths
}

// Settings gives the effective settings of a workload that is injected.
func (u *Unit) Settings() *identity.Settings { return &u.settings }

// Inputs gives what they were merged from.
func (u *Unit) Inputs() identity.Inputs {
	settings := u.settings
	in := identity.Inputs{Config: u.configured, Annotations: u.said, File: u.Origin.File, Settings: &settings}
	if c := u.exchangeOf[u.entry]; c != nil && !settings.TraceOnly {
		in.TokenExchange = &c.value.Origin
	}
	if c := u.traceOf[u.entry]; c != nil {
		in.AgentTrace = &c.value.Origin
	}
	return in
}

// Injected reports whether the object is a workload that gets the identity
// infrastructure, or the tracing settings alone.
func (u *Unit) Injected() bool { return u.workload }
