package inject

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/armature-dev/armature/functions/agenttrace"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/profile"
)

// Check finds what would break a workload that is to be injected: names and
// ports that the sidecars take, the host's network, a Job that classic
// sidecars would keep from finishing.
func Check(o *krm.Object, s *identity.Settings, classic bool) []krm.Finding {
	var findings []krm.Finding
	report := func(severity krm.Severity, rule string, at krm.Node, message, hint string) {
		findings = append(findings, o.Finding(severity, "inject/"+rule, at, message, hint))
	}
	pod, ok := o.PodTemplate()
	if !ok {
		report(krm.Error, "no-pod-template", krm.Node{}, fmt.Sprintf("%s asks for injection but has no pod template", o.Ref), "remove the label")
		return findings
	}
	spec := pod.Spec()
	if n := spec.Get("hostNetwork"); n.Is("true") && s.On(profile.ProxyInit) {
		report(krm.Error, "host-network", n, "proxy-init would redirect the traffic of the whole node",
			fmt.Sprintf("drop hostNetwork, or annotate %s/proxy-init: disabled", s.Prefix))
	}
	if classic && !s.TraceOnly && (o.Kind == "Job" || o.Kind == "CronJob") {
		report(krm.Error, "job-never-finishes", krm.Node{}, "sidecars as classic containers keep running after the application, so the Job never finishes",
			"set spec.sidecars: native in the RenderConfig (Kubernetes 1.29 and later), or opt the Job out")
	}
	var few [8]string // most pods have no more containers
	seen := few[:0]
	for _, list := range [...]string{"initContainers", "containers"} {
		for c := range spec.Get(list).Items() {
			name := c.Get("name")
			switch text := name.Text(); {
			case text == "":
				report(krm.Error, "container-name", c, "a container without a name", "name it: Kubernetes demands it")
			case slices.Contains(seen, text):
				report(krm.Error, "container-name", name, fmt.Sprintf("a second container is named %q", text), "rename one of the two")
			default:
				seen = append(seen, text)
			}
			if !s.TraceOnly && s.Component(name.Text()) != nil {
				report(krm.Error, "reserved-container", name, fmt.Sprintf("%q is the name of an injected container", name.Text()),
					"rename it; if another tool injected it, take that out first (armature migrate)")
			}
		}
	}
	findings = append(findings, checkVolumes(o, spec, s)...)
	findings = append(findings, checkPorts(o, spec, s)...)
	findings = append(findings, checkCloud(o, spec, s)...)
	findings = append(findings, checkAuthBridge(o, pod, s)...)
	proxyUID := strconv.Itoa(s.Outbound.ProxyUID)
	for c := range spec.Get("containers").Items() {
		for m := range c.Get("volumeMounts").Items() {
			if path := m.Get("mountPath"); path.Is(agenttrace.MountPath) {
				report(krm.Error, "reserved-mount", path, "the tracing settings are mounted here", "mount yours elsewhere")
			}
		}
		if uid := c.Get("securityContext", "runAsUser"); (s.On(profile.EnvoyProxy) || s.On(profile.AuthBridgeProxy) && s.Outbound.Intercept) && uid.Is(proxyUID) {
			report(krm.Warning, "proxy-user", uid, "the application runs as the proxy's user, so none of its traffic is intercepted",
				"give it another runAsUser")
		}
	}
	return findings
}

// checkVolumes finds the author's volumes that have the name of an injected one.
// Those that the sidecars can use they share.
func checkVolumes(o *krm.Object, spec krm.Node, s *identity.Settings) (findings []krm.Finding) {
	reserved := profile.ReservedVolumes()
	for v := range spec.Get("volumes").Items() {
		name := v.Get("name")
		text := name.Text()
		shared := profile.Shares(s, text)
		switch {
		case slices.Contains(reserved, text):
			findings = append(findings, o.Finding(krm.Error, "inject/reserved-volume", name, fmt.Sprintf("%q is the name of an injected volume", text),
				"rename it; if another tool injected it, take that out first (armature migrate)"))
		case shared && !identity.IsEmptyDir(v):
			findings = append(findings, o.Finding(krm.Error, "inject/reserved-volume", name, fmt.Sprintf("the sidecars share the volume %q, and this one is not an emptyDir", name.Text()),
				"make it an emptyDir, or rename it"))
		case shared && !v.Get("emptyDir", "medium").Is("Memory"):
			findings = append(findings, o.Finding(krm.Info, "inject/shared-volume", name, fmt.Sprintf("the sidecars write the client's ID, its secret and tokens to your volume %q, which is on the node's disk", name.Text()),
				"set emptyDir.medium: Memory, so that they stay in memory"))
		}
	}
	return findings
}

// checkPorts compares the TCP ports of the author's containers with those that
// the sidecars listen on. All of them share the pod's network.
func checkPorts(o *krm.Object, spec krm.Node, s *identity.Settings) (findings []krm.Finding) {
	var few [8]int // most pods have no more ports
	declared := few[:0]
	ports := func(visit func(at krm.Node, port int)) {
		for _, list := range [...]string{"initContainers", "containers"} {
			for c := range spec.Get(list).Items() {
				for p := range c.Get("ports").Items() {
					if protocol := p.Get("protocol"); protocol.Is("UDP") || protocol.Is("SCTP") {
						continue // which have ports of their own
					}
					n := p.Get("containerPort")
					if port, ok := n.Int(); ok {
						visit(n, port)
					}
				}
			}
		}
	}
	ports(func(_ krm.Node, port int) { declared = append(declared, port) })
	taken := s.InjectedPorts()
	clash := func(port int) int {
		return slices.IndexFunc(taken, func(l identity.Listener) bool { return l.Port == port })
	}
	if slices.ContainsFunc(declared, func(port int) bool { return clash(port) >= 0 }) {
		ports(func(at krm.Node, port int) {
			if i := clash(port); i >= 0 {
				findings = append(findings, o.Finding(krm.Error, "inject/port-clash", at,
					fmt.Sprintf("port %d belongs to %s", port, taken[i].Name), portRemedy(s, taken[i], &declared)))
			}
		})
	}
	if s.On(profile.AuthProxy) && len(declared) > 0 && !slices.Contains(declared, s.Inbound.TargetPort) && !krm.Failed(findings) {
		findings = append(findings, o.Finding(krm.Warning, "inject/target-port", spec.Get("containers"),
			fmt.Sprintf("auth-proxy forwards to port %d, which no container declares", s.Inbound.TargetPort),
			fmt.Sprintf("annotate %s: \"%d\"", s.TargetPortAnnotation(), declared[0])))
	}
	return findings
}

// portRemedy says how an application keeps a port that it declares. A port that
// it gives away counts as declared from then on.
func portRemedy(s *identity.Settings, l identity.Listener, declared *[]int) string {
	switch {
	case l.Annotation() == "":
		return fmt.Sprintf("move the application to another port, because this one is built into the injected program; or do without that program: annotate %s/%s: disabled", s.Prefix, l.Component)
	case l.Name == profile.AuthProxy && !slices.Contains(*declared, s.Inbound.TargetPort): // which is free for it
		*declared = append(*declared, s.Inbound.TargetPort)
		return fmt.Sprintf("annotate %s: \"%d\" and %s: \"%d\"", s.TargetPortAnnotation(), l.Port, l.Annotation(), s.Inbound.TargetPort)
	}
	free := s.FreePort(l.Port, *declared)
	*declared = append(*declared, free)
	return fmt.Sprintf("annotate %s: \"%d\"", l.Annotation(), free)
}
