package isolation

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/templates"
)

// shipped are the objects of the build namespace, as installations make them.
func shipped(t *testing.T) (o Objects) {
	t.Helper()
	text, err := templates.Files.ReadFile("install/isolated/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	o.Namespace, o.Account = &corev1.Namespace{}, &corev1.ServiceAccount{}
	for i, into := range []any{o.Namespace, o.Account} {
		if err := yaml.Unmarshal(bytes.Split(text, []byte("\n---\n"))[i], into); err != nil {
			t.Fatal(err)
		}
	}
	o.Policies = []networkingv1.NetworkPolicy{Shipped()}
	return o
}

// What is shipped has no fault, and each change of it that matters is one.
func TestFaults(t *testing.T) {
	if o := shipped(t); o.Account.Name != Account || o.Namespace.Name == "" {
		t.Fatalf("%+v", o)
	}
	add := func(o *Objects, spec networkingv1.NetworkPolicySpec) {
		o.Policies = append(o.Policies,
			networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: spec})
	}
	egress := func(peers ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicySpec {
		return networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Egress"},
			Egress: []networkingv1.NetworkPolicyEgressRule{{To: peers}}}
	}
	for want, change := range map[string]func(*Objects){
		"": func(*Objects) {},
		"label pod-security.kubernetes.io/enforce is \"restricted\"": func(o *Objects) {
			o.Namespace.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
		},
		"no ServiceAccount armature-build": func(o *Objects) {
			o.Account = nil
		},
		"gives pods a token": func(o *Objects) {
			o.Account.AutomountServiceAccountToken = nil
		},
		"has the Secret deploy": func(o *Objects) {
			o.Account.Secrets = []corev1.ObjectReference{{Name: "deploy"}}
		},
		"no NetworkPolicy refuses connections": func(o *Objects) {
			o.Policies[0].Spec.PolicyTypes = o.Policies[0].Spec.PolicyTypes[1:]
		},
		"no NetworkPolicy says what its pods may": func(o *Objects) {
			o.Policies[0].Spec.PolicyTypes = o.Policies[0].Spec.PolicyTypes[:1]
		},
		"more lets others connect": func(o *Objects) {
			add(o, networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{}}})
		},
		"more lets its pods connect to addresses anywhere": func(o *Objects) { add(o, egress()) },
		"more lets its pods connect to 169.254.0.0/16": func(o *Objects) {
			add(o,
				egress(networkingv1.NetworkPolicyPeer{
					IPBlock: &networkingv1.IPBlock{CIDR: "169.254.169.254/32"}}))
		},
	} {
		o := shipped(t)
		change(&o)
		got := strings.Join(Faults(o), "; ")
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("faults %q, want %q", got, want)
		}
	}
}

