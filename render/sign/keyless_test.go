package sign_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/render/sign"
)

// provider is an OpenID provider, and gives tokens.
func provider(t *testing.T) (issuer string, token func(email string) string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	answer := func(path string, value any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(value)
		})
	}
	answer("/.well-known/openid-configuration", map[string]any{
		"issuer": server.URL, "jwks_uri": server.URL + "/keys", "authorization_endpoint": server.URL + "/auth", "token_endpoint": server.URL + "/token",
		"response_types_supported": []string{"id_token"}, "subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"RS256"},
	})
	answer("/keys", jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "one", Algorithm: "RS256", Use: "sig"}}})
	return server.URL, func(email string) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: key, KeyID: "one"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.Signed(signer).Claims(map[string]any{
			"iss": server.URL, "aud": "sigstore", "sub": email, "email": email, "email_verified": true,
			"iat": time.Now().Unix(), "exp": time.Now().Add(5 * time.Minute).Unix(),
		}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// fulcio runs the real authority, and gives its URL and a file with its root.
func (f *fixture) fulcio(issuer string) (url, roots string) {
	f.Helper()
	program := programs.Peer(f, "fulcio")
	config, err := json.Marshal(map[string]any{"OIDCIssuers": map[string]any{issuer: map[string]any{"IssuerURL": issuer, "ClientID": "sigstore", "Type": "email"}}})
	if err != nil {
		f.Fatal(err)
	}
	port := freePort(f.T)
	cmd := exec.Command(program, "serve", "--ca=ephemeralca", "--ct-log-url=", "--host=127.0.0.1", "--port="+port,
		"--grpc-host=127.0.0.1", "--grpc-port="+freePort(f.T), "--metrics-port="+freePort(f.T), "--config-path="+f.write("fulcio.json", config))
	output, err := os.Create(f.write("fulcio.log", nil))
	if err != nil {
		f.Fatal(err)
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	url = "http://127.0.0.1:" + port
	for range 300 {
		response, err := http.Get(url + "/api/v1/rootCert")
		if err == nil && response.StatusCode == http.StatusOK {
			defer response.Body.Close()
			root, err := io.ReadAll(response.Body)
			if err != nil {
				f.Fatal(err)
			}
			return url, f.write("fulcio.pem", root)
		}
		if err == nil {
			response.Body.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
	text, _ := os.ReadFile(output.Name())
	f.Fatalf("Fulcio does not answer: %s", text)
	return "", ""
}

// Without a key the identity of a token signs, by a certificate of Fulcio's.
func TestKeyless(t *testing.T) {
	f := setup(t)
	issuer, token := provider(t)
	url, roots := f.fulcio(issuer)
	s := sign.Signer{Fulcio: url, IdentityToken: f.write("token", []byte(token(subject)+"\n"))}
	f.sign(s)

	p := identity(roots)
	p.Identities[0].Issuer = issuer
	if v, err := sign.Verify(t.Context(), f.artifact, p); err != nil || v.Provenance == nil {
		t.Errorf("%+v %v", v, err)
	}
	p.Identities[0].Subject = "somebody@example.com"
	f.refused(p, "none of the expected identities matched")
	if out, err := f.cosign("verify", "--insecure-ignore-tlog=true", "--insecure-ignore-sct=true", "--ca-roots", roots,
		"--certificate-identity", subject, "--certificate-oidc-issuer", issuer, f.artifact.String()); err != nil {
		t.Errorf("cosign verify: %v: %s", err, out)
	}

	s.IdentityToken = "no.real.token"
	if _, err := s.Open(t.Context()); err == nil {
		t.Error("Fulcio takes any token")
	}
}
