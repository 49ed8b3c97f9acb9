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
	"github.com/google/go-containerregistry/pkg/v1/remote"
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
	// find reads what an artifact has in this form; ours recognizes what write
	// attaches.
	find  func(*evidence) (found, error)
	ours  func(attached) bool
	write func(store) error
}

// attempts is how often a form is written. Both forms without a referrers API are
// lists that two writers may read and write at the same time: one is lost then.
const attempts = 3

// Sign attaches a signature to an artifact in both forms. What is there by the
// same key already stays as it is, so that Sign may be repeated after a failure.
func (s *Session) Sign(ctx context.Context, artifact name.Digest) error {
	ctx, cancel := context.WithTimeout(ctx, MaxTime)
	defer cancel()
	claim, err := payload.Cosign{Image: artifact}.MarshalJSON()
	if err != nil {
		return fmt.Errorf("signing %s: %w", artifact, err)
	}
	text, err := json.Marshal(newStatement(artifact, "", cosigntypes.CosignSignPredicateType, nil))
	if err != nil {
		return fmt.Errorf("signing %s: %w", artifact, err)
	}
	about, err := store{}.evidence(artifact)
	if err != nil {
		return err
	}
	envelope := s.envelope(ctx, text, about, cosigntypes.CosignSignPredicateType, false)
	return s.publish(ctx, "signature", artifact,
		form{
			"cosign's tag format", (*evidence).signatures,
			func(a attached) bool { return s.signed(ctx, about, a, claim) },
			func(to store) error { return s.tagSignature(ctx, to, artifact, claim, about) },
		},
		form{
			"a Sigstore bundle", func(e *evidence) (found, error) { return e.bundles(cosigntypes.CosignSignPredicateType) },
			func(a attached) bool { return s.states(ctx, about, a, text, cosigntypes.CosignSignPredicateType) },
			func(to store) error { return s.refer(ctx, to, artifact, cosigntypes.CosignSignPredicateType, envelope) },
		})
}

// Attest attaches a signed statement about an artifact (in-toto v1) with a
// predicate, whose type is a URI, in both forms. It may be repeated like Sign.
func (s *Session) Attest(ctx context.Context, artifact name.Digest, predicateType string, predicate any) error {
	ctx, cancel := context.WithTimeout(ctx, MaxTime)
	defer cancel()
	content, err := json.Marshal(predicate)
	if err != nil {
		return fmt.Errorf("attesting %s: %w", artifact, err)
	}
	text, err := json.Marshal(newStatement(artifact, artifact.Repository.String(), predicateType, content))
	if err != nil {
		return fmt.Errorf("attesting %s: %w", artifact, err)
	}
	about, err := store{}.evidence(artifact)
	if err != nil {
		return err
	}
	envelope := s.envelope(ctx, text, about, predicateType, true)
	ours := func(a attached) bool { return s.states(ctx, about, a, text, predicateType) }
	return s.publish(ctx, "attestation", artifact,
		form{
			"cosign's tag format", func(e *evidence) (found, error) { return e.attestations(predicateType) }, ours,
			func(to store) error { return s.tagAttestation(to, artifact, predicateType, envelope) },
		},
		form{
			"a Sigstore bundle", func(e *evidence) (found, error) { return e.bundles(predicateType) }, ours,
			func(to store) error { return s.refer(ctx, to, artifact, predicateType, envelope) },
		})
}

func newStatement(artifact name.Digest, named, predicateType string, predicate json.RawMessage) statement {
	algorithm, hex, _ := strings.Cut(artifact.DigestStr(), ":")
	return statement{Type: "https://in-toto.io/Statement/v1", PredicateType: predicateType, Predicate: predicate,
		Subject: []subject{{Name: named, Digest: map[string]string{algorithm: hex}}}}
}

