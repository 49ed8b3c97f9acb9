package controller_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/armature-dev/armature/catalog/controller"
)

// Addresses of the node itself and of a cloud's metadata service are refused,
// however they are written; a network that was allowed is not.
func TestGuardedDial(t *testing.T) {
	dial := controller.GuardedDial(nil)
	for _, address := range []string{"127.0.0.1:1", "127.8.8.8:1", "169.254.169.254:80", "[::1]:1", "[fe80::1]:1", "0.0.0.0:1", "[::ffff:127.0.0.1]:1", "[::ffff:169.254.169.254]:80", "localhost:1", "224.0.0.1:1"} {
		if _, err := dial(t.Context(), "tcp", address); err == nil || !strings.Contains(err.Error(), "not one that the catalog may ask") {
			t.Errorf("%s: %v", address, err)
		}
	}
	allowed := controller.GuardedDial([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
	if _, err := allowed(t.Context(), "tcp", "127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "may ask") {
		t.Errorf("an allowed network: %v", err)
	}
}
