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

// PrintError writes an error to standard error. Text of a registry or a cluster may
// be in it.
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

// Harmless keeps what strangers wrote from steering a terminal: control characters become
// spaces, and those that hide or turn text around are shown by their number.
func Harmless(text string) string {
	return tools.Visible(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, text))
}

// OneLine keeps it from steering a table as well.
func OneLine(text string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(Harmless(text))
}

// explanation prints each of several errors on its own lines, inside of the words that wrap all of
// them.
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
