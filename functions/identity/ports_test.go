package identity_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

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

// TestNoFreePort: a pod that declares every port must not make the search endless.
func TestNoFreePort(t *testing.T) {
	base, _ := sidecars.All().Base(decode[api.RenderConfig](t, "spec: {profile: kagenti}"))
	s, _ := identity.Resolve(&base, weatherAgent(), nil, nil, nil)
	var all []int
	for port := 1; port <= 65535; port++ {
		all = append(all, port)
	}
	found := make(chan int, 1)
	go func() { found <- s.FreePort(8000, all) }()
	select {
	case port := <-found:
		if port != 8000 {
			t.Errorf("without a free port, the port is %d, want 8000", port)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the search for a free port does not end")
	}
	if port := s.FreePort(8000, all[:65534]); port != 65535 {
		t.Errorf("the only free port is 65535, and %d was found", port)
	}
}
