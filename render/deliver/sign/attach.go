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
	cosignoci "github.com/sigstore/cosign/v2/pkg/oci"
	"github.com/sigstore/cosign/v2/pkg/oci/mutate"
	ociremote "github.com/sigstore/cosign/v2/pkg/oci/remote"
	cosigntypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/dsse"
	"github.com/sigstore/sigstore/pkg/signature/options"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

// form is one of the two forms in which a signature or attestation is published:
// cosign's tag format and the Sigstore bundle. Verifiers that find a bundle ignore
// what is under the tags, so that whatever is published has to be in both.
type form struct {
	name string
	// place is where evidence.find looks, for claims of kind; ours recognizes what write
	// attaches.
	place, kind string
	ours        func(attached) bool
	write       func(store) error
}

// attempts is how often a form is written. Both forms without a referrers API are
// lists that two writers may read and write at the same time: one is lost then.
const attempts = 3

// Sign attaches a signature to an artifact in both forms. What is there by the
// same key already stays as it is, so that Sign may be repeated after a failure.
func (s *Session) Sign(ctx context.Context, artifact name.Digest) error {
	claim, err := payload.Cosign{Image: artifact}.MarshalJSON()
	if err != nil {
		return fmt.Errorf("signing %s: %w", artifact, err)
	}
	return s.publish(ctx, artifact, newStatement(artifact, "", cosigntypes.CosignSignPredicateType, nil), claim)
}

// Attest attaches a signed statement about an artifact (in-toto v1) with a
// predicate, whose type is a URI, in both forms. It may be repeated like Sign.
func (s *Session) Attest(ctx context.Context, artifact name.Digest, predicateType string, predicate any) error {
	content, err := json.Marshal(predicate)
	if err != nil {
		return fmt.Errorf("attesting %s: %w", artifact, err)
	}
	return s.publish(ctx, artifact, newStatement(artifact, artifact.Repository.String(), predicateType, content), nil)
}

func newStatement(artifact name.Digest, named, predicateType string, predicate json.RawMessage) statement {
	algorithm, hex, _ := strings.Cut(artifact.DigestStr(), ":")
	return statement{Type: "https://in-toto.io/Statement/v1", PredicateType: predicateType, Predicate: predicate,
		Subject: []subject{{Name: named, Digest: map[string]string{algorithm: hex}}}}
}

// publish a statement in the forms that are missing. With a claim it is a signature, and
// cosign's tag format has that of the claim.
func (s *Session) publish(ctx context.Context, artifact name.Digest, stated statement, claim []byte) error {
	ctx, cancel := context.WithTimeout(ctx, MaxTime)
	defer cancel()
	about, err := store{}.evidence(artifact)
	if err != nil {
		return err
	}
	text, err := json.Marshal(stated)
	if err != nil {
		return fmt.Errorf("stating what %s is: %w", artifact, err)
	}
	kind := stated.PredicateType
	signed := s.envelope(ctx, text, about, kind, claim == nil)
	ours := func(a attached) bool { return s.states(ctx, about, a, text, kind) }
	what, tagged := "attestation", form{
		place: attestations, kind: kind, ours: ours,
		write: func(to store) error {
			e, err := signed()
			if err != nil {
				return err
			}
			attestation, err := e.attestation(kind)
			if err != nil {
				return err
			}
			return to.tag(artifact, attestation, mutate.AttachAttestationToEntity, ociremote.WriteAttestations)
		},
	}
	if claim != nil {
		what, tagged = "signature", form{
			place: signatures, ours: func(a attached) bool { return s.signed(ctx, about, a, claim) },
			write: func(to store) error {
				p, err := s.claimProof(ctx, claim, about)
				if err != nil {
					return err
				}
				signature, err := p.signature(claim)
				if err != nil {
					return err
				}
				return to.tag(artifact, signature, mutate.AttachSignatureToEntity, ociremote.WriteSignatures)
			},
		}
	}
	tagged.name = "cosign's tag format"
	bundled := form{
		name: "a Sigstore bundle", place: bundles, kind: kind, ours: ours,
		write: func(to store) error { return s.refer(ctx, to, artifact, kind, signed) },
	}
	to := newStore(ctx, s.keychain, s.plainHTTP, s.transport)
	if err := tagged.settle(to, artifact); err != nil {
		return fmt.Errorf("attaching the %s to %s as %s: %w", what, artifact, tagged.name, err)
	}
	if err := bundled.settle(to, artifact); err != nil {
		return fmt.Errorf("attaching the %s to %s as %s: %w\n  hint: it is attached as %s, which verifiers ignore once there is a bundle: sign again, which adds what is missing",
			what, artifact, bundled.name, err, tagged.name)
	}
	return nil
}

