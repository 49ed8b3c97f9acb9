package sign_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/armature-dev/armature/e2e/ports"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/deliver/sign/signtest"
)

// provider is an OpenID provider that issues tokens of a subject with further claims.
func provider(t *testing.T) (issuer string, token func(subject string,
	more map[string]any) string) {
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
		"issuer": server.URL, "jwks_uri": server.URL + "/keys",
		"authorization_endpoint": server.URL + "/auth", "token_endpoint": server.URL + "/token",
		"response_types_supported":              []string{"id_token"},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"},
	})
	answer("/keys",
		jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "one",
			Algorithm: "RS256", Use: "sig"}}})
	return server.URL, func(subject string, more map[string]any) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256,
			Key: jose.JSONWebKey{Key: key, KeyID: "one"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.Signed(signer).Claims(map[string]any{
			"iss": server.URL, "aud": "sigstore", "sub": subject, "iat": time.Now().Unix(),
			"exp": time.Now().Add(5 * time.Minute).Unix(),
		}).Claims(more).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := ports.Free()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// fulcio runs the real authority for an issuer of a type, and returns its URL and a file with its
// root.
func (f *fixture) fulcio(issuer, kind string) (url, roots string) {
	f.Helper()
	program := programs.Peer(f, "fulcio")
	config, err := json.Marshal(
		map[string]any{
			"OIDCIssuers": map[string]any{issuer: map[string]any{"IssuerURL": issuer,
				"ClientID": "sigstore", "Type": kind}}})
	if err != nil {
		f.Fatal(err)
	}
	port := freePort(f.T)
	cmd := exec.Command(program, "serve", "--ca=ephemeralca", "--ct-log-url=", "--host=127.0.0.1",
		"--port="+port, "--grpc-host=127.0.0.1", "--grpc-port="+freePort(f.T),
		"--metrics-port="+freePort(f.T), "--config-path="+f.write("fulcio.json", config))
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
	url, roots := f.fulcio(issuer, "email")
	s := sign.Signer{Fulcio: url,
		IdentityToken: f.write("token",
			[]byte(token(subject, map[string]any{"email": subject, "email_verified": true})+"\n"))}
	f.sign(s)

	p := identity(roots)
	p.Identities[0].Issuer = issuer
	if v, err := sign.Verify(t.Context(), f.artifact, p); err != nil || v.Provenance == nil {
		t.Errorf("%+v %v", v, err)
	}
	p.Identities[0].Subject = "somebody@example.com"
	f.refused(p, "no matching CertificateIdentity")
	s.IdentityToken = "no.real.token"
	if _, err := s.Open(t.Context()); err == nil {
		t.Error("Fulcio takes any token")
	}
}

// A ServiceAccount signs by a certificate of Fulcio's, with a timestamp, and whoever has the
// trusted root verifies it after the certificate has ended too. What an identity signed counts as
// its own with any of its certificates, and cosign verifies it.
func TestKeylessServiceAccount(t *testing.T) {
	f := setup(t)
	issuer, token := provider(t)
	url, roots := f.fulcio(issuer, "kubernetes")
	clock := signtest.NewAuthority(t)
	text, err := os.ReadFile(roots)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := cryptoutils.UnmarshalCertificatesFromPEM(text)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := clock.TrustedRoot(certs...)
	if err != nil {
		t.Fatal(err)
	}
	account := token("system:serviceaccount:armature-system:armature-controller", map[string]any{
		"kubernetes.io": map[string]any{"namespace": "armature-system",
			"serviceaccount": map[string]any{"name": "armature-controller", "uid": "1"},
			"pod":            map[string]any{"name": "a", "uid": "2"}}})
	s := sign.Signer{Fulcio: url, Timestamps: clock.Timestamps(), TrustedRoot: trusted,
		IdentityToken: f.write("token", []byte(account))}
	f.sign(s)
	f.sign(s)
	if s, a, b := f.attachments(); s != 0 || a != 0 || b != 2 {
		t.Errorf("%d signatures, %d attestations, %d bundles by two certificates of one "+
			"identity, want 0, 0, 2", s, a, b)
	}
	file, who := f.write("trusted_root.json", trusted), signtest.Identity("armature-system",
		"armature-controller")
	p := sign.Policy{TrustedRoot: file, IgnoreTlog: true, IgnoreSCT: true, Provenance: true,
		Identities: []sign.Identity{{Subject: who, Issuer: issuer}}}
	if _, err := sign.Verify(t.Context(), f.artifact, p); err != nil {
		t.Error(err)
	}
	if out, err := f.cosign("verify", "--new-bundle-format", "--insecure-ignore-tlog=true",
		"--insecure-ignore-sct=true", "--use-signed-timestamps", "--trusted-root", file,
		"--certificate-identity", who, "--certificate-oidc-issuer", issuer,
		f.artifact.String()); err != nil {
		t.Errorf("cosign verify: %v: %s", err, out)
	}
	p.Identities[0].Subject = signtest.Identity("team1", "armature-controller")
	f.refused(p, "no matching CertificateIdentity")
}

// A signature with a timestamp is accepted after its certificate has ended, and one without,
// or with that of an unknown authority, is not.
func TestTimestamps(t *testing.T) {
	for what, test := range map[string]struct {
		stamped, known bool
		want           string
	}{
		"known": {true, true, ""}, "unknown": {true, false, "unable to verify signed timestamps"},
		"none": {false, true, "leaf certificate verification failed"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			a := signtest.NewAuthority(t)
			a.Valid = time.Second
			s := sign.Signer{Fulcio: a.URL,
				IdentityToken: signtest.Token("armature-system", "armature-controller", 1)}
			if test.stamped {
				s.Timestamps = a.Timestamps()
			}
			clock := a
			if !test.known {
				clock = signtest.NewAuthority(t)
				s.Timestamps = clock.Timestamps()
			}
			trusted, err := a.TrustedRoot()
			if err != nil {
				t.Fatal(err)
			}
			f.sign(s)
			time.Sleep(2 * time.Second)
			p := sign.Policy{TrustedRoot: f.write("trusted_root.json", trusted), IgnoreTlog: true,
				IgnoreSCT: true, Provenance: true,
				Identities: []sign.Identity{
					{Subject: signtest.Identity("armature-system", "armature-controller"),
						Issuer: signtest.Issuer}}}
			if test.want != "" {
				f.refused(p, test.want)
				return
			}
			if _, err := sign.Verify(t.Context(), f.artifact, p); err != nil {
				t.Error(err)
			}
		})
	}
}

