package identity_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
)

// TestInjectedPorts: an author's container must not listen on these ports.
func TestInjectedPorts(t *testing.T) {
	base, _ := sidecars.All().Base(decode[api.RenderConfig](t, "spec: {profile: kagenti}"))
	w := weatherAgent()
	ports := func() string {
		s, _ := identity.Resolve(&base, w, nil, nil, nil)
		var out []string
		for _, p := range s.InjectedPorts() {
			out = append(out, fmt.Sprint(p.Number))
		}
		return strings.Join(out, " ")
	}
	if got, want := ports(), "15125 9901 9090 8080 15123 15124"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	w.SPIFFE = false
	if got, want := ports(), "9901 9090 8080 15123 15124"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
