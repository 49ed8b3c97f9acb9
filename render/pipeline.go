package render

import (
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions"
)

// order is the table of contents of a render: expansion first; policy once
// every container exists; pinning after it; judgement last, on what will leave.
var order = [...]string{
	"agent",
	"kagent-agent",
	"async-actor",
	"inject",
	"token-exchange",
	"agent-trace",
	"agent-card",
	"overcommit",
	"pin-images",
	"validate",
}

// Functions are the names of all functions in the order of the render.
func Functions() []string { return slices.Clone(order[:]) }

// pipeline gives the named functions in the order of the render; no name gives
// all of them.
func pipeline(names []string) ([]functions.Function, error) {
	chosen := make(map[string]bool)
	for _, name := range names {
		if _, ok := functions.Lookup(name); !ok {
			return nil, fmt.Errorf("there is no function %q: choose from %s", name, strings.Join(order[:], ", "))
		}
		chosen[name] = true
	}
	var rows []functions.Function
	for _, name := range order {
		if f, ok := functions.Lookup(name); ok && (len(names) == 0 || chosen[name]) {
			rows = append(rows, f)
		}
	}
	return rows, nil
}
