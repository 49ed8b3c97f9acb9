package signtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/digitorus/timestamp"
	"github.com/sigstore/sigstore-go/pkg/root"
)

// Authority simulates Fulcio and a timestamp authority at one address. Certificates are valid for
// Valid. Their subject is that of Fulcio's issuers of type kubernetes, or of GitHub's if the token
// names a workflow.
type Authority struct {
	URL   string
	Valid time.Duration
	// Accept returns the body of the refusal of a token, or "". nil accepts every token.
	Accept func(token string) (refusal string)
	// Down answers each request with 400 and a text.
	Down atomic.Pointer[string]

	mu     sync.Mutex
	tokens []string

	root, stampRoot, stamper *x509.Certificate
	key, stampKey            *ecdsa.PrivateKey
}

// Issuer is the OpenID provider in tokens and certificates.
const Issuer = "https://kubernetes.default.svc.test"

// NewAuthority starts an authority that stops when the test ends.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{Valid: 10 * time.Minute}
	var err error
	a.key = newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1),
		Subject:   pkix.Name{CommonName: "authority", Organization: []string{"test"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: []byte{1}}
	if a.root, err = issue(template, template, &a.key.PublicKey, a.key); err != nil {
		t.Fatal(err)
	}
	stampRootKey := newKey(t)
	template.Subject.CommonName, template.SubjectKeyId = "clock", []byte{2}
	if a.stampRoot, err = issue(template, template, &stampRootKey.PublicKey, stampRootKey); err != nil {
		t.Fatal(err)
	}
	a.stampKey = newKey(t)
	a.stamper, err = issue(&x509.Certificate{SerialNumber: big.NewInt(2),
		Subject: pkix.Name{CommonName: "stamps"}, NotBefore: template.NotBefore,
		NotAfter: template.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtraExtensions: []pkix.Extension{timestamping}},
		a.stampRoot, &a.stampKey.PublicKey, stampRootKey)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v2/signingCert", a.certify)
	mux.HandleFunc("POST /api/v1/timestamp", a.stamp)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text := a.Down.Load(); text != nil {
			http.Error(w, *text, http.StatusBadRequest)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	a.URL = server.URL
	return a
}

// timestamping is the only use of a timestamp authority's certificate, and critical.
var timestamping = pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 37}, Critical: true,
	Value: []byte{0x30, 0x0a, 0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x08}}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func issue(template, parent *x509.Certificate, public crypto.PublicKey,
	by crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Timestamps returns the URL of the timestamp authority.
func (a *Authority) Timestamps() string { return a.URL + "/api/v1/timestamp" }

// TrustedRoot returns a trusted root in JSON. The further certificates are other authorities for
// identities.
func (a *Authority) TrustedRoot(further ...*x509.Certificate) ([]byte, error) {
	var authorities []root.CertificateAuthority
	for _, cert := range append([]*x509.Certificate{a.root}, further...) {
		authorities = append(authorities, &root.FulcioCertificateAuthority{Root: cert,
			ValidityPeriodStart: cert.NotBefore, ValidityPeriodEnd: cert.NotAfter, URI: a.URL})
	}
	stamps := []root.TimestampingAuthority{&root.SigstoreTimestampingAuthority{Root: a.stampRoot,
		Leaf: a.stamper, ValidityPeriodStart: time.Now().Add(-time.Hour),
		ValidityPeriodEnd: time.Now().Add(24 * time.Hour), URI: a.URL}}
	from, err := root.NewTrustedRoot(root.TrustedRootMediaType01, authorities, nil, stamps, nil)
	if err != nil {
		return nil, err
	}
	return from.MarshalJSON()
}

// Tokens returns the tokens of all requests, in order.
func (a *Authority) Tokens() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string{}, a.tokens...)
}

// claims are the claims of a ServiceAccount's token.
type claims struct {
	Issuer     string `json:"iss"`
	Subject    string `json:"sub"`
	Audience   string `json:"aud"`
	Workflow   string `json:"job_workflow_ref,omitempty"`
	Kubernetes struct {
		Namespace string `json:"namespace"`
		Account   struct {
			Name string `json:"name"`
		} `json:"serviceaccount"`
	} `json:"kubernetes.io"`
}

// Token returns the token of a ServiceAccount, with number in its signature.
func Token(namespace, name string, number int) string {
	var c claims
	c.Issuer, c.Subject, c.Audience = Issuer, "system:serviceaccount:"+namespace+":"+name, "sigstore"
	c.Kubernetes.Namespace, c.Kubernetes.Account.Name = namespace, name
	return c.token(number)
}

// WorkflowToken returns the token of a run of a workflow on GitHub, such as
// owner/name/.github/workflows/release.yml@refs/tags/v0.1.0.
func WorkflowToken(workflow string) string {
	return claims{Issuer: "https://token.actions.githubusercontent.com",
		Subject: "repo:" + workflow, Audience: "sigstore", Workflow: workflow}.token(1)
}

func (c claims) token(number int) string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("marshalling texts: %v", err))
	}
	return "eyJhbGciOiJSUzI1NiJ9." + base64.RawURLEncoding.EncodeToString(text) +
		fmt.Sprintf(".signature-of-token-%d", number)
}

// Identity returns the subject of a ServiceAccount in certificates.
func Identity(namespace, name string) string {
	return "https://kubernetes.io/namespaces/" + namespace + "/serviceaccounts/" + name
}

func (a *Authority) certify(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	a.mu.Lock()
	a.tokens = append(a.tokens, token)
	a.mu.Unlock()
	if a.Accept != nil {
		if refusal := a.Accept(token); refusal != "" {
			http.Error(w, refusal, http.StatusUnauthorized)
			return
		}
	}
	cert, err := a.certificate(token, r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	text := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	_ = json.NewEncoder(w).Encode(
		map[string]any{
			"signedCertificateDetachedSct": map[string]any{
				"chain": map[string]any{"certificates": []string{text}}}})
}

func (a *Authority) certificate(token string, body io.Reader) (*x509.Certificate, error) {
	var request struct {
		PublicKeyRequest struct {
			PublicKey struct {
				Content string `json:"content"`
			} `json:"publicKey"`
		} `json:"publicKeyRequest"`
	}
	if err := json.NewDecoder(body).Decode(&request); err != nil {
		return nil, err
	}
	block, _ := pem.Decode([]byte(request.PublicKeyRequest.PublicKey.Content))
	parts := strings.Split(token, ".")
	if block == nil || len(parts) != 3 {
		return nil, errors.New("the request has no key or no token")
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, err
	}
	var c claims
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	subject := Identity(c.Kubernetes.Namespace, c.Kubernetes.Account.Name)
	if c.Workflow != "" {
		subject = "https://github.com/" + c.Workflow
	}
	who, err := url.Parse(subject)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	return issue(&x509.Certificate{SerialNumber: serial, NotBefore: time.Now().Add(-time.Second),
		NotAfter: time.Now().Add(a.Valid), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}, URIs: []*url.URL{who},
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1},
			Value: []byte(c.Issuer)}}}, a.root, public, a.key)
}

func (a *Authority) stamp(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	request, err := timestamp.ParseRequest(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	stamp := timestamp.Timestamp{HashAlgorithm: request.HashAlgorithm,
		HashedMessage: request.HashedMessage, Time: time.Now(),
		Policy:          asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 2},
		ExtraExtensions: request.Extensions}
	answer, err := stamp.CreateResponseWithOpts(a.stamper, a.stampKey, crypto.SHA256)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/timestamp-reply")
	_, _ = w.Write(answer)
}
