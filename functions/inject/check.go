package inject

import (
	"cmp"
	"fmt"
	pathpkg "path"
	"slices"
	"strconv"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/functions/text"
)

// Check finds what would break a workload that is to be injected: names and
// ports that the sidecars take, the host's network.
func Check(o *krm.Object, s *identity.Settings) []finding.Finding {
	var findings []finding.Finding
	report := func(severity finding.Severity, rule string, at krm.Node, message, hint string) {
		findings = append(findings, o.Finding(severity, "inject/"+rule, at, message, hint))
	}
	pod, ok := o.PodTemplate()
	if !ok {
		report(finding.Error, "no-pod-template", krm.Node{},
			fmt.Sprintf("%s asks for injection but has no pod template", o.Ref), "remove the label")
		return findings
	}
	spec := pod.Spec()
	if n := spec.Get("hostNetwork"); n.Is("true") && s.On(sidecars.ProxyInit) {
		hint := fmt.Sprintf("drop hostNetwork, or annotate %s/proxy-init: disabled", s.Prefix)
		if s.Profile.FollowsPorts && s.On(sidecars.EnvoyProxy) { // which gets no traffic otherwise
			hint = fmt.Sprintf(
				"drop hostNetwork, or take the mode %s and annotate %s/proxy-init: disabled",
				identity.ModeProxySidecar, s.Prefix)
		}
		report(finding.Error, "host-network", n,
			"proxy-init would redirect the traffic of the whole node", hint)
	}
	for _, n := range [...]krm.Node{spec.Get("os", "name"),
		spec.Get("nodeSelector", "kubernetes.io/os")} {
		if n.Is("windows") && s.HasSidecars() {
			report(finding.Error, "windows", n,
				"the sidecars are Linux programs, and the pod runs on Windows",
				"opt the workload out")
		}
	}
	var few [8]string // most pods have no more containers
	seen := few[:0]
	for _, list := range [...]string{"initContainers", "containers"} {
		for c := range spec.Get(list).Items() {
			name := c.Get("name")
			switch text := name.Text(); {
			case text == "":
				report(finding.Error, "container-name", c, "a container without a name",
					"name it: Kubernetes demands it")
			case slices.Contains(seen, text):
				report(finding.Error, "container-name", name,
					fmt.Sprintf("a second container is named %q", text), "rename one of the two")
			default:
				seen = append(seen, text)
			}
			if !s.TraceOnly && s.Component(name.Text()) != nil {
				report(finding.Error, "reserved-container", name,
					fmt.Sprintf("%q is the name of an injected container", name.Text()),
					"rename it; if another tool injected it, take that out first (armature migrate)")
			}
		}
	}
	findings = append(findings, checkVolumes(o, spec, s)...)
	findings = append(findings, identity.CheckPorts(o, pod, s)...)
	findings = append(findings, checkHooks(o, spec, s)...)
	findings = append(findings, checkCloud(o, spec, s)...)
	findings = append(findings, checkAuthBridge(o, pod, s)...)
	proxyUID := strconv.Itoa(s.Outbound.ProxyUID)
	for c := range spec.Get("containers").Items() {
		for m := range c.Get("volumeMounts").Items() {
			if path := m.Get("mountPath"); path.Is(sidecars.TraceMountPath) && s.Trace.Enabled {
				report(finding.Error, "reserved-mount", path,
					"the tracing settings are mounted here", "mount yours elsewhere")
			}
		}
		if own := ownTelemetry(c); s.Trace.Enabled && own.Exists() {
			report(finding.Info, "own-telemetry", own,
				fmt.Sprintf("the application sets %s itself, so that its "+
					"SDK does not read %s", own.Get("name").Text(), sidecars.TraceConfigFile), "")
		}
		if uid := c.Get("securityContext", "runAsUser"); (s.On(sidecars.EnvoyProxy) ||
			s.On(sidecars.AuthBridgeProxy) && s.Outbound.Intercept) && uid.Is(proxyUID) {
			report(finding.Warning, "proxy-user", uid,
				"the application runs as the proxy's user, so none of its traffic is intercepted",
				"give it another runAsUser")
		}
	}
	return findings
}

