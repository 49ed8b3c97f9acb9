package sign

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/big"

	"github.com/go-jose/go-jose/v4"
)

// protectedHeader is the protected header of what a key signs, in base64url: the algorithm, and the
// thumbprint of the key (RFC 7638) as its name.
func protectedHeader(public crypto.PublicKey) (string, error) {
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
		return "", errors.New(
			"no algorithm of agent cards is for this key: use P-256, Ed25519 or RSA")
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

// rawSignature returns a signature as JSON Web Signatures have it: of ECDSA, the two numbers (RFC
// 7518, section 3.4).
func rawSignature(made []byte, protected string) ([]byte, error) {
	header, err := base64.RawURLEncoding.DecodeString(protected)
	if err != nil || !bytes.Contains(header, []byte(`"`+jose.ES256+`"`)) {
		return made, err
	}
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
