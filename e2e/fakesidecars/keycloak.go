package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// realm is a realm of Keycloak, with the features that the profile authbridge needs: clients that
// authenticate with a JWT SVID (federated-jwt), the exchange of tokens, and its keys. It also has
// one user, without a password.
type realm struct {
	issuer string
	spiffe *jose.JSONWebKeySet // the trust domain's
	// clients are the SPIFFE IDs of those that may exchange tokens.
	clients []string
	key     jose.JSONWebKey
}

const (
	realmPath     = "/realms/agents/protocol/openid-connect/"
	tokenExchange = "urn:ietf:params:oauth:grant-type:token-exchange"
	jwtSPIFFE     = "urn:ietf:params:oauth:client-assertion-type:jwt-spiffe"
)

// keycloak serves the realm on port 8080. SPIRE's bundle is in a file, as
// `spire-server bundle show -format spiffe` prints it.
func keycloak() error {
	if err := need("ISSUER", "CLIENTS"); err != nil {
		return err
	}
	text, err := os.ReadFile("/etc/keycloak/bundle.json")
	if err != nil {
		return err
	}
	keys := new(jose.JSONWebKeySet)
	if err := json.Unmarshal(text, keys); err != nil {
		return fmt.Errorf("SPIRE's bundle: %w", err)
	}
	r, err := newRealm(os.Getenv("ISSUER"), keys, strings.Fields(os.Getenv("CLIENTS")))
	if err != nil {
		return err
	}
	http.Handle("/realms/", r)
	return serve(":8080")
}

func newRealm(issuer string, spiffe *jose.JSONWebKeySet, clients []string) (*realm, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &realm{issuer, spiffe, clients,
		jose.JSONWebKey{Key: key, KeyID: "realm", Algorithm: string(jose.ES256), Use: "sig"}}, nil
}

func (r *realm) keys() *jose.JSONWebKeySet {
	return &jose.JSONWebKeySet{Keys: []jose.JSONWebKey{r.key.Public()}}
}

func (r *realm) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var answer any
	var err error
	switch q.URL.Path {
	case realmPath + "certs":
		answer = r.keys()
	case realmPath + "token":
		answer, err = r.token(q)
	default:
		http.NotFound(w, q)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		log.Printf("refused: %v", err)
		w.WriteHeader(http.StatusUnauthorized)
		answer = map[string]string{"error": "invalid_client", "error_description": err.Error()}
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		log.Print(err)
	}
}

// tokenClaims are the claims of a token of the realm.
type tokenClaims struct {
	jwt.Claims
	Client string `json:"azp"` // that got the token
}

func (r *realm) token(q *http.Request) (any, error) {
	claims := tokenClaims{Claims: jwt.Claims{
		Issuer: r.issuer, Audience: jwt.Audience{q.FormValue("audience")},
		IssuedAt: jwt.NewNumericDate(time.Now()),
		Expiry:   jwt.NewNumericDate(time.Now().Add(10 * time.Minute)),
	}}
	switch grant := q.FormValue("grant_type"); grant {
	case "password":
		claims.Subject, claims.Client = q.FormValue("username"), "frontend"
	case tokenExchange:
		client, err := r.client(q)
		if err != nil {
			return nil, err
		}
		subject, err := verified(q.FormValue("subject_token"), r.keys(), r.issuer, client)
		if err != nil {
			return nil, fmt.Errorf("the subject's token: %w", err)
		}
		claims.Subject, claims.Client = subject.Subject, client
		log.Printf("%s exchanged a token of %s for the audience %s", client, claims.Subject,
			claims.Audience)
	default:
		return nil, fmt.Errorf("the grant %q", grant)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: r.key}, nil)
	if err != nil {
		return nil, err
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	return map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": 600}, err
}

// client returns the client that presents a JWT SVID of SPIRE for this realm.
func (r *realm) client(q *http.Request) (string, error) {
	if kind := q.FormValue("client_assertion_type"); kind != jwtSPIFFE {
		return "", fmt.Errorf("the assertion's type %q", kind)
	}
	assertion, err := verified(q.FormValue("client_assertion"), r.spiffe, "", r.issuer)
	if err != nil {
		return "", fmt.Errorf("the client's assertion: %w", err)
	}
	client := assertion.Subject
	if id := q.FormValue("client_id"); id != "" && id != client {
		return "", fmt.Errorf("the client %q presents the identity of %q", id, client)
	}
	if !slices.Contains(r.clients, client) {
		return "", fmt.Errorf("no client has the subject %q", client)
	}
	return client, nil
}

// verified returns the claims of a verified token. The issuer may be empty for an SVID, whose keys
// belong to one trust domain.
func verified(text string, keys *jose.JSONWebKeySet,
	issuer, audience string) (*tokenClaims, error) {
	token, err := jwt.ParseSigned(text, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return nil, err
	}
	claims := new(tokenClaims)
	if err := token.Claims(keys, claims); err != nil {
		return nil, err
	}
	if claims.Expiry == nil || claims.Subject == "" || audience == "" {
		return nil, errors.New("it has no end, no subject or no audience")
	}
	return claims, claims.Validate(jwt.Expected{Issuer: issuer, AnyAudience: jwt.Audience{audience},
		Time: time.Now()})
}
