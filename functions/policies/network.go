package policies

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/functions/skills"
)

type networkPolicy struct {
	PodSelector selector `yaml:"podSelector"`
	PolicyTypes []string `yaml:"policyTypes"`
	Ingress     []rule   `yaml:"ingress,omitempty"`
	Egress      []rule   `yaml:"egress,omitempty"`
}

type rule struct {
	From  []peer `yaml:"from,omitempty"`
	To    []peer `yaml:"to,omitempty"`
	Ports []port `yaml:"ports"`
}

// egress limits the pods of a workload to its known calls.
func (s *state) egress(u *contract.Unit, w *object) {
	calls, known := s.plan().calls[w]
	if !known {
		if u.Injected() {
			u.Report(finding.Info, function+"/unknown-calls", krm.Node{},
				"the package does not declare what this agent calls: no NetworkPolicy is "+
					"derived for it",
				"name its tool servers in the annotation "+keys.Tools+", and the rest in "+keys.Calls+
					"; empty values mean that it calls nothing")
		}
		return
	}
	if u.Injected() {
		calls = slices.Concat(calls, needs(u.Settings()))
	}
	if pod, ok := u.Object.PodTemplate(); ok && skills.Fetches(s.pkg.Config) {
		mounted, _ := skills.Of(u.Object, pod)
		for _, k := range mounted {
			calls = append(slices.Clone(calls), call{url: skills.Registry(k.Ref)})
		}
	}
	ends := s.dns(w)
	var problems []string
	for _, c := range calls {
		d, local, problem := destination{}, false, c.problem
		if problem == "" {
			d, local, problem = s.resolve(w, c.url)
		}
		switch {
		case problem != "":
			problems = append(problems, problem)
		case !local:
			ends = append(ends, d)
		}
	}
	if len(w.pods.selector) == 0 {
		problems = append(problems, "its pods have no labels to select them by")
	}
	if len(problems) > 0 {
		unknown(u, problems)
		return
	}
	s.limit(u, egress, w.pods.selector, ends)
}

// dns returns the destinations for resolving names, by UDP and, for long answers, by TCP.
func (s *state) dns(w *object) []destination {
	kubeSystem := "kube-system"
	a := cmp.Or(s.spec.DNS,
		&api.AddressSpec{Namespace: &kubeSystem, Pods: map[string]string{"k8s-app": "kube-dns"}})
	peers, number := ofAddress(w.Namespace, a), node.Or(a.Port, 53)
	return []destination{{peers: peers, says: "DNS", port: port{"UDP", number}},
		{peers: peers, says: "DNS", port: port{"TCP", number}}}
}

// needs returns the calls of the sidecars and the application of an injected workload according to
// its settings. SPIRE is reached through a socket of the node.
func needs(s *identity.Settings) (calls []call) {
	add := func(urls ...string) {
		for _, u := range urls {
			if u != "" {
				calls = append(calls, call{url: u})
			}
		}
	}
	for _, e := range s.Trace.Exporters {
		if e.Type != "console" {
			add(e.Endpoint)
		}
	}
	if s.Trace.MLflow.Enabled {
		add(s.Trace.MLflow.TrackingURI)
	}
	if s.TraceOnly {
		return calls
	}
	if s.Registration.Enabled && s.On(sidecars.ClientRegistration) {
		switch s.Registration.Provider {
		case "aws":
			add(cmp.Or(s.Registration.AWS.STSEndpoint,
				"https://sts."+s.Registration.AWS.Region+".amazonaws.com"))
		case "gcp":
			add("https://sts.googleapis.com", "https://iamcredentials.googleapis.com")
		default:
			add(s.Registration.URL)
		}
	}
	if s.Inbound.Enabled && s.Inbound.Validate {
		add(s.Inbound.JWKSURL)
	}
	if s.Outbound.Enabled && s.Outbound.TokenExchange {
		add(s.Outbound.TokenURL)
		for _, r := range s.Outbound.Rules {
			add(r.TokenURL)
		}
	}
	return calls
}

