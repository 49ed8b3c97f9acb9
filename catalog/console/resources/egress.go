package resources

import (
	"cmp"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// Egress returns where the pods of a workload may connect to, by the NetworkPolicies that select
// them; nil means anywhere.
func Egress(o *unstructured.Unstructured, policies []networkingv1.NetworkPolicy) (out []string) {
	pods, _, _ := unstructured.NestedStringMap(o.Object, "spec", "template", "metadata", "labels")
	limited := false
	for _, p := range policies {
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err != nil || !selector.Matches(labels.Set(pods)) ||
			!slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
			continue
		}
		limited = true
		for _, rule := range p.Spec.Egress {
			out = append(out, peers(rule)...)
		}
	}
	if limited && len(out) == 0 {
		return []string{"nowhere"}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// peers returns the peers of a rule, each with its ports.
func peers(rule networkingv1.NetworkPolicyEgressRule) (out []string) {
	var ports []string
	for _, p := range rule.Ports {
		if p.Port != nil {
			ports = append(ports, p.Port.String())
		}
	}
	suffix := ""
	if len(ports) > 0 {
		suffix = ", port " + strings.Join(ports, ", ")
	}
	if len(rule.To) == 0 {
		return []string{"anywhere" + suffix}
	}
	for _, to := range rule.To {
		var words []string
		if to.IPBlock != nil {
			words = append(words, to.IPBlock.CIDR)
			if len(to.IPBlock.Except) > 0 {
				words = append(words, "except "+strings.Join(to.IPBlock.Except, ", "))
			}
		}
		if to.PodSelector != nil {
			words = append(words, "pods "+cmp.Or(metav1.FormatLabelSelector(to.PodSelector), "all"))
		}
		if to.NamespaceSelector != nil {
			words = append(words,
				"in namespaces "+cmp.Or(metav1.FormatLabelSelector(to.NamespaceSelector), "all"))
		}
		out = append(out, strings.ReplaceAll(strings.Join(words, " "), "<none>", "all")+suffix)
	}
	return out
}
