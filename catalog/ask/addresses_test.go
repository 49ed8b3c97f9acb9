package ask

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// Addresses of the node itself and of a cloud's metadata service are refused,
// however they are written; a network that was allowed is not.
func TestGuardedDial(t *testing.T) {
	dial := GuardedDial(nil)
	for _, address := range []string{"127.0.0.1:1", "127.8.8.8:1", "169.254.169.254:80", "[::1]:1",
		"[fe80::1]:1", "0.0.0.0:1", "[::ffff:127.0.0.1]:1", "[::ffff:169.254.169.254]:80",
		"localhost:1", "224.0.0.1:1"} {
		if _, err := dial(t.Context(), "tcp", address); err == nil ||
			!strings.Contains(err.Error(), "the catalog may not contact") {
			t.Errorf("%s: %v", address, err)
		}
	}
	allowed := GuardedDial([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
	if _, err := allowed(t.Context(), "tcp", "127.0.0.1:1"); err == nil ||
		!strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "may ask") {
		t.Errorf("an allowed network: %v", err)
	}
}

// metadata are the addresses at which clouds serve a machine its secrets, and the
// forms in which a translator leads there.
var metadata = []string{
	"169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "192.0.0.192",
	"fd00:42::42", "fd00:a9fe:a9fe::1",
	"fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fe80::a9fe:a9fe",
	"64:ff9b::169.254.169.254", "64:ff9b::168.63.129.16", "64:ff9b::100.100.100.200",
	"64:ff9b::192.0.0.192", "2002:c000:c0::1",
	"64:ff9b:1::169.254.169.254", "64:ff9b:1:a9fe:a9:fe00::",
	"2002:a9fe:a9fe::1", "2002:a83f:8110::1", "2002:6464:64c8::1",
	"2001:0:4136:e378:8000:63bf:3fff:fdd2",
}

// Cloud metadata is refused in every form; agents and servers elsewhere are not,
// though an address contains another one.
func TestGuardedAddresses(t *testing.T) {
	own := []string{
		"127.0.0.1", "::1", "0.0.0.0", "0.1.2.3", "::", "255.255.255.255", "ff02::1",
		"::ffff:127.0.0.1", "::ffff:168.63.129.16", "::ffff:192.0.0.192", "::ffff:100.100.100.200",
		"::192.0.0.192", "::ffff:0:192.0.0.192", "fe80::1%eth0", "::127.0.0.1",
		"64:ff9b::127.0.0.1", "64:ff9b::0.0.0.0", "::ffff:0:169.254.169.254", "::169.254.169.254",
		"2002:7f00:1::",
	}
	for _, text := range append(own, metadata...) {
		if mayAsk(netip.MustParseAddr(text), nil) {
			t.Errorf("%s may be asked", text)
		}
	}
	for _, text := range []string{"10.0.0.1", "100.100.100.201", "168.63.129.17", "192.0.1.192",
		"fd00:43::42", "fd00:a9fe:a9ff::1", "192.168.1.1", "8.8.8.8", "fd00::1", "fd12:3456::1",
		"2606:4700::1111", "64:ff9b::8.8.8.8", "2002:808:808::1", "::ffff:10.0.0.1"} {
		if !mayAsk(netip.MustParseAddr(text), nil) {
			t.Errorf("%s may not be asked", text)
		}
	}
	allowed := []netip.Prefix{netip.MustParsePrefix("100.100.100.200/32"),
		netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("fe80::/10")}
	for _, text := range []string{"100.100.100.200", "64:ff9b::100.100.100.200", "64:ff9b:1::1",
		"fe80::1%eth0"} {
		if !mayAsk(netip.MustParseAddr(text), allowed) {
			t.Errorf("%s may not be asked although it was allowed", text)
		}
	}
}

// The NetworkPolicy of the installation keeps the catalog from the same.
func TestNetworkPolicyRefusesMetadata(t *testing.T) {
	text, err := os.ReadFile("../../templates/install/catalog/base/network-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var policy networkingv1.NetworkPolicy
	if err := yaml.UnmarshalStrict(text, &policy); err != nil {
		t.Fatal(err)
	}
	allows := func(ip netip.Addr) bool {
		in := func(cidr string) bool { return netip.MustParsePrefix(cidr).Contains(ip) }
		for _, rule := range policy.Spec.Egress {
			for _, to := range rule.To {
				if b := to.IPBlock; b != nil && in(b.CIDR) && !slices.ContainsFunc(b.Except, in) {
					return true
				}
			}
		}
		return false
	}
	for _, text := range metadata {
		if allows(netip.MustParseAddr(text)) {
			t.Errorf("the policy lets %s pass", text)
		}
	}
	for _, text := range []string{"10.0.0.1", "8.8.8.8", "fd00::1", "2606:4700::1111",
		"64:ff9b::8.8.8.8"} {
		if !allows(netip.MustParseAddr(text)) {
			t.Errorf("the policy stops %s", text)
		}
	}
	for _, rule := range policy.Spec.Egress {
		for _, to := range rule.To { // the API server demands it
			for _, e := range to.IPBlock.Except {
				if outer, inner :=
					netip.MustParsePrefix(to.IPBlock.CIDR),
					netip.MustParsePrefix(e); !outer.Contains(inner.Addr()) ||
					inner != inner.Masked() || inner.Bits() <= outer.Bits() {
					t.Errorf("%s is not a part of %s", e, outer)
				}
			}
		}
	}
}
