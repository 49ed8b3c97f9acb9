package sign

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	cosignoci "github.com/sigstore/cosign/v2/pkg/oci"
	keys "github.com/sigstore/cosign/v2/pkg/signature"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
)

// Verified is an artifact whose signature a policy accepts.
type Verified struct {
	Ref string `json:"ref"`
	// By is the key, or the identities, that the policy names.
	By string `json:"by"`
	// Provenance is what was attested, where the policy demands it.
	Provenance *Provenance `json:"provenance,omitempty"`
}

// Verify checks that a policy accepts an artifact. It asks the registry, and
// nobody else where the policy has its own keys or roots and does without the
// transparency log.
func Verify(ctx context.Context, artifact name.Digest, p Policy) (Verified, error) {
	if err := p.Check(); err != nil {
		return Verified{}, err
	}
	trusted, err := p.trusted(ctx)
	if err != nil {
		return Verified{}, err
	}
	var failed []error
	for _, t := range trusted {
		provenance, err := t.verify(ctx, artifact, p.Provenance)
		if err == nil {
			return Verified{Ref: artifact.String(), By: t.who, Provenance: provenance}, nil
		}
		failed = append(failed, fmt.Errorf("%s: %w", t.who, err))
	}
	return Verified{}, fmt.Errorf("%s is not trusted: %w", artifact, errors.Join(failed...))
}

// trust is one way to be trusted.
type trust struct {
	who   string
	check cosign.CheckOpts
}

func (p Policy) trusted(ctx context.Context) (all []trust, err error) {
	verifiers := make([]signature.Verifier, len(p.Keys)) // before anybody is asked: a key may be misspelt
	for i, key := range p.Keys {
		if verifiers[i], err = publicKey(ctx, key); err != nil {
			return nil, fmt.Errorf("reading the key %s: %w", key, err)
		}
	}
	common := cosign.CheckOpts{RegistryClientOpts: registry(ctx, p.Keychain, p.PlainHTTP), IgnoreTlog: p.IgnoreTlog, IgnoreSCT: p.IgnoreSCT, Offline: true}
	if !p.IgnoreTlog {
		if common.RekorPubKeys, err = cosign.GetRekorPubs(ctx); err != nil {
			return nil, fmt.Errorf("getting the transparency log's keys (signatures without it are accepted with --insecure-ignore-tlog): %w", err)
		}
	}
	for i, key := range p.Keys {
		check := common
		check.SigVerifier = verifiers[i]
		all = append(all, trust{"key " + key, check})
	}
	if len(p.Identities) > 0 {
		check := common
		if err := p.authorities(ctx, &check); err != nil {
			return nil, err
		}
		var who []string
		for _, id := range p.Identities {
			check.Identities = append(check.Identities, cosign.Identity{
				Subject: id.Subject, SubjectRegExp: whole(id.SubjectRegExp), Issuer: id.Issuer, IssuerRegExp: whole(id.IssuerRegExp)})
			who = append(who, id.Subject+id.SubjectRegExp)
		}
		all = append(all, trust{"identity " + strings.Join(who, " or "), check})
	}
	return all, nil
}

func publicKey(ctx context.Context, key string) (signature.Verifier, error) {
	verifier, err := keys.PublicKeyFromKeyRef(ctx, key)
	if err == nil && verifier == nil {
		err = errors.New("there is none")
	}
	return verifier, err
}

// whole makes a pattern match all of a text or nothing.
func whole(pattern string) string {
	if pattern == "" {
		return ""
	}
	return "^(?:" + pattern + ")$"
}

// authorities says whose certificates count.
func (p Policy) authorities(ctx context.Context, check *cosign.CheckOpts) (err error) {
	if p.Roots == "" {
		if check.TrustedMaterial, err = cosign.TrustedRoot(); err != nil {
			return fmt.Errorf("getting sigstore's root of trust (name your own authorities with roots): %w", err)
		}
		return nil
	}
	text, err := os.ReadFile(p.Roots)
	if err != nil {
		return fmt.Errorf("reading the authorities: %w", err)
	}
	certs, err := cryptoutils.UnmarshalCertificatesFromPEM(text)
	if err != nil {
		return fmt.Errorf("reading the authorities in %s: %w", p.Roots, err)
	}
	for _, c := range certs {
		pool := &check.IntermediateCerts
		if bytes.Equal(c.RawIssuer, c.RawSubject) {
			pool = &check.RootCerts
		}
		if *pool == nil {
			*pool = x509.NewCertPool()
		}
		(*pool).AddCert(c)
	}
	if check.RootCerts == nil {
		return fmt.Errorf("%s holds no root certificate, which is one that signed itself", p.Roots)
	}
	if !p.IgnoreSCT {
		if check.CTLogPubKeys, err = cosign.GetCTLogPubs(ctx); err != nil {
			return fmt.Errorf("getting the certificate log's keys (certificates outside of it are accepted with --insecure-ignore-sct): %w", err)
		}
	}
	return nil
}

// verify looks for a signature, and where it is demanded for provenance.
func (t trust) verify(ctx context.Context, artifact name.Digest, provenance bool) (*Provenance, error) {
	check := t.check
	check.ClaimVerifier = cosign.SimpleClaimVerifier
	if _, _, err := cosign.VerifyImageSignatures(ctx, artifact, &check); err != nil {
		return nil, fmt.Errorf("signature: %w", err)
	}
	if !provenance {
		return nil, nil
	}
	check = t.check
	check.ClaimVerifier = cosign.IntotoSubjectClaimVerifier
	attestations, _, err := cosign.VerifyImageAttestations(ctx, artifact, &check)
	if err != nil {
		return nil, fmt.Errorf("provenance: %w", err)
	}
	for _, a := range attestations {
		if p, err := read(a); err != nil {
			return nil, fmt.Errorf("provenance: %w", err)
		} else if p != nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("provenance: none of the attestations is of type %s", PredicateType)
}

// read gives the provenance of an attestation, nil for one of another type.
func read(attestation cosignoci.Signature) (*Provenance, error) {
	text, err := attestation.Payload()
	if err != nil {
		return nil, err
	}
	var envelope struct {
		Payload string `json:"payload"`
	}
	if err := json.Unmarshal(text, &envelope); err != nil {
		return nil, err
	}
	if text, err = base64.StdEncoding.DecodeString(envelope.Payload); err != nil {
		return nil, err
	}
	var s statement
	if err := json.Unmarshal(text, &s); err != nil || s.PredicateType != PredicateType {
		return nil, err
	}
	var p Provenance
	if err := json.Unmarshal(s.Predicate, &p); err != nil {
		return nil, err
	}
	return &p, nil
}
