package inject

import (
	"cmp"
	"fmt"
	"iter"
	pathpkg "path"
	"slices"
	"strconv"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/functions/text"
)

// checker checks a workload before its injection.
type checker struct {
	*identity.Settings
	o        *krm.Object
	pod      krm.PodTemplate
	findings []finding.Finding
}

func (c *checker) report(severity finding.Severity, rule string, at krm.Node, message,
	hint string) {
	c.findings = append(c.findings, c.o.Finding(severity, "inject/"+rule, at, message, hint))
}

func (c *checker) error(rule string, at krm.Node, message, hint string) {
	c.report(finding.Error, rule, at, message, hint)
}

// containers yields the author's containers without the init containers.
func (c *checker) containers() iter.Seq[krm.Node] { return c.pod.Spec().Get("containers").Items() }

// Check returns the findings about conflicts of a workload with its injection: names and ports that
// the sidecars use, and the host's network.
func Check(o *krm.Object, s *identity.Settings) []finding.Finding {
	c := &checker{Settings: s, o: o}
	var ok bool
	if c.pod, ok = o.PodTemplate(); !ok {
		c.error("no-pod-template", krm.Node{},
			fmt.Sprintf("%s asks for injection but has no pod template", o.Ref), "remove the label")
		return c.findings
	}
	c.node()
	c.names()
	c.volumes()
	c.findings = append(c.findings, sidecars.CheckPorts(o, c.pod, s)...)
	c.hooks()
	c.cloud()
	c.authBridge()
	c.traces()
	for container := range c.containers() {
		if uid := container.Get("securityContext", "runAsUser"); (s.On(sidecars.EnvoyProxy) ||
			s.On(sidecars.AuthBridgeProxy) && s.Outbound.Intercept) &&
			uid.Is(strconv.Itoa(s.Outbound.ProxyUID)) {
			c.report(finding.Warning, "proxy-user", uid,
				"the application runs as the proxy's user, so none of its traffic is intercepted",
				"give it another runAsUser")
		}
	}
	return c.findings
}

// node reports effects of the sidecars on the node, and nodes on which they cannot run.
func (c *checker) node() {
	spec := c.pod.Spec()
	if n := spec.Get("hostNetwork"); n.Is("true") && c.On(sidecars.ProxyInit) {
		hint := fmt.Sprintf("drop hostNetwork, or annotate %s/proxy-init: disabled", c.Prefix)
		if c.Profile.FollowsPorts && c.On(sidecars.EnvoyProxy) { // Envoy would get no traffic
			hint = fmt.Sprintf(
				"drop hostNetwork, or take the mode %s and annotate %s/proxy-init: disabled",
				identity.ModeProxySidecar, c.Prefix)
		}
		c.error("host-network", n, "proxy-init would redirect the traffic of the whole node", hint)
	}
	for _, n := range [...]krm.Node{spec.Get("os", "name"),
		spec.Get("nodeSelector", "kubernetes.io/os")} {
		if n.Is("windows") && c.HasSidecars() {
			c.error("windows", n, "the sidecars are Linux programs, and the pod runs on Windows",
				"opt the workload out")
		}
	}
}

// names reports containers without a unique name.
func (c *checker) names() {
	var few [8]string // most pods have no more containers
	seen := few[:0]
	for _, container := range c.pod.Containers() {
		name := container.Get("name")
		switch text := name.Text(); {
		case text == "":
			c.error("container-name", container, "a container without a name",
				"name it: Kubernetes demands it")
		case slices.Contains(seen, text):
			c.error("container-name", name, fmt.Sprintf("a second container is named %q", text),
				"rename one of the two")
		default:
			seen = append(seen, text)
		}
		if text := name.Text(); !c.TraceOnly && c.Component(text) != nil {
			c.error("reserved-container", name,
				fmt.Sprintf("%q is the name of an injected container", text),
				"rename it; if another tool injected it, take that out first (armature migrate)")
		}
	}
}

