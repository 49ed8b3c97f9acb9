package failure

import (
	"slices"
	"testing"
)

// The lifecycle of buildpacks writes in colours, which hide nothing and are not kept; what
// moves a terminal's cursor is shown as what it is.
func TestLinesOf(t *testing.T) {
	log := "\x1b[36m===> DETECTING\x1b[0m\n\x1b[31;1mERROR: \x1b[0mNo buildpack groups passed " +
		"detection.\n\x1b[31;1mERROR: \x1b[0mfailed to detect: no buildpacks participating\n"
	lines := linesOf([]byte(log))
	if want := []string{"===> DETECTING", "ERROR: No buildpack groups passed detection.",
		"ERROR: failed to detect: no buildpacks participating"}; !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
	if got := Of(Step{Name: "create", Log: lines}); got.Reason != "BuildpacksFailed" {
		t.Errorf("%+v", got)
	}
	if got := linesOf([]byte("\x1b[2Jgone\n")); len(got) != 1 || got[0] == "gone" {
		t.Errorf("%q", got)
	}
	if got := linesOf([]byte("\n\n")); got != nil {
		t.Errorf("%q", got)
	}
}