// ingress limits the callers of a tool server's pods to the agents that are bound to it.
func (s *state) ingress(u *contract.Unit, svc *object) {
	callers := maps.Clone(s.plan().callers[svc])
	if len(callers) == 0 {
		return
	}
	if problems := s.routed(svc, callers); len(problems) > 0 {
		unknown(u, problems)
		return
	}
	var ends []destination
	for at, peers := range callers {
		for _, p := range peers {
			ends = append(ends, destination{peers: []peer{p}, port: at, says: fmt.Sprintf(
				"pods %s port %d", labelText(p.PodSelector.MatchLabels), at.Port)})
		}
	}
	s.limit(u, ingress, svc.Spec.Selector, ends)
}

// routed adds the gateways with routes to a Service to its callers. problems lists callers that are
// not known.
func (s *state) routed(svc *object, callers map[port][]peer) (problems []string) {
	for _, r := range s.facts.kinds["HTTPRoute"] {
		for _, rule := range r.Spec.Rules {
			for _, b := range rule.BackendRefs {
				if !b.is("Service", r.Namespace, svc.Ref) {
					continue
				}
				if slices.ContainsFunc(s.facts.kinds["MCPServerRegistration"], func(one *object) bool {
					return one.Spec.TargetRef.is("HTTPRoute", one.Namespace, r.Ref)
				}) { // at Kuadrant's mcp-gateway
					problems = append(problems,
						fmt.Sprintf("the broker of the gateway of %s queries it too, "+
							"and its pods are not known", r.Ref))
				}
				d, _, problem := s.throughService(svc, svc, destination{port: port{"TCP", b.Port}})
				if problem != "" {
					problems = append(problems, problem)
				}
				for _, parent := range r.Spec.ParentRefs {
					g := s.nearest("Gateway", cmp.Or(parent.Namespace, r.Namespace), parent.Name,
						r.file)
					if g == nil {
						problems = append(problems,
							fmt.Sprintf("%s leads to it from the Gateway %s, which the "+
								"package does not have", r.Ref, parent.Name))
						continue
					}
					callers[d.port] = append(slices.Clone(callers[d.port]),
						pods(svc.Namespace, g.Namespace, gatewayPods(g)))
				}
			}
		}
	}
	return problems
}

// limit emits the NetworkPolicy that limits the pods' traffic in one direction to the given ends.
// Its rules are sorted by their peers.
func (s *state) limit(u *contract.Unit, to direction, pods map[string]string,
	ends []destination) {
	ports := map[string][]port{} // by the text of their peer
	peers := map[string][]peer{}
	var says []string
	for _, end := range ends {
		says = append(says, end.says)
		for _, p := range end.peers {
			text, err := yaml.Marshal(p)
			if err != nil {
				panic(fmt.Sprintf("policies: marshalling a peer: %v", err))
			}
			key := string(text)
			ports[key], peers[key] = append(ports[key], end.port), []peer{p}
		}
	}

	policy := networkPolicy{PodSelector: selector{pods}, PolicyTypes: []string{to.name}}
	for _, key := range slices.Sorted(maps.Keys(ports)) {
		all := ports[key]
		slices.SortFunc(all, func(a, b port) int {
			return cmp.Or(a.Port-b.Port, strings.Compare(a.Protocol, b.Protocol))
		})
		all = slices.Compact(all)
		if to == egress {
			policy.Egress = append(policy.Egress, rule{To: peers[key], Ports: all})
		} else {
			policy.Ingress = append(policy.Ingress, rule{From: peers[key], Ports: all})
		}
	}
	s.emit(u, s.network, derived{"networking.k8s.io/v1", "NetworkPolicy",
		identity.ShortName(u.Object.Name, to.suffix), policy, to.says + list(says)})
}

// direction is the direction of a NetworkPolicy, with the suffix of its name.
type direction struct{ name, suffix, says string }

var (
	egress  = direction{"Egress", "-egress", "egress to "}
	ingress = direction{"Ingress", "-tools", "ingress from "}
)

func labelText(labels map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, key+"="+labels[key])
	}
	return strings.Join(out, ",")
}

func list(says []string) string {
	slices.Sort(says)
	return strings.Join(slices.Compact(says), "; ")
}