// traces reports applications that do not get the tracing settings.
func (c *checker) traces() {
	if !c.Trace.Enabled {
		return
	}
	for container := range c.containers() {
		for m := range container.Get("volumeMounts").Items() {
			if path := m.Get("mountPath"); path.Is(sidecars.TraceMountPath) {
				c.error("reserved-mount", path, "the tracing settings are mounted here",
					"mount yours elsewhere")
			}
		}
		if own := ownTelemetry(container); own.Exists() {
			c.report(finding.Info, "own-telemetry", own,
				fmt.Sprintf("the application sets %s itself, so that its SDK does not read %s",
					own.Get("name").Text(), sidecars.TraceConfigFile), "")
		}
	}
}

// volumes reports the author's volumes that have the name of an injected one. Sidecars share
// volumes of a suitable type.
func (c *checker) volumes() {
	reserved := sidecars.ReservedVolumes()
	for v := range c.pod.Spec().Get("volumes").Items() {
		name := v.Get("name")
		text := name.Text()
		shared := sidecars.Shares(c.Settings, text)
		switch {
		case slices.Contains(reserved, text):
			c.error("reserved-volume", name, fmt.Sprintf("%q is the name of an injected volume", text),
				"rename it; if another tool injected it, take that out first (armature migrate)")
		case shared && !identity.IsEmptyDir(v):
			c.error("reserved-volume", name, fmt.Sprintf(
				"the sidecars share the volume %q, and this one is not an emptyDir", text),
				"make it an emptyDir, or rename it")
		case shared && !v.Get("emptyDir", "medium").Is("Memory"):
			c.report(finding.Info, "shared-volume", name,
				fmt.Sprintf("the sidecars write the client's ID, its secret and tokens to your "+
					"volume %q, which is on the node's disk", text),
				"set emptyDir.medium: Memory, so that they stay in memory")
		}
	}
}

// hooks reports lifecycle hooks by HTTP that reach a proxy which demands a token. Their paths are
// not opened automatically, because a hook changes something.
func (c *checker) hooks() {
	if !c.ValidatesInbound() {
		return
	}
	for container := range c.containers() {
		for _, hook := range [...]struct {
			name     string
			severity finding.Severity
			effect   string
		}{{"postStart", finding.Error, "kills the container, again and again"},
			{"preStop", finding.Warning, "stops the container at once"}} {
			http := container.Get("lifecycle", hook.name, "httpGet")
			if !http.IsMap() || http.Get("host").IsScalar() ||
				!guards(c.Settings, hookPort(container, http.Get("port"))) {
				continue
			}
			path := cmp.Or(http.Get("path").Text(), "/")
			if open, ok := identity.OpenProbe(path); ok &&
				slices.Contains(c.Declared.ProbePaths, path) ||
				slices.ContainsFunc(c.Inbound.BypassPaths,
					func(p string) bool { match, _ := pathpkg.Match(p, open); return match }) {
				continue
			}
			c.report(hook.severity, "hook-refused", http,
				fmt.Sprintf("the kubelet has no token, so that the proxy refuses its request for "+
					"%q, and the kubelet %s", text.Shown(path), hook.effect),
				fmt.Sprintf("let the hook run a program (exec), or open the path to everybody "+
					"with the annotation %s/%s", c.Prefix, identity.InboundBypassPaths))
		}
	}
}

// hookPort returns the number of the port of a hook, or 0 if the container has no port of that
// name.
func hookPort(c, port krm.Node) int {
	if number, ok := port.Int(); ok {
		return number
	}
	number, _ := c.Get("ports").Named("name", port.Text()).Get("containerPort").Int()
	return number
}

// guards reports whether a proxy handles requests to a port of the pod.
func guards(s *identity.Settings, port int) bool {
	if s.On(sidecars.EnvoyProxy) && s.Outbound.Intercept {
		return !slices.Contains(s.Outbound.ExcludeInboundPorts, port)
	}
	return port == s.Inbound.Port
}
