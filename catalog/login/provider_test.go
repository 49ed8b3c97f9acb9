package login_test

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/armature-dev/armature/catalog/login"
	"github.com/armature-dev/armature/e2e/ports"
	"github.com/armature-dev/armature/e2e/programs"
)

func b64(text []byte) string { return base64.RawURLEncoding.EncodeToString(text) }

func copyAll(into io.Writer, answer *http.Response) (int64, error) {
	return io.Copy(into, io.LimitReader(answer.Body, 1<<20))
}

// A person signs in at a real provider, with its form and a password.
func TestRealProvider(t *testing.T) {
	program := programs.Peer(t, "oidc")
	port, err := ports.Free()
	if err != nil {
		t.Fatal(err)
	}
	issuer := "http://127.0.0.1:" + port + "/"
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("of the console\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSite(t, issuer, "usernameClaim: email", "scopes: [groups]", "clientSecretFile: "+secret)
	users, err := json.Marshal(map[string]any{"1": map[string]any{"ID": "1", "Username": "anna", "Password": "right", "Email": "anna@example.com", "EmailVerified": true, "Groups": []string{"team1", "team2"}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "users.json")
	if err := os.WriteFile(file, users, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "127.0.0.1:"+port, file, s.URL+login.Callback)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p := newPerson(t, s)
	p.CheckRedirect = nil // it goes to the provider, too
	form := regexp.MustCompile(`name="id" value="([^"]+)"`)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		answer, err := http.Get(issuer + ".well-known/openid-configuration")
		if err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the provider does not answer: %v", err)
		}
	}
	sign := func(password string) string {
		t.Helper()
		page := p.get(login.Path + "?next=/agents")
		id := form.FindStringSubmatch(page)
		if id == nil {
			t.Fatalf("no form in %q: %v", page, s.err)
		}
		answer, err := p.PostForm(issuer+"login/username", url.Values{"id": {id[1]}, "username": {"anna"}, "password": {password}})
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		return readAll(t, answer)
	}
	if got := sign("wrong"); p.cookie("armature-session") != "" || !strings.Contains(got, "wrong") {
		t.Errorf("with a wrong password: %q", got)
	}
	if got, want := sign("right"), "anna@example.com [team1 team2] at /agents"; got != want {
		t.Errorf("%q, want %q: %v", got, want, s.err)
	}
}
