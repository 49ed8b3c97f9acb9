package access_test

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/e2e/openid"
)

func b64(text []byte) string { return base64.RawURLEncoding.EncodeToString(text) }

func copyAll(into io.Writer, answer *http.Response) (int64, error) {
	return io.Copy(into, io.LimitReader(answer.Body, 1<<20))
}

// A person signs in at a real provider, with its form and a password.
func TestRealProvider(t *testing.T) {
	provider := openid.New(t)
	issuer := provider.Issuer
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("of the console\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSite(t, issuer, "usernameClaim: email", "scopes: [groups]", "clientSecretFile: "+secret)
	provider.Start(t, s.URL+access.LoginCallback)
	p := newPerson(t, s)
	p.CheckRedirect = nil // it goes to the provider, too
	form := regexp.MustCompile(`name="id" value="([^"]+)"`)
	sign := func(password string) string {
		t.Helper()
		page := p.get(access.LoginPath + "?next=/agents")
		id := form.FindStringSubmatch(page)
		if id == nil {
			t.Fatalf("no form in %q: %v", page, s.err)
		}
		answer, err := p.PostForm(issuer+"login/username",
			url.Values{"id": {id[1]}, "username": {"anna"}, "password": {password}})
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
