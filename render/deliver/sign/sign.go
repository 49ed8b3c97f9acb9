package sign

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/sigstore/cosign/v2/pkg/providers"
	_ "github.com/sigstore/cosign/v2/pkg/providers/envvar" // identities that a machine has
	_ "github.com/sigstore/cosign/v2/pkg/providers/filesystem"
	_ "github.com/sigstore/cosign/v2/pkg/providers/github"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	rekor "github.com/sigstore/rekor/pkg/client"
	"github.com/sigstore/rekor/pkg/generated/client/entries"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/armature-dev/armature/render/answers"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/version"
)

// Sigstore's public instance.
const (
	FulcioURL = "https://fulcio.sigstore.dev"
	RekorURL  = "https://rekor.sigstore.dev"
)

// Signer specifies the key or the identity with which artifacts are signed.
type Signer struct {
	// Key is a private key: a file, k8s://namespace/secret, or a KMS URI for which a program
	// sigstore-kms-<scheme> is on the PATH. "" signs keyless with the identity of the token, or the
	// identity that the machine has in CI.
	Key string
	// PrivateKey is a private key in PEM as `cosign generate-key-pair` creates it, with Password.
	// It excludes Key and Certificate.
	PrivateKey []byte
	// Password returns the password of an encrypted key file. nil means that the key is not
	// encrypted.
	Password func() ([]byte, error)
	// Opened is the result of OpenKey or OpenKMS. It excludes Key and PrivateKey.
	Opened signature.SignerVerifier
	// Certificate is a PEM file with the certificate of Key. It is optional.
	Certificate string
	// IdentityToken is an OpenID token or a file with one, for keyless signing.
	IdentityToken string
	// Fulcio is the URL of the certificate authority; "" is Sigstore's public instance.
	Fulcio string
	// Rekor is the URL of the transparency log for signatures; "" logs nothing.
	Rekor string
	// Timestamps is the URL of the timestamp authority (RFC 3161) that confirms the time of a
	// signature; "" adds no timestamp.
	Timestamps string
	// TrustedRoot is a trusted root of Sigstore in JSON, for keyless signing. Signatures that it
	// does not accept are not attached, and signatures of the same identity that it accepts are not
	// attached again. If it is nil, only signatures with the same certificate are not attached
	// again.
	TrustedRoot []byte
	// Keep lets processes that sign the same statement at the same time attach one signature, if
	// the key signs differently each time; nil relies on the registry alone.
	Keep Keep

	oci.Access
}

// Keep returns the first valid value that was stored under a name. If there is none, it stores and
// returns made, or returns nil if made is nil.
type Keep func(ctx context.Context, name string, made []byte,
	valid func([]byte) bool) ([]byte, error)

// KeyError is an error of the key, or of the authority that certifies it, confirms the time or
// keeps the log. It is no error of the registry. Its text may come from these.
type KeyError struct{ Err error }

func (e *KeyError) Error() string { return e.Err.Error() }
func (e *KeyError) Unwrap() error { return e.Err }

// Session is an opened key with which any number of artifacts can be signed.
type Session struct {
	access oci.Access
	key    key
	cert   *x509.Certificate  // the key's; nil if it has none
	with   sign.BundleOptions // the certificate, the timestamps and the log
	keep   Keep
	// policy accepts signatures of the identity of cert with any certificate, and own is the only
	// way to satisfy it. They are nil without a trusted root.
	policy *Policy
	own    *trust
}

// Open prepares to sign. It returns an error if the key is not available, so that this is known
// before anything is pushed.
func (s Signer) Open(ctx context.Context) (*Session, error) {
	opened, err := s.load(ctx)
	if err != nil {
		return nil, &KeyError{err}
	}
	if s.Timestamps != "" {
		opened.with.TimestampAuthorities = []*sign.TimestampAuthority{sign.NewTimestampAuthority(
			&sign.TimestampAuthorityOptions{URL: s.Timestamps, Transport: authorities})}
	}
	if s.Rekor != "" {
		log, err := rekor.GetRekorClient(s.Rekor,
			rekor.WithUserAgent(version.UserAgent("armature")))
		if err != nil {
			return nil, fmt.Errorf("the transparency log %s: %w", s.Rekor, err)
		}
		opened.with.TransparencyLogs = []sign.Transparency{
			sign.NewRekor(&sign.RekorOptions{Client: journal{log.Entries}})}
	}
	return opened, nil
}

