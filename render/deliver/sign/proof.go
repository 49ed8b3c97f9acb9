package sign

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	securedsse "github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	cosignbundle "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	cosigntypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/rekor/pkg/generated/models"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature/options"
)

// proof is a signature with what is attached beside it. Whoever has the same proof
// attaches the same.
type proof struct {
	Signature []byte `json:"signature"`
	// Certificate and Chain are in PEM, nil for none.
	Certificate []byte `json:"certificate,omitempty"`
	Chain       []byte `json:"chain,omitempty"`
	// Entry is the transparency log's, nil for none.
	Entry *models.LogEntryAnon `json:"entry,omitempty"`
	// Stamp is the timestamp of the signature (RFC 3161).
	Stamp []byte `json:"stamp,omitempty"`
}

// prove returns the proof of a message: a valid one that was kept, or a new one, which finish
// completes.
func (s *Session) prove(ctx context.Context, message []byte, finish func(*proof) error,
	valid func(proof) bool) (proof, error) {
	sum := sha256.Sum256(message)
	name := hex.EncodeToString(sum[:])
	acceptable := func(text []byte) bool {
		var p proof
		return json.Unmarshal(text, &p) == nil && valid(p)
	}
	if s.key.keep != nil {
		if kept, err := s.key.keep(ctx, name, nil, acceptable); err != nil || kept != nil {
			return readProof(kept, err)
		}
	}
	made, err := s.sign(ctx, message)
	if err == nil {
		err = finish(&made)
	}
	if err == nil && s.key.own != nil && !valid(made) {
		err = errors.New("the trusted root does not vouch for the certificate, or for the " +
			"timestamp or the log's entry: is it the one of these authorities?")
	}
	if err != nil {
		return proof{}, &KeyError{err}
	}
	if s.key.keep == nil {
		return made, nil
	}
	text, err := json.Marshal(made)
	if err != nil {
		return proof{}, err
	}
	return readProof(s.key.keep(ctx, name, text, acceptable))
}

func readProof(kept []byte, err error) (p proof, _ error) {
	if err == nil {
		err = json.Unmarshal(kept, &p)
	}
	if err != nil {
		return proof{}, fmt.Errorf("keeping a signature: %w", err)
	}
	return p, nil
}

// sign a message, with a timestamp if there is an authority.
func (s *Session) sign(ctx context.Context, message []byte) (p proof, err error) {
	p = proof{Certificate: s.key.cert, Chain: s.key.chain}
	if p.Signature, err = s.key.SignMessage(bytes.NewReader(message),
		options.WithContext(ctx)); err != nil || s.key.stamps == nil {
		return p, err
	}
	if p.Stamp, err = s.key.stamps.GetTimestamp(ctx, p.Signature); err != nil {
		return p, fmt.Errorf("getting a timestamp: %w", err)
	}
	return p, nil
}

// envelope is a signed statement (DSSE) with its proof.
type envelope struct {
	statement, signed []byte
	proof
}

func newEnvelope(statement []byte, p proof) (e envelope, err error) {
	e = envelope{statement: statement, proof: p}
	e.signed, err = json.Marshal(securedsse.Envelope{PayloadType: cosigntypes.IntotoPayloadType,
		Payload:    base64.StdEncoding.EncodeToString(statement),
		Signatures: []securedsse.Signature{{Sig: base64.StdEncoding.EncodeToString(p.Signature)}}})
	return e, err
}

// bundle of Sigstore's. The key public counts where the proof has no certificate.
func (e envelope) bundle(public crypto.PublicKey) ([]byte, error) {
	return cosignbundle.MakeNewBundle(public, e.Entry, e.statement, e.signed, e.Certificate, e.Stamp)
}

// envelope signs a statement, when it is asked for, and has it logged.
func (s *Session) envelope(ctx context.Context, text []byte, about *evidence,
	predicateType string) func() (envelope, error) {
	return sync.OnceValues(func() (envelope, error) {
		p, err := s.prove(ctx, securedsse.PAE(cosigntypes.IntotoPayloadType, text), func(p *proof) error {
			if s.key.rekor == nil {
				return nil
			}
			e, err := newEnvelope(text, *p)
			if err != nil {
				return err
			}
			certificate, err := s.key.certificate(ctx)
			if err != nil {
				return err
			}
			if p.Entry, err = cosign.TLogUploadDSSEEnvelope(ctx, s.key.rekor, e.signed,
				certificate); err != nil {
				return fmt.Errorf("writing to the transparency log: %w", err)
			}
			return nil
		}, func(p proof) bool {
			e, err := newEnvelope(text, p)
			return err == nil && s.acceptable(ctx, e, about, predicateType)
		})
		if err != nil {
			return envelope{}, err
		}
		return newEnvelope(text, p)
	})
}

// acceptable reports whether the bundle of an envelope is the session's.
func (s *Session) acceptable(ctx context.Context, e envelope, about *evidence,
	predicateType string) bool {
	public, err := s.key.PublicKey(options.WithContext(ctx))
	if err != nil {
		return false
	}
	content, err := e.bundle(public)
	if err != nil {
		return false
	}
	b := &bundle.Bundle{}
	return b.UnmarshalJSON(content) == nil &&
		s.states(about, attached{bundle: b}, e.statement, predicateType)
}

// SignedBy is who signs: a key, or an identity that is certified.
type SignedBy struct {
	// PublicKey is "sha256:" and the digest of the key (PKIX, DER), "" for an identity.
	PublicKey string
	// Identity has a certificate by the word of Issuer, an OpenID provider.
	Identity, Issuer string
}

// By says who signs.
func (s *Session) By(ctx context.Context) (SignedBy, error) {
	if s.key.cert != nil {
		certs, err := cryptoutils.UnmarshalCertificatesFromPEM(s.key.cert)
		if err != nil {
			return SignedBy{}, err
		}
		who, err := certificate.SummarizeCertificate(certs[0])
		return SignedBy{Identity: who.SubjectAlternativeName, Issuer: who.Issuer}, err
	}
	public, err := s.key.PublicKey(options.WithContext(ctx))
	if err != nil {
		return SignedBy{}, err
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return SignedBy{}, err
	}
	sum := sha256.Sum256(der)
	return SignedBy{PublicKey: "sha256:" + hex.EncodeToString(sum[:])}, nil
}
