package sign

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	cosignoci "github.com/sigstore/cosign/v2/pkg/oci"
	cosigntypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/armature-dev/armature/functions/multi"
)

// Verified is an artifact whose signature a policy accepts.
type Verified struct {
	Ref string `json:"ref"`
	// By is the key, or the identities, that the policy names.
	By string `json:"by"`
	// Provenance is what was attested, where the policy demands it.
	Provenance *Provenance `json:"provenance,omitempty"`
	// Level is the SLSA build level of the builder, as the policy says, nil where it
	// makes no demand of builds.
	Level *int `json:"level,omitempty"`
	// Attestations are those that the verdict is based on, as blobs or manifests of the
	// registry: their URI is REPOSITORY@DIGEST.
	Attestations []ResourceDescriptor `json:"attestations,omitempty"`
}

// basedOn adds attestations to those that the verdict is based on.
func (v *Verified) basedOn(on ...statement) {
	for _, s := range on {
		_, digest, _ := strings.Cut(s.place, "@")
		algorithm, hex, _ := strings.Cut(digest, ":")
		v.Attestations = append(v.Attestations,
			ResourceDescriptor{URI: s.place, Digest: map[string]string{algorithm: hex}})
	}
}

// Verify checks that a policy accepts an artifact, by what is attached to it in
// cosign's tag format or as Sigstore bundles. It asks the registry, and nobody
// else where the policy has its own keys or roots and does without the
// transparency log, or names a trusted root. It takes MaxTime at most.
func Verify(ctx context.Context, artifact name.Digest, p Policy) (Verified, error) {
	ctx, cancel := context.WithTimeout(ctx, MaxTime)
	defer cancel()
	trusted, e, err := p.open(ctx, artifact)
	if err != nil {
		return Verified{}, err
	}
	var failed []error
	for _, t := range trusted {
		verified, err := t.verify(ctx, e, p)
		if err == nil {
			return verified, nil
		}
		failed = append(failed, fmt.Errorf("%s: %w", t.who, err))
	}
	return Verified{}, fmt.Errorf("%s is not trusted: %w", artifact, multi.Errors(failed...))
}

// open checks a policy, and returns the ways to satisfy it with what the registry has.
func (p Policy) open(ctx context.Context,
	artifact name.Digest) (trusted []trust, e *evidence, err error) {
	if err = p.Check(); err == nil {
		trusted, err = p.trusted(ctx)
	}
	if err == nil {
		e, err = newStore(ctx, p.Keychain, p.PlainHTTP, p.Transport).evidence(artifact)
	}
	return trusted, e, err
}

// verify looks for a signature, and for the attestations that are demanded, which
// have to be of the same signer.
func (t trust) verify(ctx context.Context, e *evidence, p Policy) (Verified, error) {
	verified := Verified{Ref: e.artifact.String(), By: t.who}
	if err := t.signed(ctx, e); err != nil {
		return Verified{}, fmt.Errorf("signature: %w", err)
	}
	if p.Builds != nil {
		if err := t.built(ctx, e, p.Builds, time.Now(), &verified); err != nil {
			return Verified{}, err
		}
		return verified, nil
	}
	if !p.Provenance {
		return verified, nil
	}
	statements, err := t.attested(ctx, e, PredicateType)
	if err != nil {
		return Verified{}, fmt.Errorf("provenance: %w", err)
	}
	if err := json.Unmarshal(statements[0].Predicate, &verified.Provenance); err != nil {
		return Verified{}, fmt.Errorf("provenance: %w", err)
	}
	verified.basedOn(statements[0])
	return verified, nil
}

// signed looks for a signature of the artifact in both forms.
func (t trust) signed(ctx context.Context, e *evidence) error {
	var reasons []error
	tagged, err := e.find(signatures, "")
	if err != nil {
		return err
	}
	for _, a := range tagged.all {
		if err := t.claimed(ctx, e.hash, a); err == nil {
			return nil
		} else {
			reasons = append(reasons, fmt.Errorf("%s: %w", a.place, err))
		}
	}
	bundled, err := e.find(bundles, cosigntypes.CosignSignPredicateType)
	if err != nil {
		return err
	}
	for _, a := range bundled.all {
		if _, err := t.bundled(e, a, cosigntypes.CosignSignPredicateType); err == nil {
			return nil
		} else {
			reasons = append(reasons, fmt.Errorf("%s: %w", a.place, err))
		}
	}
	return refusal("no signatures found",
		append(append(reasons, tagged.skipped...), bundled.skipped...))
}