// publish writes the forms that are missing.
func (s *Session) publish(ctx context.Context, what string, artifact name.Digest, forms ...form) error {
	to := newStore(ctx, s.keychain, s.plainHTTP, s.transport)
	var there []string
	for _, f := range forms {
		if err := f.settle(to, artifact); err != nil {
			err = fmt.Errorf("attaching the %s to %s as %s: %w", what, artifact, f.name, err)
			if len(there) > 0 {
				err = fmt.Errorf("%w\n  hint: it is attached as %s, which verifiers ignore once there is a bundle: sign again, which adds what is missing", err, strings.Join(there, ", "))
			}
			return err
		}
		there = append(there, f.name)
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
	known, err := f.find(e)
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

// tagSignature adds to the signatures where cosign looks for them.
func (s *Session) tagSignature(ctx context.Context, to store, artifact name.Digest, claim []byte, about *evidence) error {
	p, err := s.claimProof(ctx, claim, about)
	if err != nil {
		return err
	}
	signed, err := p.signature(claim)
	if err != nil {
		return err
	}
	entity, err := ociremote.SignedEntity(artifact, to.cosign()...)
	if err == nil {
		entity, err = mutate.AttachSignatureToEntity(entity, signed, mutate.WithDupeDetector(duplicates{}))
	}
	if err != nil {
		return err
	}
	return ociremote.WriteSignatures(artifact.Repository, entity, to.cosign()...)
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

// tagAttestation adds to the attestations where cosign looks for them.
func (s *Session) tagAttestation(to store, artifact name.Digest, predicateType string, make func() (envelope, error)) error {
	e, err := make()
	if err != nil {
		return err
	}
	signed, err := e.attestation(predicateType)
	if err != nil {
		return err
	}
	entity, err := ociremote.SignedEntity(artifact, to.cosign()...)
	if err == nil {
		entity, err = mutate.AttachAttestationToEntity(entity, signed, mutate.WithDupeDetector(duplicates{}))
	}
	if err != nil {
		return err
	}
	return ociremote.WriteAttestations(artifact.Repository, entity, to.cosign()...)
}

// refer attaches a Sigstore bundle as a referrer (OCI 1.1), under the fallback tag
// too where the registry has no referrers API.
func (s *Session) refer(ctx context.Context, to store, artifact name.Digest, predicateType string, make func() (envelope, error)) error {
	e, err := make()
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
	about, err := remote.Head(artifact, to.options...)
	if err != nil {
		return err
	}
	about.Annotations, about.URLs = nil, nil
	manifest := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: media, Subject: about,
		Annotations: map[string]string{"dev.sigstore.bundle.content": "dsse-envelope", predicateAnnotation: predicateType},
	}
	config, err := to.write(artifact, []byte("{}"), emptyType)
	if err != nil {
		return err
	}
	layer, err := to.write(artifact, content, types.MediaType(media))
	if err != nil {
		return err
	}
	manifest.Config, manifest.Layers = config, []v1.Descriptor{layer}
	raw, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	digest, _, err := v1.SHA256(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	return remote.Put(artifact.Context().Digest(digest.String()), referrer(raw), to.options...)
}

// referrer is a manifest as a registry takes it.
type referrer []byte

func (r referrer) RawManifest() ([]byte, error)        { return r, nil }
func (r referrer) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// write stores a blob beside an artifact.
func (s store) write(artifact name.Digest, content []byte, media types.MediaType) (v1.Descriptor, error) {
	layer := layers.NewLayer(content, media)
	digest, err := layer.Digest()
	if err != nil {
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: media, Digest: digest, Size: int64(len(content))}, remote.WriteLayer(artifact.Context(), layer, s.options...)
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
	signed, err := a.signedEnvelope()
	return err == nil && dsse.WrapVerifier(v).VerifySignature(bytes.NewReader(signed), nil) == nil
}

// signedEnvelope gives the DSSE envelope around the statement.
func (a attached) signedEnvelope() ([]byte, error) {
	if a.bundle == nil {
		return a.envelope.Payload()
	}
	envelope, err := a.bundle.Envelope()
	if err != nil {
		return nil, err
	}
	return json.Marshal(envelope.RawEnvelope())
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
