package compare

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
)

// identity returns the names by which other services know a workload, and the services that it may
// call and as whom. It is empty for a workload that is not injected.
func (s *side) identity(i *item) map[string]string {
	facts := make(map[string]string)
	if i == nil {
		return facts
	}
	x, injected := s.pkg.Settings[Place{i.file, i.ref}]
	if !injected || x.TraceOnly {
		return facts
	}
	if x.SPIFFE.Enabled {
		facts["SPIFFE ID"] = spiffeID(&x)
		facts["JWT audience"] = x.SPIFFE.Audience
	}
	if x.On(sidecars.ClientRegistration) {
		facts["client"] = client(&x)
	}
	if x.Inbound.Enabled {
		facts["inbound"] = inbound(&x)
	}
	if x.On(sidecars.EnvoyProxy) && x.Outbound.TokenExchange {
		for n, r := range x.Outbound.Rules {
			facts[fmt.Sprintf("route %d", n+1)] = r.Host + " -> " + target(&r)
		}
		facts["route default"] = "** -> " + target(&identity.Rule{Target: x.Outbound.Default})
	}
	return facts
}

// spiffeID returns the ID that SPIRE issues by the published template. Without a namespace in the
// manifest, the ID depends on the namespace of the apply.
func spiffeID(s *identity.Settings) string {
	return "spiffe://" + s.SPIFFE.TrustDomain + "/ns/" + cmp.Or(s.Subject.Namespace, "(applied)") +
		"/sa/" + s.Subject.ServiceAccount
}

func client(s *identity.Settings) string {
	switch r := &s.Registration; r.Provider {
	case "aws":
		return "AWS role " + r.AWS.RoleARN
	case "gcp":
		return strings.TrimSpace("GCP " + r.GCP.ProviderResource + " " + r.GCP.ServiceAccountEmail)
	default:
		return fmt.Sprintf("%s in realm %s of %s", r.ClientName, r.Realm, r.URL)
	}
}

func inbound(s *identity.Settings) string {
	if !s.Inbound.Validate {
		return "tokens are not checked"
	}
	text := fmt.Sprintf("tokens of %s for %s", s.Inbound.Issuer, s.Inbound.Audience)
	if len(s.Inbound.RequiredScopes) > 0 {
		text += " with " + strings.Join(s.Inbound.RequiredScopes, " ")
	}
	return text + "; open: " + strings.Join(s.Inbound.BypassPaths, " ")
}

func target(r *identity.Rule) string {
	if r.Passthrough {
		return "passed through"
	}
	text := r.Target.Audience + " (" + strings.Join(r.Target.Scopes, " ") + ")"
	if r.TokenURL != "" {
		text += " by " + r.TokenURL
	}
	return text
}

// permissions returns the permissions that the package grants to each ServiceAccount.
func (s *side) permissions() map[account][]string {
	all := make(map[account][]string)
	for k, i := range s.items {
		if k.group != "rbac.authorization.k8s.io" ||
			k.kind != "RoleBinding" && k.kind != "ClusterRoleBinding" {
			continue
		}
		binding := i.read()
		rules := s.rules(binding)
		for subject := range binding.Get("subjects").Items() {
			if !subject.Get("kind").Is("ServiceAccount") {
				continue
			}
			a := account{cmp.Or(subject.Get("namespace").Text(), k.namespace),
				subject.Get("name").Text()}
			all[a] = append(all[a], rules...)
		}
	}
	return all
}

// rules returns the permissions of a binding, one text per resource.
func (s *side) rules(binding *krm.Object) (rules []string) {
	ref := binding.Get("roleRef")
	kind, name := ref.Get("kind").Text(), ref.Get("name").Text()
	where := ""
	namespace := binding.Namespace
	if kind == "ClusterRole" {
		namespace = ""
	}
	if binding.Kind == "ClusterRoleBinding" {
		where = " in all namespaces"
	}
	role := s.items[key{"rbac.authorization.k8s.io", kind, namespace, name, ""}]
	if role == nil {
		return []string{"all of " + kind + " " + name + where}
	}
	for rule := range role.read().Get("rules").Items() {
		verbs, names := texts(rule.Get("verbs")), texts(rule.Get("resourceNames"))
		for _, resource := range append(texts(rule.Get("resources")),
			texts(rule.Get("nonResourceURLs"))...) {
			text := strings.Join(verbs, ",") + " " + resource
			if group := strings.Join(texts(rule.Get("apiGroups")), ","); group != "" {
				text += "." + group
			}
			if len(names) > 0 {
				text += " " + strings.Join(names, ",")
			}
			rules = append(rules, text+where)
		}
	}
	return rules
}

func texts(list krm.Node) (all []string) {
	for n := range list.Items() {
		all = append(all, n.Text())
	}
	slices.Sort(all)
	return all
}

// allowed compares the permissions of the ServiceAccount of a workload. A workload that is added or
// removed has all of them on one side only.
func (c *comparison) allowed(was, is *item) (found []Difference) {
	before, after := c.before.may(was), c.after.may(is)
	for _, rule := range before {
		if !slices.Contains(after, rule) {
			found = append(found, Difference{Name: "may", Before: rule})
		}
	}
	for _, rule := range after {
		if !slices.Contains(before, rule) {
			found = append(found, Difference{Name: "may", After: rule})
		}
	}
	return found
}

func (s *side) may(i *item) []string {
	if i == nil || len(s.allowed) == 0 {
		return nil
	}
	pod, ok := i.read().PodTemplate()
	if !ok {
		return nil
	}
	name := cmp.Or(pod.Spec().Get("serviceAccountName").Text(), "default")
	rules := slices.Clone(s.allowed[account{i.ref.Namespace, name}])
	slices.Sort(rules)
	return slices.Compact(rules)
}
