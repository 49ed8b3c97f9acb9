package controller_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/functions/a2a"
)

// A card of A2A 1.0 is verified with the keys of a folder, as it was answered: the verdict
// is in the status of the AgentCard and in the store, and changes with the card and with
// the keys.
func TestSignedCards(t *testing.T) {
	w := newWorld(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.must(err)
	public, err := cryptoutils.MarshalPublicKeyToPEM(key.Public())
	w.must(err)
	folder := t.TempDir()
	w.must(os.WriteFile(filepath.Join(folder, w.namespace+".release.pub"), public, 0o600))
	w.must(os.WriteFile(filepath.Join(folder, "broken.json"), []byte("{"), 0o600))
	w.r.CardKeys = folder

	const plain = `{"name":"Weather","description":"a <b>","version":"1.0.0","supportedInterfaces":[{"url":"https://weather.example/a2a","protocolBinding":"JSONRPC","protocolVersion":"1.0","tenant":""}],"capabilities":{"extensions":[]},"provider":{"organization":"Example","url":"https://example.com"},"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],"skills":[{"id":"forecast","name":"Forecast","description":"d","tags":["t"]}],"x-ours":{"n":1.50}}`
	sign := func(key *ecdsa.PrivateKey, header map[jose.HeaderKey]any) string {
		t.Helper()
		payload, err := a2a.Payload([]byte(plain))
		w.must(err)
		options := (&jose.SignerOptions{}).WithType("JOSE")
		for name, value := range header {
			options.WithHeader(name, value)
		}
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256,
			Key: jose.JSONWebKey{Key: key, KeyID: "any"}}, options)
		w.must(err)
		made, err := signer.Sign(payload)
		w.must(err)
		compact, err := made.CompactSerialize()
		w.must(err)
		parts := strings.Split(compact, ".")
		signed, err := a2a.Sign([]byte(plain),
			[]a2a.Signature{{Protected: parts[0], Signature: parts[2]}})
		w.must(err)
		return string(signed)
	}
	signed := sign(key, nil)

	answers := func(card string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, card)
		})
	}
	agent := switching(answers(plain))
	w.pod("weather", "weather-1", agent)
	w.card("weather")
	shows := func(what, verdict, by string, signedCondition metav1.ConditionStatus) {
		t.Helper()
		w.sync(cards, "weather")
		status, e := w.status("weather"), w.entry(cards, "weather")
		if c := status.Cards[0]; c.Verdict != verdict || c.SignedBy != by {
			t.Errorf("%s: the status has %s by %q, want %s by %q", what, c.Verdict, c.SignedBy,
				verdict, by)
		}
		if c := meta.FindStatusCondition(status.Conditions, api.ConditionSigned); c == nil ||
			c.Status != signedCondition || c.Reason != verdict {
			t.Errorf("%s: the condition is %+v", what, c)
		}
		if e.Signature != verdict || e.SignedBy != by || e.Instances[0].Signature != verdict {
			t.Errorf("%s: the store has %s by %q", what, e.Signature, e.SignedBy)
		}
		if e.URL != "https://weather.example/a2a" || e.Provider != "Example" || len(e.Items) != 1 ||
			e.Items[0].Name != "Forecast" {
			t.Errorf("%s: a card of 1.0 is read as %+v", what, e)
		}
	}
	shows("unsigned", api.SignatureUnsigned, "", metav1.ConditionFalse)
	agent.set(answers(signed))
	shows("signed", api.SignatureValid, "release", metav1.ConditionTrue)
	writes := w.writes.Load()
	w.sync(cards, "weather")
	if n := w.writes.Load() - writes; n != 0 {
		t.Errorf("%d writes while nothing changed", n)
	}
	forged := strings.Replace(signed, "a <b>", "a <i>", 1)
	agent.set(answers(forged))
	// its kid is not the thumbprint of a key
	shows("forged", api.SignatureUnknownKey, "", metav1.ConditionFalse)

	// A card that names its own keys: nobody asks for them.
	attacker, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.must(err)
	var asked atomic.Int32
	w.network.serve(t, "keys.evil.example:80",
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			_ = json.NewEncoder(w).Encode(
				jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: attacker.Public(), KeyID: "any"}}})
		}))
	agent.set(
		answers(sign(attacker, map[jose.HeaderKey]any{"jku": "http://keys.evil.example/jwks.json",
			"x5u": "http://keys.evil.example/x5u",
			"jwk": jose.JSONWebKey{Key: attacker.Public()}})))
	shows("the attacker's keys", api.SignatureUnknownKey, "", metav1.ConditionFalse)
	if n := asked.Load(); n != 0 {
		t.Errorf("the keys that the card names were asked for %d times", n)
	}
	agent.set(answers(strings.Replace(signed, `{"name"`, `{"name":"Evil","name"`, 1)))
	w.sync(cards, "weather")
	if s := w.status("weather"); !strings.Contains(s.Message, "two fields of one name") ||
		s.Cards[0].Verdict != api.SignatureUnknownKey {
		t.Errorf("a card with two readings: %s, %+v", s.Message, s.Cards[0])
	}
}
