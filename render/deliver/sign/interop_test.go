package sign_test

import (
	"crypto"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// Predicates of other builders, for cosign attest.
const (
	theirProvenance = `{"buildDefinition":{"buildType":"https://example.com/build","externalParameters":{}},"runDetails":{"builder":{"id":"https://example.com"}}}`
	theirSBOM       = `{"spdxVersion":"SPDX-2.3","SPDXID":"SPDXRef-DOCUMENT","name":"image"}`
)

// party is one of those who sign: Armature, or a cosign in one of its forms.
type party struct {
	name string
	// program is "" for Armature; sign and attest are the flags of its form.
	program      string
	sign, attest []string
	// tags and bundles are the forms that it writes.
	tags, bundles bool
}

func parties() []party {
	offline3 := []string{"--use-signing-config=false", "--tlog-upload=false"}
	return []party{
		{name: "armature", bundles: true},
		{name: "cosign 2, tags", program: "cosign", sign: []string{"--tlog-upload=false"},
			attest: []string{"--tlog-upload=false"}, tags: true},
		{name: "cosign 2, bundles", program: "cosign",
			sign:   []string{"--tlog-upload=false", "--new-bundle-format"},
			attest: []string{"--tlog-upload=false", "--new-bundle-format"}, bundles: true},
		{name: "cosign 3, tags", program: "cosign3",
			sign:   append([]string{"--new-bundle-format=false"}, offline3...),
			attest: append([]string{"--new-bundle-format=false"}, offline3...), tags: true},
		{name: "cosign 3, bundles", program: "cosign3", sign: offline3, attest: offline3,
			bundles: true},
	}
}

// pair is a key pair, as files.
type pair struct{ private, public string }

// acts signs the artifact, and attests provenance and a bill of materials, as a party does.
func (f *fixture) acts(p party, key pair) {
	f.Helper()
	if p.program == "" {
		f.sign(signer(key.private))
		session, err := signer(key.private).Open(f.Context())
		if err == nil {
			_, err = session.Attest(f.Context(), f.artifact, sbomType, json.RawMessage(theirSBOM))
		}
		if err != nil {
			f.Fatal(err)
		}
		return
	}
	attest := func(kind, predicate string) []string {
		return append([]string{"attest", "--yes", "--key", key.private, "--type", kind,
			"--predicate", f.write(kind+".json", []byte(predicate))}, p.attest...)
	}
	for _, args := range [][]string{
		append([]string{"sign", "--yes", "--key", key.private}, p.sign...),
		attest("slsaprovenance1", theirProvenance), attest("spdxjson", theirSBOM),
	} {
		if out, err := f.peer(p.program, append(args, f.artifact.String())...); err != nil {
			f.Fatalf("%s %v: %v: %s", p.name, args, err, out)
		}
	}
}

// unrelated attaches a bundle with an SBOM, by cosign 3.
func (f *fixture) unrelated(key pair) {
	f.Helper()
	args := []string{"attest", "--yes", "--use-signing-config=false", "--tlog-upload=false",
		"--key", key.private, "--type", "spdxjson", "--predicate",
		f.write("sbom.json", []byte(theirSBOM)), f.artifact.String()}
	if out, err := f.peer("cosign3", args...); err != nil {
		f.Fatalf("%v: %v: %s", args, err, out)
	}
}

// thing is what a verifier looks for.
type thing int

const (
	theSignature thing = iota
	theProvenance
	theSBOM
)

// things are all, by the type of their statement.
var things = []string{"https://sigstore.dev/cosign/sign/v1", sign.PredicateType, sbomType}

// verifier is one of those who read: it asks whether a key has attached a thing to the artifact.
type verifier struct {
	name string
	ask  func(f *fixture, what thing, public string) error
	// reads reports whether it finds what a party signed, with and without an unrelated bundle.
	reads func(p party, unrelated bool) bool
	// program is one that has to be started for each question.
	program bool
}

func verifiers(root string) []verifier {
	cosign := func(program string, flags ...string) func(*fixture, thing, string) error {
		return func(f *fixture, what thing, public string) error {
			command := [][]string{{"verify"}, {"verify-attestation", "--type", "slsaprovenance1"},
				{"verify-attestation", "--type", "spdxjson"}}[what]
			args := append(append(append(command, "--insecure-ignore-tlog=true", "--key", public),
				flags...), f.artifact.String())
			if out, err := f.peer(program, args...); err != nil {
				return fmt.Errorf("%s %v: %w: %s", program, args, err, out)
			}
			return nil
		}
	}
	bundles := func(p party, _ bool) bool { return p.bundles }
	return []verifier{
		{"armature", (*fixture).armature, func(party, bool) bool { return true }, false},
		{"sigstore-go", (*fixture).sigstoreGo, bundles, false},
		{"cosign 2", cosign("cosign"), func(p party, unrelated bool) bool { return p.tags }, true},
		{"cosign 2, bundles", cosign("cosign", "--new-bundle-format", "--trusted-root", root),
			bundles, true},
		// Once there is a bundle, it ignores what is under tags.
		{"cosign 3", cosign("cosign3"),
			func(p party, unrelated bool) bool { return p.bundles || !unrelated }, true},
	}
}

// armature asks our own verifier, which looks for a signature first.
func (f *fixture) armature(what thing, public string) error {
	p := local(public)
	p.Provenance = what == theProvenance
	if what == theSBOM {
		p.Builds = &sign.Builds{SBOM: true,
			Builders: []sign.TrustedBuilder{{ID: "https://example.com"},
				{ID: provenance.RunDetails.Builder.ID}}}
	}
	_, err := sign.Verify(f.Context(), f.artifact, p)
	return err
}

// TestInterop signs with Armature, cosign 2 and cosign 3 in each form, and verifies with each
// of them and with sigstore-go: signature, provenance and bill of materials, in registries
// with and without the referrers API, with and without an unrelated bundle, by the right
// and by another key. It prints the matrix.
func TestInterop(t *testing.T) {
	programs.Peer(t, "cosign")
	programs.Peer(t, "cosign3")
	keys := setup(t)
	ours, theirs := pair{}, pair{}
	ours.private, ours.public = keys.locked("ours")
	theirs.private, theirs.public = keys.locked("theirs")
	all := verifiers(keys.write("root.json",
		[]byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`)))
	matrix := []string{"each cell: signature, provenance, SBOM by the right key / by another " +
		"one; y accepted, n refused, . not asked", "",
		fmt.Sprintf("%-20s %-10s %-10s", "signed by", "referrers", "unrelated")}
	for _, v := range all {
		matrix[2] += fmt.Sprintf(" %-18s", v.name)
	}
	for _, referrers := range []bool{false, true} {
		for _, p := range parties() {
			t.Run(fmt.Sprintf("referrers=%t/%s", referrers, p.name), func(t *testing.T) {
				f := setup(t, registry.WithReferrersSupport(referrers))
				f.acts(p, ours)
				for _, unrelated := range []bool{false, true} {
					if unrelated {
						f.unrelated(theirs)
					}
					matrix = append(matrix,
						fmt.Sprintf("%-20s %-10t %-10t", p.name, referrers, unrelated)+
							f.judge(all, p, ours.public, theirs.public, unrelated))
				}
			})
		}
	}
	t.Log("\n" + strings.Join(matrix, "\n"))
}

// judge compares the verdicts of all verifiers with the expected ones, and returns them as a line
// of the matrix.
func (f *fixture) judge(all []verifier, p party, right, wrong string,
	unrelated bool) (line string) {
	f.Helper()
	for _, v := range all {
		cell, reads := "", v.reads(p, unrelated)
		ask := func(what thing, key string, want bool) {
			err := v.ask(f, what, key)
			if (err == nil) != want {
				f.Errorf("unrelated %t: %s, %s, with %s: %v, want it accepted: %t", unrelated,
					v.name, things[what], key, err, want)
			}
			cell += map[bool]string{true: "y", false: "n"}[err == nil]
		}
		skip := func() { cell += "." }
		for what := range thing(len(things)) {
			// A program that has another form to look for is not started for it.
			if v.program && (!reads && what != theSignature || unrelated && what == theSBOM) {
				skip()
				continue
			}
			ask(what, right, reads)
		}
		cell += "/"
		for what := range thing(len(things)) {
			if v.program && (!reads || unrelated || what == theProvenance) {
				skip()
				continue
			}
			// The other key has attested the unrelated SBOM, and has signed nothing.
			ask(what, wrong, unrelated && what == theSBOM && v.name == "sigstore-go")
		}
		line += fmt.Sprintf(" %-18s", cell)
	}
	return line
}

// With a trusted root from a file cosign and we verify certificates of a private authority
// offline: of the identity, and of that authority alone.
func TestInteropTrustedRoot(t *testing.T) {
	programs.Peer(t, "cosign")
	programs.Peer(t, "cosign3")
	f := setup(t)
	ours, theirs := f.authority("ours"), f.authority("theirs")
	f.sign(ours.issue(subject, issuer, time.Now().Add(-time.Minute)))
	asks := map[string]func(root, who string) error{
		"armature": func(root, who string) error {
			p := identity("")
			p.TrustedRoot, p.Identities[0].Subject = root, who
			_, err := sign.Verify(t.Context(), f.artifact, p)
			return err
		},
	}
	for _, program := range []string{"cosign", "cosign3"} {
		asks[program] = func(root, who string) error {
			args := []string{"verify", "--new-bundle-format", "--trusted-root", root,
				"--insecure-ignore-tlog=true", "--insecure-ignore-sct=true",
				"--use-signed-timestamps=false", "--certificate-identity", who,
				"--certificate-oidc-issuer", issuer, f.artifact.String()}
			if out, err := f.peer(program, args...); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
	}
	for name, ask := range asks {
		if err := ask(f.trustedRoot(ours), subject); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := ask(f.trustedRoot(ours), "somebody@example.com"); err == nil {
			t.Errorf("%s accepts another identity", name)
		}
		if err := ask(f.trustedRoot(theirs), subject); err == nil {
			t.Errorf("%s accepts another authority", name)
		}
	}
}

// What is attached to one artifact and copied to another is refused by every verifier, and so
// is a statement of another type.
func TestInteropRefuses(t *testing.T) {
	programs.Peer(t, "cosign")
	programs.Peer(t, "cosign3")
	for _, referrers := range []bool{false, true} {
		t.Run(fmt.Sprintf("referrers=%t", referrers), func(t *testing.T) {
			f := setup(t, registry.WithReferrersSupport(referrers))
			key := pair{}
			key.private, key.public = f.locked("ours")
			f.acts(parties()[0], key)
			if out, err := f.peer("cosign3", "verify-attestation", "--type", "cyclonedx",
				"--insecure-ignore-tlog=true", "--key", key.public,
				f.artifact.String()); err == nil {
				t.Errorf("cosign 3 takes a statement of another type: %s", out)
			}
			signed := f.artifact
			f.artifact = f.push("another")
			f.steal(signed)
			for _, v := range verifiers(f.write("root.json",
				[]byte(
					`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`))) {
				for what := range thing(len(things)) {
					if err := v.ask(f, what, key.public); err == nil {
						t.Errorf("%s accepts %s of another artifact", v.name, things[what])
					}
				}
			}
		})
	}
}

// sigstoreGo looks among the bundles of an artifact for a statement that a key has signed,
// with sigstore-go's verifier.
func (f *fixture) sigstoreGo(what thing, public string) error {
	f.Helper()
	text, err := os.ReadFile(public)
	if err != nil {
		f.Fatal(err)
	}
	key, err := cryptoutils.UnmarshalPEMToPublicKey(text)
	if err != nil {
		f.Fatal(err)
	}
	v, err := signature.LoadVerifier(key, crypto.SHA256)
	if err != nil {
		f.Fatal(err)
	}
	material := root.NewTrustedPublicKeyMaterial(
		func(string) (root.TimeConstrainedVerifier, error) {
			return root.NewExpiringKey(v, time.Time{}, time.Time{}), nil
		})
	verifier, err := verify.NewVerifier(material, verify.WithNoObserverTimestamps())
	if err != nil {
		f.Fatal(err)
	}
	digest, err := hex.DecodeString(strings.TrimPrefix(f.artifact.DigestStr(), "sha256:"))
	if err != nil {
		f.Fatal(err)
	}
	var reasons []error
	for _, d := range f.referrers() {
		image, err := remote.Image(f.artifact.Context().Digest(d.Digest.String()))
		if err != nil {
			f.Fatal(err)
		}
		layers, err := image.Layers()
		if err != nil || len(layers) != 1 {
			f.Fatalf("%d layers, %v", len(layers), err)
		}
		r, err := layers[0].Compressed()
		if err != nil {
			f.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			f.Fatal(err)
		}
		b := &bundle.Bundle{}
		if err := b.UnmarshalJSON(content); err != nil {
			f.Errorf("sigstore-go does not read %s: %v", content, err)
			continue
		}
		result, err := verifier.Verify(b,
			verify.NewPolicy(verify.WithArtifactDigest("sha256", digest), verify.WithKey()))
		if err == nil && result.Statement.GetPredicateType() == things[what] {
			return nil
		}
		reasons = append(reasons, err)
	}
	return fmt.Errorf("no bundle has %s: %w", things[what], multi.Errors(reasons...))
}
