package kagentagent

import (
	_ "embed"

	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/expand"
)

var (
	//go:embed README.md
	page string
	//go:embed migrate.txt
	moves string
)

const function = "kagent-agent"

// Function expands kagent's resources.
func Function() contract.Function {
	groups := []contract.Group{{Name: group, Open: true}}
	kind := func(name, version string, use contract.Use, fields any) contract.Kind {
		return contract.Kind{Name: name, Groups: groups, Versions: []string{version}, Use: use,
			Fields: fields, Config: "spec.kagent", Shared: name != "Agent"}
	}
	return contract.Function{
		Name: function,
		Summary: "expand kagent's Agent, ModelConfig and MCPServer, with references in place of the " +
			"values of Secrets",
		Page: page,
		Kinds: []contract.Kind{
			kind("Agent", "v1alpha2", contract.Expands, agent{}),
			kind("ModelConfig", "v1alpha2", contract.Expands, modelConfig{}),
			kind("MCPServer", "v1alpha1", contract.Expands, mcpServer{}),
			kind("RemoteMCPServer", "v1alpha2", contract.Refers, remoteServer{}),
		},
		Migration: contract.Migration{Fields: moves, Replaces: true},
		New: func(p *contract.Package) contract.Steps {
			s := settingsOf(p)
			return contract.Steps{Expand: s.expand}
		},
	}
}

func (s *settings) expand(r *expand.Resource) {
	switch r.Kind {
	case "Agent":
		s.agent(r)
	case "ModelConfig":
		s.modelConfig(r)
	case "MCPServer":
		s.server(r)
	}
}
