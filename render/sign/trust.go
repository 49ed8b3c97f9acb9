package sign

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
)

// trust is one way to be trusted: what cosign's verifier takes for the tag format,
// and sigstore-go's for bundles.
type trust struct {
	who   string
	check cosign.CheckOpts

	material root.TrustedMaterial
	demands  []verify.VerifierOption
	// stamped replaces demands for a bundle with timestamps, where it is not nil.
	stamped []verify.VerifierOption
	signers []verify.PolicyOption
}

// material is what bundles are verified with. The zero material trusts nobody.
type material struct {
	root.BaseTrustedMaterial
	authorities  []root.CertificateAuthority
	timestamps   []root.TimestampingAuthority
	logs, ctLogs map[string]*root.TransparencyLog
	key          signature.Verifier
}

func (m *material) FulcioCertificateAuthorities() []root.CertificateAuthority { return m.authorities }
func (m *material) TimestampingAuthorities() []root.TimestampingAuthority     { return m.timestamps }
func (m *material) RekorLogs() map[string]*root.TransparencyLog               { return m.logs }
func (m *material) CTLogs() map[string]*root.TransparencyLog                  { return m.ctLogs }
func (m *material) PublicKeyVerifier(string) (root.TimeConstrainedVerifier, error) {
	if m.key == nil {
		return nil, errors.New("it is signed by a key, and an identity is demanded")
	}
	return root.NewExpiringKey(m.key, time.Time{}, time.Time{}), nil
}

