package sign

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/sigstore/cosign/v2/pkg/providers"
	_ "github.com/sigstore/cosign/v2/pkg/providers/envvar" // identities that a machine has
	_ "github.com/sigstore/cosign/v2/pkg/providers/filesystem"
	_ "github.com/sigstore/cosign/v2/pkg/providers/github"
	rekor "github.com/sigstore/rekor/pkg/client"
	"github.com/sigstore/rekor/pkg/generated/client"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/armature-dev/armature/functions/a2a"
	"github.com/armature-dev/armature/render/version"
)

// Sigstore's public instance.
const (
	FulcioURL = "https://fulcio.sigstore.dev"
	RekorURL  = "https://rekor.sigstore.dev"
)

// Signer is whose signature artifacts get.
type Signer struct {
	// Key is a private key: a file, k8s://namespace/secret, or a KMS URI that a
	// program sigstore-kms-<scheme> on the PATH understands. "" is keyless: the
	// identity of the token, or the one that the machine has in CI.
	Key string
	// PrivateKey is one in PEM as `cosign generate-key-pair` makes it, with Password.
	// It excludes Key and Certificate.
	PrivateKey []byte
	// Password returns the password of an encrypted key file. nil means that none is encrypted.
	Password func() ([]byte, error)
	// Opened is what OpenKey or OpenKMS has opened before. It excludes Key and PrivateKey.
	Opened signature.SignerVerifier
	// Certificate and Chain are PEM files of the certificate that goes with Key,
	// and of those above it, the root last. They are optional.
	Certificate, Chain string
	// IdentityToken is an OpenID token or a file with one, for keyless signing.
	IdentityToken string
	// Fulcio issues certificates; "" is sigstore's public instance.
	Fulcio string
	// Rekor is the transparency log that gets the signature; "" logs nothing.
	Rekor string
	// Timestamps is the timestamp authority (RFC 3161) that says when a signature was
	// made; "" adds no timestamp.
	Timestamps string
	// TrustedRoot is a trusted root of Sigstore in JSON, for keyless signing. What it does
	// not vouch for is not attached, and what it vouches for of the same identity is not
	// attached again. nil: only what has the same certificate is not attached again.
	TrustedRoot []byte
	// Keep makes those who sign the same at the same time attach one signature, where a
	// key signs each time with another one; nil leaves it at what the registry has.
	Keep Keep

	// Keychain and PlainHTTP are those of oci.Options.
	Keychain  authn.Keychain
	PlainHTTP bool
	// Transport carries the requests to the registry; nil is oci.Transport().
	Transport http.RoundTripper
}

// Keep returns what was kept first under a name and is valid. If there is nothing, it keeps and
// returns made, or returns nil if made is nil.
type Keep func(ctx context.Context, name string, made []byte,
	valid func([]byte) bool) ([]byte, error)

// KeyError is a fault of the key, or of who certifies it, says the time or keeps the
// log. The registry has no part in it. The text may be of these.
type KeyError struct{ Err error }

func (e *KeyError) Error() string { return e.Err.Error() }
func (e *KeyError) Unwrap() error { return e.Err }

// loaded is a Signer's key with its certificates in PEM, nil for none.
type loaded struct {
	signature.Signer
	cert, chain []byte
	rekor       *client.Rekor
	stamps      *sign.TimestampAuthority
	keep        Keep
	// policy accepts what the identity of cert signed, with any certificate, and own is the one
	// way to satisfy it; nil where there is no trusted root.
	policy *Policy
	own    *trust
}

// Session loads the key once, for all that is to be signed with it.
type Session struct {
	key       *loaded
	keychain  authn.Keychain
	plainHTTP bool
	transport http.RoundTripper
}

