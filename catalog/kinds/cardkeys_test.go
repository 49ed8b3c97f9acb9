package kinds

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/functions/a2a"
	"github.com/armature-dev/armature/functions/text"
)

const card = `{"name":"Agent","description":"<b>&\u2028","version":"1.0","supportedInterfaces":[{"url":"https://a","protocolBinding":"JSONRPC","protocolVersion":"1.0"}],"capabilities":{"streaming":false,"extensions":[]},"defaultInputModes":[],"defaultOutputModes":[],"skills":[],"x-cost":1e3}`

// signed returns a card with a signature of go-jose, which is another implementation than ours.
// header is added to the protected header.
func signed(t *testing.T, card string, alg jose.SignatureAlgorithm, key any, kid string,
	header map[jose.HeaderKey]any) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithType("JOSE")
	for name, value := range header {
		options.WithHeader(name, value)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg,
		Key: jose.JSONWebKey{Key: key, KeyID: kid}}, options)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := a2a.Payload([]byte(card))
	if err != nil {
		t.Fatal(err)
	}
	made, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	compact, err := made.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(compact, ".")
	out, err := a2a.Sign([]byte(card), []a2a.Signature{{Protected: parts[0], Signature: parts[2]}})
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func jwks(t *testing.T, keys ...jose.JSONWebKey) []byte {
	t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func elliptic256(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func read(t *testing.T, files map[string][]byte) CardKeys {
	t.Helper()
	keys, err := ReadCardKeys(files)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// A copy of a signed card that a pod of another namespace serves is not valid there, where the card
// says by its addresses whose it is.
func TestServedElsewhere(t *testing.T) {
	key := elliptic256(t)
	keys := read(t,
		map[string][]byte{"release.json": jwks(t, jose.JSONWebKey{Key: key.Public(), KeyID: "k"})})
	for address, want := range map[string]string{
		"http://weather.travel.svc:8081/":             api.SignatureInvalid,
		"http://weather.travel.svc.cluster.local":     api.SignatureInvalid,
		"http://weather-0.weather.Travel.svc.:8081/a": api.SignatureInvalid,
		"https://weather.example.com":                 api.SignatureValid,
		"https://svc.example.com":                     api.SignatureValid,
	} {
		for _, text := range []string{
			`{"name":"a","supportedInterfaces":[{"url":"https://a.example"},{"url":"` + address +
				`"}]}`, `{"name":"a","url":"` + address + `"}`} {
			card := []byte(signed(t, text, jose.ES256, key, "k", nil))
			if got := keys.Verify(card, "travel"); got.Verdict != api.SignatureValid {
				t.Errorf("%s in its namespace: %v", address, got)
			}
			if got := keys.Verify(card, "evil"); got.Verdict != want ||
				want == api.SignatureInvalid && !strings.Contains(got.Reason, "namespace travel") {
				t.Errorf("%s in another namespace: %v, want %s", address, got, want)
			}
		}
	}
}

func TestVerdicts(t *testing.T) {
	ec, attacker := elliptic256(t), elliptic256(t)
	edPublic, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := cryptoutils.MarshalPublicKeyToPEM(rs.Public())
	if err != nil {
		t.Fatal(err)
	}
	keys := read(t, map[string][]byte{
		"ci.json": jwks(t, jose.JSONWebKey{Key: ec.Public(), KeyID: "key-1"},
			jose.JSONWebKey{Key: edPublic, KeyID: "ed"}),
		"team1.rsa.pub":   pem,
		"team2.bots.json": jwks(t, jose.JSONWebKey{Key: attacker.Public(), KeyID: "key-1"}),
	})
	ours := signed(t, card, jose.ES256, ec, "key-1", nil)
	thumbprint, err := (&jose.JSONWebKey{Key: rs.Public()}).Thumbprint(crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ card, namespace, verdict, by string }{
		"unsigned": {card, "team1", api.SignatureUnsigned, ""},
		"no signatures in the list": {`{"name":"a","signatures":[]}`, "team1",
			api.SignatureUnsigned, ""},
		"ES256": {ours, "team1", api.SignatureValid, "ci"},
		"EdDSA": {signed(t, card, jose.EdDSA, ed, "ed", nil), "team1",
			api.SignatureValid, "ci"},
		"RS256": {signed(t, card, jose.RS256, rs,
			base64.RawURLEncoding.EncodeToString(thumbprint), nil), "team1", api.SignatureValid,
			"rsa"},
		"PS256": {signed(t, card, jose.PS256, rs, "x", nil), "team1",
			api.SignatureValid, "rsa"},
		"of another namespace": {signed(t, card, jose.RS256, rs, "x", nil), "team2",
			api.SignatureUnknownKey, ""},
		"kid is a hint": {signed(t, card, jose.ES256, ec, "another", nil),
			"team1", api.SignatureValid, "ci"},
		"defaults left out on the way": {strings.Replace(ours, `,"extensions":[]`, "", 1),
			"team1", api.SignatureValid, "ci"},
		"written in another way": {strings.Replace(strings.Replace(ours, `"x-cost":1e3`,
			`"x-cost": 1000.0`, 1), `<b>`, "\\u003cb>", 1), "team1", api.SignatureValid, "ci"},
		"a field changed": {strings.Replace(ours, "https://a", "https://evil", 1),
			"team1", api.SignatureInvalid, ""},
		"an unknown field changed": {strings.Replace(ours, "1e3", "1e4", 1), "team1",
			api.SignatureInvalid, ""},
		"a field added": {strings.Replace(ours, `{"name"`,
			`{"url":"https://evil","name"`, 1), "team1", api.SignatureInvalid, ""},
		"a field twice": {strings.Replace(ours, `{"name"`,
			`{"name":"Evil","name"`, 1), "team1", api.SignatureInvalid, ""},
		"the attacker's key": {signed(t, card, jose.ES256, attacker, "evil", nil),
			"team1", api.SignatureUnknownKey, ""},
		"the attacker's key under our name": {signed(t, card, jose.ES256, attacker, "key-1", nil),
			"team1", api.SignatureInvalid, ""},
		"keys of the attacker": {signed(t, card, jose.ES256, attacker, "evil", map[jose.HeaderKey]any{
			"jku": "http://127.0.0.1:1/jwks.json", "x5u": "http://127.0.0.1:1/"}), "team1",
			api.SignatureUnknownKey, ""},
		"a key in the header": {signed(t, card, jose.ES256, attacker, "evil", map[jose.HeaderKey]any{
			"jwk": jose.JSONWebKey{Key: attacker.Public()}}), "team1", api.SignatureUnknownKey, ""},
		"signatures are not a list": {strings.Replace(ours, `"signatures":[`, `"signatures":{"a":[`,
			1)[:len(ours)-1] + "}}", "team1", api.SignatureInvalid, ""},
		"HS256 with our public key": {signed(t, card, jose.HS256, pem, "rsa", nil), "team1",
			api.SignatureInvalid, ""},
		"one of two is ours": {strings.Replace(ours, `"signatures":[`,
			`"signatures":[{"protected":"e30","signature":"AA"},`, 1), "team1", api.SignatureValid,
			"ci"},
		"too many": {strings.Replace(ours, `"signatures":[`,
			`"signatures":[`+strings.Repeat(`{"protected":"e30","signature":"AA"},`, maxSignatures),
			1), "team1", api.SignatureInvalid, ""},
		"alg none": {func() string {
			out, err := a2a.Sign([]byte(card),
				[]a2a.Signature{
					{
						Protected: base64.RawURLEncoding.EncodeToString(
							[]byte(`{"alg":"none","kid":"key-1"}`))}})
			if err != nil {
				t.Fatal(err)
			}
			return string(out)
		}(), "team1", api.SignatureInvalid, ""},
	} {
		got := keys.Verify([]byte(test.card), test.namespace)
		if got.Verdict != test.verdict || got.SignedBy != test.by {
			t.Errorf("%s: %+v, want %s by %q", name, got, test.verdict, test.by)
		}
		if (got.Reason == "") !=
			(got.Verdict == api.SignatureValid || got.Verdict == api.SignatureUnsigned) {
			t.Errorf("%s: reason %q of %s", name, got.Reason, got.Verdict)
		}
	}
	if got := (CardKeys{}).Verify([]byte(ours), "team1"); got.Verdict != api.SignatureUnknownKey {
		t.Errorf("without keys: %+v", got)
	}
}

// The sample card of the specification, 8.5, has the signature of 8.4.2, whose key is at
// an address that nobody asks.
func TestSample(t *testing.T) {
	keys := read(t,
		map[string][]byte{
			"ci.json": jwks(t, jose.JSONWebKey{Key: elliptic256(t).Public(), KeyID: "key-2"})})
	sample := []byte(
		`{"name":"GeoSpatial Route Planner Agent","supportedInterfaces":[{"url":"https://georoute-agent.example.com/a2a/v1","protocolBinding":"JSONRPC","protocolVersion":"1.0"}],"signatures":[{
      "protected": "eyJhbGciOiJFUzI1NiIsInR5cCI6IkpPU0UiLCJraWQiOiJrZXktMSIsImprdSI6Imh0dHBzOi8vZXhhbXBsZS5jb20vYWdlbnQvandrcy5qc29uIn0",
      "signature": "QFdkNLNszlGj3z3u0YQGt_T9LixY3qtdQpZmsTdDHDe3fXV9y9-B3m2-XgCpzuhiLt8E0tV6HXoZKHv4GtHgKQ"}]}`)
	if got := keys.Verify(sample, "team1"); got.Verdict != api.SignatureUnknownKey {
		t.Errorf("%+v", got)
	}
}

// The whole sample of the specification, which is not part of this repository: its signature
// is of a key that nobody has, and with a signature of ours it is valid, until a field changes.
func TestWholeSample(t *testing.T) {
	file := os.Getenv("ARMATURE_A2A_SPECIFICATION")
	if file == "" {
		t.Skip("ARMATURE_A2A_SPECIFICATION does not name docs/specification.md of " +
			"github.com/a2aproject/A2A: its sample card is NOT verified")
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, sample, _ := strings.Cut(string(page), "\n### 8.5. Sample Agent Card\n")
	_, sample, _ = strings.Cut(sample, "```json\n")
	sample, _, ok := strings.Cut(sample, "```")
	signatures, err := a2a.Signatures([]byte(sample))
	if !ok || err != nil || len(signatures) != 1 {
		t.Fatalf("%d signatures (%v) in %q", len(signatures), err, sample)
	}
	// It has no field with a default value, so that nothing but the signatures goes.
	var card map[string]any
	if err := json.Unmarshal([]byte(sample), &card); err != nil {
		t.Fatal(err)
	}
	delete(card, "signatures")
	plain, err := json.Marshal(card)
	if err != nil {
		t.Fatal(err)
	}
	if plain, err = text.CanonicalJSON(plain); err != nil {
		t.Fatal(err)
	}
	if payload, err := a2a.Payload([]byte(sample)); err != nil || string(payload) != string(plain) {
		t.Errorf("the payload is %s (%v)\nwant %s", payload, err, plain)
	}
	key := elliptic256(t)
	keys := read(t,
		map[string][]byte{"ci.json": jwks(t, jose.JSONWebKey{Key: key.Public(), KeyID: "ours"})})
	ours := signed(t, sample, jose.ES256, key, "ours", nil)
	for name, c := range map[string]struct{ card, verdict string }{
		"as published": {sample, api.SignatureUnknownKey},
		"signed by us": {ours, api.SignatureValid},
		"with another host": {strings.Replace(ours, "georoute-agent.example.com/a2a/v1",
			"evil.example/a2a/v1", 1), api.SignatureInvalid},
	} {
		if got := keys.Verify([]byte(c.card), "team1"); got.Verdict != c.verdict {
			t.Errorf("%s: %+v, want %s", name, got, c.verdict)
		}
	}
}

// A card as large as the catalog takes, with as many signatures and keys as it takes, is
// verified in a moment.
func TestLargest(t *testing.T) {
	var set []jose.JSONWebKey
	for range maxKeys {
		set = append(set, jose.JSONWebKey{Key: elliptic256(t).Public()})
	}
	files := map[string][]byte{}
	for _, name := range []string{"a", "b", "c", "d"} {
		files[name+".json"] = jwks(t, set...)
	}
	keys := read(t, files)
	large := strings.Replace(card, `"skills":[]`,
		`"skills":[`+strings.Repeat(`{"id":"a"},`, 90_000)+`{"id":"a"}]`, 1)
	one := signed(t, large, jose.ES256, elliptic256(t), "x", nil)
	many := strings.Replace(one, `"signatures":[`,
		`"signatures":[`+strings.Repeat(one[strings.Index(one, `"signatures":[`)+14:len(one)-2]+",",
			maxSignatures-1), 1)
	begun := time.Now()
	if got := keys.Verify([]byte(many), "team1"); got.Verdict != api.SignatureUnknownKey {
		t.Errorf("%+v", got)
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("took %s", took)
	}
}

func TestRefusesKeys(t *testing.T) {
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := jwks(t, jose.JSONWebKey{Key: elliptic256(t).Public()})
	for name, test := range map[string]struct {
		file string
		text []byte
	}{
		"a private key":   {"a.json", jwks(t, jose.JSONWebKey{Key: elliptic256(t)})},
		"a symmetric key": {"a.json", jwks(t, jose.JSONWebKey{Key: []byte("secret")})},
		"a weak key":      {"a.json", jwks(t, jose.JSONWebKey{Key: weak.Public()})},
		"another curve":   {"a.json", jwks(t, jose.JSONWebKey{Key: p384.Public()})},
		"for encryption": {"a.json",
			jwks(t, jose.JSONWebKey{Key: elliptic256(t).Public(), Use: "enc"})},
		"no keys":           {"a.json", []byte(`{"keys":[]}`)},
		"not a set":         {"a.json", []byte(`[]`)},
		"not in PEM":        {"a.pub", []byte(`{}`)},
		"another ending":    {"a.txt", good},
		"no name":           {".json", good},
		"a name of 3 parts": {"a.b.c.json", good},
	} {
		keys, err := ReadCardKeys(map[string][]byte{test.file: test.text, "good.json": good})
		if err == nil || !strings.Contains(err.Error(), test.file) {
			t.Errorf("%s: %v", name, err)
		}
		if len(keys.issuers) != 1 {
			t.Errorf("%s: the good file gives %d issuers", name, len(keys.issuers))
		}
	}
}