// settle writes a form unless it is there, and reads it back.
func (f form) settle(to store, artifact name.Digest) error {
	for range attempts {
		there, err := f.there(to, artifact)
		if there || err != nil {
			return err
		}
		if err := f.write(to); err != nil {
			return err
		}
	}
	if there, err := f.there(to, artifact); there || err != nil {
		return err
	}
	return fmt.Errorf("it was written %d times, and the registry does not have it: does somebody else sign the same artifact?", attempts)
}

func (f form) there(to store, artifact name.Digest) (bool, error) {
	e, err := to.evidence(artifact)
	if err != nil {
		return false, err
	}
	known, err := e.find(f.place, f.kind)
	if err != nil {
		return false, err
	}
	for _, a := range known.all {
		if f.ours(a) {
			return true, nil
		}
	}
	return false, nil
}

// tag adds to the signatures or attestations where cosign looks for them.
func (s store) tag(artifact name.Digest, added cosignoci.Signature,
	attach func(cosignoci.SignedEntity, cosignoci.Signature, ...mutate.SignOption) (cosignoci.SignedEntity, error),
	write func(name.Repository, cosignoci.SignedEntity, ...ociremote.Option) error,
) error {
	entity, err := ociremote.SignedEntity(artifact, s.cosign()...)
	if err == nil {
		entity, err = attach(entity, added, mutate.WithDupeDetector(duplicates{}))
	}
	if err != nil {
		return err
	}
	return write(artifact.Repository, entity, s.cosign()...)
}

// duplicates finds what is about to be added, which another writer with the same key may
// have added since it was looked for: signatures that are repeatable are equal.
type duplicates struct{}

func (duplicates) Find(there cosignoci.Signatures, added cosignoci.Signature) (cosignoci.Signature, error) {
	all, err := there.Get()
	if err != nil {
		return nil, err
	}
	wanted, err := identify(added)
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		if is, err := identify(one); err != nil {
			return nil, err
		} else if is == wanted {
			return one, nil
		}
	}
	return nil, nil
}

// identify gives the digest of what is signed with the signature, which the envelope
// of an attestation has inside.
func identify(s cosignoci.Signature) (string, error) {
	digest, err := s.Digest()
	if err != nil {
		return "", err
	}
	text, err := s.Base64Signature()
	if err != nil {
		text = ""
	}
	return digest.String() + " " + text, nil
}

// refer attaches a Sigstore bundle as a referrer (OCI 1.1), under the fallback tag
// too where the registry has no referrers API. There is no time in the manifest: the same
// bundle is attached once.
func (s *Session) refer(ctx context.Context, to store, artifact name.Digest, predicateType string, signed func() (envelope, error)) error {
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
	return ociremote.WriteReferrer(artifact, media, []v1.Layer{layers.NewLayer(content, types.MediaType(media))},
		map[string]string{"dev.sigstore.bundle.content": "dsse-envelope", predicateAnnotation: predicateType}, to.cosign()...)
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

// signed reports whether an attachment is the session's signature of a claim.
func (s *Session) signed(ctx context.Context, about *evidence, a attached, claim []byte) bool {
	text, err := a.envelope.Payload()
	if err != nil || !bytes.Equal(text, claim) || !s.provenLike(a) {
		return false
	}
	if s.key.own != nil {
		return s.key.own.claimed(ctx, about.hash, a) == nil
	}
	sig, err := a.envelope.Signature()
	if err != nil {
		return false
	}
	v, err := s.verifier()
	return err == nil && v.VerifySignature(bytes.NewReader(sig), bytes.NewReader(claim)) == nil
}

// states reports whether an attachment is the session's signature of a statement.
func (s *Session) states(ctx context.Context, about *evidence, a attached, wanted []byte, predicateType string) bool {
	text, _, err := a.statement()
	if err != nil || !bytes.Equal(text, wanted) || !s.provenLike(a) {
		return false
	}
	if own := s.key.own; own != nil && a.bundle != nil {
		_, err := own.bundled(about, a, predicateType)
		return err == nil
	} else if own != nil {
		_, err := own.enveloped(ctx, about, a, predicateType)
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

// provenLike reports whether an attachment has the certificate, the proof of the log and
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

// proofs gives the certificate, nil for none, and whether a log has the signature and
// an authority set the time of it.
func (a attached) proofs() (cert *x509.Certificate, logged, stamped bool, err error) {
	if a.bundle == nil {
		if cert, err = a.envelope.Cert(); err != nil {
			return nil, false, false, err
		}
		stamp, err := a.envelope.RFC3161Timestamp()
		if err != nil {
			return nil, false, false, err
		}
		proof, err := a.envelope.Bundle()
		return cert, proof != nil, stamp != nil, err
	}
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
