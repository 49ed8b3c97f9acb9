package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/go-multierror"

	"github.com/armature-dev/armature/functions/krm"
)

// printError writes an error to standard error. Text of a registry or a cluster may
// be in it.
func printError(err error) { fmt.Fprint(os.Stderr, harmless(message(err))) }

// message gives an error as it is printed: with the name of the program, unless it
// begins with the place of each problem.
func message(err error) string {
	switch err.(type) {
	case *multierror.Error, *krm.Finding:
		return explanation(err)
	}
	return "armature: " + explanation(err)
}

// harmless keeps what strangers wrote from steering a terminal.
func harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
}

// oneLine keeps it from steering a table as well.
func oneLine(text string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(harmless(text))
}

// explanation gives each of several errors its own lines. Words that somebody
// put around several stay around them.
func explanation(err error) string {
	if many, ok := err.(*multierror.Error); ok {
		var all strings.Builder
		for _, one := range many.Errors {
			all.WriteString(explanation(one))
		}
		return all.String()
	}
	return strings.TrimRight(err.Error(), "\n") + "\n"
}
