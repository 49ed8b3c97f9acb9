package sign

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/armature-dev/armature/functions/a2a"
	"github.com/armature-dev/armature/render/deliver/sign/jws"
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
		made, err = jws.Raw(made, protected)
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
	header, err := jws.Header(public)
	if err != nil {
		return "", &KeyError{err}
	}
	return header, nil
}
