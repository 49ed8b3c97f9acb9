package sign

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
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

// trust is one way to be trusted: what cosign's verifier takes for the tag format,
// and sigstore-go's for bundles, which share the material in check.
type trust struct {
	who     string
	check   cosign.CheckOpts
	demands []verify.VerifierOption
	// stamped replaces demands for a bundle with timestamps, where it is not nil.
	stamped []verify.VerifierOption
	signers []verify.PolicyOption
}

// material is what signatures are verified with: a root of trust, and the key or the
// authorities of the policy.
type material struct {
	root.TrustedMaterial
	// authorities are those of Policy.Roots, which have no timestamp authorities beside
	// them. nil: those of the root of trust.
	authorities []root.CertificateAuthority
	key         signature.Verifier
}

func (m *material) FulcioCertificateAuthorities() []root.CertificateAuthority {
	if m.authorities != nil {
		return m.authorities
	}
	return m.TrustedMaterial.FulcioCertificateAuthorities()
}

func (m *material) TimestampingAuthorities() []root.TimestampingAuthority {
	if m.authorities != nil {
		return nil
	}
	return m.TrustedMaterial.TimestampingAuthorities()
}

func (m *material) PublicKeyVerifier(string) (root.TimeConstrainedVerifier, error) {
	if m.key == nil {
		return nil, errors.New("it is signed by a key, and an identity is demanded")
	}
	return root.NewExpiringKey(m.key, time.Time{}, time.Time{}), nil
}

// trusted returns the ways to satisfy a policy.
func (p Policy) trusted(ctx context.Context) (all []trust, err error) {
	// before any request: a key may be misspelt
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
	check := cosign.CheckOpts{IgnoreTlog: p.IgnoreTlog, IgnoreSCT: p.IgnoreSCT, Offline: true}
	for i, key := range p.Keys {
		all = append(all, byKey("key "+key, verifiers[i], check, from))
	}
	if len(p.Identities) > 0 {
		t, err := p.byIdentity(check, from)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// root returns the policy's root of trust: that of its file or, if something of it is needed,
// Sigstore's public one.
func (p Policy) root() (root.TrustedMaterial, error) {
	if p.TrustedRoot != "" {
		return p.fromFile()
	}
	if p.IgnoreTlog && (len(p.Identities) == 0 || p.Roots != "" && p.IgnoreSCT) {
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

// byKey trusts one key.
func byKey(who string, key signature.Verifier, check cosign.CheckOpts,
	from root.TrustedMaterial) trust {
	check.SigVerifier, check.TrustedMaterial = key, &material{TrustedMaterial: from, key: key}
	t := trust{who: who, check: check, signers: []verify.PolicyOption{verify.WithKey()},
		demands: []verify.VerifierOption{verify.WithNoObserverTimestamps()}}
	if !check.IgnoreTlog {
		t.demands = append(t.demands, verify.WithTransparencyLog(1))
	}
	return t
}

// byIdentity trusts the policy's identities.
func (p Policy) byIdentity(check cosign.CheckOpts, from root.TrustedMaterial) (t trust, err error) {
	own, err := p.authorities()
	if err != nil {
		return t, err
	}
	check.TrustedMaterial = &material{TrustedMaterial: from, authorities: own}
	// Without a timestamp a certificate has to be valid now, or when the log had it.
	check.UseSignedTimestamps = p.TrustedRoot != "" && len(from.TimestampingAuthorities()) > 0
	var who []string
	for _, id := range p.Identities {
		check.Identities = append(check.Identities, cosign.Identity{
			Subject: id.Subject, SubjectRegExp: whole(id.SubjectRegExp), Issuer: id.Issuer,
			IssuerRegExp: whole(id.IssuerRegExp)})
		identity, err := verify.NewShortCertificateIdentity(id.Issuer, whole(id.IssuerRegExp),
			id.Subject, whole(id.SubjectRegExp))
		if err != nil {
			return t, err
		}
		t.signers = append(t.signers, verify.WithCertificateIdentity(identity))
		who = append(who, id.Subject+id.SubjectRegExp)
	}
	t.who, t.check = "identity "+strings.Join(who, " or "), check
	var always []verify.VerifierOption
	if !p.IgnoreSCT {
		always = append(always, verify.WithSignedCertificateTimestamps(1))
	}
	if p.IgnoreTlog {
		t.demands = append(slices.Clone(always), verify.WithCurrentTime())
		if t.check.UseSignedTimestamps {
			t.stamped = append(slices.Clone(always), verify.WithSignedTimestamps(1))
		}
	} else {
		t.demands = append(always, verify.WithTransparencyLog(1), verify.WithObserverTimestamps(1))
	}
	return t, nil
}

// whole makes a pattern match all of a text or nothing.
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

// authorities reads those of Roots, nil for none.
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
	var roots, between []*x509.Certificate
	for _, c := range certs {
		if bytes.Equal(c.RawIssuer, c.RawSubject) {
			roots = append(roots, c)
		} else {
			between = append(between, c)
		}
	}
	for _, c := range roots {
		all = append(all, &root.FulcioCertificateAuthority{Root: c, Intermediates: between})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s holds no root certificate, which is one that signed itself", p.Roots)
	}
	return all, nil
}