// The policies of builds and of the catalog leave out the same addresses.
func TestShippedMetadata(t *testing.T) {
	text, err := os.ReadFile("../../../templates/install/catalog/base/network-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var catalog networkingv1.NetworkPolicy
	if err := yaml.Unmarshal(text, &catalog); err != nil {
		t.Fatal(err)
	}
	blocks := func(p networkingv1.NetworkPolicy) (out []networkingv1.IPBlock) {
		for _, rule := range p.Spec.Egress {
			for _, peer := range rule.To {
				if peer.IPBlock != nil {
					out = append(out, *peer.IPBlock)
				}
			}
		}
		return out
	}
	if diff := cmp.Diff(blocks(catalog), blocks(Shipped())); diff != "" || len(metadata()) < 15 {
		t.Errorf("%d addresses (-catalog +builds):\n%s", len(metadata()), diff)
	}
	if port := intstr.FromInt32(53); !isDNS([]networkingv1.NetworkPolicyPort{{Port: &port}}) ||
		isDNS(nil) {
		t.Error("port 53 is not DNS, or any port is")
	}
}

// Writers are those whom a binding lets change what a run is, in the namespace or everywhere.
func TestWriters(t *testing.T) {
	rule := func(group, resources, verbs string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{APIGroups: strings.Split(group, ","),
			Resources: strings.Split(resources, ","), Verbs: strings.Split(verbs, ",")}}
	}
	for text, want := range map[string]string{
		"*;*;*": "create pods", ";pods,configmaps;get,list,watch": "", ";secrets;get": "",
		";secrets;patch": "patch secrets", ";pods/exec;get": "get pods/exec",
		";*/exec;create": "create pods/exec", ";*;deletecollection": "deletecollection configmaps",
		"tekton.dev;taskruns;update": "update taskruns", "apps;taskruns;update": "",
		"batch;jobs;create":                        "create jobs",
		"rbac.authorization.k8s.io;roles;escalate": "escalate roles",
		"rbac.authorization.k8s.io;roles;get":      "",
		";serviceaccounts;impersonate":             "impersonate serviceaccounts",
		"networking.k8s.io;networkpolicies;delete": "delete networkpolicies", ";events;create": "",
		";serviceaccounts/token;create": "create serviceaccounts/token",
	} {
		p := strings.Split(text, ";")
		if got := writes(rule(p[0], p[1], p[2])); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	at := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	account := func(namespace, name string) rbacv1.Subject {
		return rbacv1.Subject{Kind: "ServiceAccount", Namespace: namespace, Name: name}
	}
	named := func(kind, name string) rbacv1.Subject {
		return rbacv1.Subject{Kind: kind, Name: name}
	}
	r := Rights{
		Roles: rbacv1.RoleList{Items: []rbacv1.Role{
			{ObjectMeta: at("writer"), Rules: rule("", "pods", "create")},
			{ObjectMeta: at("reader"), Rules: rule("", "pods", "get")}}},
		ClusterRoles: rbacv1.ClusterRoleList{Items: []rbacv1.ClusterRole{
			{ObjectMeta: at("cluster-admin"), Rules: rule("*", "*", "*")},
			{ObjectMeta: at("view"), Rules: rule("", "pods,secrets,events", "get,list")},
			{ObjectMeta: at("reader"), Rules: rule("*", "*", "*")}}},
		Bindings: rbacv1.RoleBindingList{Items: []rbacv1.RoleBinding{
			{ObjectMeta: at("team"), RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "writer"},
				Subjects: []rbacv1.Subject{account("", "default"), named("User", "jane"),
					account("platform", "controller")}},
			{ObjectMeta: at("read"), RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "reader"},
				Subjects: []rbacv1.Subject{named("User", "reader")}},
		}},
		ClusterBindings: rbacv1.ClusterRoleBindingList{Items: []rbacv1.ClusterRoleBinding{
			{ObjectMeta: at("admins"),
				RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "cluster-admin"},
				Subjects: []rbacv1.Subject{named("Group", "system:masters"), named("Group", "sre"),
					named("Group", "system:authenticated"),
					named("User", "system:kube-controller-manager"),
					named("User", "system:anonymous"), account("flux-system", "flux"),
					account("kube-system", "gc"), account("tekton-pipelines", "tekton"),
					named("Group", "system:serviceaccounts:team1"),
					named("Group", "system:serviceaccounts:kube-system")}},
			{ObjectMeta: at("viewers"), RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"},
				Subjects: []rbacv1.Subject{named("Group", "system:authenticated")}},
			{ObjectMeta: at("gone"), RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "gone"},
				Subjects: []rbacv1.Subject{named("User", "jane")}},
		}},
	}
	var here, everywhere []string
	for _, w := range Writers(r, "builds", "ServiceAccount platform/controller", "kube-system",
		"tekton-pipelines") {
		if w.Here {
			here = append(here, w.String())
		} else {
			everywhere = append(everywhere, w.String())
		}
	}
	if diff := cmp.Diff(
		[]string{"Group system:authenticated may create pods, by ClusterRoleBinding admins",
			"Group system:serviceaccounts:team1 may create pods, by ClusterRoleBinding admins",
			"ServiceAccount builds/default may create pods, by RoleBinding team",
			"User jane may create pods, by RoleBinding team",
			"User system:anonymous may create pods, by ClusterRoleBinding admins"}, here); diff != "" {
		t.Errorf("writers of the namespace (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"Group sre may create pods, by ClusterRoleBinding admins",
		"ServiceAccount flux-system/flux may create pods, by ClusterRoleBinding admins"},
		everywhere); diff != "" {
		t.Errorf("writers everywhere (-want +got):\n%s", diff)
	}
}
