package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/krm"
)

// podSecurity holds a pod against the level that its namespace enforces: the
// Pod Security Standards at their latest version. The checks are Kubernetes'
// own (k8s.io/pod-security-admission), written again because that package takes
// the API's types, which would make every start of the program slower; a test
// asks both about the same pods.
func podSecurity(c *checker) {
	level := c.namespaces[c.Namespace].enforce
	if !c.isPod || level != "baseline" && level != "restricted" {
		return
	}
	s := security{spec: c.pod.Spec(), metadata: c.pod.Template.Get("metadata")}
	s.containers(c.facts)
	s.baseline()
	if level == "restricted" {
		s.restricted()
	}
	for _, v := range s.violations {
		hint := fmt.Sprintf("change it, or relax the label pod-security.kubernetes.io/enforce of the Namespace %s", c.Namespace)
		if v.container == "proxy-init" && c.facts.injected {
			hint = fmt.Sprintf("proxy-init needs root and NET_ADMIN: enforce privileged in the Namespace %s, or annotate the workload %s/proxy-init: disabled", c.Namespace, c.prefix)
		}
		c.report(v.at, fmt.Sprintf("the Namespace %s enforces %s: %s", c.Namespace, level, v.message), hint)
	}
}

// security gathers what a pod violates.
type security struct {
	spec, metadata krm.Node
	list           []container
	violations     []violation
}

type violation struct {
	container string // "" for the pod
	at        krm.Node
	message   string
}

func (s *security) containers(p *pod) {
	s.list = slices.Clone(p.containers)
	for n := range s.spec.Get("ephemeralContainers").Items() {
		s.list = append(s.list, container{name: n.Get("name").Text(), node: n})
	}
}

// add notes a violation of the pod itself.
func (s *security) add(at krm.Node, format string, args ...any) {
	s.violations = append(s.violations, violation{"", at, fmt.Sprintf(format, args...)})
}

// of notes a violation of a container.
func (s *security) of(c *container, at krm.Node, format string, args ...any) {
	if !at.Exists() {
		at = c.node.Get("name")
	}
	s.violations = append(s.violations, violation{c.name, at, c.name + " " + fmt.Sprintf(format, args...)})
}

func (s *security) windows() bool { return s.spec.Get("os", "name").Is("windows") }

// userNamespace reports whether the pod's users are not those of the node.
func (s *security) userNamespace() bool { return s.spec.Get("hostUsers").Is("false") }

var baselineCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
	"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
	"net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_notsent_lowat",
}

func (s *security) baseline() {
	for _, field := range [...]string{"hostNetwork", "hostPID", "hostIPC"} {
		if n := s.spec.Get(field); n.Is("true") {
			s.add(n, "%s shares the node's", field)
		}
	}
	for v := range s.spec.Get("volumes").Items() {
		if n := v.Get("hostPath"); n.Exists() {
			s.add(n, "the volume %s is a hostPath", v.Get("name").Text())
		}
	}
	for x := range s.spec.Get("securityContext", "sysctls").Items() {
		if name := x.Get("name"); !slices.Contains(safeSysctls, name.Text()) {
			s.add(name, "the sysctl %s is not a safe one", name.Text())
		}
	}
	for key, value := range s.metadata.Get("annotations").Fields() {
		if profile := value.Text(); strings.HasPrefix(key, "container.apparmor.security.beta.kubernetes.io/") &&
			profile != "" && profile != "runtime/default" && !strings.HasPrefix(profile, "localhost/") {
			s.add(value, "the AppArmor profile %q", profile)
		}
	}
	s.baselineContext(nil, s.spec.Get("securityContext"))
	for i := range s.list {
		c := &s.list[i]
		context := c.node.Get("securityContext")
		s.baselineContext(c, context)
		if n := context.Get("privileged"); n.Is("true") {
			s.of(c, n, "is privileged")
		}
		for x := range context.Get("capabilities", "add").Items() {
			if !slices.Contains(baselineCapabilities, x.Text()) {
				s.of(c, x, "adds the capability %s", x.Text())
			}
		}
		if n := context.Get("procMount"); n.IsScalar() && !n.Is("Default") && !s.userNamespace() {
			s.of(c, n, "has procMount %s", n.Text())
		}
		for p := range c.node.Get("ports").Items() {
			if n := p.Get("hostPort"); n.IsScalar() && !n.Is("0") {
				s.of(c, n, "takes port %s of the node", n.Text())
			}
		}
		s.probeHosts(c)
	}
}