// checkVolumes finds the author's volumes that have the name of an injected one.
// Those that the sidecars can use they share.
func checkVolumes(o *krm.Object, spec krm.Node, s *identity.Settings) (findings []finding.Finding) {
	reserved := sidecars.ReservedVolumes()
	for v := range spec.Get("volumes").Items() {
		name := v.Get("name")
		text := name.Text()
		shared := sidecars.Shares(s, text)
		switch {
		case slices.Contains(reserved, text):
			findings = append(findings,
				o.Finding(finding.Error, "inject/reserved-volume", name,
					fmt.Sprintf("%q is the name of an injected volume", text),
					"rename it; if another tool injected it, take that out first (armature migrate)"))
		case shared && !identity.IsEmptyDir(v):
			findings = append(findings,
				o.Finding(finding.Error, "inject/reserved-volume", name,
					fmt.Sprintf("the sidecars share the volume %q, and this one is not an emptyDir",
						name.Text()),
					"make it an emptyDir, or rename it"))
		case shared && !v.Get("emptyDir", "medium").Is("Memory"):
			findings = append(findings,
				o.Finding(finding.Info, "inject/shared-volume", name,
					fmt.Sprintf("the sidecars write the "+
						"client's ID, its secret and tokens to your volume %q, which is on the "+
						"node's disk", name.Text()),
					"set emptyDir.medium: Memory, so that they stay in memory"))
		}
	}
	return findings
}

// checkHooks finds lifecycle hooks by HTTP that lead through a proxy which demands a token
// of them. Their paths are not opened by themselves, because a hook changes something.
func checkHooks(o *krm.Object, spec krm.Node, s *identity.Settings) (findings []finding.Finding) {
	if !s.ValidatesInbound() {
		return nil
	}
	for c := range spec.Get("containers").Items() {
		for _, hook := range [...]struct {
			name     string
			severity finding.Severity
			effect   string
		}{{"postStart", finding.Error, "kills the container, again and again"},
			{"preStop", finding.Warning, "stops the container at once"}} {
			http := c.Get("lifecycle", hook.name, "httpGet")
			if !http.IsMap() || http.Get("host").IsScalar() ||
				!guards(s, hookPort(c, http.Get("port"))) {
				continue
			}
			path := cmp.Or(http.Get("path").Text(), "/")
			if open, ok := identity.OpenProbe(path); ok &&
				slices.Contains(s.Declared.ProbePaths, path) ||
				slices.ContainsFunc(s.Inbound.BypassPaths,
					func(p string) bool { match, _ := pathpkg.Match(p, open); return match }) {
				continue
			}
			findings = append(findings, o.Finding(hook.severity, "inject/hook-refused", http,
				fmt.Sprintf("the kubelet has no token, so that the proxy refuses its request for "+
					"%q, and the kubelet %s", text.Shown(path), hook.effect),
				fmt.Sprintf(
					"let the hook run a program (exec), or open the path to everybody with the "+
						"annotation %s/%s", s.Prefix, identity.InboundBypassPaths)))
		}
	}
	return findings
}

// hookPort is the number of a port that a hook names; 0 where the container has none of the name.
func hookPort(c, port krm.Node) int {
	if number, ok := port.Int(); ok {
		return number
	}
	number, _ := c.Get("ports").Named("name", port.Text()).Get("containerPort").Int()
	return number
}

// guards reports whether a proxy takes what arrives at a port of the pod.
func guards(s *identity.Settings, port int) bool {
	if s.On(sidecars.EnvoyProxy) && s.Outbound.Intercept {
		return !slices.Contains(s.Outbound.ExcludeInboundPorts, port)
	}
	return port == s.Inbound.Port
}
