// Package isolation checks the objects of the namespace of isolated builds: whether it is as
// shipped, what its pods can reach, and who may write there. It is pure.
package isolation

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	psapi "k8s.io/pod-security-admission/api"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/templates"
)

// Account is the ServiceAccount of all isolated runs.
const Account = "armature-build"

// Objects of a build namespace. Account is nil if it does not exist.
type Objects struct {
	Namespace *corev1.Namespace
	Account   *corev1.ServiceAccount
	Policies  []networkingv1.NetworkPolicy
}

// Faults returns the deviations of a build namespace from the shipped one, each as a sentence.
func Faults(o Objects) (faults []string) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Sprintf(format, args...))
	}
	if level := o.Namespace.Labels[psapi.EnforceLevelLabel]; level !=
		string(psapi.LevelPrivileged) {
		fault("its label %s is %q, and BuildKit needs %s", psapi.EnforceLevelLabel, level,
			psapi.LevelPrivileged)
	}
	switch a := o.Account; {
	case a == nil:
		fault("it has no ServiceAccount %s", Account)
	case a.AutomountServiceAccountToken == nil || *a.AutomountServiceAccountToken:
		fault("ServiceAccount %s gives pods a token", Account)
	case len(a.Secrets) > 0:
		fault("ServiceAccount %s has the Secret %s", Account, a.Secrets[0].Name)
	}
	refuses := map[networkingv1.PolicyType]bool{}
	for _, p := range o.Policies {
		for _, kind := range p.Spec.PolicyTypes {
			if len(p.Spec.PodSelector.MatchLabels)+len(p.Spec.PodSelector.MatchExpressions) == 0 {
				refuses[kind] = true
			}
		}
		if len(p.Spec.Ingress) > 0 {
			fault("NetworkPolicy %s lets others connect to its pods", p.Name)
		}
		if metadata := Metadata(p.Spec.Egress); metadata != "" {
			fault("NetworkPolicy %s lets its pods connect to %s", p.Name, metadata)
		}
	}
	if !refuses[networkingv1.PolicyTypeIngress] {
		fault("no NetworkPolicy refuses connections to its pods")
	}
	if !refuses[networkingv1.PolicyTypeEgress] {
		fault("no NetworkPolicy says what its pods may connect to, so that they reach the " +
			"metadata of clouds")
	}
	return faults
}

// Metadata returns an address of a cloud's metadata service to which rules allow connections, or
// "". DNS does not count, because node-local caches and clouds serve it on these addresses.
func Metadata(rules []networkingv1.NetworkPolicyEgressRule) string {
	for _, rule := range rules {
		if isDNS(rule.Ports) {
			continue
		}
		if len(rule.To) == 0 {
			return "addresses anywhere"
		}
		for _, peer := range rule.To {
			if peer.IPBlock == nil {
				continue
			}
			block, err := netip.ParsePrefix(peer.IPBlock.CIDR)
			if err != nil {
				continue // the API server refuses it
			}
			for _, secret := range metadata() {
				excepted := slices.ContainsFunc(peer.IPBlock.Except, func(text string) bool {
					except, err := netip.ParsePrefix(text)
					return err == nil && except.Bits() <= secret.Bits() &&
						except.Contains(secret.Addr())
				})
				if block.Overlaps(secret) && !excepted {
					return secret.String()
				}
			}
		}
	}
	return ""
}

func isDNS(ports []networkingv1.NetworkPolicyPort) bool {
	return len(ports) > 0 &&
		!slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
			return p.Port == nil || p.Port.String() != "53" || p.EndPort != nil
		})
}

// metadata returns the addresses that the shipped policy excludes.
func metadata() (out []netip.Prefix) {
	for _, rule := range Shipped().Spec.Egress {
		for _, peer := range rule.To {
			if peer.IPBlock == nil {
				continue
			}
			for _, text := range peer.IPBlock.Except {
				out = append(out, netip.MustParsePrefix(text))
			}
		}
	}
	return out
}

// Shipped returns the NetworkPolicy of a build namespace.
func Shipped() (policy networkingv1.NetworkPolicy) {
	text, err := templates.Files.ReadFile("install/isolated/role.yaml")
	if err != nil {
		panic(err) // it is embedded
	}
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		if bytes.Contains(doc, []byte("kind: NetworkPolicy\n")) {
			if err := yaml.Unmarshal(doc, &policy); err != nil {
				panic(err)
			}
		}
	}
	return policy
}

// CheckEgress returns an error for rules that a build namespace cannot have.
func CheckEgress(rules []networkingv1.NetworkPolicyEgressRule) error {
	for i, rule := range rules {
		if len(rule.To) == 0 {
			return fmt.Errorf(
				"buildEgress[%d] has no to: name the registry, the Git server or the resolver", i)
		}
		for _, peer := range rule.To {
			if peer.IPBlock == nil {
				continue
			}
			for _, cidr := range append([]string{peer.IPBlock.CIDR}, peer.IPBlock.Except...) {
				if p, err := netip.ParsePrefix(cidr); err != nil || p != p.Masked() {
					return fmt.Errorf(
						"buildEgress[%d]: %q is not a network: write it as 10.0.0.0/8", i, cidr)
				}
			}
		}
		if secret := Metadata(rules[i : i+1]); secret != "" {
			return fmt.Errorf("buildEgress[%d] has %s, where clouds tell a machine its secrets: "+
				"name a smaller network, or add it to except", i, secret)
		}
	}
	return nil
}