// attested returns the trusted statements of a type about the artifact, of both forms. It fails if
// there are none.
func (t trust) attested(ctx context.Context, e *evidence,
	predicateType string) (trusted []statement, err error) {
	tagged, err := e.find(attestations, predicateType)
	if err != nil {
		return nil, err
	}
	bundled, err := e.find(bundles, predicateType)
	if err != nil {
		return nil, err
	}
	reasons := slices.Concat(tagged.skipped, bundled.skipped)
	for _, a := range slices.Concat(tagged.all, bundled.all) {
		var s statement
		if a.bundle != nil {
			s, err = t.bundled(e, a, predicateType)
		} else {
			s, err = t.enveloped(ctx, e, a, predicateType)
		}
		if err != nil {
			reasons = append(reasons, fmt.Errorf("%s: %w", a.place, err))
			continue
		}
		trusted = append(trusted, s)
	}
	if len(trusted) == 0 {
		return nil, refusal("none of the attestations is of type "+predicateType, reasons)
	}
	return trusted, nil
}

// refusal says what was missing, or what is wrong with what there is.
func refusal(missing string, reasons []error) error {
	if len(reasons) == 0 {
		return errors.New(missing)
	}
	return multi.Errors(reasons...)
}

// claimed judges a signature in cosign's tag format.
func (t trust) claimed(ctx context.Context, artifact v1.Hash, a attached) error {
	if err := t.timestamp(a); err != nil {
		return err
	}
	check := t.check
	check.ClaimVerifier = cosign.SimpleClaimVerifier
	_, err := cosign.VerifyImageSignature(ctx, a.envelope, artifact, &check)
	return err
}

// timestamp judges the timestamp of an attachment in cosign's tag format, if it has one.
// cosign's verifier panics where none of the trusted authorities made it.
func (t trust) timestamp(a attached) error {
	if !t.check.UseSignedTimestamps {
		return nil
	}
	stamp, err := a.envelope.RFC3161Timestamp()
	if err != nil || stamp == nil {
		return err
	}
	signed, err := a.envelope.Signature()
	if err == nil && len(signed) == 0 { // that of an attestation is of its envelope
		signed, err = a.envelope.Payload()
	}
	if err != nil {
		return err
	}
	for _, authority := range t.check.TrustedMaterial.TimestampingAuthorities() {
		if _, err := authority.Verify(stamp.SignedRFC3161Timestamp, signed); err == nil {
			return nil
		}
	}
	return errors.New("its timestamp is not of an authority of the trusted root")
}

// enveloped judges an attestation in cosign's tag format.
func (t trust) enveloped(ctx context.Context, e *evidence, a attached,
	predicateType string) (statement, error) {
	if err := t.timestamp(a); err != nil {
		return statement{}, err
	}
	check := t.check
	check.ClaimVerifier = cosign.IntotoSubjectClaimVerifier
	if _, _, err := cosign.VerifyImageAttestation(ctx, one{signature: a.envelope}, e.hash,
		&check); err != nil {
		return statement{}, err
	}
	return e.verifiedStatement(a, predicateType)
}

// one is a list of one attestation, as cosign's verifier takes it.
type one struct {
	cosignoci.Signatures
	signature cosignoci.Signature
}

func (o one) Get() ([]cosignoci.Signature, error) { return []cosignoci.Signature{o.signature}, nil }

// bundled judges a Sigstore bundle.
func (t trust) bundled(e *evidence, a attached, predicateType string) (statement, error) {
	digest, err := hex.DecodeString(e.hash.Hex)
	if err != nil {
		return statement{}, err
	}
	demands := t.demands
	if stamps, err := a.bundle.Timestamps(); t.stamped != nil && err == nil && len(stamps) > 0 {
		demands = t.stamped
	}
	verifier, err := verify.NewVerifier(t.check.TrustedMaterial, demands...)
	if err != nil {
		return statement{}, err
	}
	policy := verify.NewPolicy(verify.WithArtifactDigest(e.hash.Algorithm, digest), t.signers...)
	if _, err := verifier.Verify(a.bundle, policy); err != nil {
		return statement{}, err
	}
	return e.verifiedStatement(a, predicateType)
}

// verifiedStatement is that of an attachment whose signature has been verified. It has
// to be of the type, and about the artifact.
func (e *evidence) verifiedStatement(a attached, predicateType string) (statement, error) {
	_, s, err := a.statement()
	switch {
	case err != nil:
		return statement{}, err
	case s.PredicateType != predicateType:
		return statement{}, fmt.Errorf("it is a statement of type %q, not %q", s.PredicateType,
			predicateType)
	case !s.about(e.hash):
		return statement{}, fmt.Errorf("it is not about %s", e.hash)
	}
	s.place = a.place
	return s, nil
}
