package identity

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/krm"
)

// Workloads decides which workloads of a package get the identity infrastructure, and computes the
// settings of each. Functions add the custom resources that they read while the package is
// resolved; after that goroutines may call Identify concurrently.
type Workloads struct {
	base          Settings
	config        *api.Origin // nil for the defaults
	requireSpiffe bool
	index         *index.Index

	optOuts   map[*krm.Object]string // Namespaces, with the place of the label
	exchanges map[index.ID]*api.TokenExchange
	traces    map[index.ID]*api.AgentTrace
	runtimes  map[index.ID]*api.AgentRuntime

	shapes shapes
}

// NewWorkloads prepares the workloads of a package. config may be nil.
func NewWorkloads(profiles *Profiles, config *api.RenderConfig,
	ix *index.Index) (*Workloads, []finding.Finding) {
	w := &Workloads{
		index: ix, optOuts: make(map[*krm.Object]string),
		exchanges: make(map[index.ID]*api.TokenExchange),
		traces:    make(map[index.ID]*api.AgentTrace),
		runtimes:  make(map[index.ID]*api.AgentRuntime),
	}
	if config != nil {
		w.config = &config.Origin
		w.requireSpiffe = config.Spec.RequireSpiffeLabel != nil && *config.Spec.RequireSpiffeLabel
	}
	var findings []finding.Finding
	w.base, findings = profiles.Base(config)
	return w, findings
}

// Prefix returns the prefix of labels and annotations: "kagenti.io".
func (w *Workloads) Prefix() string { return w.base.Prefix }

// ReadNamespaces records the Namespaces that opt out of injection, when the index is complete.
func (w *Workloads) ReadNamespaces() (findings []finding.Finding) {
	for ns := range w.index.Namespaces() {
		out, at, found := NamespaceOptsOut(ns, w.base.Prefix)
		findings = append(findings, found...)
		if out {
			w.optOuts[ns] = fmt.Sprintf("%s:%d", ns.Origin.File, at.Line())
		}
	}
	return findings
}

// UseTokenExchange sets the TokenExchange of a workload.
func (w *Workloads) UseTokenExchange(id index.ID, te *api.TokenExchange) { w.exchanges[id] = te }

// UseAgentTrace sets the AgentTrace of a workload.
func (w *Workloads) UseAgentTrace(id index.ID, at *api.AgentTrace) { w.traces[id] = at }

// UseAgentRuntime sets the AgentRuntime of a workload.
func (w *Workloads) UseAgentRuntime(id index.ID, ar *api.AgentRuntime) { w.runtimes[id] = ar }

// AgentRuntime returns a workload's AgentRuntime, or nil.
func (w *Workloads) AgentRuntime(id index.ID) *api.AgentRuntime { return w.runtimes[id] }

// Profile returns the profile of the configuration.
func (w *Workloads) Profile() *Profile { return w.base.Profile }

// asked reports whether an AgentRuntime requests the identity infrastructure.
func (w *Workloads) asked(id index.ID) bool {
	ar := w.runtimes[id]
	return ar != nil && ar.Spec.Type == "agent"
}

// Judge returns the errors in a custom resource whose workload was not found. All other resources
// are checked with their workload. Two of te, at and ar are nil.
func (w *Workloads) Judge(o *krm.Object, te *api.TokenExchange, at *api.AgentTrace,
	ar *api.AgentRuntime) []finding.Finding {
	_, findings := Resolve(&w.base,
		Workload{Namespace: o.Namespace, Name: o.Name, SPIFFE: true, Runtime: ar}, te, at, nil)
	return slices.DeleteFunc(findings, func(f finding.Finding) bool { return f.Object != o.Ref })
}

// Concerns reports whether an object may be a workload that opts in or has a custom resource. It is
// cheap.
func (w *Workloads) Concerns(o *krm.Object) bool {
	return len(w.exchanges)+len(w.traces)+len(w.runtimes) > 0 || o.Contains(w.base.Prefix+"/")
}

// MentionsOptIn reports whether an object has the text of the label that opts in.
func (w *Workloads) MentionsOptIn(o *krm.Object) bool { return o.Contains(w.Prefix() + "/inject") }

