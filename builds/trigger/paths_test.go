package trigger

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/render/deliver/forge"
)

const commitOlder = "fedcba9876543210fedcba9876543210fedcba98"

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"api/**", "api/v1/x.go", true}, {"api/**", "apis/x", false}, {"api", "api/x", true},
		{"api/", "api/x", true}, {"/api", "api", true}, {"*.go", "main.go", true},
		{"*.go", "cmd/main.go", false}, {"**/*.go", "cmd/main.go", true},
		{"**/*.go", "main.go", true}, {"**/x/**", "x/y", true}, {"**/x/**", "xx/y", false},
		{"**.go", "cmd/main.go", true}, {"go.mod", "go.mod", true}, {"go.mod", "go_mod", false},
		{"a*b", "a/b", false}, {"**", "x/y", true}, {"a(b", "a(b/c", true}, {"a\nb", "a\nb", true},
	} {
		if got := covers([]string{"none", c.pattern}, []string{"other", c.path}); got != c.want {
			t.Errorf("%q covers %q: %v", c.pattern, c.path, got)
		}
	}
	// What passes without a run, and what only waits: words of a message never pass.
	const trailer = "Pin\n\nArmature-Build: a/b\n"
	for _, c := range []struct {
		message string
		paths   []string
		want    string
	}{
		{"x", []string{"apps/armature.lock", "armature.lock"}, "passes"},
		{"x", []string{"armature.lock", "main.go"}, ""}, {"x", nil, ""},
		{trailer, []string{"armature.lock"}, "passes"}, {trailer, []string{"images.lock"}, "waits"},
		{trailer, []string{"main.go"}, "waits"}, {trailer, []string{"images.lock", "main.go"}, ""},
		{"x [skip ci]", []string{"main.go"}, "waits"}, {"x [skip ci]", []string{"armature.lock"},
			"passes"}, {"[tkn skip]", []string{"docs/x"}, "passes"},
		{"x", []string{"docs/x"}, "passes"},
	} {
		var patterns []string
		if c.paths != nil && strings.HasPrefix(c.paths[0], "docs/") {
			patterns = []string{"src/**"}
		}
		got := ""
		if s := skipOf(gitremote.Change{Known: true, Message: c.message, Paths: c.paths},
			commitOlder, patterns); s != nil {
			got = map[bool]string{true: "passes", false: "waits"}[s.state == forge.Skipped]
		}
		if got != c.want {
			t.Errorf("%q, %q: %q, want %q", c.message, c.paths, got, c.want)
		}
	}
	if s := skipOf(gitremote.Change{Message: "x [skip ci]"}, commitOlder, nil); s == nil ||
		s.state == forge.Skipped {
		t.Errorf("a commit that cannot be compared: %+v", s)
	}
}
