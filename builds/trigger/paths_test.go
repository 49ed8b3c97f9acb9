package trigger

import "testing"

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"api/**", "api/v1/x.go", true}, {"api/**", "apis/x", false}, {"api", "api/x", true}, {"api/", "api/x", true}, {"/api", "api", true},
		{"*.go", "main.go", true}, {"*.go", "cmd/main.go", false}, {"**/*.go", "cmd/main.go", true}, {"**/*.go", "main.go", true}, {"**/x/**", "x/y", true}, {"**/x/**", "xx/y", false}, {"**.go", "cmd/main.go", true},
		{"go.mod", "go.mod", true}, {"go.mod", "go_mod", false}, {"a*b", "a/b", false}, {"**", "x/y", true}, {"a(b", "a(b/c", true}, {"a\nb", "a\nb", true},
	} {
		if got := covers([]string{"none", c.pattern}, []string{"other", c.path}); got != c.want {
			t.Errorf("%q covers %q: %v", c.pattern, c.path, got)
		}
	}
	for _, c := range []struct {
		message string
		paths   []string
		want    bool
	}{
		{"x", []string{"apps/armature.lock", "armature.lock"}, true}, {"x", []string{"armature.lock", "main.go"}, false}, {"x", nil, false},
		{"Pin\n\nArmature-Build: a/b\n", []string{"images.lock"}, true}, {"Pin\n\nArmature-Build: a/b\n", []string{"images.lock", "main.go"}, false},
	} {
		if got := ownWrite(c.message, c.paths); got != c.want {
			t.Errorf("%q, %q: %v", c.message, c.paths, got)
		}
	}
}
