// Package netpol evaluates NetworkPolicies for connections, as Kubernetes documents them, for tests
// on clusters whose network plugin enforces none.
package netpol

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// End is one end of a connection: a pod, or an address outside the cluster.
type End struct {
	Namespace string
	Labels    labels.Set
	IP        string // of an address outside the cluster
}

// Allows reports whether policies allow a connection: a pod that no policy selects for a direction
// is open in that direction, and rules add up.
func Allows(policies []networkingv1.NetworkPolicy, from, to End, protocol corev1.Protocol,
	port int32) (bool, error) {
	out, err := direction(policies, networkingv1.PolicyTypeEgress, from, to, protocol, port)
	if err != nil || !out {
		return false, err
	}
	return direction(policies, networkingv1.PolicyTypeIngress, to, from, protocol, port)
}

func direction(policies []networkingv1.NetworkPolicy, kind networkingv1.PolicyType, own, other End,
	protocol corev1.Protocol, port int32) (bool, error) {
	isolated := false
	for _, p := range policies {
		if own.IP != "" || p.Namespace != own.Namespace ||
			!slices.Contains(p.Spec.PolicyTypes, kind) {
			continue
		}
		if ok, err := selects(&p.Spec.PodSelector, own.Labels); err != nil || !ok {
			if err != nil {
				return false, err
			}
			continue
		}
		isolated = true
		type rule struct {
			peers []networkingv1.NetworkPolicyPeer
			ports []networkingv1.NetworkPolicyPort
		}
		var rules []rule
		if kind == networkingv1.PolicyTypeEgress {
			for _, r := range p.Spec.Egress {
				rules = append(rules, rule{r.To, r.Ports})
			}
		} else {
			for _, r := range p.Spec.Ingress {
				rules = append(rules, rule{r.From, r.Ports})
			}
		}
		for _, r := range rules {
			opened, err := opens(r.ports, protocol, port)
			if err != nil {
				return false, err
			}
			if opened && len(r.peers) == 0 {
				return true, nil
			}
			for _, peer := range r.peers {
				if is, err := matches(peer, p.Namespace, other); err != nil || is && opened {
					return err == nil, err
				}
			}
		}
	}
	return !isolated, nil
}

// matches reports whether a peer of a policy in a namespace covers an end.
func matches(p networkingv1.NetworkPolicyPeer, namespace string, e End) (bool, error) {
	if p.IPBlock != nil {
		if e.IP == "" {
			return false, nil
		}
		ip, err := netip.ParseAddr(e.IP)
		if err != nil {
			return false, err
		}
		for i, cidr := range append([]string{p.IPBlock.CIDR}, p.IPBlock.Except...) {
			prefix, err := netip.ParsePrefix(cidr)
			if err != nil || prefix.Contains(ip) != (i == 0) {
				return false, err
			}
		}
		return true, nil
	}
	if e.IP != "" {
		return false, nil
	}
	inNamespace := e.Namespace == namespace
	if p.NamespaceSelector != nil {
		var err error
		if inNamespace, err = selects(p.NamespaceSelector,
			labels.Set{corev1.LabelMetadataName: e.Namespace}); err != nil {
			return false, err
		}
	}
	if !inNamespace || p.PodSelector == nil {
		return inNamespace, nil
	}
	return selects(p.PodSelector, e.Labels)
}

func opens(ports []networkingv1.NetworkPolicyPort, protocol corev1.Protocol, port int32) (bool, error) {
	for _, p := range ports {
		if p.EndPort != nil || p.Port != nil && p.Port.StrVal != "" {
			return false, fmt.Errorf("port %s: names and ranges are not judged", p.Port)
		}
		if (p.Protocol == nil && protocol == corev1.ProtocolTCP ||
			p.Protocol != nil && *p.Protocol == protocol) &&
			(p.Port == nil || p.Port.IntVal == port) {
			return true, nil
		}
	}
	return len(ports) == 0, nil
}

func selects(s *metav1.LabelSelector, set labels.Set) (bool, error) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(set), err
}
