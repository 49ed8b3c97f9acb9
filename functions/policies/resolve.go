package policies

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/text"
)

// peer is the other end of a rule, as in a NetworkPolicy.
type peer struct {
	IPBlock           *ipBlock  `yaml:"ipBlock,omitempty"`
	NamespaceSelector *selector `yaml:"namespaceSelector,omitempty"`
	PodSelector       *selector `yaml:"podSelector,omitempty"`
}

type ipBlock struct {
	CIDR string `yaml:"cidr"`
}

type selector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

type port struct {
	Protocol string `yaml:"protocol"`
	Port     int    `yaml:"port"`
}

// destination is the end of the calls to a URL.
type destination struct {
	peers []peer
	port  port
	// says describes it for people.
	says string
	// service or gateway is the object of the destination; both may be nil.
	service, gateway *object
	path             string
}

// pods returns the peer for pods in a namespace, in a rule of another one.
func pods(from, namespace string, labels map[string]string) peer {
	p := peer{PodSelector: &selector{labels}}
	if namespace != from {
		p.NamespaceSelector = &selector{map[string]string{"kubernetes.io/metadata.name": namespace}}
	}
	return p
}

// ofAddress returns the peers of an address of the configuration.
func ofAddress(from string, a *api.AddressSpec) (peers []peer) {
	for _, cidr := range a.CIDRs {
		peers = append(peers, peer{IPBlock: &ipBlock{cidr}})
	}
	if a.Namespace != nil {
		peers = append(peers, pods(from, *a.Namespace, a.Pods))
	}
	return peers
}

var defaultPorts = map[string]int{"http": 80, "https": 443, "ws": 80, "wss": 443}

// resolve finds the destination of a URL or host:port that an object calls. local reports that the
// call does not leave the pod. problem says why the address is not known.
func (s *state) resolve(from *object, content string) (d destination, local bool, problem string) {
	at := content
	if !strings.Contains(at, "://") {
		at = "tcp://" + at
	}
	u, err := url.Parse(at)
	if err != nil || u.Hostname() == "" || images.HasVariable(content) {
		return d, false, fmt.Sprintf("%q is not a URL whose host can be read", text.Shown(content))
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	number := defaultPorts[u.Scheme]
	if u.Port() != "" {
		if number, err = strconv.Atoi(u.Port()); err != nil || number < 1 || number > 65535 {
			return d, false, fmt.Sprintf("%q has no valid port", text.Shown(content))
		}
	}
	d = destination{port: port{"TCP", number}, says: fmt.Sprintf("%s port %d", host, number),
		path: u.Path}
	ip, notIP := netip.ParseAddr(host)
	if host == "localhost" || notIP == nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		return d, true, ""
	}
	if number == 0 {
		return d, false, fmt.Sprintf("%q does not say its port", text.Shown(content))
	}
	for _, g := range s.facts.kinds["Gateway"] {
		for _, l := range g.Spec.Listeners {
			if l.Hostname != "" && strings.EqualFold(l.Hostname, host) {
				d.gateway = g // its address within the cluster is not known
			}
		}
	}
	if a := s.spec.Addresses[host]; a != nil {
		d.peers, d.port.Port = ofAddress(from.Namespace, a), node.Or(a.Port, number)
		return d, false, ""
	}
	if notIP == nil {
		d.peers = []peer{
			{IPBlock: &ipBlock{netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen()).String()}}}
		return d, false, ""
	}
	if name, namespace, inside := inCluster(host, from.Namespace); inside {
		if svc := s.nearest("Service", namespace, name, from.file); svc != nil {
			return s.throughService(from, svc, d)
		}
		for _, gatewayName := range []string{name, strings.TrimSuffix(name, "-istio")} {
			if g := s.nearest("Gateway", namespace, gatewayName, from.file); g != nil {
				// An implementation of the Gateway API runs these pods for it.
				d.gateway, d.says = g, fmt.Sprintf("%s port %d", g.Ref, d.port.Port)
				d.peers = []peer{pods(from.Namespace, g.Namespace, gatewayPods(g))}
				return d, false, ""
			}
		}
	}
	return d, false, fmt.Sprintf("the address of %s is not known", text.Shown(host))
}

// inCluster returns the Service that a name in the cluster's DNS denotes.
func inCluster(host, from string) (name, namespace string, ok bool) {
	parts := strings.Split(host, ".")
	switch {
	case len(parts) == 1:
		return parts[0], from, true
	case len(parts) == 2, len(parts) >= 3 && parts[2] == "svc":
		return parts[0], parts[1], true
	}
	return "", "", false
}

func (s *state) nearest(kind, namespace, name, file string) *object {
	for _, id := range s.pkg.Index.Nearest(index.Key{Kind: kind, Namespace: namespace, Name: name},
		file, nil) {
		if o := s.facts.objects[id]; o != nil && o.pods == nil {
			return o
		}
	}
	return nil
}

