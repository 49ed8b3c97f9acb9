package functions

import (
	"slices"

	"github.com/armature-dev/armature/functions/agent"
	"github.com/armature-dev/armature/functions/agentcard"
	"github.com/armature-dev/armature/functions/asyncactor"
	"github.com/armature-dev/armature/functions/configmaps"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/inject"
	"github.com/armature-dev/armature/functions/kagentagent"
	"github.com/armature-dev/armature/functions/lintrules"
	"github.com/armature-dev/armature/functions/overcommit"
	"github.com/armature-dev/armature/functions/pinimages"
	"github.com/armature-dev/armature/functions/policies"
)

// Generation is the version that rendered files record. It changes with the output of functions and
// not with every release, so that a new release of the program does not change rendered files.
const Generation = "v0.1.0"

// Table returns all functions in the order of the render: expansion first, policies when every
// container exists, then pinning, and validation of the final objects last. It is the only list of
// functions.
func Table() []contract.Function {
	return []contract.Function{
		agent.Function(),
		kagentagent.Function(),
		asyncactor.Function(),
		inject.Function(),
		configmaps.TokenExchange(),
		configmaps.AgentTrace(),
		agentcard.Function(),
		overcommit.Function(),
		pinimages.Function(),
		policies.Function(),
		lintrules.Validate(),
	}
}

// Names returns the names of all functions in the order of the render.
func Names() (names []string) {
	for _, f := range Table() {
		names = append(names, f.Name)
	}
	return names
}

// Lookup returns the function of a name.
func Lookup(name string) (contract.Function, bool) {
	table := Table()
	i := slices.IndexFunc(table, func(f contract.Function) bool { return f.Name == name })
	if i < 0 {
		return contract.Function{}, false
	}
	return table[i], true
}

// Page returns the manual page of a function, in Markdown.
func Page(name string) (string, bool) {
	f, ok := Lookup(name)
	return f.Page, ok
}
