package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// TestFederatedJWT: the realm takes the SVID of a client that it knows, made for it
// and still valid, and no other assertion.
func TestFederatedJWT(t *testing.T) {
	const issuer, id = "https://keycloak.example.com/realms/agents",
		"spiffe://example.com/ns/weather/sa/agent"
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	sign := func(k *ecdsa.PrivateKey, c jwt.Claims) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256,
			Key: jose.JSONWebKey{Key: k, KeyID: "svid"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := jwt.Signed(signer).Claims(c).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	spire, other := key(), key()
	// SPIRE names no algorithm.
	keys := &jose.JSONWebKeySet{
		Keys: []jose.JSONWebKey{{Key: spire.Public(), KeyID: "svid", Use: "jwt-svid"}}}
	r, err := newRealm(issuer, keys, []string{id})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r)
	defer server.Close()
	ask := func(form url.Values) (status int, token string) {
		answer, err := http.PostForm(server.URL+realmPath+"token", form)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var body struct {
			Token string `json:"access_token"`
		}
		if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, body.Token
	}
	user := func(audience string) string {
		_, token := ask(url.Values{"grant_type": {"password"}, "username": {"alice"},
			"audience": {audience}})
		return token
	}
	in := func(d time.Duration) *jwt.NumericDate { return jwt.NewNumericDate(time.Now().Add(d)) }
	good := jwt.Claims{Subject: id, Audience: jwt.Audience{issuer}, Expiry: in(time.Hour)}
	for name, c := range map[string]struct {
		change func(*jwt.Claims)
		key    *ecdsa.PrivateKey
		form   url.Values
		want   int
	}{
		"its client":  {want: 200},
		"another key": {key: other, want: 401},
		"another realm": {change: func(c *jwt.Claims) {
			c.Audience = jwt.Audience{"https://example.com"}
		}, want: 401},
		"expired":        {change: func(c *jwt.Claims) { c.Expiry = in(-time.Hour) }, want: 401},
		"without an end": {change: func(c *jwt.Claims) { c.Expiry = nil }, want: 401},
		"unknown client": {change: func(c *jwt.Claims) { c.Subject += "2" },
			form: url.Values{"client_id": {id + "2"}}, want: 401},
		"another's ID": {form: url.Values{"client_id": {id + "2"}}, want: 401},
		"a secret": {form: url.Values{"client_assertion_type": {""},
			"client_secret": {"none"}}, want: 401},
		"another's token": {form: url.Values{"subject_token": {user("someone")}}, want: 401},
	} {
		claims, signer := good, spire
		if c.change != nil {
			c.change(&claims)
		}
		if c.key != nil {
			signer = c.key
		}
		form := url.Values{
			"grant_type": {tokenExchange}, "client_id": {id}, "client_assertion_type": {jwtSPIFFE},
			"client_assertion": {sign(signer, claims)}, "subject_token": {user(id)},
			"audience": {"tool"},
		}
		for field, value := range c.form {
			form[field] = value
		}
		status, token := ask(form)
		if status != c.want {
			t.Errorf("%s: status %d, want %d", name, status, c.want)
		}
		if status != http.StatusOK {
			continue
		}
		got, err := verified(token, r.keys(), issuer, "tool")
		if err != nil || got.Subject != "alice" || got.Client != id {
			t.Errorf("%s: the token says %+v, %v", name, got, err)
		}
		if tampered := token[:len(token)-4] + strings.Repeat("A", 4); tampered != token {
			if _, err := verified(tampered, r.keys(), issuer, "tool"); err == nil {
				t.Error("a token with another signature is taken")
			}
		}
	}
}
