package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/go-multierror"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render/source"
)

// PrintError writes an error to standard error. It may contain text of a registry or a cluster.
func PrintError(err error) { fmt.Fprint(os.Stderr, Harmless(message(err))) }

// message returns an error as it is printed: with the name of the program, unless it begins with
// the place of each problem.
func message(err error) string {
	switch err.(type) {
	case *multierror.Error, *finding.Finding:
		return explanation(err)
	}
	return "armature: " + explanation(err)
}

// Harmless makes untrusted text safe for a terminal: control characters become spaces, and
// characters that hide or reorder text are shown by their number.
func Harmless(text string) string {
	return tools.Visible(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, text))
}

// OneLine makes untrusted text safe for a table as well.
func OneLine(text string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(Harmless(text))
}

// explanation formats an error. Each of several errors is on its own lines, within the text that
// wraps all of them.
func explanation(err error) string {
	if many, ok := err.(*multierror.Error); ok {
		var all strings.Builder
		for _, one := range many.Errors {
			all.WriteString(explanation(one))
		}
		return all.String()
	}
	return strings.TrimRight(source.Explain(err), "\n") + "\n"
}