// Nothing is attached that the trusted root does not vouch for, and a token that an authority
// repeats is not in the error.
func TestKeylessRefused(t *testing.T) {
	f := setup(t)
	a := signtest.NewAuthority(t)
	other, err := signtest.NewAuthority(t).TrustedRoot()
	if err != nil {
		t.Fatal(err)
	}
	token := signtest.Token("armature-system", "armature-controller", 1)
	s := sign.Signer{Fulcio: a.URL, Timestamps: a.Timestamps(), TrustedRoot: other, IdentityToken: token}
	session, err := s.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Sign(t.Context(), f.artifact); !errors.As(err, new(*sign.KeyError)) ||
		!strings.Contains(err.Error(), "does not vouch") {
		t.Errorf("%v", err)
	}
	if s, a, b := f.attachments(); s+a+b != 0 {
		t.Errorf("%d signatures, %d attestations, %d bundles", s, a, b)
	}
	a.Accept = func(token string) string { return "I do not like " + token }
	if _, err := s.Open(t.Context()); err == nil ||
		strings.Contains(err.Error(), strings.Split(token, ".")[2]) ||
		!strings.Contains(err.Error(), "does not accept") {
		t.Errorf("%v", err)
	}
	a.Accept = func(string) string { return strings.Repeat("x", 3<<20) }
	if _, err := s.Open(t.Context()); err == nil || len(err.Error()) > 2<<20 {
		t.Errorf("an endless answer is read: %d bytes", len(err.Error()))
	}
}