func (s Signer) load(ctx context.Context) (_ *Session, err error) {
	from := s.Opened
	switch {
	case from != nil:
	case len(s.PrivateKey) > 0:
		if from, err = readKey(s.PrivateKey, s.Password); err != nil {
			return nil, fmt.Errorf("reading the private key: %w", err)
		}
	case s.Key == "":
		return s.keyless(ctx)
	default:
		if from, err = privateKey(ctx, s.Key, s.Password); err != nil {
			return nil, fmt.Errorf("reading the key %s: %w", s.Key, err)
		}
	}
	opened, err := s.session(from)
	if err != nil {
		return nil, err
	}
	if _, kms := from.(*KMSKey); kms {
		opened.keep = s.Keep
	}
	if s.Certificate == "" {
		return opened, nil
	}
	text, err := os.ReadFile(s.Certificate)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate: %w", err)
	}
	certs, err := cryptoutils.UnmarshalCertificatesFromPEM(text)
	if err == nil && len(certs) != 1 {
		err = fmt.Errorf("it has %d", len(certs))
	}
	if err != nil {
		return nil, fmt.Errorf("%s holds no single certificate in PEM: %w", s.Certificate, err)
	}
	if err := cryptoutils.EqualKeys(opened.key.public, certs[0].PublicKey); err != nil {
		return nil, fmt.Errorf("the certificate %s is for another key than %s: %w", s.Certificate,
			s.Key, err)
	}
	opened.certify(certs[0])
	return opened, nil
}

func (s Signer) session(from signature.SignerVerifier) (*Session, error) {
	public, err := from.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("reading the public key: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("reading the public key: %w", err)
	}
	return &Session{access: s.Access, key: key{from, public, der}}, nil
}

func (s *Session) certify(cert *x509.Certificate) {
	s.cert, s.with.CertificateProvider = cert, certified(cert.Raw)
}

