package policies

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// MCP gateways permit the tools that agents of the package are bound to at them. They match tools
// by the names that the servers define, and show them to agents with prefixes.

// allowed are the tools of a server that agents are bound to; all is set if an agent names no
// tools.
type allowed struct {
	all   bool
	names map[string]bool
}

func (a *allowed) add(tools ...string) {
	if a.names == nil {
		a.names = map[string]bool{}
	}
	for _, t := range tools {
		a.names[t] = true
	}
}

func (a *allowed) says(server string) string {
	if a.all {
		return "all tools of " + server
	}
	return server + ": " + cmp.Or(strings.Join(slices.Sorted(maps.Keys(a.names)), ", "), "nothing")
}

// literal returns a string literal of CEL.
func literal(text string) string {
	data, err := json.Marshal(text)
	if err != nil {
		panic(fmt.Sprintf("policies: marshalling %q: %v", text, err))
	}
	return string(data)
}

// leadsTo reports whether a path at a gateway may lead to a backend.
func (s *state) leadsTo(g *object, path string, backend finding.Ref) bool {
	var found []targetRef
	longest := -1
	for _, r := range s.facts.kinds["HTTPRoute"] {
		if !slices.ContainsFunc(r.Spec.ParentRefs,
			func(p targetRef) bool { return p.is("Gateway", r.Namespace, g.Ref) }) {
			continue
		}
		for _, rule := range r.Spec.Rules {
			length := -1
			if len(rule.Matches) == 0 {
				length = 0
			}
			for _, m := range rule.Matches {
				value := strings.TrimSuffix(m.Path.Value, "/")
				if m.Path.Type != "RegularExpression" &&
					(path == value ||
						m.Path.Type != "Exact" && strings.HasPrefix(path+"/", value+"/")) {
					length = max(length, len(value))
				}
			}
			if length < longest || length < 0 {
				continue
			}
			if length > longest {
				longest, found = length, nil
			}
			for _, b := range rule.BackendRefs {
				if b.Namespace == "" {
					b.Namespace = r.Namespace
				}
				found = append(found, b)
			}
		}
	}
	return slices.ContainsFunc(found,
		func(t targetRef) bool { return t.is("AgentgatewayBackend", "", backend) })
}

// is reports whether a reference of an object in a namespace denotes another object.
func (t targetRef) is(kind, namespace string, r finding.Ref) bool {
	if t.Namespace != "" {
		namespace = t.Namespace
	}
	return (t.Kind == kind || t.Kind == "") && r.Kind == kind && t.Name == r.Name &&
		namespace == r.Namespace
}

// behindGateways lets the pods of gateways reach the servers that agents call through them.
func (s *state) behindGateways(p *plan) {
	for g, passages := range p.through {
		open := func(url string) {
			if d, local, problem := s.resolve(g, url); !local && problem == "" && d.service != nil {
				p.call(d.service, d.port, pods(d.service.Namespace, g.Namespace, gatewayPods(g)))
			}
		}
		for _, passage := range passages {
			for _, b := range s.facts.kinds["AgentgatewayBackend"] {
				if b.Spec.MCP == nil || !s.leadsTo(g, passage.path, b.Ref) {
					continue
				}
				for _, t := range b.Spec.MCP.Targets {
					open(fmt.Sprintf("http://%v:%v", t.Static["host"], t.Static["port"]))
				}
			}
		}
	}
}

// agentgateway permits the tools that agents are bound to at a backend.
func (s *state) agentgateway(u *contract.Unit, b *object) {
	if b.Spec.MCP == nil {
		return
	}
	byTarget := map[string]*allowed{}
	var problems []string
	bound := false
	through := s.plan().through
	for _, g := range s.facts.kinds["Gateway"] {
		for _, p := range through[g] {
			if s.leadsTo(g, p.path, b.Ref) {
				bound = true
				problems = append(problems, b.allow(byTarget, p.tools)...)
			}
		}
	}
	if !bound || s.guarded(u, b.Ref) {
		return
	}
	if len(problems) > 0 {
		unknown(u, problems)
		return
	}
	var expressions, says []string
	for _, target := range slices.Sorted(maps.Keys(byTarget)) {
		a := byTarget[target]
		expression := "mcp.tool.target == " + literal(target)
		if !a.all {
			var names []string
			for _, name := range slices.Sorted(maps.Keys(a.names)) {
				names = append(names, literal(name))
			}
			expression += " && mcp.tool.name in [" + strings.Join(names, ", ") + "]"
		}
		expressions, says = append(expressions, expression), append(says, a.says(target))
	}
	s.emit(u, s.tools,
		derived{"agentgateway.dev/v1alpha1", "AgentgatewayPolicy",
			identity.ShortName(b.Name, "-tools"),
			map[string]any{
				"targetRefs": []any{map[string]any{"group": "agentgateway.dev",
					"kind": "AgentgatewayBackend", "name": b.Name}},
				"backend": map[string]any{
					"mcp": map[string]any{"authorization": map[string]any{"action": "Allow",
						"policy": map[string]any{"matchExpressions": expressions}}}},
			}, list(says)})
}

// allow permits tools, by the names that agents know, at the targets of a backend. With several
// targets, agents know a tool as TARGET_TOOL.
func (b *object) allow(byTarget map[string]*allowed, tools []string) (problems []string) {
	of := func(target string) *allowed {
		if byTarget[target] == nil {
			byTarget[target] = &allowed{}
		}
		return byTarget[target]
	}
	targets := b.Spec.MCP.Targets
	for _, t := range targets {
		if t.Static == nil {
			return []string{
				fmt.Sprintf("the names of the servers that %s selects by labels are not known",
					b.Ref)}
		}
		if tools == nil {
			of(t.Name).all = true
		}
	}
	for _, tool := range tools {
		target, name := "", tool
		if len(targets) == 1 {
			target = targets[0].Name
		}
		for _, t := range targets {
			if rest, ok := strings.CutPrefix(tool, t.Name+"_"); ok && rest != "" && len(targets) > 1 &&
				len(t.Name) >= len(target) {
				target, name = t.Name, rest
			}
		}
		if target == "" {
			problems = append(problems,
				fmt.Sprintf("the server of the tool %q at %s is not known", text.Shown(tool), b.Ref))
			continue
		}
		of(target).add(name)
	}
	return problems
}

// guarded reports whether an author wrote a policy for an object, in which case none is derived.
func (s *state) guarded(u *contract.Unit, of finding.Ref) bool {
	for _, g := range s.facts.kinds["AgentgatewayPolicy"] {
		refs := append(slices.Clone(g.Spec.TargetRefs), g.Spec.TargetRef)
		if slices.ContainsFunc(refs,
			func(t targetRef) bool { return t.Name != "" && t.is(of.Kind, g.Namespace, of) }) {
			u.Report(finding.Warning, function+"/two-policies", krm.Node{},
				fmt.Sprintf("%s is about %s already: no policy is derived for it", g.Ref, of),
				"allow the tools there, or remove it")
			return true
		}
	}
	return false
}
