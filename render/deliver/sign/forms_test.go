package sign_test

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/armature-dev/armature/render/deliver/sign"
)

// raw is a manifest that a test writes.
type raw struct {
	content []byte
	media   types.MediaType
}

func (r raw) RawManifest() ([]byte, error)        { return r.content, nil }
func (r raw) MediaType() (types.MediaType, error) { return r.media, nil }

// Each form suffices. Signing adds a bundle to what cosign 2 has signed.
func TestEachForm(t *testing.T) {
	for _, referrers := range []bool{false, true} {
		for _, bundles := range []bool{false, true} {
			f := setup(t, registry.WithReferrersSupport(referrers))
			private, public := f.key("ours")
			_, other := f.key("other")
			if bundles {
				f.sign(signer(private))
			} else {
				f.tags(signer(private))
			}
			if s, a, b := f.attachments(); bundles && (s != 0 || a != 0 || b != 2) ||
				!bundles && (s != 1 || a != 1 || b != 0) {
				t.Fatalf("referrers %t, bundles %t: %d signatures, %d attestations, %d bundles",
					referrers, bundles, s, a, b)
			}
			p := local(public)
			p.Provenance = true
			if v, err := sign.Verify(t.Context(), f.artifact, p); err != nil ||
				v.Provenance.BuildDefinition.ResolvedDependencies[0].Name != "a.yaml" {
				t.Errorf("referrers %t, bundles %t: %+v %v", referrers, bundles, v, err)
			}
			f.refused(local(other), "signature")
			f.sign(signer(private))
			if _, _, b := f.attachments(); b != 2 {
				t.Errorf("referrers %t, bundles %t: %d bundles after signing", referrers, bundles, b)
			}
		}
	}
}

// A bundle with a certificate does as well, by its identity and its authority.
func TestIdentityInBundles(t *testing.T) {
	f := setup(t)
	ours, theirs := f.authority("ours"), f.authority("theirs")
	f.sign(ours.issue(subject, issuer, time.Now().Add(-time.Minute)))
	if v, err := sign.Verify(t.Context(), f.artifact, identity(ours.file)); err != nil ||
		v.Provenance == nil {
		t.Errorf("%+v %v", v, err)
	}
	f.refused(identity(theirs.file), "certificate")
	p := identity(ours.file)
	p.Identities = []sign.Identity{{Subject: "somebody@example.com", Issuer: issuer},
		{Subject: subject, Issuer: "https://other.example.com"}}
	f.refused(p, "no matching CertificateIdentity")
	p.Identities = append(p.Identities, sign.Identity{SubjectRegExp: "robot@.*", Issuer: issuer})
	if _, err := sign.Verify(t.Context(), f.artifact, p); err != nil {
		t.Errorf("the third of three identities: %v", err)
	}
	p.Identities = []sign.Identity{{SubjectRegExp: "robot@example", Issuer: issuer}}
	f.refused(p, "no matching CertificateIdentity") // a pattern has to match all of it
	p = identity(ours.file)
	p.IgnoreSCT = false
	if _, err := sign.Verify(t.Context(), f.artifact, p); err == nil {
		t.Error("a certificate outside of the certificate log is taken")
	}
	public := local(strings.TrimSuffix(ours.file, "ours.pem") + subject + ".pub")
	f.refused(public, "expected key signature, not certificate")
}

func TestExpiredCertificateInBundles(t *testing.T) {
	f := setup(t)
	ours := f.authority("ours")
	f.sign(ours.issue(subject, issuer, time.Now().Add(-24*time.Hour)))
	f.refused(identity(ours.file), "leaf certificate verification failed")
}

// trustedRoot writes a file with an authority, as cosign trusted-root create does.
func (f *fixture) trustedRoot(a *authority) string {
	f.Helper()
	text, err := json.Marshal(map[string]any{
		"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
		"certificateAuthorities": []any{map[string]any{
			"subject": map[string]string{"organization": "test", "commonName": "test"},
			"uri":     "https://ca.example",
			"certChain": map[string]any{
				"certificates": []any{map[string]any{"rawBytes": a.cert.Raw}}},
			"validFor": map[string]string{"start": "2020-01-01T00:00:00Z"},
		}},
	})
	if err != nil {
		f.Fatal(err)
	}
	return f.write("root.json", text)
}