// OptsIn reports whether an object is a workload that gets the identity infrastructure.
func (w *Workloads) OptsIn(o *krm.Object) bool {
	pod, ok := o.PodTemplate()
	if !ok {
		return false
	}
	opt, _ := optIn(o, pod, w.base.Prefix, w.requireSpiffe,
		len(w.runtimes) > 0 && w.asked(w.index.Find(o)))
	_, out := w.optOuts[w.index.Namespace(o)]
	return opt.Inject && !out
}

// Effective holds the settings of a workload and their inputs.
type Effective struct {
	// ID is the workload in the index.
	ID index.ID
	// Injected says that the workload gets the identity infrastructure, or the
	// tracing settings alone.
	Injected bool
	// Settings are the settings of an injected workload.
	Settings Settings

	annotations []Annotation // of the workload
	probes      []Probe
	ports       []int
	key         []byte // of its shape
	alone       bool   // it gets no sidecars
	labels      OptIn
	namespace   *krm.Object // the Namespace that opts out, or nil
}

// Identify computes the settings of a workload. alter changes the given settings; see
// Workload.Alter. The findings are appended to the given ones.
func (w *Workloads) Identify(e *Effective, o *krm.Object, pod krm.PodTemplate,
	alter func(Settings) Settings, findings []finding.Finding) []finding.Finding {
	report := func(severity finding.Severity, rule string, at krm.Node, message, hint string) {
		findings = append(findings, o.Finding(severity, rule, at, message, hint))
	}
	e.ID = w.index.Find(o)
	opt, found := optIn(o, pod, w.base.Prefix, w.requireSpiffe, w.asked(e.ID))
	findings = append(findings, found...)
	ns := w.index.Namespace(o)
	label, out := w.optOuts[ns]
	if out && opt.Inject {
		report(finding.Info, "inject/namespace-opts-out", o.Get("metadata", "namespace"),
			fmt.Sprintf("not injected: the Namespace %s opts out (%s)", ns.Name, label), "")
	}
	e.labels, e.alone, e.namespace = opt, out || !opt.Inject, nil
	if out {
		e.namespace = ns
	}
	te, at := w.exchanges[e.ID], w.traces[e.ID]
	if e.alone {
		if te = nil; at == nil || out || opt.Refused {
			return findings
		}
	}
	workload := Workload{
		APIVersion: o.APIVersion, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name,
		ServiceAccount: cmp.Or(pod.Spec().Get("serviceAccountName").Text(),
			pod.Spec().Get("serviceAccount").Text()),
		SPIFFE:    opt.Spiffe,
		Volumes:   authorVolumes(pod),
		TraceOnly: e.alone,
		File:      o.Origin.File, Line: o.Origin.Line,
		Runtime: w.runtimes[e.ID],
		Alter:   alter,
	}
	e.probes = appendProbes(e.probes[:0], pod)
	workload.Probes = e.probes
	if w.base.Profile.FollowsPorts {
		e.ports, workload.EnvPort = appendPorts(e.ports[:0], pod)
		workload.Ports = e.ports
	}
	if e.annotations = nil; !e.alone {
		e.annotations = annotationsOf(o, pod, w.base.Prefix+"/")
	}
	findings = append(findings, w.settle(e, workload, te, at)...)
	if e.alone && !e.Settings.Trace.Enabled {
		return findings
	}
	if strings.Contains(o.Kind, "/") {
		report(finding.Error, "inject/bad-name", o.Get("kind"),
			fmt.Sprintf("the API server refuses the kind %q", o.Kind),
			"write the kind only, without its group")
		return findings
	}
	for _, key := range [...]string{"name", "namespace"} {
		n := o.Get("metadata", key)
		text := n.Text()
		switch {
		case !n.IsScalar():
		// A value that starts with a letter and is not a YAML boolean is a string.
		case !scalar.Plain(text) && !n.IsText():
			report(finding.Error, "inject/no-text", n,
				fmt.Sprintf("the %s %s is not a string for the API server, but a number or a boolean",
					key, text), "put it between quotes")
			return findings
		case !ValidName(text), key == "namespace" && (len(text) > 63 || strings.Contains(text, ".")):
			report(finding.Error, "inject/bad-name", n,
				fmt.Sprintf("the API server refuses the %s %q", key, text), remedy(text,
					"use lower-case letters, digits and dashes, with a letter or digit at both ends"))
			return findings
		}
	}
	switch {
	case o.Kind == "CronJob" && len(o.Name) > 52:
		report(finding.Error, "inject/bad-name", o.Get("metadata", "name"), fmt.Sprintf("the API "+
			"server refuses the name %q of a CronJob, which has more than 52 characters", o.Name),
			"shorten it: its Jobs are named after it")
	case o.Name == "":
		report(finding.Error, "inject/no-name", o.Get("metadata"),
			"the workload has no metadata.name, after which its ConfigMaps are named",
			"write metadata.name")
	default:
		e.Injected = true
	}
	return findings
}

