// Package configmaps renders the ConfigMaps of settings: <workload>-token-exchange has the files
// and values of the sidecars, each in the format of its program, and <workload>-trace is mounted
// into the application containers at sidecars.TraceMountPath.
package configmaps

import (
	_ "embed"
	"fmt"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
)

//go:embed tokenexchange.md
var exchangePage string

const functionExchange = "token-exchange"

// TokenExchange compiles TokenExchanges. Their settings reach the pod only through its ConfigMap.
func TokenExchange() contract.Function {
	return contract.Function{
		Name:    functionExchange,
		Summary: "compile TokenExchange into the ConfigMap that the identity sidecars read",
		Page:    exchangePage,
		Kinds: []contract.Kind{
			{Name: "TokenExchange", Groups: contract.Pillars, Versions: []string{"v1alpha1"},
				Own: true},
			{Name: runtimeKind, Groups: contract.Agents, Versions: []string{"v1alpha1"}},
		},
		Reasons: contract.Settings,
		New:     beginExchange,
	}
}

// runtimeKind is Kagenti's resource for the same settings, in the profile authbridge.
const runtimeKind = "AgentRuntime"

func beginExchange(p *contract.Package) contract.Steps {
	runtimes := agentRuntimes(p)
	steps := contract.Targeted[api.TokenExchange]{
		ConfigMap: contract.ConfigMap{Of: functionExchange, Sidecars: true,
			Name: (*identity.Settings).TokenExchangeName, Append: sidecars.AppendConfigMap,
			Beside: runtimes.of},
		Parts: func(te *api.TokenExchange) (*api.Origin, api.TargetRef) {
			return &te.Origin, te.Spec.TargetRef
		},
		Use: p.Identity.UseTokenExchange,
		Judge: func(o *krm.Object, te *api.TokenExchange) []finding.Finding {
			return p.Identity.Judge(o, te, nil, nil)
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

// runtimes are the AgentRuntimes of a package.
type runtimes struct {
	pkg   *contract.Package
	steps contract.Steps
	used  map[krm.Origin]bool // those whose workload is in the package
}

func agentRuntimes(p *contract.Package) *runtimes {
	r := &runtimes{pkg: p, used: make(map[krm.Origin]bool)}
	r.steps = contract.Targeted[api.AgentRuntime]{
		ConfigMap: contract.ConfigMap{Of: "agent-runtime", Sidecars: true},
		Parts: func(ar *api.AgentRuntime) (*api.Origin, api.TargetRef) {
			return &ar.Origin, ar.Spec.TargetRef
		},
		Elsewhere: true,
		Use: func(id index.ID, ar *api.AgentRuntime) {
			p.Identity.UseAgentRuntime(id, ar)
			r.used[krm.Origin{File: ar.Origin.File, Line: ar.Origin.Line}] = true
		},
		Judge: func(o *krm.Object, ar *api.AgentRuntime) []finding.Finding {
			return p.Identity.Judge(o, nil, nil, ar)
		},
	}.Steps(p)
	return r
}

// read reports whether AgentRuntimes are read: other profiles have no AuthBridge to configure.
func (r *runtimes) read() bool { return r.pkg.Identity.Profile().AgentRuntimes }

func (r *runtimes) collect(o *krm.Object) {
	if r.read() {
		r.steps.Collect(o)
	}
}

// run processes an object of the package. An AgentRuntime that is not read stays, for Kagenti's
// operator, as does one whose workload is in another package.
func (r *runtimes) run(u *contract.Unit) {
	o := u.Object
	runtime := o.Kind == runtimeKind && r.pkg.Kinds.Read(o.APIVersion, o.Kind)
	if r.read() {
		u.Consumed = u.Consumed &&
			(!runtime || r.used[krm.Origin{File: o.Origin.File, Line: o.Origin.Line}])
		r.steps.Run(u)
		return
	}
	if !runtime {
		return
	}
	u.Consumed = false
	u.Report(finding.Warning, "agent-runtime/profile", o.Get("kind"),
		fmt.Sprintf("an AgentRuntime configures AuthBridge, which the profile %s does not have",
			r.pkg.Identity.Profile().Name),
		"set spec.profile: "+sidecars.AuthBridge+" in the RenderConfig, or leave the workload to "+
			"Kagenti's operator")
}

// of returns the AgentRuntime of a workload as its author wrote it, or nil.
func (r *runtimes) of(id index.ID) *krm.Object {
	if ar := r.pkg.Identity.AgentRuntime(id); ar != nil {
		o, _ := ar.Origin.Text.(*krm.Object)
		return o
	}
	return nil
}