// throughService resolves a destination to the pods of a Service, on the port of the pods.
func (s *state) throughService(from, svc *object,
	d destination) (_ destination, local bool, problem string) {
	d.service = svc
	if svc.Spec.Type == "ExternalName" || len(svc.Spec.Selector) == 0 {
		return d, false, fmt.Sprintf("%s selects no pods, so its addresses are not known", svc.Ref)
	}
	d.peers = []peer{pods(from.Namespace, svc.Namespace, svc.Spec.Selector)}
	d.says = fmt.Sprintf("%s port %d", svc.Ref, d.port.Port)
	if svc.Spec.ClusterIP == "None" {
		return d, false, ""
	}
	for _, p := range svc.Spec.Ports {
		if p.Port != d.port.Port {
			continue
		}
		d.port.Protocol = cmp.Or(p.Protocol, "TCP")
		switch target := p.TargetPort.(type) {
		case float64:
			d.port.Port = int(target)
		case string:
			var found []int
			for _, w := range s.facts.kinds[""] {
				if n, named := w.pods.ports[target]; named && w.Namespace == svc.Namespace &&
					selects(svc.Spec.Selector, w.pods.labels) && !slices.Contains(found, n) {
					found = append(found, n)
				}
			}
			if len(found) != 1 {
				return d, false, fmt.Sprintf(
					"%s leads to the port %q, which the package does not have once",
					svc.Ref, text.Shown(target))
			}
			d.port.Port = found[0]
		}
		return d, false, ""
	}
	return d, false, fmt.Sprintf("%s has no port %d", svc.Ref, d.port.Port)
}

func gatewayPods(g *object) map[string]string {
	return map[string]string{"gateway.networking.k8s.io/gateway-name": g.Name}
}

func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if have, ok := labels[key]; !ok || have != value {
			return false
		}
	}
	return len(selector) > 0
}

// binding binds a workload to a tool server.
type binding struct {
	url   string
	tools []string // nil for all
}

// plan holds the bindings of the agents of a package.
type plan struct {
	// calls are the known calls of each workload, in addition to those of its settings. The calls
	// of a workload without an entry are not known.
	calls map[*object][]call
	// callers are the callers of the pods of a Service, by the port of the pods.
	callers map[*object]map[port][]peer
	// through are the bindings by gateway, with the paths at it.
	through map[*object][]passage
}

type passage struct {
	binding
	path string
}

// bind resolves the bindings of each workload.
func (s *state) bind() *plan {
	s.facts.sort()
	p := &plan{calls: map[*object][]call{}, callers: map[*object]map[port][]peer{},
		through: map[*object][]passage{}}
	for _, w := range s.facts.kinds[""] {
		bindings, calls, known := s.bindings(w)
		if !known {
			continue
		}
		for _, b := range bindings {
			calls = append(calls, call{url: b.url})
			d, local, problem := s.resolve(w, b.url)
			switch {
			case d.gateway != nil:
				p.through[d.gateway] = append(p.through[d.gateway], passage{b, d.path})
			case local || problem != "":
			case d.service != nil:
				p.call(d.service, d.port, pods(d.service.Namespace, w.Namespace, w.pods.selector))
			}
		}
		p.calls[w] = calls
	}
	s.behindGateways(p)
	return p
}

func (p *plan) call(svc *object, at port, from peer) {
	if p.callers[svc] == nil {
		p.callers[svc] = map[port][]peer{}
	}
	p.callers[svc][at] = append(p.callers[svc][at], from)
}

// bindings returns the bindings of a workload to tool servers, and its other calls. known is false
// if nothing declares them.
func (s *state) bindings(o *object) (bindings []binding, calls []call, known bool) {
	w := o.pods
	at := o.Namespace + " " + w.madeBy
	from, config := s.facts.sources[at], s.facts.configs[at]
	known = w.stated
	tools, other := w.tools, w.calls
	if a := from.Metadata.Annotations; !w.stated {
		var t, c bool
		tools, t = a[keys.Tools]
		other, c = a[keys.Calls]
		known = t || c
	}
	for _, text := range strings.Fields(tools) {
		at, names, some := strings.Cut(text, "#")
		b := binding{url: at}
		if some {
			b.tools = strings.FieldsFunc(names, func(r rune) bool { return r == ',' })
		}
		bindings = append(bindings, b)
	}
	for _, text := range strings.Fields(other) {
		calls = append(calls, call{url: text})
	}
	if config == "" || !strings.HasPrefix(w.madeBy, "Agent/") {
		return bindings, calls, known
	}
	more, hosts, declarative := ofConfig(config)
	bindings, calls = append(bindings, more...), append(append(calls, hosts...), w.env...)
	return bindings, append(calls, skillHosts(from)...), known || declarative
}