// Open makes ready to sign. It fails where the key cannot be had, so that
// nothing has to be pushed before that is known.
func (s Signer) Open(ctx context.Context) (*Session, error) {
	key, err := s.load(ctx)
	if err != nil {
		return nil, &KeyError{err}
	}
	if s.Timestamps != "" {
		key.stamps = sign.NewTimestampAuthority(&sign.TimestampAuthorityOptions{URL: s.Timestamps,
			Transport: answers{}})
	}
	if s.Rekor != "" {
		if key.rekor, err = rekor.GetRekorClient(s.Rekor,
			rekor.WithUserAgent(version.UserAgent("armature"))); err != nil {
			return nil, fmt.Errorf("the transparency log %s: %w", s.Rekor, err)
		}
	}
	return &Session{key, s.Keychain, s.PlainHTTP, s.Transport}, nil
}

func (s Signer) load(ctx context.Context) (*loaded, error) {
	switch {
	case len(s.PrivateKey) > 0:
		key, err := readKey(s.PrivateKey, s.Password)
		if err != nil {
			return nil, fmt.Errorf("reading the private key: %w", err)
		}
		return &loaded{Signer: key}, nil
	case s.Opened != nil:
		l := &loaded{Signer: s.Opened}
		if _, kms := s.Opened.(*KMSKey); kms {
			l.keep = s.Keep
		}
		return l, nil
	case s.Key == "":
		return s.keyless(ctx)
	}
	key, err := privateKey(ctx, s.Key, s.Password)
	if err != nil {
		return nil, fmt.Errorf("reading the key %s: %w", s.Key, err)
	}
	l := &loaded{Signer: key, keep: s.Keep}
	if s.Certificate == "" {
		if s.Chain != "" {
			return nil, errors.New("a certificate chain needs a certificate")
		}
		return l, nil
	}
	if l.cert, err = os.ReadFile(s.Certificate); err != nil {
		return nil, fmt.Errorf("reading the certificate: %w", err)
	}
	certs, err := cryptoutils.UnmarshalCertificatesFromPEM(l.cert)
	if err != nil || len(certs) != 1 {
		return nil, fmt.Errorf("%s holds no single certificate in PEM: %w", s.Certificate, err)
	}
	public, err := key.PublicKey(options.WithContext(ctx))
	if err == nil {
		err = cryptoutils.EqualKeys(public, certs[0].PublicKey)
	}
	if err != nil {
		return nil, fmt.Errorf("the certificate %s is for another key than %s: %w", s.Certificate,
			s.Key, err)
	}
	if s.Chain != "" {
		if l.chain, err = os.ReadFile(s.Chain); err != nil {
			return nil, fmt.Errorf("reading the certificate chain: %w", err)
		}
	}
	return l, nil
}

// keyless makes a key for this once and has it certified for an identity.
func (s Signer) keyless(ctx context.Context) (*loaded, error) {
	token, err := s.token(ctx)
	if err != nil {
		return nil, err
	}
	pair, err := sign.NewEphemeralKeypair(nil)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	url := s.Fulcio
	if url == "" {
		url = FulcioURL
	}
	ctx, cancel := context.WithTimeout(ctx, certificateTime)
	defer cancel()
	raw, err := sign.NewFulcio(&sign.FulcioOptions{BaseURL: url, Retries: 3, Transport: answers{}}).
		GetCertificate(ctx, pair, &sign.CertificateProviderOptions{IDToken: token})
	if err != nil {
		return nil, fmt.Errorf("getting a certificate from %s: %w", url, without(err, token))
	}
	l := &loaded{Signer: ephemeral{pair},
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})}
	if s.TrustedRoot == nil {
		return l, nil
	}
	l.keep = s.Keep
	cert, err := x509.ParseCertificate(raw)
	if err == nil {
		l.policy, err = s.policyOf(cert)
	}
	var ways []trust
	if err == nil {
		ways, err = l.policy.trusted(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of %s: %w", url, err)
	}
	l.own = &ways[0]
	return l, nil
}

// certificateTime bounds the request for a certificate, with its repetitions.
const certificateTime = 30 * time.Second

// answers limits what an authority may answer.
type answers struct{}

func (answers) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := http.DefaultTransport.RoundTrip(request)
	if err == nil {
		response.Body = http.MaxBytesReader(nil, response.Body, 1<<20)
	}
	return response, err
}

