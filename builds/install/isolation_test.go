package install

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/netpol"
)

// isolated are the objects that an installation with values has in its build namespace.
func isolated(t *testing.T,
	values string) (policies []networkingv1.NetworkPolicy, roles []rbacv1.Role,
	bindings []rbacv1.RoleBinding) {
	t.Helper()
	o := Options{Scope: "cluster", Namespace: "platform", Group: "agent.kagenti.dev"}
	if err := yaml.UnmarshalStrict([]byte(values), &o); err != nil {
		t.Fatal(err)
	}
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	text, err := o.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	for doc := range bytes.SplitSeq(text, []byte("---\n")) {
		var policy networkingv1.NetworkPolicy
		var role rbacv1.Role
		var binding rbacv1.RoleBinding
		if err := yaml.Unmarshal(doc, &policy); err != nil || policy.Namespace != "builds" {
			continue
		}
		switch policy.Kind {
		case "NetworkPolicy":
			policies = append(policies, policy)
		case "Role":
			if err := yaml.UnmarshalStrict(doc, &role); err != nil {
				t.Fatal(err)
			}
			roles = append(roles, role)
		case "RoleBinding":
			if err := yaml.UnmarshalStrict(doc, &binding); err != nil {
				t.Fatal(err)
			}
			bindings = append(bindings, binding)
		}
	}
	return policies, roles, bindings
}

// Nobody connects to a pod of a build. It connects to registries and Git servers, or to those
// alone that the platform names, and never to where clouds tell a machine its secrets.
func TestNetworkPolicies(t *testing.T) {
	restricted := `{buildNamespace: builds, buildEgress: [
		{to: [{ipBlock: {cidr: 10.0.8.0/24}}], ports: [{port: 443}]},
		{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: gitea}}, podSelector: {matchLabels: {app: gitea}}}], ports: [{port: 3000}]},
		{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}], ports: [{port: 53, protocol: UDP}]}]}`
	build := netpol.End{Namespace: "builds",
		Labels: labels.Set{"tekton.dev/pipelineRun": "weather"}}
	other := netpol.End{Namespace: "builds", Labels: labels.Set{"tekton.dev/pipelineRun": "other"}}
	tenant := netpol.End{Namespace: "team1", Labels: labels.Set{"app": "gitea"}}
	gitea := netpol.End{Namespace: "gitea", Labels: labels.Set{"app": "gitea"}}
	dns := netpol.End{Namespace: "kube-system", Labels: labels.Set{"k8s-app": "kube-dns"}}
	at := func(ip string) netpol.End { return netpol.End{IP: ip} }
	for _, c := range []struct {
		from, to       netpol.End
		protocol       corev1.Protocol
		port           int32
		open, narrowed bool // by default, and with buildEgress
	}{
		{other, build, corev1.ProtocolTCP, 8080, false, false},
		{tenant, build, corev1.ProtocolTCP, 8080, false, false},
		{at("8.8.8.8"), build, corev1.ProtocolTCP, 22, false, false},
		{build, gitea, corev1.ProtocolTCP, 3000, true, true},
		{build, gitea, corev1.ProtocolTCP, 22, true, false},
		{build, tenant, corev1.ProtocolTCP, 3000, true, false},
		{build, dns, corev1.ProtocolUDP, 53, true, true},
		{build, at("10.0.8.7"), corev1.ProtocolTCP, 443, true, true},
		{build, at("10.0.9.7"), corev1.ProtocolTCP, 443, true, false},
		{build, at("2606:4700::1"), corev1.ProtocolTCP, 443, true, false},
		{build, at("169.254.20.10"), corev1.ProtocolUDP, 53, true, false}, // a node-local cache
		{build, at("169.254.169.254"), corev1.ProtocolTCP, 80, false, false},
		{build, at("fd00:ec2::254"), corev1.ProtocolTCP, 80, false, false},
		{build, at("fd20:ce::254"), corev1.ProtocolTCP, 80, false, false},
		{build, at("100.100.100.200"), corev1.ProtocolTCP, 80, false, false},
		{build, at("168.63.129.16"), corev1.ProtocolTCP, 32526, false, false},
	} {
		for values, want := range map[string]bool{"{buildNamespace: builds}": c.open,
			restricted: c.narrowed} {
			policies, _, _ := isolated(t, values)
			got, err := netpol.Allows(policies, c.from, c.to, c.protocol, c.port)
			if err != nil || got != want || len(policies) != 1 {
				t.Errorf("%s: from %v to %v, %s %d: %v, want %v (%v)", values, c.from, c.to,
					c.protocol, c.port, got, want, err)
			}
		}
	}
}

// No rule of a platform opens the metadata of a cloud.
func TestBuildEgress(t *testing.T) {
	for rules, want := range map[string]string{
		"[{ports: [{port: 443}]}]": "buildEgress[0] has no to",
		"[{to: [{ipBlock: {cidr: " +
			"10.0.8.1/24}}]}]": `"10.0.8.1/24" is not a network`,
		"[{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]":                               "169.254.0.0/16, where clouds",
		"[{to: [{ipBlock: {cidr: 169.254.169.254/32}}], ports: [{port: 80}]}]": "169.254.0.0/16, where clouds",
		"[{to: [{ipBlock: {cidr: 100.64.0.0/10}}], ports: [{port: 53, endPort: 80}]}]": "100.100." +
			"100.200/32, where clouds",
		"[{to: [{ipBlock: {cidr: 'fd00::/8', except: ['fd00:ec2::/40']}}]}]": "fd00:ec2::/32, where clouds",
		"[{to: [{ipBlock: {cidr: '::/0'}}]}]":                                "fe80::/10, where clouds",
		"[{to: [{ipBlock: {cidr: 169.254.20.10/32}}], ports: [{port: 53}]}]": "",
		"[{to: [{ipBlock: {cidr: 10.0.0.0/8}}, {podSelector: {}}]}]":         "",
		"[{to: [{ipBlock: {cidr: 160.0.0.0/4, except: [168.0.0.0/7]}}]}]":    "",
	} {
		o := Options{Scope: "cluster", Namespace: "platform", Group: "agent.kagenti.dev"}
		if err := yaml.UnmarshalStrict([]byte("{buildNamespace: builds, buildEgress: "+rules+"}"),
			&o); err != nil {
			t.Fatal(err)
		}
		err := o.Check()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", rules, err, want)
		}
	}
}

// A namespaced installation grants the controller its rights in the build namespace by a Role
// there.
func TestNamespacedRights(t *testing.T) {
	_, roles, bindings := isolated(t, "{mode: namespaced, watch: [team1], buildNamespace: builds}")
	var verbs []string
	for _, role := range roles {
		for _, rule := range role.Rules {
			if role.Name == "armature-controller-builds" &&
				(rule.Resources[0] == "pipelineruns" || rule.Resources[0] == "secrets" ||
					rule.Resources[0] == "workloads") {
				verbs = append(verbs, rule.Resources[0]+" "+strings.Join(rule.Verbs, ","))
			}
		}
	}
	want := "pipelineruns get,list,watch,create,patch,delete; secrets get,create,delete; " +
		"workloads list,watch,create,delete"
	if got := strings.Join(verbs, "; "); got != want {
		t.Errorf("rights %s, want %s", got, want)
	}
	bound := false
	for _, b := range bindings {
		bound = bound || b.RoleRef.Name == "armature-controller-builds" && len(b.Subjects) == 1 &&
			b.Subjects[0].Name == "armature-controller" && b.Subjects[0].Namespace == "platform"
	}
	if !bound {
		t.Errorf("the controller is bound by none of %v", bindings)
	}
}