// A trusted root from a file replaces authorities, and excludes roots.
func TestTrustedRoot(t *testing.T) {
	f := setup(t)
	ours, theirs := f.authority("ours"), f.authority("theirs")
	f.tags(ours.issue(subject, issuer, time.Now().Add(-time.Minute)))
	p := identity("")
	p.TrustedRoot = f.trustedRoot(ours)
	if v, err := sign.Verify(t.Context(), f.artifact, p); err != nil || v.Provenance == nil {
		t.Errorf("%+v %v", v, err)
	}
	p.IgnoreTlog = false
	f.refused(p, "contains no transparency log")
	p.IgnoreTlog = true
	p.TrustedRoot = f.trustedRoot(theirs)
	f.refused(p, "certificate")
	f.artifact = f.push("second")
	f.sign(ours.issue(subject, issuer, time.Now().Add(-time.Minute)))
	f.refused(p, "certificate")
	p.TrustedRoot = f.trustedRoot(ours)
	if v, err := sign.Verify(t.Context(), f.artifact, p); err != nil || v.Provenance == nil {
		t.Errorf("bundles: %+v %v", v, err)
	}
	p.Roots = ours.file
	f.refused(p, "name one of them")
	p.Roots, p.TrustedRoot =
		"", f.write("empty.json",
			[]byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`))
	f.refused(p, "contains no certificate authority")
	p.TrustedRoot = f.write("rubbish.json", []byte("rubbish"))
	f.refused(p, "reading the trusted root")
}

// An attestation of the key does not count as a signature, nor does a signature of
// another artifact, in either form.
func TestUnrelated(t *testing.T) {
	for _, referrers := range []bool{false, true} {
		f := setup(t, registry.WithReferrersSupport(referrers))
		private, public := f.key("ours")
		session, err := signer(private).Open(t.Context())
		if err == nil {
			_, err = session.Attest(t.Context(), f.artifact, "https://spdx.dev/Document",
				map[string]string{"spdxVersion": "SPDX-2.3"})
		}
		if err != nil {
			t.Fatal(err)
		}
		f.refused(local(public), "no signatures found")
		// Whoever may push can claim by an annotation that it is one.
		f.claim("https://sigstore.dev/cosign/sign/v1")
		f.refused(local(public), `it is a statement of type "https://spdx.dev/Document"`)

		signed := f.artifact
		f.sign(signer(private))
		f.tags(signer(private))
		f.artifact = f.push("another")
		f.steal(signed)
		if s, a, b := f.attachments(); s != 1 || a != 1 || b == 0 {
			t.Fatalf("referrers %t: %d signatures, %d attestations, %d bundles were copied",
				referrers, s, a, b)
		}
		f.refused(local(public), "it is not about "+f.artifact.DigestStr())
		f.refused(local(public), "provided artifact digest")
	}
}

// claim copies the artifact's bundles, with another predicate type in the annotation.
func (f *fixture) claim(predicateType string) {
	f.Helper()
	for _, d := range f.referrers() {
		f.put(d, func(m *v1.Manifest) {
			m.Annotations["dev.sigstore.bundle.predicateType"] = predicateType
		})
	}
}

// steal attaches to the artifact what another one of the repository has.
func (f *fixture) steal(from name.Digest) {
	f.Helper()
	about, err := remote.Head(f.artifact)
	if err != nil {
		f.Fatal(err)
	}
	victim := f.artifact
	f.artifact = from
	referrers, signatures, attestations := f.referrers(), f.tag(".sig"), f.tag(".att")
	for _, d := range referrers {
		f.put(d, func(m *v1.Manifest) { m.Subject = about })
	}
	f.artifact = victim
	for from, to := range map[name.Tag]name.Tag{signatures: f.tag(".sig"),
		attestations: f.tag(".att")} {
		image, err := remote.Image(from)
		if refused := (*transport.Error)(nil); errors.As(err, &refused) &&
			refused.StatusCode == http.StatusNotFound {
			continue
		}
		if err == nil {
			err = remote.Write(to, image)
		}
		if err != nil {
			f.Fatal(err)
		}
	}
}

// put writes a changed copy of a manifest.
func (f *fixture) put(d v1.Descriptor, change func(*v1.Manifest)) {
	f.Helper()
	found, err := remote.Get(f.artifact.Context().Digest(d.Digest.String()))
	if err != nil {
		f.Fatal(err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(found.Manifest, &m); err != nil {
		f.Fatal(err)
	}
	change(&m)
	content, err := json.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	digest, _, err := v1.SHA256(strings.NewReader(string(content)))
	if err != nil {
		f.Fatal(err)
	}
	if err := remote.Put(f.artifact.Context().Digest(digest.String()),
		raw{content, types.OCIManifestSchema1}); err != nil {
		f.Fatal(err)
	}
}

// A write that another writer undoes is done again.
func TestLostWrite(t *testing.T) {
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var puts atomic.Int32
	var suffix atomic.Value
	suffix.Store("never")
	f := setupWith(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, suffix.Load().(string)) &&
			puts.Add(1) == 1 {
			w.WriteHeader(http.StatusCreated)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	suffix.Store(f.tag("").TagStr())
	private, public := f.key("ours")
	f.sign(signer(private))
	if puts.Load() < 2 {
		t.Errorf("the list of referrers was written %d times", puts.Load())
	}
	if _, err := sign.Verify(t.Context(), f.artifact, local(public)); err != nil {
		t.Error(err)
	}
}

// Another writer with the same key attaches the same between this writer's look and
// its write: each is there once.
func TestDuplicates(t *testing.T) {
	var f *fixture
	var ours sign.Signer
	var met atomic.Bool
	next := registry.New(registry.WithReferrersSupport(true),
		registry.Logger(log.New(io.Discard, "", 0)))
	f = setupWith(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/referrers/") &&
			met.CompareAndSwap(false, true) {
			f.sign(ours) // what was read is no longer true
		}
	}))
	private, _ := f.key("ours")
	text, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	ours = sign.Signer{PrivateKey: text,
		Password: func() ([]byte, error) { return []byte(secret), nil }}
	f.sign(ours)
	if _, _, bundles := f.attachments(); !met.Load() || bundles != 2 {
		t.Errorf("met %v, %d bundles", met.Load(), bundles)
	}
}