// settle computes the settings of a workload, or copies those of its shape.
func (w *Workloads) settle(e *Effective, of Workload, te *api.TokenExchange,
	at *api.AgentTrace) []finding.Finding {
	key, shared := of.appendShape(e.key[:0])
	e.key = key
	shared = shared && te == nil && at == nil && len(e.annotations) == 0
	if shared {
		if known := w.shapes.find(key); known != nil {
			e.Settings = known.settings
			e.Settings.Subject = of.subject()
			return e.Settings.account(of)
		}
	}

	of.Ports = slices.Clone(of.Ports)
	findings := e.Settings.resolve(&w.base, of, te, at, e.annotations)
	if shared && len(findings) == 0 && e.Settings.AuthBridge.Secret == w.base.AuthBridge.Secret {
		w.shapes.add(key, &e.Settings)
	}
	return findings
}

// Inputs returns the inputs from which the settings of a workload were merged. file is the
// workload's file.
func (w *Workloads) Inputs(e *Effective, file string) Inputs {
	settings := e.Settings
	in := Inputs{Config: w.config, Annotations: e.annotations, File: file, Settings: &settings}
	if te := w.exchanges[e.ID]; te != nil && !settings.TraceOnly {
		in.TokenExchange = &te.Origin
	}
	if at := w.traces[e.ID]; at != nil {
		in.AgentTrace = &at.Origin
	}
	if ar := w.runtimes[e.ID]; ar != nil && !settings.TraceOnly {
		in.AgentRuntime = &ar.Origin
	}
	return in
}

// Refuses returns the reason why a workload does not get the settings of its custom resource, and a
// hint. The caller sets trace for an AgentTrace, which also applies to a workload without a label.
func (w *Workloads) Refuses(e *Effective, trace bool) (what, hint string, refuses bool) {
	if !e.alone || trace && e.namespace == nil && !e.labels.Refused {
		return "", "", false
	}
	prefix := w.base.Prefix
	switch {
	case e.namespace != nil:
		return fmt.Sprintf("is in the Namespace %s, which opts out (%s)", e.namespace.Name,
			w.optOuts[e.namespace]), "change the label of the Namespace, or remove this object", true
	case e.labels.Refused:
		return "opts out", fmt.Sprintf("label it %s/inject: enabled, or remove this", prefix), true
	case e.labels.NoSPIFFELabel:
		return fmt.Sprintf("lacks the label %s/spiffe", prefix),
			fmt.Sprintf("label it %s/spiffe: enabled as well", prefix), true
	}
	hint = fmt.Sprintf("label it %s/inject: enabled", prefix)
	if w.requireSpiffe {
		hint += fmt.Sprintf(" and %s/spiffe: enabled", prefix)
	}
	return "does not opt in", hint, true
}

// Traced reports whether a workload has an AgentTrace.
func (w *Workloads) Traced(id index.ID) bool { return w.traces[id] != nil }

// annotationsOf returns the annotations of a workload and its pod template under a prefix.
func annotationsOf(o *krm.Object, pod krm.PodTemplate, prefix string) (found []Annotation) {
	for _, at := range pod.Metadata(o, "annotations") {
		for v := range at.Prefixed(prefix) {
			found = append(found, Annotation{Key: v.Key(), Value: v.Text(), Field: at.Path(),
				Line: v.Line()})
		}
	}
	return found
}

