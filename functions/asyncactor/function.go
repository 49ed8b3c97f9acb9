package asyncactor

import (
	_ "embed"
	"unicode/utf8"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

//go:embed README.md
var page string

const function = "async-actor"

// Function expands AsyncActors.
func Function() contract.Function {
	return contract.Function{
		Name: function,
		Summary: "expand AsyncActor (asya.sh) into its workload with sidecar and script, queue and " +
			"scaling by KEDA",
		Page: page,
		Kinds: []contract.Kind{{
			Name: "AsyncActor", Groups: []contract.Group{{Name: keys.Asya}},
			Versions: []string{"v1alpha1"}, Use: contract.Expands, Fields: api.AsyncActor{},
			Config: "spec.asya", Own: true,
		}, {
			Name: flavorKind, Groups: []contract.Group{{Name: flavorGroup, Open: true}},
			Versions: flavorVersions, Use: contract.Refers, Shared: true, Cluster: true,
		}},
		Migration: contract.Migration{Fields: "moved spec: the objects of the actor"},
		New:       begin,
	}
}

type state struct {
	pkg    *contract.Package
	config api.AsyaSpec
	judged map[*krm.Object]bool // flavors whose findings are reported
}

func begin(p *contract.Package) contract.Steps {
	s := &state{pkg: p, judged: make(map[*krm.Object]bool)}
	if p.Config.Asya != nil {
		s.config = *p.Config.Asya
	}
	g := generationOf(p, &s.config)
	steps := contract.Steps{Expand: func(r *expand.Resource) { s.expand(r, g) }}
	if file := s.config.RuntimeScriptFile; file != nil && *file != "" {
		steps.File = &contract.File{Name: *file, Take: s.script}
	}
	return steps
}

// maxScript is what fits a ConfigMap beside its metadata.
const maxScript = 1<<20 - 8<<10

// script takes the text of the runtime script that the configuration names.
func (s *state) script(content []byte) {
	problem := ""
	switch {
	case s.config.RuntimeScript != nil:
		problem = "is named beside a runtimeScript: keep one of them"
	case content == nil:
		problem = "is not a file of the package"
	case !utf8.Valid(content):
		problem = "is not text"
	case len(content) > maxScript:
		problem = "does not fit a ConfigMap"
	}
	if problem != "" {
		s.pkg.Misconfigured("config/runtime-script", "spec.asya.runtimeScriptFile",
			text.Shown(*s.config.RuntimeScriptFile)+" "+problem,
			"correct the path, which is relative to the package; where a host passes manifests "+
				"only, write the text to spec.asya.runtimeScript")
	}
	script := string(content)
	s.config.RuntimeScript, s.config.RuntimeScriptFile = &script, nil
}
