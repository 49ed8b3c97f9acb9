package sign_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	cosignbundle "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/rekor/pkg/generated/models"
	"github.com/sigstore/rekor/pkg/pki"
	"github.com/sigstore/rekor/pkg/types"
	"github.com/sigstore/rekor/pkg/types/dsse"
	"github.com/sigstore/rekor/pkg/types/hashedrekord"
	rekorutil "github.com/sigstore/rekor/pkg/util"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/armature-dev/armature/render/deliver/sign"
)

// journal is a stand-in for Rekor. Each entry is the only one of its tree.
type journal struct {
	*fixture
	url string
	key *ecdsa.PrivateKey
	id  [sha256.Size]byte
	// written and found are how often an entry was asked for.
	written, found atomic.Int32
	// last is the entry beside the last claim and the last envelope, and replay attaches it again.
	last   map[bool]*cosignbundle.RekorBundle
	replay bool
	// unproven answers without a proof of inclusion.
	unproven atomic.Bool
}

func (f *fixture) journal() *journal {
	f.Helper()
	j := &journal{fixture: f, key: f.newKey(), last: map[bool]*cosignbundle.RekorBundle{}}
	der, err := x509.MarshalPKIXPublicKey(j.key.Public())
	if err != nil {
		f.Fatal(err)
	}
	j.id = sha256.Sum256(der)
	known := map[string]models.LogEntryAnon{}
	const entries = "/api/v1/log/entries"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			j.found.Add(1)
			id := strings.TrimPrefix(r.URL.Path, entries+"/")
			_ = json.NewEncoder(w).Encode(map[string]models.LogEntryAnon{id: known[id]})
			return
		}
		j.written.Add(1)
		text, _ := io.ReadAll(r.Body)
		entry, id, err := j.enter(text)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Location", entries+"/"+id)
		if _, there := known[id]; there {
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"code":409,"message":"it is there"}`)
			return
		}
		known[id] = entry
		if j.unproven.Load() {
			entry.Verification = nil
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]models.LogEntryAnon{id: entry})
	}))
	f.Cleanup(server.Close)
	j.url = server.URL
	return j
}

// enter makes an entry of a proposed one, with the promise of the log and the proof.
func (j *journal) enter(proposed []byte) (e models.LogEntryAnon, id string, err error) {
	var asked models.ProposedEntry = &models.Hashedrekord{}
	if bytes.Contains(proposed, []byte(`"kind":"dsse"`)) {
		asked = &models.DSSE{}
	}
	if err := json.Unmarshal(proposed, asked); err != nil {
		return e, "", err
	}
	made, err := types.CreateVersionedEntry(asked)
	if err != nil {
		return e, "", err
	}
	body, err := types.CanonicalizeEntry(j.Context(), made)
	if err != nil {
		return e, "", err
	}
	text, number, now := base64.StdEncoding.EncodeToString(body), int64(0), time.Now().Unix()
	log := hex.EncodeToString(j.id[:])
	promise, err := json.Marshal(map[string]any{"body": text, "integratedTime": now,
		"logIndex": number, "logID": log})
	if err != nil {
		return e, "", err
	}
	sum := sha256.Sum256(promise)
	promised, err := ecdsa.SignASN1(rand.Reader, j.key, sum[:])
	if err != nil {
		return e, "", err
	}
	by, err := signature.LoadSigner(j.key, crypto.SHA256)
	if err != nil {
		return e, "", err
	}
	leaf := sha256.Sum256(append([]byte{0}, body...))
	note, err := rekorutil.CreateAndSignCheckpoint(j.Context(), "log.example", 1, 1, leaf[:], by)
	if err != nil {
		return e, "", err
	}
	hash, checkpoint, size := hex.EncodeToString(leaf[:]), string(note), int64(1)
	return models.LogEntryAnon{Body: text, IntegratedTime: &now, LogIndex: &number, LogID: &log,
		Verification: &models.LogEntryAnonVerification{SignedEntryTimestamp: promised,
			InclusionProof: &models.InclusionProof{LogIndex: &number, TreeSize: &size,
				RootHash: &hash, Hashes: []string{}, Checkpoint: &checkpoint}}}, hash, nil
}

// trustedRoot writes a file with the log and an authority.
func (j *journal) trustedRoot(a *authority) string {
	j.Helper()
	log := &root.TransparencyLog{BaseURL: j.url, ID: j.id[:], HashFunc: crypto.SHA256,
		ValidityPeriodStart: time.Now().Add(-time.Hour), PublicKey: j.key.Public(),
		SignatureHashFunc: crypto.SHA256}
	from, err := root.NewTrustedRoot(root.TrustedRootMediaType01,
		[]root.CertificateAuthority{&root.FulcioCertificateAuthority{Root: a.cert,
			ValidityPeriodStart: a.cert.NotBefore, ValidityPeriodEnd: a.cert.NotAfter,
			URI: "https://ca.example"}}, nil, nil,
		map[string]*root.TransparencyLog{hex.EncodeToString(j.id[:]): log})
	if err != nil {
		j.Fatal(err)
	}
	text, err := from.MarshalJSON()
	if err != nil {
		j.Fatal(err)
	}
	return j.write("logged.json", text)
}

// entered is what cosign 2 attaches of the log beside a signature: of a claim, or of the envelope
// of a statement.
func (j *journal) entered(content, made, verifier []byte) static.Option {
	j.Helper()
	of := types.ArtifactProperties{PublicKeyBytes: [][]byte{verifier}, ArtifactBytes: content}
	create := dsse.New().CreateProposedEntry
	if made != nil {
		create = hashedrekord.New().CreateProposedEntry
		sum := sha256.Sum256(content)
		of.ArtifactBytes, of.PKIFormat, of.SignatureBytes = nil, string(pki.X509), made
		of.ArtifactHash = "sha256:" + hex.EncodeToString(sum[:])
	}
	proposed, err := create(j.Context(), "", of)
	if err != nil {
		j.Fatal(err)
	}
	text, err := json.Marshal(proposed)
	if err != nil {
		j.Fatal(err)
	}
	entry, _, err := j.enter(text)
	if err != nil {
		j.Fatal(err)
	}
	if !j.replay {
		j.last[made != nil] = cosignbundle.EntryToBundle(&entry)
	}
	return static.WithBundle(j.last[made != nil])
}

// What a log has of a signature counts in both forms: of a key, and of a certificate that has
// ended. Another log does not count, and neither does an entry of another signature.
func TestLog(t *testing.T) {
	for _, tags := range []bool{false, true} {
		f := setup(t)
		ours, log, other := f.authority("ours"), f.journal(), f.journal()
		private, public := f.key("key")
		byKey := signer(private)
		byName := ours.issue(subject, issuer, time.Now().Add(3*time.Second-time.Hour))
		for _, s := range []sign.Signer{byKey, byName} {
			if s.Rekor = log.url; tags {
				f.tagsIn(s, log)
			} else {
				f.sign(s)
			}
		}
		if n := log.written.Load(); !tags && n != 4 {
			t.Errorf("%d entries were written, want 4", n)
		}
		time.Sleep(4 * time.Second) // the certificate has ended
		for _, p := range []sign.Policy{{Keys: []string{public}}, {IgnoreSCT: true,
			Identities: []sign.Identity{{Subject: subject, Issuer: issuer}}}} {
			p.Provenance, p.TrustedRoot = true, log.trustedRoot(ours)
			if v, err := sign.Verify(t.Context(), f.artifact, p); err != nil ||
				v.Provenance == nil {
				t.Errorf("tags %t, %v: %v", tags, p.Keys, err)
			}
			p.TrustedRoot = other.trustedRoot(ours)
			f.refused(p, "not enough verified log entries")
		}
		if tags {
			f.artifact = f.push("second")
			log.replay = true
			f.tagsIn(byKey, log)
			f.refused(sign.Policy{Keys: []string{public}, TrustedRoot: log.trustedRoot(ours)},
				"transparency log signature does not match")
		}
	}
}

// What the log has already of a signature that is attached again is found there, and a log that
// proves nothing is refused.
func TestLogKnows(t *testing.T) {
	f := setup(t, registry.WithReferrersSupport(true))
	log := f.journal()
	private, public := f.key("key")
	s := sign.Signer{Key: private, Rekor: log.url}
	f.sign(s)
	for _, d := range f.referrers() {
		if err := remote.Delete(f.artifact.Context().Digest(d.Digest.String())); err != nil {
			t.Fatal(err)
		}
	}
	f.sign(s)
	if w, n := log.written.Load(), log.found.Load(); w != 4 || n != 2 {
		t.Errorf("%d entries were written and %d found, want 4 and 2", w, n)
	}
	p := sign.Policy{Keys: []string{public}, Provenance: true,
		TrustedRoot: log.trustedRoot(f.authority("any"))}
	if _, err := sign.Verify(t.Context(), f.artifact, p); err != nil {
		t.Error(err)
	}
	log.unproven.Store(true)
	f.artifact = f.push("second")
	session, err := s.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Sign(t.Context(), f.artifact); err == nil ||
		!strings.Contains(err.Error(), "does not prove") {
		t.Errorf("%v, want that the log proves nothing", err)
	}
}

// verifierPEM is what cosign writes into the log beside a signature.
func verifierPEM(t testing.TB, key signature.SignerVerifier, certificate []byte) []byte {
	t.Helper()
	if certificate != nil {
		return certificate
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := cryptoutils.MarshalPublicKeyToPEM(public)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
