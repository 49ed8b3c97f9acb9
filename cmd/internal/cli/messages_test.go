package cli

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hashicorp/go-multierror"

	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/finding"
)

// Each error has its own lines, and no words are lost.
func TestExplanation(t *testing.T) {
	placed := finding.Place{File: "a.yaml", Line: 3, Field: "spec.x"}.Fault("Rule", "is wrong", "drop it")
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"one", errors.New("no"), "no\n"},
		{"several", multierror.Append(nil, errors.New("first"), placed),
			"first\na.yaml:3: spec.x: is wrong\n  hint: drop it\n"},
		{"of builds", findings.Join(errors.New("no"), placed),
			"a.yaml:3: spec.x: is wrong\n  hint: drop it\nno\n"},
		{"words around one", fmt.Errorf("reading the pins: %w", placed),
			"reading the pins: a.yaml:3: spec.x: is wrong\n  hint: drop it\n"},
		{"words around several",
			fmt.Errorf("pruning: %w",
				multierror.Append(nil, errors.New("first"), errors.New("second"))),
			"pruning: 2 errors occurred:\n\t* first\n\t* second\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := explanation(c.err); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// What a stranger names an agent neither steers the terminal nor turns its line around.
func TestHarmless(t *testing.T) {
	for text, want := range map[string]string{
		"a\x1b[2Jb\u009bc":         "a [2Jb c",
		"exe.\u202etxt\u2066":      "exe.<U+202E>txt<U+2066>",
		"zero\u200bwidth\ufeff":    "zero<U+200B>width<U+FEFF>",
		"two\nlines\tof Ünïcode 漢": "two lines of Ünïcode 漢",
	} {
		if got := OneLine(text); got != want {
			t.Errorf("%q is printed as %q, want %q", text, got, want)
		}
	}
}
