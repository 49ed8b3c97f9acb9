package krm_test

import (
	"testing"

	"github.com/armature-dev/armature/functions/krm"
)

// A letter that is missing, too many, wrong, or swapped with its neighbour is one slip, and
// two are near.
func TestNear(t *testing.T) {
	for name, want := range map[string]bool{
		"inject": false, "inejct": true, "injct": true, "injject": true, "imject": true, "niejct": true, "niejtc": false, "tcejni": false, "": false,
	} {
		if got := krm.Near(name, "inject"); got != want {
			t.Errorf("%s is near inject: %v", name, got)
		}
	}
	for name, want := range map[string]string{"wbe": "web", "wop": "", "weathr": "weather", "web": "web", "": ""} {
		if got := krm.Nearest(name, []string{"weather", "shop", "web"}); got != want {
			t.Errorf("the nearest of %q is %q, want %q", name, got, want)
		}
	}
}
