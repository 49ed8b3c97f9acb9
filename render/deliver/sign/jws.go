package sign

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/armature-dev/armature/functions/a2a"
)

// Card signs the payload of an agent card as specified by A2A 1.0, section 8.4.2. The key ID in the
// signature is the key's thumbprint (RFC 7638). Keyless signers cannot sign cards, because they
// have no key that a client could configure.
func (s *Session) Card(ctx context.Context, payload []byte) (a2a.Signature, error) {
	protected, err := s.CardHeader()
	if err != nil {
		return a2a.Signature{}, err
	}
	input := protected + "." + base64.RawURLEncoding.EncodeToString(payload)
	made, err := s.key.SignMessage(strings.NewReader(input), options.WithContext(ctx))
	if _, numbers := s.key.public.(*ecdsa.PublicKey); numbers && err == nil {
		made, err = joined(made)
	}
	if err != nil {
		return a2a.Signature{}, &KeyError{fmt.Errorf("signing an agent card: %w", err)}
	}
	return a2a.Signature{Protected: protected,
		Signature: base64.RawURLEncoding.EncodeToString(made)}, nil
}

// CardHeader returns the protected header of the cards that the key signs, in base64url: the
// algorithm and the key ID.
func (s *Session) CardHeader() (string, error) {
	if s.cert != nil {
		return "", &KeyError{
			errors.New("an agent card is signed with a key alone, and not with a certificate")}
	}
	var alg jose.SignatureAlgorithm
	switch key := s.key.public.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() {
			alg = jose.ES256
		}
	case ed25519.PublicKey:
		alg = jose.EdDSA
	case *rsa.PublicKey:
		alg = jose.RS256
	}
	if alg == "" {
		return "", &KeyError{errors.New(
			"no algorithm of agent cards is for this key: use P-256, Ed25519 or RSA")}
	}
	thumbprint, err := (&jose.JSONWebKey{Key: s.key.public}).Thumbprint(crypto.SHA256)
	if err != nil {
		return "", &KeyError{err}
	}
	text, err := json.Marshal(struct {
		Alg jose.SignatureAlgorithm `json:"alg"`
		Typ string                  `json:"typ"`
		Kid string                  `json:"kid"`
	}{alg, "JOSE", base64.RawURLEncoding.EncodeToString(thumbprint)})
	return base64.RawURLEncoding.EncodeToString(text), err
}

// joined converts a signature of P-256 to the form of JSON Web Signatures, which is the two numbers
// in sequence (RFC 7518, section 3.4).
func joined(made []byte) ([]byte, error) {
	var numbers struct{ R, S *big.Int }
	if rest, err := asn1.Unmarshal(made, &numbers); err != nil || len(rest) > 0 ||
		numbers.R.BitLen() > 256 || numbers.S.BitLen() > 256 {
		return nil, errors.New("the key gave a signature that is not one of ECDSA with P-256")
	}
	out := make([]byte, 64)
	numbers.R.FillBytes(out[:32])
	numbers.S.FillBytes(out[32:])
	return out, nil
}
