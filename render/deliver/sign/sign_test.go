package sign_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/sigstore/cosign/v2/pkg/cosign"

	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/deliver/sign/signtest"
)

// fixture is a registry with one artifact, and a folder for keys.
type fixture struct {
	*testing.T
	dir      string
	host     string
	artifact name.Digest
}

// setup starts a registry without the referrers API.
func setup(t *testing.T, options ...registry.Option) *fixture {
	t.Helper()
	return setupWith(t,
		registry.New(append(options, registry.Logger(log.New(io.Discard, "", 0)))...))
}

func setupWith(t *testing.T, handler http.Handler) *fixture {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	f := &fixture{T: t, dir: t.TempDir(), host: strings.TrimPrefix(server.URL, "http://")}
	f.artifact = f.push("first")
	return f
}

func (f *fixture) push(content string) name.Digest {
	f.Helper()
	result, err := oci.Push(f.Context(), oci.Scheme+f.host+"/fleet:v1",
		[]render.File{{Path: "a.yaml", Data: []byte(content)}}, oci.Metadata{}, oci.Options{})
	if err != nil {
		f.Fatal(err)
	}
	digest, err := name.NewDigest(result.Ref)
	if err != nil {
		f.Fatal(err)
	}
	return digest
}

const secret = "a password"

// key makes a pair without a password, and returns the files.
func (f *fixture) key(named string) (private, public string) {
	f.Helper()
	private = filepath.Join(f.dir, named+".key")
	half, err := signtest.NewKey(private)
	if err != nil {
		f.Fatal(err)
	}
	return private, f.write(named+".pub", half)
}

// locked makes a pair as cosign generate-key-pair does, whose password takes half a second of CPU.
func (f *fixture) locked(named string) (private, public string) {
	f.Helper()
	pair, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) { return []byte(secret), nil })
	if err != nil {
		f.Fatal(err)
	}
	return f.write(named+".key", pair.PrivateBytes), f.write(named+".pub", pair.PublicBytes)
}

func (f *fixture) write(named string, data []byte) string {
	f.Helper()
	file := filepath.Join(f.dir, named)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		f.Fatal(err)
	}
	return file
}

func signer(key string) sign.Signer {
	return sign.Signer{Key: key, Password: func() ([]byte, error) { return []byte(secret), nil }}
}

func (f *fixture) sign(s sign.Signer) {
	f.Helper()
	session, err := s.Open(f.Context())
	if err == nil {
		_, err = session.Sign(f.Context(), f.artifact)
	}
	if err == nil {
		_, err = session.Attest(f.Context(), f.artifact, sign.PredicateType, provenance)
	}
	if err != nil {
		f.Fatal(err)
	}
}

var provenance = sign.NewProvenance(sign.Render{
	Source: "https://git.example/fleet", Revision: "main@sha1:0123",
	Functions: []string{"inject", "validate"}, Config: map[string]any{"sidecars": "native"},
	Inputs: []render.File{{Path: "b.yaml", Data: []byte("2")}, {Path: "a.yaml"}},
})

// local is a policy for a key, without a transparency log.
func local(key string) sign.Policy { return sign.Policy{Keys: []string{key}, IgnoreTlog: true} }

// refused fails unless a policy refuses the artifact and says why.
func (f *fixture) refused(p sign.Policy, why string) {
	f.Helper()
	if v, err := sign.Verify(f.Context(), f.artifact, p); err == nil ||
		!strings.Contains(err.Error(), why) {
		f.Errorf("%+v %v, want %q", v, err, why)
	}
}

func TestKey(t *testing.T) {
	f := setup(t)
	private, public := f.locked("ours")
	_, other := f.key("other")
	f.refused(local(public), "no signatures found")
	f.sign(signer(private))

	v, err := sign.Verify(t.Context(), f.artifact, local(public))
	if err != nil || v.By != "key "+public || v.Provenance != nil {
		t.Errorf("%+v %v", v, err)
	}
	demanding := local(public)
	demanding.Provenance = true
	v, err = sign.Verify(t.Context(), f.artifact, demanding)
	if err != nil || v.Provenance == nil ||
		v.Provenance.BuildDefinition.ResolvedDependencies[0].Name != "a.yaml" {
		t.Errorf("%+v %v", v.Provenance, err)
	}
	f.refused(local(other), "could not verify envelope")
	either := sign.Policy{Keys: []string{other, public}, IgnoreTlog: true}
	if _, err := sign.Verify(t.Context(), f.artifact, either); err != nil {
		t.Error(err)
	}
	f.refused(sign.Policy{Keys: []string{public}}, "transparency log")

	// What is pushed next is not signed, though it has the same tag.
	f.artifact = f.push("second")
	f.refused(local(public), "no signatures found")
}

