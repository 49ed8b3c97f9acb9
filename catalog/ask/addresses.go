package ask

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// Dial opens connections to agents and servers.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// GuardedDial returns a Dial that refuses the addresses of the node itself and of the services that
// clouds offer to their machines, in every form that leads there, unless they are in allowed. It
// checks the address at connect time, so no name can resolve to another one in between.
func GuardedDial(allowed []netip.Prefix) Dial {
	dialer := &net.Dialer{Timeout: 5 * time.Second,
		Control: func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil || !mayAsk(at.Addr(), allowed) {
				return errForbidden
			}
			return nil
		}}
	return dialer.DialContext
}

// IsForbidden reports whether a GuardedDial refused the address.
func IsForbidden(err error) bool { return errors.Is(err, errForbidden) }

// forbidden are the refused networks in addition to loopback, link-local, multicast and unspecified
// addresses, each with the document that assigns it. The NetworkPolicy of the installation has the
// same metadata services.
var forbidden = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),          // this host: RFC 1122, 3.2.1.3
	netip.MustParsePrefix("255.255.255.255/32"), // broadcast: RFC 919
	// NAT64 in a form that only its operator knows: RFC 8215
	netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("2001::/32"), // Teredo: RFC 4380

	// Metadata services and agents of clouds that are not link-local.
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure, "What is IP address 168.63.129.16?"
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba ECS, "Instance metadata"
	// Oracle's 192.0.0.192: cloud-init, "Oracle"; the rest assigned by RFC 6890 to no host
	netip.MustParsePrefix("192.0.0.0/24"),
	// AWS EC2 and EKS Pod Identity, "Instance metadata"
	netip.MustParsePrefix("fd00:ec2::/32"),
	// Google Compute Engine, "View and query VM metadata"
	netip.MustParsePrefix("fd20:ce::254/128"),
	netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), // Oracle Cloud, "Instance metadata service"
	netip.MustParsePrefix("fd00:42::42/128"),        // Scaleway: cloud-init, "Scaleway"
	netip.MustParsePrefix("fd00:a9fe:a9fe::1/128"),  // Akamai (Linode): cloud-init, "Akamai"
}

// embedded are the networks whose addresses contain an IPv4 address, and the
// byte that it begins at.
var embedded = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},    // NAT64, RFC 6052
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // IPv4-translated, RFC 2765
	{netip.MustParsePrefix("::/96"), 12},           // IPv4-compatible, RFC 4291
	{netip.MustParsePrefix("2002::/16"), 2},        // 6to4, RFC 3056
}

// mayAsk reports whether a server at ip may be queried.
func mayAsk(ip netip.Addr, allowed []netip.Prefix) bool {
	ip = ip.Unmap().WithZone("")
	contains := func(p netip.Prefix) bool { return p.Contains(ip) }
	if slices.ContainsFunc(allowed, contains) {
		return true
	}
	if ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() ||
		slices.ContainsFunc(forbidden, contains) {
		return false
	}
	for _, e := range embedded {
		if e.prefix.Contains(ip) {
			bytes := ip.As16()
			return mayAsk(netip.AddrFrom4([4]byte(bytes[e.at:e.at+4])), allowed)
		}
	}
	return true
}