// without keeps a token out of an error: an authority may repeat what it was sent.
func without(err error, token string) error {
	text := err.Error()
	for _, part := range append(strings.Split(token, "."), token) {
		if len(part) > 8 && strings.Contains(text, part) {
			return errors.New("it does not accept the identity token")
		}
	}
	return err
}

// CheckAuthority finds what is wrong with the URL of an authority: it is https or http, with
// a host. The error begins with the URL.
func CheckAuthority(text string) error {
	if u, err := url.Parse(text); err != nil || u.Host == "" ||
		u.Scheme != "https" && u.Scheme != "http" {
		return fmt.Errorf("%q: write it as https://HOST", text)
	}
	return nil
}

// CheckRoot finds what keeps a trusted root of Sigstore in JSON from vouching for what is
// signed keyless, with a timestamp.
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

// policyOf accepts what the identity of a certificate signs, by the signer's trusted root.
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

// Policy returns the policy that accepts what the session signs, and nothing else. For an
// identity the signer needs a trusted root.
func (s *Session) Policy(ctx context.Context) (Policy, error) {
	if s.key.policy != nil {
		return *s.key.policy, nil
	}
	if s.key.cert != nil {
		return Policy{}, errors.New("without a trusted root nothing vouches for the certificate")
	}
	const file = "cosign.pub"
	public, err := s.key.certificate(ctx)
	if err != nil {
		return Policy{}, &KeyError{err}
	}
	return Policy{Keys: []string{file}, Files: map[string][]byte{file: public},
		IgnoreTlog: s.key.rekor == nil}, nil
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

// ephemeral is a key pair as a signature.Signer.
type ephemeral struct{ *sign.EphemeralKeypair }

func (e ephemeral) PublicKey(...signature.PublicKeyOption) (crypto.PublicKey, error) {
	return e.GetPublicKey(), nil
}

func (e ephemeral) SignMessage(message io.Reader, _ ...signature.SignOption) ([]byte, error) {
	data, err := io.ReadAll(message)
	if err != nil {
		return nil, err
	}
	sig, _, err := e.SignData(context.Background(), data) // in memory
	return sig, err
}

// certificate is what the transparency log keeps beside a signature: the
// certificate, or else the public key, in PEM.
func (l *loaded) certificate(ctx context.Context) ([]byte, error) {
	if l.cert != nil {
		return l.cert, nil
	}
	public, err := l.PublicKey(options.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	return cryptoutils.MarshalPublicKeyToPEM(public)
}

// Card signs the payload of an agent card, as A2A 1.0 says (section 8.4.2). The name of the
// key in the signature is its thumbprint (RFC 7638). Keyless signers have no key that
// somebody could configure, so that they sign no cards.
func (s *Session) Card(ctx context.Context, payload []byte) (a2a.Signature, error) {
	protected, err := s.CardHeader(ctx)
	if err != nil {
		return a2a.Signature{}, err
	}
	input := protected + "." + base64.RawURLEncoding.EncodeToString(payload)
	made, err := s.key.SignMessage(bytes.NewReader([]byte(input)), options.WithContext(ctx))
	if err == nil {
		made, err = rawSignature(made, protected)
	}
	if err != nil {
		return a2a.Signature{}, &KeyError{fmt.Errorf("signing an agent card: %w", err)}
	}
	return a2a.Signature{Protected: protected,
		Signature: base64.RawURLEncoding.EncodeToString(made)}, nil
}

// CardHeader is the protected header of the cards that the key signs: the algorithm and the
// name of the key.
func (s *Session) CardHeader(ctx context.Context) (string, error) {
	if s.key.cert != nil {
		return "", &KeyError{
			errors.New("an agent card is signed with a key alone, and not with a certificate")}
	}
	public, err := s.key.PublicKey(options.WithContext(ctx))
	if err != nil {
		return "", &KeyError{err}
	}
	header, err := protectedHeader(public)
	if err != nil {
		return "", &KeyError{err}
	}
	return header, nil
}