// grpcHealth is the path of a gRPC probe: grpc.health.v1, "GRPC Health Checking Protocol".
const grpcHealth = "/grpc.health.v1.Health/Check"

// Probe is a request of the kubelet, which has no token.
type Probe struct {
	Path string
	// Port is the port of the request, -1 for a name that the container does not declare. A probe
	// of port 0 counts for all ports.
	Port int
}

// appendProbes appends the requests of the kubelet, which have no token.
func appendProbes(found []Probe, pod krm.PodTemplate) []Probe {
	for c := range pod.Spec().Get("containers").Items() {
		for _, kind := range ProbeFields() {
			p := c.Get(kind)
			if !p.Exists() {
				continue
			}
			http, grpc := p.Get("httpGet"), p.Get("grpc")
			if path := http.Get("path"); path.IsScalar() {
				found = append(found, Probe{path.Text(), ProbedPort(c, http)})
			} else if http.IsMap() {
				found = append(found, Probe{"/", ProbedPort(c, http)})
			}
			if grpc.IsMap() {
				health := Probe{grpcHealth, ProbedPort(c, grpc)}
				if !slices.Contains(found, health) {
					found = append(found, health)
				}
			}
		}
	}
	return found
}

// ProbeFields returns the fields of a container that have probes.
func ProbeFields() []string { return []string{"livenessProbe", "readinessProbe", "startupProbe"} }

// ProbedPort returns the port of a probe's httpGet or grpc, which may be the name of one of the
// container's ports. It is -1 for a name that the container does not declare.
func ProbedPort(container, action krm.Node) int {
	at := action.Get("port")
	text := at.Text()
	if port, err := strconv.Atoi(text); err == nil {
		return port
	}
	for p := range container.Get("ports").Items() {
		if p.Get("name").Is(text) && at.Exists() {
			if port, err := strconv.Atoi(p.Get("containerPort").Text()); err == nil {
				return port
			}
			break
		}
	}
	return -1
}

// appendPorts appends the TCP ports that the containers of a pod declare, and returns the port
// that the author sets in the agent's variable PORT.
func appendPorts(ports []int, pod krm.PodTemplate) (all []int, env int) {
	for c := range pod.Spec().Get("containers").Items() {
		for _, port := range TCPPorts(c) {
			if port > 0 { // others are errors of the function inject
				ports = append(ports, port)
			}
		}
	}
	if text := PortVariable(AgentContainer(pod)).Get("value").Text(); validPort(text) {
		env, _ = strconv.Atoi(text)
	}
	return ports, env
}

// PortVariable returns the variable PORT of a container, with the port on which it listens. The
// last of several counts, as for the kubelet.
func PortVariable(container krm.Node) (port krm.Node) {
	for v := range container.Get("env").Items() {
		if v.Get("name").Is("PORT") {
			port = v
		}
	}
	return port
}

// AgentContainer returns the container whose port AuthBridge takes: the first with a TCP port, or
// else the first.
func AgentContainer(pod krm.PodTemplate) (agent krm.Node) {
	for c := range pod.Spec().Get("containers").Items() {
		if !agent.Exists() {
			agent = c
		}
		for range TCPPorts(c) {
			return c
		}
	}
	return agent
}

// Published names of the volumes that sidecars share, also with the application.
const (
	SharedVolume = "shared-data"
	SVIDVolume   = "svid-output"
)

// authorVolumes returns the author's volumes that the sidecars use: published applications declare
// shared-data themselves, to read the client's ID from it.
func authorVolumes(pod krm.PodTemplate) (found Volumes) {
	for v := range pod.Spec().Get("volumes").Items() {
		switch name := v.Get("name"); {
		case name.Is(SharedVolume):
			found.Shared = IsEmptyDir(v)
		case name.Is(SVIDVolume):
			found.SVID = IsEmptyDir(v)
		}
	}
	return found
}

// IsEmptyDir reports whether a volume is an emptyDir, explicitly or by having no source.
func IsEmptyDir(volume krm.Node) bool {
	for key, source := range volume.Fields() {
		if key != "name" && key != "emptyDir" && !source.IsNull() {
			return false
		}
	}
	return true
}
