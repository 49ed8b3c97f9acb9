package sign

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
)

// trust is one way to satisfy a policy, as options of sigstore-go's verifier.
type trust struct {
	who      string
	material root.TrustedMaterial
	demands  []verify.VerifierOption
	// stamped replaces demands for a bundle with timestamps, unless it is nil.
	stamped []verify.VerifierOption
	signers []verify.PolicyOption
}

// issued is a root of trust with the authorities of Policy.Roots and without timestamp authorities.
type issued struct {
	root.TrustedMaterial
	authorities []root.CertificateAuthority
}

func (i issued) FulcioCertificateAuthorities() []root.CertificateAuthority { return i.authorities }

func (i issued) TimestampingAuthorities() []root.TimestampingAuthority { return nil }

// keyed returns a root of trust that contains one key.
func keyed(key signature.Verifier) root.TrustedMaterial {
	return root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) {
		return root.NewExpiringKey(key, time.Time{}, time.Time{}), nil
	})
}

// trusted returns the ways to satisfy a policy.
func (p Policy) trusted(ctx context.Context) (all []trust, err error) {
	// Read all keys before any request, because a name may be misspelt.
	verifiers := make([]signature.Verifier, len(p.Keys))
	for i, key := range p.Keys {
		if verifiers[i], err = p.publicKey(ctx, key); err != nil {
			return nil, fmt.Errorf("reading the key %s: %w", key, err)
		}
	}
	from, err := p.root()
	if err != nil {
		return nil, err
	}
	for i, key := range p.Keys {
		all = append(all, p.byKey("key "+key, verifiers[i], from))
	}
	if len(p.Identities) > 0 {
		t, err := p.byIdentity(from)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// root returns the policy's root of trust: that of its file or, if needed, Sigstore's public one.
func (p Policy) root() (root.TrustedMaterial, error) {
	if p.TrustedRoot != "" {
		return p.fromFile()
	}
	if !p.public() {
		return &root.BaseTrustedMaterial{}, nil
	}
	from, err := cosign.TrustedRoot()
	if err != nil {
		return nil, fmt.Errorf("getting sigstore's root of trust: %w\n"+
			"  hint: without its transparency log signatures are accepted with "+
			"--insecure-ignore-tlog; for certificates name your own authorities with roots, and "+
			"accept those outside of its certificate log with --insecure-ignore-sct", err)
	}
	return from, nil
}

// byKey returns the trust in one key.
func (p Policy) byKey(who string, key signature.Verifier, from root.TrustedMaterial) trust {
	t := trust{who: who, material: root.TrustedMaterialCollection{keyed(key), from},
		signers: []verify.PolicyOption{verify.WithKey()},
		demands: []verify.VerifierOption{verify.WithNoObserverTimestamps()}}
	if !p.IgnoreTlog {
		t.demands = append(t.demands, verify.WithTransparencyLog(1))
	}
	return t
}

// byIdentity returns the trust in the policy's identities.
func (p Policy) byIdentity(from root.TrustedMaterial) (t trust, err error) {
	own, err := p.authorities()
	if err != nil {
		return t, err
	}
	if t.material = from; own != nil {
		t.material = issued{from, own}
	}
	var who []string
	for _, id := range p.Identities {
		identity, err := verify.NewShortCertificateIdentity(id.Issuer, whole(id.IssuerRegExp),
			id.Subject, whole(id.SubjectRegExp))
		if err != nil {
			return t, err
		}
		t.signers = append(t.signers, verify.WithCertificateIdentity(identity))
		who = append(who, id.Subject+id.SubjectRegExp)
	}
	t.who = "identity " + strings.Join(who, " or ")
	var always []verify.VerifierOption
	if !p.IgnoreSCT {
		always = append(always, verify.WithSignedCertificateTimestamps(1))
	}
	if !p.IgnoreTlog {
		t.demands = append(always, verify.WithTransparencyLog(1), verify.WithObserverTimestamps(1))
		return t, nil
	}
	// Without a timestamp a certificate has to be valid now.
	t.demands = append(slices.Clone(always), verify.WithCurrentTime())
	if p.TrustedRoot != "" && len(from.TimestampingAuthorities()) > 0 {
		t.stamped = append(slices.Clone(always), verify.WithSignedTimestamps(1))
	}
	return t, nil
}

// whole anchors a pattern, so that it matches a whole text.
func whole(pattern string) string {
	if pattern == "" {
		return ""
	}
	return "^(?:" + pattern + ")$"
}

// fromFile reads the policy's trusted root.
func (p Policy) fromFile() (root.TrustedMaterial, error) {
	text, err := p.file(p.TrustedRoot)
	if err != nil {
		return nil, fmt.Errorf("reading the trusted root: %w", err)
	}
	from, err := root.NewTrustedRootFromJSON(text)
	if err != nil {
		return nil, fmt.Errorf("reading the trusted root %s: %w", p.TrustedRoot, err)
	}
	if len(p.Identities) > 0 && len(from.FulcioCertificateAuthorities()) == 0 {
		return nil, fmt.Errorf(
			"%s contains no certificate authority, so that it vouches for no identity", p.TrustedRoot)
	}
	if !p.IgnoreTlog && len(from.RekorLogs()) == 0 {
		return nil, fmt.Errorf(
			"%s contains no transparency log (signatures without it are accepted with %s)",
			p.TrustedRoot, p.called("insecureIgnoreTlog", "insecure-ignore-tlog"))
	}
	return from, nil
}

// authorities reads the authorities of Roots. It returns nil without Roots.
func (p Policy) authorities() (all []root.CertificateAuthority, err error) {
	if p.Roots == "" {
		return nil, nil
	}
	text, err := p.file(p.Roots)
	if err != nil {
		return nil, fmt.Errorf("reading the authorities: %w", err)
	}
	certs, err := cryptoutils.UnmarshalCertificatesFromPEM(text)
	if err != nil {
		return nil, fmt.Errorf("reading the authorities in %s: %w", p.Roots, err)
	}
	var roots, intermediates []*x509.Certificate
	for _, c := range certs {
		if bytes.Equal(c.RawIssuer, c.RawSubject) {
			roots = append(roots, c)
		} else {
			intermediates = append(intermediates, c)
		}
	}
	for _, c := range roots {
		all = append(all, &root.FulcioCertificateAuthority{Root: c, Intermediates: intermediates})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s holds no root certificate, which is one that signed itself", p.Roots)
	}
	return all, nil
}
