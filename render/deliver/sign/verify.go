package sign

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	cosigntypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/armature-dev/armature/functions/multi"
)

// Verified is an artifact whose signature a policy accepts.
type Verified struct {
	Ref string `json:"ref"`
	// By is the key or the identities of the policy that signed.
	By string `json:"by"`
	// Provenance is the attested provenance, if the policy requires it.
	Provenance *Provenance `json:"provenance,omitempty"`
	// Level is the SLSA build level that the policy assigns to the builder; nil if it has no
	// requirements for builds.
	Level *int `json:"level,omitempty"`
	// Attestations are the attestations on which the verdict is based, as blobs or manifests of the
	// registry: their URI is REPOSITORY@DIGEST.
	Attestations []ResourceDescriptor `json:"attestations,omitempty"`
}

// basedOn records attestations on which the verdict is based.
func (v *Verified) basedOn(on ...statement) {
	for _, s := range on {
		_, digest, _ := strings.Cut(s.place, "@")
		algorithm, hex, _ := strings.Cut(digest, ":")
		v.Attestations = append(v.Attestations,
			ResourceDescriptor{URI: s.place, Digest: map[string]string{algorithm: hex}})
	}
}

// Verify checks that a policy accepts an artifact, by the attachments in cosign's tag format or as
// Sigstore bundles. It contacts only the registry if the policy has its own keys or roots and
// ignores the transparency log, or names a trusted root. It takes at most MaxTime.
func Verify(ctx context.Context, artifact name.Digest, p Policy) (Verified, error) {
	ctx, cancel := context.WithTimeout(ctx, MaxTime)
	defer cancel()
	trusted, e, err := p.open(ctx, artifact)
	if err != nil {
		return Verified{}, err
	}
	var failed []error
	for _, t := range trusted {
		verified, err := t.verify(e, p)
		if err == nil {
			return verified, nil
		}
		failed = append(failed, fmt.Errorf("%s: %w", t.who, err))
	}
	return Verified{}, fmt.Errorf("%s is not trusted: %w", artifact, multi.Errors(failed...))
}

// open checks a policy and returns the ways to satisfy it, and the attachments in the registry.
func (p Policy) open(ctx context.Context,
	artifact name.Digest) (trusted []trust, e *evidence, err error) {
	if err = p.Check(); err == nil {
		trusted, err = p.trusted(ctx)
	}
	if err == nil {
		e, err = newEvidence(artifact, bounded(ctx, p.Access))
	}
	return trusted, e, err
}

// verify verifies a signature, and the required attestations of the same signer.
func (t trust) verify(e *evidence, p Policy) (Verified, error) {
	verified := Verified{Ref: e.artifact.String(), By: t.who}
	if _, err := t.attested(e, cosigntypes.CosignSignPredicateType); err != nil {
		return Verified{}, fmt.Errorf("signature: %w", err)
	}
	if p.Builds != nil {
		if err := t.built(e, p.Builds, time.Now(), &verified); err != nil {
			return Verified{}, err
		}
		return verified, nil
	}
	if !p.Provenance {
		return verified, nil
	}
	statements, err := t.attested(e, PredicateType)
	if err != nil {
		return Verified{}, fmt.Errorf("provenance: %w", err)
	}
	if err := json.Unmarshal(statements[0].Predicate, &verified.Provenance); err != nil {
		return Verified{}, fmt.Errorf("provenance: %w", err)
	}
	verified.basedOn(statements[0])
	return verified, nil
}

// attested returns the trusted statements of a type about the artifact in both forms, or an error
// if there are none. For signatures it returns the first one.
func (t trust) attested(e *evidence, predicateType string) (trusted []statement, _ error) {
	form, missing := attestations, "none of the attestations is of type "+predicateType
	if predicateType == cosigntypes.CosignSignPredicateType {
		form, missing = signatures, "no signatures found"
	}
	var reasons []error
	for _, form := range []string{form, bundles} {
		all, err := e.find(form, predicateType)
		if err != nil {
			return nil, err
		}
		for _, a := range all {
			s, err := t.judge(e, a, predicateType)
			if err != nil {
				reasons = append(reasons, fmt.Errorf("%s: %w", a.place, err))
				continue
			}
			trusted = append(trusted, s)
			if predicateType == cosigntypes.CosignSignPredicateType {
				return trusted, nil
			}
		}
	}
	switch {
	case len(trusted) > 0:
		return trusted, nil
	case len(reasons) > 0:
		return nil, multi.Errors(reasons...)
	}
	return nil, errors.New(missing)
}

// judge verifies an attachment. Its statement has to have the type and to be about the artifact.
func (t trust) judge(e *evidence, a attached, predicateType string) (none statement, _ error) {
	if a.err != nil {
		return none, a.err
	}
	digest, err := hex.DecodeString(e.hash.Hex)
	if err != nil {
		return none, err
	}
	of := verify.WithArtifactDigest(e.hash.Algorithm, digest)
	if a.layer != nil && a.bundle.GetDsseEnvelope() == nil {
		of = verify.WithArtifact(bytes.NewReader(a.layer))
	}
	var signed verify.SignedEntity = a.bundle
	demands := t.demands
	if stamps, err := a.bundle.Timestamps(); t.stamped != nil && err == nil && len(stamps) > 0 {
		demands = t.stamped
		if a.layer != nil && a.bundle.GetDsseEnvelope() != nil {
			signed = enveloped{a.bundle, a.layer}
		}
	}
	verifier, err := verify.NewVerifier(t.material, demands...)
	if err != nil {
		return none, err
	}
	if _, err := verifier.Verify(signed, verify.NewPolicy(of, t.signers...)); err != nil {
		return none, err
	}
	s, err := a.statement()
	switch {
	case err != nil:
		return none, err
	case s.PredicateType != predicateType:
		return none, fmt.Errorf("it is a statement of type %q, not %q", s.PredicateType,
			predicateType)
	case !s.about(e.hash):
		return none, fmt.Errorf("it is not about %s", e.hash)
	}
	return s, nil
}