// tag returns the tag of the artifact's attachments: ".sig", ".att", or "" for the fallback of the
// referrers API.
func (f *fixture) tag(suffix string) name.Tag {
	return f.artifact.Context().Tag(strings.Replace(f.artifact.DigestStr(), ":", "-", 1) + suffix)
}

// attachments counts signatures and attestations in both forms.
func (f *fixture) attachments() (signatures, attestations, bundles int) {
	f.Helper()
	count := func(suffix string) int {
		image, err := remote.Image(f.tag(suffix))
		if refused := (*transport.Error)(nil); errors.As(err, &refused) &&
			refused.StatusCode == http.StatusNotFound {
			return 0
		}
		if err != nil {
			f.Fatal(err)
		}
		layers, err := image.Layers()
		if err != nil {
			f.Fatal(err)
		}
		return len(layers)
	}
	return count(".sig"), count(".att"), len(f.referrers())
}

func (f *fixture) referrers() []v1.Descriptor {
	f.Helper()
	index, err := remote.Referrers(f.artifact)
	if err != nil {
		f.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		f.Fatal(err)
	}
	return manifest.Manifests
}

// What a key attaches is attached once, however often it signs, and as bundles alone.
func TestOnce(t *testing.T) {
	for _, referrers := range []bool{false, true} {
		f := setup(t, registry.WithReferrersSupport(referrers))
		private, public := f.key("ours")
		f.sign(signer(private))
		f.sign(signer(private))
		if s, a, b := f.attachments(); s != 0 || a != 0 || b != 2 {
			t.Errorf("referrers %t: %d signatures, %d attestations, %d bundles, want 0, 0, 2",
				referrers, s, a, b)
		}
		if _, err := sign.Verify(t.Context(), f.artifact, local(public)); err != nil {
			t.Error(err)
		}
		other, _ := f.key("other")
		f.sign(signer(other))
		if s, a, b := f.attachments(); s != 0 || a != 0 || b != 4 {
			t.Errorf("referrers %t: %d signatures, %d attestations, %d bundles of two keys, "+
				"want 0, 0, 4", referrers, s, a, b)
		}
	}
}

