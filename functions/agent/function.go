package agent

import (
	_ "embed"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/expand"
)

//go:embed README.md
var page string

const function = "agent"

// Function expands Agents.
func Function() contract.Function {
	groups := append(contract.Agents[:2:2], contract.Pillars...)
	return contract.Function{
		Name: function,
		Summary: "expand Agent (agent.kagenti.dev) into Deployment, Service, ServiceAccount and " +
			"least-privilege RBAC",
		Page: page,
		Kinds: []contract.Kind{
			{Name: "Agent", Groups: groups, Versions: []string{"v1alpha1"}, Use: contract.Expands,
				Fields: api.Agent{}, Config: "spec.kagenti"},
			{Name: "AgentBuild", Groups: contract.Agents, Versions: []string{"v1alpha1"},
				Use: contract.Elsewhere},
		},
		Migration: contract.Migration{Fields: moves, Finish: finish, Notes: notes, Beside: card},
		New: func(p *contract.Package) contract.Steps {
			g := generationOf(p)
			return contract.Steps{Expand: func(r *expand.Resource) { Expand(r, g) }}
		},
	}
}