// keyless generates a key for one session and requests a certificate for its identity.
func (s Signer) keyless(ctx context.Context) (*Session, error) {
	token, err := s.token(ctx)
	if err != nil {
		return nil, err
	}
	pair, _, err := signature.NewDefaultECDSASignerVerifier()
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	opened, err := s.session(pair)
	if err != nil {
		return nil, err
	}
	url := cmp.Or(s.Fulcio, FulcioURL)
	ctx, cancel := context.WithTimeout(ctx, certificateTime)
	defer cancel()
	from := sign.NewFulcio(&sign.FulcioOptions{BaseURL: url, Retries: 3, Transport: authorities})
	raw, err := from.GetCertificate(ctx, opened.key,
		&sign.CertificateProviderOptions{IDToken: token})
	if err != nil {
		return nil, fmt.Errorf("getting a certificate from %s: %w", url, without(err, token))
	}
	cert, err := x509.ParseCertificate(raw)
	if err == nil && s.TrustedRoot != nil {
		opened.keep = s.Keep
		opened.policy, err = s.policyOf(cert)
		var ways []trust
		if err == nil {
			ways, err = opened.policy.trusted(ctx)
		}
		if err == nil {
			opened.own = &ways[0]
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of %s: %w", url, err)
	}
	opened.certify(cert)
	return opened, nil
}

// certificateTime limits the request for a certificate, including retries.
const certificateTime = 30 * time.Second

// authorities limits the size of the answers of authorities.
var authorities = answers.Bounded{RoundTripper: http.DefaultTransport,
	Limit: func(*http.Request, *http.Response) (int64, error) {
		return 1 << 20, answers.ErrTooLarge
	}}

// without removes a token from an error, because an authority may repeat the request in its answer.
func without(err error, token string) error {
	text := err.Error()
	for _, part := range append(strings.Split(token, "."), token) {
		if len(part) > 8 && strings.Contains(text, part) {
			return errors.New("it does not accept the identity token")
		}
	}
	return err
}

// CheckAuthority returns an error unless the URL of an authority is https or http with a host. The
// error begins with the URL.
func CheckAuthority(text string) error {
	if u, err := url.Parse(text); err != nil || u.Host == "" ||
		u.Scheme != "https" && u.Scheme != "http" {
		return fmt.Errorf("%q: write it as https://HOST", text)
	}
	return nil
}

// CheckRoot returns an error unless a trusted root of Sigstore in JSON can verify keyless
// signatures with a timestamp.
func CheckRoot(text []byte) error {
	from, err := root.NewTrustedRootFromJSON(text)
	switch {
	case err != nil:
		return fmt.Errorf("reading the trusted root: %w", err)
	case len(from.FulcioCertificateAuthorities()) == 0:
		return errors.New("the trusted root contains no certificate authority")
	case len(from.TimestampingAuthorities()) == 0:
		return errors.New("the trusted root contains no timestamp authority")
	}
	return nil
}

// policyOf returns the policy that accepts signatures of the identity of a certificate by the
// signer's trusted root.
func (s Signer) policyOf(cert *x509.Certificate) (*Policy, error) {
	who, err := certificate.SummarizeCertificate(cert)
	if err != nil {
		return nil, err
	}
	from, err := root.NewTrustedRootFromJSON(s.TrustedRoot)
	if err != nil {
		return nil, fmt.Errorf("reading the trusted root: %w", err)
	}
	const file = "trusted_root.json"
	return &Policy{
		Identities:  []Identity{{Subject: who.SubjectAlternativeName, Issuer: who.Issuer}},
		TrustedRoot: file, Files: map[string][]byte{file: s.TrustedRoot},
		IgnoreTlog: s.Rekor == "", IgnoreSCT: len(from.CTLogs()) == 0,
	}, nil
}

// Policy returns the policy that accepts exactly the session's signatures. For an identity, the
// signer needs a trusted root.
func (s *Session) Policy() (Policy, error) {
	if s.policy != nil {
		return *s.policy, nil
	}
	if s.cert != nil {
		return Policy{}, errors.New("without a trusted root nothing vouches for the certificate")
	}
	const file = "cosign.pub"
	public, err := s.key.GetPublicKeyPem()
	return Policy{Keys: []string{file}, Files: map[string][]byte{file: []byte(public)},
		IgnoreTlog: len(s.with.TransparencyLogs) == 0}, err
}

// SignedBy is the key or the certified identity that signs.
type SignedBy struct {
	// PublicKey is "sha256:" and the digest of the key (PKIX, DER); "" for an identity.
	PublicKey string
	// Identity is the subject of the certificate, which Issuer, an OpenID provider, confirms.
	Identity, Issuer string
}

// By returns the key or the identity that signs.
func (s *Session) By() (SignedBy, error) {
	if s.cert == nil {
		return SignedBy{PublicKey: fmt.Sprintf("sha256:%x", sha256.Sum256(s.key.der))}, nil
	}
	who, err := certificate.SummarizeCertificate(s.cert)
	return SignedBy{Identity: who.SubjectAlternativeName, Issuer: who.Issuer}, err
}

func (s Signer) token(ctx context.Context) (string, error) {
	switch {
	case s.IdentityToken != "":
		if data, err := os.ReadFile(s.IdentityToken); err == nil {
			return strings.TrimSpace(string(data)), nil
		}
		return s.IdentityToken, nil
	case providers.Enabled(ctx):
		return providers.Provide(ctx, "sigstore")
	}
	return "", errors.New("there is neither a key nor an identity to sign with: name a key, or a " +
		"file with an OpenID token")
}

// key implements sigstore-go's sign.Keypair.
type key struct {
	signature.SignerVerifier
	public crypto.PublicKey
	der    []byte // of public, PKIX
}

func (k key) SignData(ctx context.Context, data []byte) (signed, digest []byte, err error) {
	sum := sha256.Sum256(data)
	signed, err = k.SignMessage(bytes.NewReader(data), options.WithContext(ctx))
	return signed, sum[:], err
}

func (k key) GetHint() []byte {
	sum := sha256.Sum256(k.der)
	return []byte(base64.StdEncoding.EncodeToString(sum[:]))
}

func (k key) GetPublicKey() crypto.PublicKey { return k.public }

func (k key) GetPublicKeyPem() (string, error) {
	return string(cryptoutils.PEMEncode(cryptoutils.PublicKeyPEMType, k.der)), nil
}

func (k key) GetKeyAlgorithm() string { return "ECDSA" } // for Fulcio; keyless keys are ECDSA

func (k key) GetHashAlgorithm() protocommon.HashAlgorithm {
	return protocommon.HashAlgorithm_SHA2_256
}

func (k key) GetSigningAlgorithm() (unspecified protocommon.PublicKeyDetails) { return }

// certified is the certificate of a key, which is requested once.
type certified []byte

func (c certified) GetCertificate(context.Context, sign.Keypair,
	*sign.CertificateProviderOptions) ([]byte, error) {
	return c, nil
}

// journal is a transparency log. An existing entry counts as written.
type journal struct{ entries.ClientService }

func (j journal) CreateLogEntry(asked *entries.CreateLogEntryParams,
	with ...entries.ClientOption) (*entries.CreateLogEntryCreated, error) {
	made, err := j.ClientService.CreateLogEntry(asked, with...)
	if existing := (*entries.CreateLogEntryConflict)(nil); errors.As(err, &existing) {
		var found *entries.GetLogEntryByUUIDOK
		if found, err = j.GetLogEntryByUUID(entries.NewGetLogEntryByUUIDParamsWithContext(
			asked.Context).WithEntryUUID(path.Base(existing.Location.String()))); err == nil {
			made = &entries.CreateLogEntryCreated{Payload: found.Payload}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("writing to the transparency log: %w", err)
	}
	for id, entry := range made.Payload {
		if made.ETag = id; entry.Validate(nil) == nil && entry.Verification != nil &&
			entry.Verification.InclusionProof != nil {
			return made, nil
		}
	}
	return nil, errors.New("the transparency log does not prove that it has the signature")
}
