// Package tokenexchange renders the ConfigMap <workload>-token-exchange: the
// files and values of the sidecars, each as the program itself reads it. What a
// TokenExchange says reaches the pod through it alone.
package tokenexchange

import (
	_ "embed"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
)

//go:embed README.md
var page string

const function = "token-exchange"

// Function compiles TokenExchanges.
func Function() contract.Function {
	return contract.Function{
		Name:    function,
		Summary: "compile TokenExchange into the ConfigMap that the identity sidecars read",
		Page:    page,
		Kinds: []contract.Kind{
			{Name: "TokenExchange", Groups: contract.Pillars, Versions: []string{"v1alpha1"}, Own: true},
			{Name: runtimeKind, Groups: contract.Agents, Versions: []string{"v1alpha1"}},
		},
		Reasons: contract.Settings,
		New:     begin,
	}
}

// runtimeKind is Kagenti's resource for the same settings, in the profile authbridge.
const runtimeKind = "AgentRuntime"

func begin(p *contract.Package) contract.Steps {
	runtimes := agentRuntimes(p)
	steps := contract.Targeted[api.TokenExchange]{
		ConfigMap: contract.ConfigMap{Of: function, Sidecars: true,
			Name: (*identity.Settings).TokenExchangeName, Append: sidecars.AppendConfigMap,
			Beside: runtimes.of},
		Parts: func(te *api.TokenExchange) (*api.Origin, api.TargetRef) {
			return &te.Origin,
				te.Spec.TargetRef
		},
		Use: p.Identity.UseTokenExchange,
		Judge: func(o *krm.Object, te *api.TokenExchange) []finding.Finding {
			return p.Identity.Judge(o, te,
				nil)
		},
	}.Steps(p)
	collect, resolve, run := steps.Collect, steps.Resolve, steps.Run
	steps.Collect = func(o *krm.Object) {
		if o.Kind == runtimeKind {
			runtimes.collect(o)
		} else {
			collect(o)
		}
	}
	steps.Resolve = func() { runtimes.steps.Resolve(); resolve() }
	steps.Run = func(u *contract.Unit) { runtimes.run(u); run(u) }
	return steps
}
