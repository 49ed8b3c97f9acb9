package render

import (
	"strings"
	"testing"
	"time"
)

// TestGlobIsBounded: a pattern with many "**" takes no exponential time.
func TestGlobIsBounded(t *testing.T) {
	done := make(chan bool, 1)
	go func() {
		done <- matchGlob(strings.Repeat("**/a/", 30)+"b", strings.Repeat("a/", 60)+"c")
	}()
	select {
	case matched := <-done:
		if matched {
			t.Error("a file without b matches")
		}
	case <-time.After(20 * time.Second):
		t.Error("no answer after 20 s")
	}
	for _, c := range []struct {
		glob, file string
		want       bool
	}{
		{"**/a/**/b.yaml", "x/a/y/z/b.yaml", true}, {"**/a/**/b.yaml", "a/b.yaml", true},
		{"**/a/**/b.yaml", "x/b.yaml", false}, {"x/**", "x/y/z", true}, {"x/**", "y/z", false},
		{"**/tests/", "x/tests/a.yaml", true},
	} {
		if got := matchGlob(c.glob, c.file); got != c.want {
			t.Errorf("%s matches %s: %t", c.glob, c.file, got)
		}
	}
}
