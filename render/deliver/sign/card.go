package sign

import (
	"bytes"
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

	"github.com/go-jose/go-jose/v4"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/armature-dev/armature/functions/a2a"
)

// Card signs the payload of an agent card, as A2A 1.0 says (section 8.4.2). The name of the
// key in the signature is its thumbprint (RFC 7638). Keyless signers have no key that
// somebody could configure, so that they sign no cards.
func (s *Session) Card(ctx context.Context, payload []byte) (a2a.Signature, error) {
	protected, err := s.CardHeader(ctx)
	if err != nil {
		return a2a.Signature{}, err
	}
	input := protected + "." + base64.RawURLEncoding.EncodeToString(payload)
	made, err := s.key.SignMessage(bytes.NewReader([]byte(input)), options.WithContext(ctx))
	if err == nil {
		made, err = plain(made, protected)
	}
	if err != nil {
		return a2a.Signature{}, &KeyError{fmt.Errorf("signing an agent card: %w", err)}
	}
	return a2a.Signature{Protected: protected, Signature: base64.RawURLEncoding.EncodeToString(made)}, nil
}

// CardHeader is the protected header of the cards that the key signs: the algorithm and the
// name of the key.
func (s *Session) CardHeader(ctx context.Context) (string, error) {
	if s.key.cert != nil {
		return "", &KeyError{errors.New("an agent card is signed with a key alone, and not with a certificate")}
	}
	public, err := s.key.PublicKey(options.WithContext(ctx))
	if err != nil {
		return "", &KeyError{err}
	}
	alg := ""
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() {
			alg = string(jose.ES256)
		}
	case ed25519.PublicKey:
		alg = string(jose.EdDSA)
	case *rsa.PublicKey:
		alg = string(jose.RS256)
	}
	if alg == "" {
		return "", &KeyError{errors.New("no algorithm of agent cards is for this key: use P-256, Ed25519 or RSA")}
	}
	thumbprint, err := (&jose.JSONWebKey{Key: public}).Thumbprint(crypto.SHA256)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(struct {
		Alg string `json:"alg"`
		Typ string `json:"typ"`
		Kid string `json:"kid"`
	}{alg, "JOSE", base64.RawURLEncoding.EncodeToString(thumbprint)})
	return base64.RawURLEncoding.EncodeToString(text), err
}

// plain gives a signature as JSON Web Signatures have it: of ECDSA, the two numbers (RFC 7518,
// section 3.4).
func plain(made []byte, protected string) ([]byte, error) {
	header, err := base64.RawURLEncoding.DecodeString(protected)
	if err != nil || !bytes.Contains(header, []byte(`"`+jose.ES256+`"`)) {
		return made, err
	}
	var numbers struct{ R, S *big.Int }
	if rest, err := asn1.Unmarshal(made, &numbers); err != nil || len(rest) > 0 || numbers.R.BitLen() > 256 || numbers.S.BitLen() > 256 {
		return nil, errors.New("the key gave a signature that is not one of ECDSA with P-256")
	}
	out := make([]byte, 64)
	numbers.R.FillBytes(out[:32])
	numbers.S.FillBytes(out[32:])
	return out, nil
}
