package tokenexchange

import (
	"fmt"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
)

// runtimes are the AgentRuntimes of a package.
type runtimes struct {
	pkg   *contract.Package
	steps contract.Steps
}

func agentRuntimes(p *contract.Package) *runtimes {
	return &runtimes{p, contract.Targeted[api.AgentRuntime]{
		ConfigMap: contract.ConfigMap{Of: "agent-runtime", Sidecars: true},
		Parts:     func(ar *api.AgentRuntime) (*api.Origin, api.TargetRef) { return &ar.Origin, ar.Spec.TargetRef },
		Use:       p.Identity.UseAgentRuntime,
		Judge:     p.Identity.JudgeRuntime,
	}.Steps(p)}
}

// read reports whether AgentRuntimes are read: other profiles have no AuthBridge that
// one could configure.
func (r *runtimes) read() bool { return r.pkg.Identity.Profile() == identity.ProfileAuthBridge }

func (r *runtimes) collect(o *krm.Object) {
	if r.read() {
		r.steps.Collect(o)
	}
}

// run takes an object of the package. An AgentRuntime that is not read stays, for
// Kagenti's operator.
func (r *runtimes) run(u *contract.Unit) {
	if r.read() {
		r.steps.Run(u)
		return
	}
	o := u.Object
	if o.Kind != runtimeKind || !r.pkg.Kinds.Read(o.APIVersion, o.Kind) {
		return
	}
	u.Consumed = false
	u.Report(krm.Warning, "agent-runtime/profile", o.Get("kind"),
		fmt.Sprintf("an AgentRuntime configures AuthBridge, which the profile %s does not have", r.pkg.Identity.Profile()),
		"set spec.profile: "+identity.ProfileAuthBridge+" in the RenderConfig, or leave the workload to Kagenti's operator")
}

// of gives the AgentRuntime of a workload as its author wrote it, nil for none.
func (r *runtimes) of(id index.ID) *krm.Object {
	if ar := r.pkg.Identity.AgentRuntime(id); ar != nil {
		o, _ := ar.Origin.Text.(*krm.Object)
		return o
	}
	return nil
}