// trusted gives the ways to satisfy a policy.
func (p Policy) trusted(ctx context.Context) (all []trust, err error) {
	verifiers := make([]signature.Verifier, len(p.Keys)) // before anybody is asked: a key may be misspelt
	for i, key := range p.Keys {
		if verifiers[i], err = p.publicKey(ctx, key); err != nil {
			return nil, fmt.Errorf("reading the key %s: %w", key, err)
		}
	}
	check := cosign.CheckOpts{IgnoreTlog: p.IgnoreTlog, IgnoreSCT: p.IgnoreSCT, Offline: true}
	var m material
	if p.TrustedRoot != "" {
		if err := p.fromFile(&check, &m); err != nil {
			return nil, err
		}
	} else if !p.IgnoreTlog {
		if check.RekorPubKeys, err = cosign.GetRekorPubs(ctx); err != nil {
			return nil, fmt.Errorf("getting the transparency log's keys (signatures without it are accepted with --insecure-ignore-tlog): %w", err)
		}
		if m.logs, err = transparencyLogs(check.RekorPubKeys); err != nil {
			return nil, err
		}
	}
	for i, key := range p.Keys {
		all = append(all, byKey("key "+key, verifiers[i], check, m))
	}
	if len(p.Identities) > 0 {
		t, err := p.byIdentity(ctx, check, m)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// byKey trusts one key.
func byKey(who string, key signature.Verifier, check cosign.CheckOpts, m material) trust {
	check.SigVerifier, m.key = key, key
	t := trust{who: who, check: check, material: &m, signers: []verify.PolicyOption{verify.WithKey()},
		demands: []verify.VerifierOption{verify.WithNoObserverTimestamps()}}
	if !check.IgnoreTlog {
		t.demands = append(t.demands, verify.WithTransparencyLog(1))
	}
	return t
}

// byIdentity trusts the policy's identities.
func (p Policy) byIdentity(ctx context.Context, check cosign.CheckOpts, m material) (t trust, err error) {
	if p.TrustedRoot == "" {
		if err := p.authorities(ctx, &check, &m); err != nil {
			return t, err
		}
	}
	// Without a timestamp a certificate has to be valid now, or when the log had it.
	check.UseSignedTimestamps = p.TrustedRoot != "" && len(m.timestamps) > 0
	var who []string
	for _, id := range p.Identities {
		check.Identities = append(check.Identities, cosign.Identity{
			Subject: id.Subject, SubjectRegExp: whole(id.SubjectRegExp), Issuer: id.Issuer, IssuerRegExp: whole(id.IssuerRegExp)})
		san, err := verify.NewSANMatcher(id.Subject, whole(id.SubjectRegExp))
		if err != nil {
			return t, err
		}
		issuer, err := verify.NewIssuerMatcher(id.Issuer, whole(id.IssuerRegExp))
		if err != nil {
			return t, err
		}
		identity, err := verify.NewCertificateIdentity(san, issuer, certificate.Extensions{})
		if err != nil {
			return t, err
		}
		t.signers = append(t.signers, verify.WithCertificateIdentity(identity))
		who = append(who, id.Subject+id.SubjectRegExp)
	}
	t.who, t.check, t.material = "identity "+strings.Join(who, " or "), check, &m
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

// use takes all that a trusted root of Sigstore vouches for.
func (m *material) use(from root.TrustedMaterial) {
	m.authorities, m.timestamps = from.FulcioCertificateAuthorities(), from.TimestampingAuthorities()
	m.logs, m.ctLogs = from.RekorLogs(), from.CTLogs()
}

// fromFile reads the policy's trusted root.
func (p Policy) fromFile(check *cosign.CheckOpts, m *material) error {
	text, err := p.file(p.TrustedRoot)
	if err != nil {
		return fmt.Errorf("reading the trusted root: %w", err)
	}
	from, err := root.NewTrustedRootFromJSON(text)
	if err != nil {
		return fmt.Errorf("reading the trusted root %s: %w", p.TrustedRoot, err)
	}
	if len(p.Identities) > 0 && len(from.FulcioCertificateAuthorities()) == 0 {
		return fmt.Errorf("%s contains no certificate authority, so that it vouches for no identity", p.TrustedRoot)
	}
	if !p.IgnoreTlog && len(from.RekorLogs()) == 0 {
		return fmt.Errorf("%s contains no transparency log (signatures without it are accepted with insecureIgnoreTlog)", p.TrustedRoot)
	}
	check.TrustedMaterial = from
	m.use(from)
	return nil
}

// authorities says whose certificates count.
func (p Policy) authorities(ctx context.Context, check *cosign.CheckOpts, m *material) (err error) {
	if p.Roots == "" {
		if check.TrustedMaterial, err = cosign.TrustedRoot(); err != nil {
			return fmt.Errorf("getting sigstore's root of trust (name your own authorities with roots): %w", err)
		}
		m.use(check.TrustedMaterial)
		return nil
	}
	text, err := p.file(p.Roots)
	if err != nil {
		return fmt.Errorf("reading the authorities: %w", err)
	}
	certs, err := cryptoutils.UnmarshalCertificatesFromPEM(text)
	if err != nil {
		return fmt.Errorf("reading the authorities in %s: %w", p.Roots, err)
	}
	var roots, between []*x509.Certificate
	for _, c := range certs {
		pool, list := &check.IntermediateCerts, &between
		if bytes.Equal(c.RawIssuer, c.RawSubject) {
			pool, list = &check.RootCerts, &roots
		}
		if *pool == nil {
			*pool = x509.NewCertPool()
		}
		(*pool).AddCert(c)
		*list = append(*list, c)
	}
	if len(roots) == 0 {
		return fmt.Errorf("%s holds no root certificate, which is one that signed itself", p.Roots)
	}
	for _, c := range roots {
		m.authorities = append(m.authorities, &root.FulcioCertificateAuthority{Root: c, Intermediates: between})
	}
	if !p.IgnoreSCT {
		if check.CTLogPubKeys, err = cosign.GetCTLogPubs(ctx); err != nil {
			return fmt.Errorf("getting the certificate log's keys (certificates outside of it are accepted with --insecure-ignore-sct): %w", err)
		}
		if m.ctLogs, err = transparencyLogs(check.CTLogPubKeys); err != nil {
			return err
		}
	}
	return nil
}

// transparencyLogs gives the keys of logs as sigstore-go takes them.
func transparencyLogs(from *cosign.TrustedTransparencyLogPubKeys) (map[string]*root.TransparencyLog, error) {
	logs := make(map[string]*root.TransparencyLog, len(from.Keys))
	for id, key := range from.Keys {
		raw, err := hex.DecodeString(id)
		if err != nil {
			return nil, fmt.Errorf("the transparency log %q: %w", id, err)
		}
		logs[id] = &root.TransparencyLog{ID: raw, PublicKey: key.PubKey, HashFunc: crypto.SHA256, SignatureHashFunc: crypto.SHA256,
			ValidityPeriodStart: time.Unix(0, 0)} // sigstore-go refuses entries of a log without a start
	}
	return logs, nil
}