// A signature without provenance does not do where provenance is demanded, and
// neither does the provenance of somebody else.
func TestProvenanceMissing(t *testing.T) {
	f := setup(t)
	private, public := f.key("ours")
	theirs, _ := f.key("theirs")
	session, err := signer(private).Open(t.Context())
	if err == nil {
		_, err = session.Sign(t.Context(), f.artifact)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := local(public)
	p.Provenance = true
	f.refused(p, "provenance")
	f.sign(signer(theirs))
	f.refused(p, "provenance")
}

func TestWrongKeys(t *testing.T) {
	f := setup(t)
	private, _ := f.locked("ours")
	for _, s := range []sign.Signer{
		{},
		{Key: filepath.Join(f.dir, "missing.key")},
		{Key: private, Password: func() ([]byte, error) { return []byte("wrong"), nil }},
		{Key: private, Password: func() ([]byte, error) { return nil, errors.New("nobody knows") }},
		{Key: "nokms://key"},
		{Key: f.write("rubbish.key", []byte("rubbish"))},
	} {
		if _, err := s.Open(t.Context()); err == nil {
			t.Errorf("%+v is taken", s)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the password shows: %v", err)
		}
	}
}

// authority issues certificates for code signing, to an email address by the
// word of an OpenID provider.
type authority struct {
	*fixture
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func (f *fixture) authority(named string) *authority {
	f.Helper()
	a := &authority{fixture: f}
	a.key = f.newKey()
	template := &x509.Certificate{SerialNumber: big.NewInt(1),
		Subject: pkix.Name{CommonName: named}, NotBefore: time.Now().Add(-48 * time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		f.Fatal(err)
	}
	a.file = f.write(named+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

func (f *fixture) newKey() *ecdsa.PrivateKey {
	f.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	return key
}

// issue returns a signer with a certificate that was valid for an hour.
func (a *authority) issue(subject, issuer string, from time.Time) sign.Signer {
	a.Helper()
	private, public := a.fixture.key(subject)
	text, err := os.ReadFile(public)
	if err != nil {
		a.Fatal(err)
	}
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		a.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: from,
		NotAfter: from.Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage:    []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		EmailAddresses: []string{subject},
		// Fulcio's, for the issuer
		ExtraExtensions: []pkix.Extension{{Id: []int{1, 3, 6, 1, 4, 1, 57264, 1, 1},
			Value: []byte(issuer)}}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key, a.key)
	if err != nil {
		a.Fatal(err)
	}
	s := signer(private)
	s.Certificate = a.write(subject+".crt",
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return s
}

const (
	subject = "robot@example.com"
	issuer  = "https://id.example.com"
)

func identity(roots string) sign.Policy {
	return sign.Policy{Identities: []sign.Identity{{Subject: subject, Issuer: issuer}},
		Roots: roots, IgnoreTlog: true, IgnoreSCT: true, Provenance: true}
}

// A certificate in cosign's tag format counts by its identity and its authority.
func TestIdentity(t *testing.T) {
	f := setup(t)
	ours, theirs := f.authority("ours"), f.authority("theirs")
	f.tags(ours.issue(subject, issuer, time.Now().Add(-time.Minute)))

	if v, err := sign.Verify(t.Context(), f.artifact, identity(ours.file)); err != nil ||
		v.By != "identity "+subject || v.Provenance == nil {
		t.Errorf("%+v %v", v, err)
	}
	f.refused(identity(theirs.file), "leaf certificate verification failed")
	p := identity(ours.file)
	p.Identities = []sign.Identity{{Subject: "somebody@example.com", Issuer: issuer}}
	f.refused(p, "no matching CertificateIdentity")
	p.Identities = []sign.Identity{{Subject: subject, Issuer: "https://other.example.com"}}
	f.refused(p, "no matching CertificateIdentity")
	p.Identities = []sign.Identity{{SubjectRegExp: "robot@example",
		IssuerRegExp: "https://id[.]example[.]com"}}
	f.refused(p, "no matching CertificateIdentity") // a pattern has to match all of it
	p.Identities = []sign.Identity{{SubjectRegExp: "robot@.*",
		IssuerRegExp: "https://id[.]example[.]com"}}
	if _, err := sign.Verify(t.Context(), f.artifact, p); err != nil {
		t.Error(err)
	}
	p.IgnoreSCT = false
	if _, err := sign.Verify(t.Context(), f.artifact, p); err == nil {
		t.Error("a certificate outside of the certificate log is taken")
	}
}

func TestExpiredCertificate(t *testing.T) {
	f := setup(t)
	ours := f.authority("ours")
	f.tags(ours.issue(subject, issuer, time.Now().Add(-24*time.Hour)))
	f.refused(identity(ours.file), "leaf certificate verification failed")
}

func TestCertificateOfAnotherKey(t *testing.T) {
	f := setup(t)
	s := f.authority("ours").issue(subject, issuer, time.Now())
	s.Key, _ = f.key("another")
	if _, err := s.Open(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "is for another key") {
		t.Error(err)
	}
}

// cosign runs cosign 2, which looks for bundles if it is told to.
func (f *fixture) cosign(args ...string) (string, error) {
	f.Helper()
	return f.peer("cosign", args...)
}

// peer runs cosign 2 ("cosign") or 3 ("cosign3").
func (f *fixture) peer(program string, args ...string) (string, error) {
	f.Helper()
	cmd := exec.CommandContext(f.Context(), programs.Peer(f, program), args...)
	cmd.Env = append(os.Environ(), "COSIGN_PASSWORD="+secret)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// What we sign, cosign 2 verifies as bundles.
func TestCosignVerifies(t *testing.T) {
	f := setup(t)
	private, public := f.key("ours")
	_, other := f.key("other")
	f.sign(signer(private))
	root := f.write("root.json",
		[]byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`))
	for _, args := range [][]string{
		{"verify"},
		{"verify-attestation", "--type", "slsaprovenance1"},
	} {
		args := append(args, "--new-bundle-format", "--trusted-root", root,
			"--insecure-ignore-tlog=true", "--key")
		if out, err := f.cosign(append(args, public, f.artifact.String())...); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		if out, err := f.cosign(append(args, other, f.artifact.String())...); err == nil {
			t.Errorf("cosign takes the wrong key: %s", out)
		}
	}
}

// What cosign signs, we verify.
func TestVerifiesCosign(t *testing.T) {
	f := setup(t)
	private, public := f.locked("ours")
	if out, err := f.cosign("sign", "--tlog-upload=false", "--yes", "--key", private,
		f.artifact.String()); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := sign.Verify(t.Context(), f.artifact, local(public)); err != nil {
		t.Error(err)
	}
	predicate := f.write("predicate.json",
		[]byte(
			`{"buildDefinition":{"buildType":"https://example.com/build","externalParameters":{}},"runDetails":{"builder":{"id":"https://example.com"}}}`))
	if out, err := f.cosign("attest", "--tlog-upload=false", "--yes", "--key", private, "--type",
		"slsaprovenance1", "--predicate", predicate, f.artifact.String()); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p := local(public)
	p.Provenance = true
	if v, err := sign.Verify(t.Context(), f.artifact, p); err != nil ||
		v.Provenance.BuildDefinition.BuildType != "https://example.com/build" {
		t.Errorf("%+v %v", v.Provenance, err)
	}
}
