package sign_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"os"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/armature-dev/armature/render/deliver/sign"
)

// Cards are signed by keys of each kind, and by a KMS: another implementation verifies them.
func TestCard(t *testing.T) {
	f := setup(t)
	payload := []byte(`{"name":"<b>&"}`)
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signers := map[string]sign.Signer{}
	for alg, key := range map[string]crypto.Signer{"ES256": p256, "EdDSA": ed, "RS256": rs, "": p384} {
		text, err := cryptoutils.MarshalPrivateKeyToPEM(key)
		if err != nil {
			t.Fatal(err)
		}
		signers[alg] = sign.Signer{PrivateKey: text}
	}
	kms, kmsPublic := f.kms()
	signers["ES256 by a KMS"] = sign.Signer{Key: kms}
	publics := map[string]crypto.PublicKey{"ES256": p256.Public(), "EdDSA": ed.Public(),
		"RS256": rs.Public()}
	text, err := os.ReadFile(kmsPublic)
	if err != nil {
		t.Fatal(err)
	}
	if publics["ES256 by a KMS"], err = cryptoutils.UnmarshalPEMToPublicKey(text); err != nil {
		t.Fatal(err)
	}
	for name, signer := range signers {
		session, err := signer.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 20 { // numbers of ECDSA that begin with zeros are rare
			made, err := session.Card(t.Context(), payload)
			if name == "" {
				if err == nil || !strings.Contains(err.Error(), "P-256") {
					t.Errorf("a key of P-384 signs: %v", err)
				}
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			alg := jose.SignatureAlgorithm(strings.Fields(name)[0])
			parsed, err := jose.ParseSignedCompact(made.Protected+"."+
				base64.RawURLEncoding.EncodeToString(payload)+"."+made.Signature,
				[]jose.SignatureAlgorithm{alg})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, err := parsed.Verify(publics[name]); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			thumbprint, err := (&jose.JSONWebKey{Key: publics[name]}).Thumbprint(crypto.SHA256)
			if header := parsed.Signatures[0].Protected; err != nil ||
				header.KeyID != base64.RawURLEncoding.EncodeToString(thumbprint) ||
				header.ExtraHeaders["typ"] != "JOSE" {
				t.Errorf("%s: the header is %+v (%v)", name, header, err)
			}
		}
	}
}
