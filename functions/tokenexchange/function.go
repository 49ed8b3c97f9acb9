package tokenexchange

import (
	_ "embed"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
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
		Kinds:   []contract.Kind{{Name: "TokenExchange", Groups: contract.Pillars, Versions: []string{"v1alpha1"}, Own: true}},
		Reasons: contract.Settings,
		New:     begin,
	}
}

// state is what is known of a package.
type state struct {
	pkg       *contract.Package
	resources []resource
	owners    contract.Owners
	configMap contract.ConfigMap
}

type resource struct {
	object *krm.Object
	value  api.TokenExchange
}

func begin(p *contract.Package) contract.Steps {
	s := &state{pkg: p, owners: make(contract.Owners)}
	s.configMap = contract.ConfigMap{Of: function, Sidecars: true, Name: (*identity.Settings).TokenExchangeName, Append: New().AppendConfigMap}
	return contract.Steps{Collect: s.collect, Resolve: s.resolve, Run: func(u *contract.Unit) { s.owners.Run(u, &s.configMap) }}
}

func (s *state) collect(o *krm.Object) {
	r := resource{object: o}
	s.pkg.Report.Decode(o, function+"/field", &r.value)
	r.value.Origin = contract.OriginOf(o)
	s.resources = append(s.resources, r)
}

// resolve finds the workload of each TokenExchange.
func (s *state) resolve() {
	for i := range s.resources {
		r := &s.resources[i]
		target, ok := s.pkg.Target(function, r.object, r.value.Spec.TargetRef)
		if !ok {
			s.pkg.Report.Add(s.pkg.Identity.Judge(r.object, &r.value, nil)...)
		} else if s.owners.Claim(s.pkg, function, target, r.object) {
			s.pkg.Identity.UseTokenExchange(target, &r.value)
		}
	}
}
