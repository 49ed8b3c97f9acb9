package configmaps

import (
	_ "embed"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
)

//go:embed agenttrace.md
var tracePage string

const functionTrace = "agent-trace"

// AgentTrace compiles AgentTraces.
func AgentTrace() contract.Function {
	return contract.Function{
		Name:    functionTrace,
		Summary: "compile AgentTrace into the ConfigMap that the application reads for tracing",
		Page:    tracePage,
		Kinds: []contract.Kind{{Name: "AgentTrace", Groups: contract.Pillars,
			Versions: []string{"v1alpha1"}, Own: true}},
		Reasons: contract.Settings,
		New:     beginTrace,
	}
}

func beginTrace(p *contract.Package) contract.Steps {
	return contract.Targeted[api.AgentTrace]{
		ConfigMap: contract.ConfigMap{
			Of: functionTrace, Name: (*identity.Settings).TraceName,
			Append: sidecars.AppendTraceConfigMap,
			Needed: func(s *identity.Settings) bool { return s.Trace.Enabled },
		},
		Parts: func(at *api.AgentTrace) (*api.Origin, api.TargetRef) {
			return &at.Origin, at.Spec.TargetRef
		},
		Use: p.Identity.UseAgentTrace,
		Judge: func(o *krm.Object, at *api.AgentTrace) []finding.Finding {
			return p.Identity.Judge(o, nil, at, nil)
		},
	}.Steps(p)
}
