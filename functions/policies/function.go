// Package policies derives the permitted connections of agents from their bindings: a NetworkPolicy
// for each agent and each tool server, and the tools that MCP gateways permit. An unknown address
// is a finding, and then no policy is derived for the agent.
package policies

import (
	_ "embed"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

//go:embed README.md
var page string

const function = "policies"

// Function derives policies.
func Function() contract.Function {
	return contract.Function{
		Name:    function,
		Summary: "derive NetworkPolicies and tool authorization from the bindings of agents",
		Page:    page,
		Reasons: contract.Settings,
		New:     begin,
	}
}

// mode says whether derived policies are reported or written.
type mode string

const (
	off     mode = ""
	report  mode = "report"
	enforce mode = "enforce"
)

// state holds the contents of a package from which policies are derived.
type state struct {
	pkg            *contract.Package
	spec           *api.PoliciesSpec
	network, tools mode
	facts          facts
	plan           func() *plan // the bindings of all agents, computed after the last call of look
}

func begin(p *contract.Package) contract.Steps {
	s := &state{pkg: p, spec: p.Config.Policies, facts: facts{
		objects: map[index.ID]*object{}, kinds: map[string][]*object{},
		configs: map[string]string{}, sources: map[string]source{}}}
	if s.spec == nil {
		return contract.Steps{}
	}
	s.network, s.tools = modeOf(p, "network", s.spec.Network), modeOf(p, "tools", s.spec.Tools)
	for _, host := range slices.Sorted(maps.Keys(s.spec.Addresses)) {
		check(p, "addresses."+host, s.spec.Addresses[host])
	}
	if s.spec.DNS != nil {
		check(p, "dns", s.spec.DNS)
	}
	if s.network == off && s.tools == off {
		return contract.Steps{}
	}
	s.plan = sync.OnceValue(s.bind)
	return contract.Steps{Unsure: s.unsure, Look: s.look, Run: s.run}
}

func misconfigured(p *contract.Package, field, message, hint string) {
	p.Misconfigured("config/policies", "spec.policies."+field, message, hint)
}

// modeOf returns the mode in a field of the configuration.
func modeOf(p *contract.Package, field string, value *string) mode {
	if value == nil || *value == string(report) || *value == string(enforce) {
		return mode(node.Or(value, ""))
	}
	misconfigured(p, field, fmt.Sprintf("%q is neither report nor enforce", text.Shown(*value)),
		"write report, and enforce once the findings are right")
	return off
}

// check reports errors in an address of the configuration.
func check(p *contract.Package, field string, a *api.AddressSpec) {
	if a == nil || (len(a.CIDRs) == 0) == (a.Namespace == nil || len(a.Pods) == 0) || len(a.CIDRs) > 0 &&
		(a.Namespace != nil || a.Pods != nil) {
		misconfigured(p, field,
			"an address is either cidrs, or a namespace and the labels of pods in it",
			"set one of the two")
		return
	}
	for _, c := range a.CIDRs {
		if prefix, err := netip.ParsePrefix(c); err != nil || prefix.Masked() != prefix {
			misconfigured(p, field, fmt.Sprintf("%q is not a network", text.Shown(c)),
				"write it as 203.0.113.0/24")
		}
	}
	if a.Port != nil && (*a.Port < 1 || *a.Port > 65535) {
		misconfigured(p, field, fmt.Sprintf("%d is not a port", *a.Port), "use 1 to 65535")
	}
}

// run derives the policies of an object: the egress of a workload, the ingress of a Service, and
// the permitted tools of a gateway's backend.
func (s *state) run(u *contract.Unit) {
	o := s.factsOf(u.Object)
	switch {
	case o == nil:
	case o.pods != nil && s.network != off:
		s.egress(u, o)
	case o.Kind == "Service" && s.network != off:
		s.ingress(u, o)
	case o.Kind == "AgentgatewayBackend" && s.tools != off:
		s.agentgateway(u, o)
	}
}

// factsOf returns the recorded contents of an object, or nil.
func (s *state) factsOf(o *krm.Object) *object {
	for id, e := range s.pkg.Index.Named(index.KeyOf(o.Ref)) {
		if facts := s.facts.objects[id]; facts != nil && e.File == o.Origin.File &&
			(int(e.Line) == o.Origin.Line || e.Made) {
			return facts
		}
	}
	return nil
}

// derived is a derived policy of an object.
type derived struct {
	apiVersion, kind, name string
	spec                   any
	// says describes in a line what the policy allows.
	says string
}

// emit adds a policy after the object of the unit, or reports it as a finding.
func (s *state) emit(u *contract.Unit, m mode, d derived) {
	rule := function + "/" + strings.ToLower(d.kind)
	if place, taken := s.pkg.Index.Authored(index.Key{Kind: d.kind, Namespace: u.Object.Namespace,
		Name: d.name}, u.Object.Origin.File); taken {
		u.Report(finding.Warning, function+"/name-taken", krm.Node{},
			fmt.Sprintf("its %s %s is not written, because %s has an object of that name", d.kind,
				d.name, place), "rename that object")
		return
	}
	if m == report {
		field := "tools"
		if d.kind == "NetworkPolicy" {
			field = "network"
		}
		u.Report(finding.Info, rule, krm.Node{},
			fmt.Sprintf("%s %s would allow %s", d.kind, d.name, d.says),
			"set spec.policies."+field+": enforce to write it")
		return
	}
	spec, err := krm.BlockStyle(yaml.NewRNode(node.Map("spec", d.spec).Node()))
	if err != nil {
		u.Report(finding.Error, rule, krm.Node{}, err.Error(), "")
		return
	}
	text := identity.AppendMetadata([]byte("apiVersion: "+d.apiVersion+"\nkind: "+d.kind+"\n"),
		scalar.PlainText(d.name), u.Object.Namespace,
		scalar.PlainText(u.Object.Kind+"/"+u.Object.Name))
	u.Generated = append(u.Generated, append(text, spec...))
}

// unknown reports the problems that prevent the policies of an object.
func unknown(u *contract.Unit, problems []string) {
	slices.Sort(problems)
	for _, problem := range slices.Compact(problems) {
		u.Report(finding.Warning, function+"/unknown-address", krm.Node{},
			problem+": no policy is derived for it",
			"set its address in spec.policies.addresses of armature.yaml, or add its Service to "+
				"the package")
	}
}