// baselineContext judges what a pod's and a container's security context have
// in common. c is nil for the pod's.
func (s *security) baselineContext(c *container, context krm.Node) {
	report := func(at krm.Node, format string, args ...any) {
		if c != nil {
			s.of(c, at, format, args...)
		} else {
			s.add(at, "the pod "+format, args...)
		}
	}
	se := context.Get("seLinuxOptions")
	if n := se.Get("type"); n.Text() != "" && !slices.Contains([]string{"container_t", "container_init_t", "container_kvm_t", "container_engine_t"}, n.Text()) {
		report(n, "has the SELinux type %s", n.Text())
	}
	for _, field := range [...]string{"user", "role"} {
		if n := se.Get(field); n.Text() != "" {
			report(n, "sets the SELinux %s", field)
		}
	}
	if n := context.Get("seccompProfile", "type"); context.Get("seccompProfile").IsMap() && !confined(n) {
		report(n, "has the seccomp profile %s", n.Text())
	}
	if n := context.Get("appArmorProfile", "type"); context.Get("appArmorProfile").IsMap() && !confined(n) {
		report(n, "has the AppArmor profile %s", n.Text())
	}
	if n := context.Get("windowsOptions", "hostProcess"); n.Is("true") {
		report(n, "is a host process")
	}
}

// confined reports whether a seccomp or AppArmor profile confines anything.
func confined(n krm.Node) bool { return n.Is("RuntimeDefault") || n.Is("Localhost") }

func (s *security) probeHosts(c *container) {
	for _, at := range [...]krm.Node{
		c.node.Get("livenessProbe"), c.node.Get("readinessProbe"), c.node.Get("startupProbe"),
		c.node.Get("lifecycle", "postStart"), c.node.Get("lifecycle", "preStop"),
	} {
		for _, action := range [...]string{"httpGet", "tcpSocket"} {
			if n := at.Get(action, "host"); n.Text() != "" {
				s.of(c, n, "sends a probe to the host %s", n.Text())
			}
		}
	}
}

// restrictedVolumes are the sources that "restricted" lets pods have.
var restrictedVolumes = []string{
	"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
}

func (s *security) restricted() {
	for v := range s.spec.Get("volumes").Items() {
		for field, n := range v.Fields() {
			if field != "name" && field != "hostPath" && !slices.Contains(restrictedVolumes, field) {
				s.add(n, "the volume %s is of the type %s", v.Get("name").Text(), field)
			}
		}
	}
	pod := s.spec.Get("securityContext")
	if n := pod.Get("runAsNonRoot"); n.Is("false") && !s.userNamespace() {
		s.add(n, "the pod may run as root")
	}
	if n := pod.Get("runAsUser"); n.Is("0") && !s.userNamespace() {
		s.add(n, "the pod runs as root")
	}
	for i := range s.list {
		c := &s.list[i]
		context := c.node.Get("securityContext")
		if !s.userNamespace() {
			s.root(c, context, pod)
		}
		if n := context.Get("procMount"); n.IsScalar() && !n.Is("Default") && s.userNamespace() {
			s.of(c, n, "has procMount %s", n.Text())
		}
		if s.windows() {
			continue
		}
		if n := context.Get("allowPrivilegeEscalation"); !n.Is("false") {
			s.of(c, n, "lacks allowPrivilegeEscalation: false")
		}
		s.capabilities(c, context)
		if !context.Get("seccompProfile").IsMap() && !confined(pod.Get("seccompProfile", "type")) {
			s.of(c, krm.Node{}, "lacks seccompProfile.type: RuntimeDefault")
		}
	}
}

func (s *security) root(c *container, context, pod krm.Node) {
	switch n := context.Get("runAsNonRoot"); {
	case n.Is("true"):
	case n.Is("false"):
		s.of(c, n, "may run as root")
	case !pod.Get("runAsNonRoot").Is("true"):
		s.of(c, krm.Node{}, "lacks runAsNonRoot: true")
	}
	if n := context.Get("runAsUser"); n.Is("0") {
		s.of(c, n, "runs as root")
	}
}

func (s *security) capabilities(c *container, context krm.Node) {
	all := false
	for n := range context.Get("capabilities", "drop").Items() {
		all = all || n.Is("ALL")
	}
	if !all {
		s.of(c, context.Get("capabilities"), "does not drop ALL capabilities")
	}
	for n := range context.Get("capabilities", "add").Items() {
		if !n.Is("NET_BIND_SERVICE") && slices.Contains(baselineCapabilities, n.Text()) {
			s.of(c, n, "adds the capability %s", n.Text())
		}
	}
}
