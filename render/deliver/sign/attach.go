package sign

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	layers "github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ociremote "github.com/sigstore/cosign/v2/pkg/oci/remote"
	cosigntypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/dsse"
	"github.com/sigstore/sigstore/pkg/signature/options"
)

// attempts is how often a bundle is attached. Without a referrers API, what refers to an
// artifact is a list that two writers may read and write at the same time: one is lost then.
const attempts = 3

// Sign attaches a signature to an artifact as a Sigstore bundle, and returns the reference
// of the bundle by digest. A signature by the same key that is attached already stays, so
// that Sign may be repeated after a failure.
func (s *Session) Sign(ctx context.Context, artifact name.Digest) (bundle string, err error) {
	if bundle, err = s.publish(ctx, artifact,
		newStatement(artifact, "", cosigntypes.CosignSignPredicateType, nil)); err != nil {
		return "", fmt.Errorf("attaching the signature to %s: %w", artifact, err)
	}
	return bundle, nil
}

// Attest attaches a signed statement about an artifact (in-toto v1) with a predicate, whose
// type is a URI, as a Sigstore bundle, and returns its reference. It may be repeated like Sign.
func (s *Session) Attest(ctx context.Context, artifact name.Digest, predicateType string,
	predicate any) (bundle string, err error) {
	content, err := json.Marshal(predicate)
	if err == nil {
		bundle, err = s.publish(ctx, artifact,
			newStatement(artifact, artifact.Repository.String(), predicateType, content))
	}
	if err != nil {
		return "", fmt.Errorf("attaching the attestation to %s: %w", artifact, err)
	}
	return bundle, nil
}

func newStatement(artifact name.Digest, named, predicateType string,
	predicate json.RawMessage) statement {
	algorithm, hex, _ := strings.Cut(artifact.DigestStr(), ":")
	return statement{Type: "https://in-toto.io/Statement/v1", PredicateType: predicateType,
		Predicate: predicate,
		Subject:   []subject{{Name: named, Digest: map[string]string{algorithm: hex}}}}
}

// publish attaches a statement unless it is attached already, and reads it back.
func (s *Session) publish(ctx context.Context, artifact name.Digest,
	stated statement) (bundle string, err error) {
	ctx, cancel := context.WithTimeout(ctx, MaxTime)
	defer cancel()
	about, err := store{}.evidence(artifact)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(stated)
	if err != nil {
		return "", err
	}
	kind := stated.PredicateType
	signed := s.envelope(ctx, text, about, kind)
	to := newStore(ctx, s.keychain, s.plainHTTP, s.transport)
	for n := 0; ; n++ {
		there, err := to.evidence(artifact)
		if err != nil {
			return "", err
		}
		known, err := there.find(bundles, kind)
		if err != nil {
			return "", err
		}
		for _, a := range known.all {
			if s.states(about, a, text, kind) {
				return a.place, nil
			}
		}
		if n == attempts {
			return "", fmt.Errorf("it was written %d times, and the registry does not have it: "+
				"does somebody else sign the same artifact?", attempts)
		}
		if err := s.refer(ctx, to, artifact, kind, signed); err != nil {
			return "", err
		}
	}
}

// refer attaches a Sigstore bundle as a referrer (OCI 1.1), under the fallback tag
// too where the registry has no referrers API. There is no time in the manifest: the same
// bundle is attached once.
func (s *Session) refer(ctx context.Context, to store, artifact name.Digest, predicateType string,
	signed func() (envelope, error)) error {
	e, err := signed()
	if err != nil {
		return err
	}
	public, err := s.key.PublicKey(options.WithContext(ctx))
	if err != nil {
		return err
	}
	content, err := e.bundle(public)
	if err != nil {
		return err
	}
	media, err := bundle.MediaTypeString("0.3")
	if err != nil {
		return err
	}
	return ociremote.WriteReferrer(artifact, media,
		[]v1.Layer{layers.NewLayer(content, types.MediaType(media))},
		map[string]string{"dev.sigstore.bundle.content": "dsse-envelope",
			predicateAnnotation: predicateType}, to.cosign()...)
}

// verifier verifies what the session's key signs.
func (s *Session) verifier() (signature.Verifier, error) {
	if v, ok := s.key.Signer.(signature.Verifier); ok {
		return v, nil
	}
	public, err := s.key.PublicKey()
	if err != nil {
		return nil, err
	}
	return signature.LoadVerifier(public, crypto.SHA256)
}

// states reports whether a bundle is the session's signature of a statement.
func (s *Session) states(about *evidence, a attached, wanted []byte, predicateType string) bool {
	text, _, err := a.statement()
	if err != nil || !bytes.Equal(text, wanted) || !s.provenLike(a) {
		return false
	}
	if own := s.key.own; own != nil {
		_, err := own.bundled(about, a, predicateType)
		return err == nil
	}
	v, err := s.verifier()
	if err != nil {
		return false
	}
	envelope, err := a.signed()
	if err != nil {
		return false
	}
	signed, err := json.Marshal(envelope)
	return err == nil && dsse.WrapVerifier(v).VerifySignature(bytes.NewReader(signed), nil) == nil
}

// provenLike reports whether a bundle has the certificate, the proof of the log and
// the timestamp that the session attaches. Whose a certificate is that only has to be of
// the same identity, the trusted root says.
func (s *Session) provenLike(a attached) bool {
	cert, logged, stamped, err := a.proofs()
	if err != nil || s.key.rekor != nil && !logged || s.key.stamps != nil && !stamped {
		return false
	}
	if s.key.cert == nil {
		return cert == nil
	}
	if s.key.own != nil {
		return cert != nil
	}
	ours, err := cryptoutils.UnmarshalCertificatesFromPEM(s.key.cert)
	return err == nil && len(ours) > 0 && cert != nil && cert.Equal(ours[0])
}

// proofs returns the certificate of a bundle, nil for none, and whether a log has the
// signature and an authority set the time of it.
func (a attached) proofs() (cert *x509.Certificate, logged, stamped bool, err error) {
	content, err := a.bundle.VerificationContent()
	if err != nil {
		return nil, false, false, err
	}
	if content == nil {
		return nil, false, false, errors.New("the bundle does not say what it is verified with")
	}
	stamps, err := a.bundle.Timestamps()
	if err != nil {
		return nil, false, false, err
	}
	entries, err := a.bundle.TlogEntries()
	return content.Certificate(), len(entries) > 0, len(stamps) > 0, err
}
