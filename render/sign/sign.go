package sign

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/sigstore/cosign/v2/pkg/providers"
	_ "github.com/sigstore/cosign/v2/pkg/providers/envvar" // identities that a machine has
	_ "github.com/sigstore/cosign/v2/pkg/providers/filesystem"
	_ "github.com/sigstore/cosign/v2/pkg/providers/github"
	rekor "github.com/sigstore/rekor/pkg/client"
	"github.com/sigstore/rekor/pkg/generated/client"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"

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
	// It excludes Key. An ECDSA key signs the same with the same signature, so that
	// two that sign at once attach one.
	PrivateKey []byte
	// Password gives that of an encrypted key file. nil is none.
	Password func() ([]byte, error)
	// Certificate and Chain are PEM files of the certificate that goes with Key,
	// and of those above it, the root last. "" is none.
	Certificate, Chain string
	// IdentityToken is an OpenID token or a file with one, for keyless signing.
	IdentityToken string
	// Fulcio issues certificates; "" is sigstore's public instance.
	Fulcio string
	// Rekor is the transparency log that gets the signature; "" is none.
	Rekor string

	// Keychain and PlainHTTP are those of oci.Options.
	Keychain  authn.Keychain
	PlainHTTP bool
	// Transport carries the requests to the registry; nil is oci.Transport().
	Transport http.RoundTripper
}

// loaded is a Signer's key with its certificates in PEM, nil for none.
type loaded struct {
	signature.Signer
	cert, chain []byte
	rekor       *client.Rekor
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
		return nil, err
	}
	if s.Rekor != "" {
		if key.rekor, err = rekor.GetRekorClient(s.Rekor, rekor.WithUserAgent(version.UserAgent("armature"))); err != nil {
			return nil, fmt.Errorf("the transparency log %s: %w", s.Rekor, err)
		}
	}
	return &Session{key, s.Keychain, s.PlainHTTP, s.Transport}, nil
}

func (s Signer) load(ctx context.Context) (*loaded, error) {
	if len(s.PrivateKey) > 0 {
		return s.private()
	}
	if s.Key == "" {
		return s.keyless(ctx)
	}
	key, err := privateKey(ctx, s.Key, s.Password)
	if err != nil {
		return nil, fmt.Errorf("reading the key %s: %w", s.Key, err)
	}
	l := &loaded{Signer: key}
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
		return nil, fmt.Errorf("the certificate %s is for another key than %s: %w", s.Certificate, s.Key, err)
	}
	if s.Chain != "" {
		if l.chain, err = os.ReadFile(s.Chain); err != nil {
			return nil, fmt.Errorf("reading the certificate chain: %w", err)
		}
	}
	return l, nil
}

// private loads a key that is at hand.
func (s Signer) private() (*loaded, error) {
	if s.Key != "" || s.Certificate != "" {
		return nil, errors.New("a private key that is at hand excludes another one and certificates")
	}
	var password []byte
	if s.Password != nil {
		var err error
		if password, err = s.Password(); err != nil {
			return nil, err
		}
	}
	key, err := cryptoutils.UnmarshalPEMToPrivateKey(s.PrivateKey, func(bool) ([]byte, error) { return password, nil })
	if err != nil {
		return nil, fmt.Errorf("reading the private key: %w", err)
	}
	signer, err := signature.LoadSignerVerifier(key, crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("reading the private key: %w", err)
	}
	if p, ok := key.(*ecdsa.PrivateKey); ok {
		signer = repeatable{signer, p}
	}
	return &loaded{Signer: signer}, nil
}

// repeatable signs by RFC 6979: a message has one signature.
type repeatable struct {
	signature.SignerVerifier
	key *ecdsa.PrivateKey
}

func (r repeatable) SignMessage(message io.Reader, _ ...signature.SignOption) ([]byte, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, message); err != nil {
		return nil, err
	}
	return r.key.Sign(nil, sum.Sum(nil), crypto.SHA256)
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
	cert, err := sign.NewFulcio(&sign.FulcioOptions{BaseURL: url, Retries: 3}).GetCertificate(ctx, pair, &sign.CertificateProviderOptions{IDToken: token})
	if err != nil {
		return nil, fmt.Errorf("getting a certificate from %s: %w", url, err)
	}
	return &loaded{Signer: ephemeral{pair}, cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})}, nil
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
	return "", errors.New("there is neither a key nor an identity to sign with: name a key, or a file with an OpenID token")
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
