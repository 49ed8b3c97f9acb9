// Package openid runs a real OpenID provider for tests, with one person: anna, whose password is
// right.
package openid

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/armature-dev/armature/e2e/ports"
	"github.com/armature-dev/armature/e2e/programs"
)

// Provider is a provider that has an address, and answers after Start.
type Provider struct {
	// Issuer is its address, with a slash at the end.
	Issuer        string
	program, port string
}

// New returns a provider. If its program is missing, New skips the test, or fails it if peers are
// required.
func New(t testing.TB) *Provider {
	t.Helper()
	program := programs.Peer(t, "oidc")
	port, err := ports.Free()
	if err != nil {
		t.Fatal(err)
	}
	return &Provider{"http://127.0.0.1:" + port + "/", program, port}
}

// Start starts the provider for a client whose logins return to callback. It ends with the test.
func (p *Provider) Start(t testing.TB, callback string) {
	t.Helper()
	users, err := json.Marshal(
		map[string]any{"1": map[string]any{"ID": "1", "Username": "anna", "Password": "right",
			"Email": "anna@example.com", "EmailVerified": true,
			"Groups": []string{"team1", "team2"}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "users.json")
	if err := os.WriteFile(file, users, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(p.program, "127.0.0.1:"+p.port, file, callback)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		answer, err := http.Get(p.Issuer + ".well-known/openid-configuration")
		if err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the provider does not answer: %v", err)
		}
	}
}
