package graph_test

import (
	"testing"

	"github.com/armature-dev/armature/e2e/browser"
)

// TestSVGInABrowser: the drawing of a shipped mode can be read in light and dark,
// fits the window, and has a name and a description for those who do not see it.
// The pictures stay in .cache/pictures.
func TestSVGInABrowser(t *testing.T) {
	b := browser.Open(t)
	file := b.File("build.svg", []byte(drawn(t, "svg", shipped(t, "prod"))))
	for _, view := range browser.Views() {
		b.Show(view, file)
		b.Check()
		b.Picture("build-" + view.Name)
		if role, name := b.Image("svg"); role != "image" || name != "Pipeline of AgentBuild weather" {
			t.Errorf("%s: for a screen reader it is %s %q", view.Name, role, name)
		}
	}
}
