package sign_test

import (
	"crypto"
	"encoding/hex"
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
	"github.com/armature-dev/armature/render/sign"
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
		{name: "armature", tags: true, bundles: true},
		{name: "cosign 2, tags", program: "cosign", sign: []string{"--tlog-upload=false"}, attest: []string{"--tlog-upload=false"}, tags: true},
		{name: "cosign 2, bundles", program: "cosign", sign: []string{"--tlog-upload=false", "--new-bundle-format"},
			attest: []string{"--tlog-upload=false", "--new-bundle-format"}, bundles: true},
		{name: "cosign 3, tags", program: "cosign3", sign: append([]string{"--new-bundle-format=false"}, offline3...),
			attest: append([]string{"--new-bundle-format=false"}, offline3...), tags: true},
		{name: "cosign 3, bundles", program: "cosign3", sign: offline3, attest: offline3, bundles: true},
	}
}

// pair is a key pair, as files.
type pair struct{ private, public string }

// acts signs the artifact and attests provenance as a party does.
func (f *fixture) acts(p party, key pair) {
	f.Helper()
	if p.program == "" {
		f.sign(signer(key.private))
		return
	}
	predicate := f.write("provenance.json", []byte(theirProvenance))
	for _, args := range [][]string{
		append([]string{"sign", "--yes", "--key", key.private}, p.sign...),
		append([]string{"attest", "--yes", "--key", key.private, "--type", "slsaprovenance1", "--predicate", predicate}, p.attest...),
	} {
		if out, err := f.peer(p.program, append(args, f.artifact.String())...); err != nil {
			f.Fatalf("%s %v: %v: %s", p.name, args, err, out)
		}
	}
}

// unrelated attaches a bundle with an SBOM, by cosign 3.
func (f *fixture) unrelated(key pair) {
	f.Helper()
	args := []string{"attest", "--yes", "--use-signing-config=false", "--tlog-upload=false", "--key", key.private, "--type", "spdxjson",
		"--predicate", f.write("sbom.json", []byte(theirSBOM)), f.artifact.String()}
	if out, err := f.peer("cosign3", args...); err != nil {
		f.Fatalf("%v: %v: %s", args, err, out)
	}
}

// verifies asks a cosign for the signature and for the provenance.
func (f *fixture) verifies(program, root string, bundles bool, public string) error {
	f.Helper()
	var flags []string
	if program == "cosign" && bundles {
		flags = []string{"--new-bundle-format", "--trusted-root", root}
	}
	for _, command := range [][]string{{"verify"}, {"verify-attestation", "--type", "slsaprovenance1"}} {
		args := append(append(command, "--insecure-ignore-tlog=true", "--key", public), flags...)
		if out, err := f.peer(program, append(args, f.artifact.String())...); err != nil {
			return fmt.Errorf("%s %v: %w: %s", program, args, err, out)
		}
	}
	return nil
}

// TestInterop signs with Armature, cosign 2 and cosign 3 in each form, and verifies
// with each of them, in registries with and without the referrers API, with and
// without an unrelated bundle. Once there is a bundle, cosign 3 ignores what is under
// tags: so what only has tags is refused by it then, and never by Armature.
func TestInterop(t *testing.T) {
	programs.Peer(t, "cosign")
	programs.Peer(t, "cosign3")
	keys := setup(t)
	ours, theirs := pair{}, pair{}
	ours.private, ours.public = keys.key("ours")
	theirs.private, theirs.public = keys.key("theirs")
	root := keys.write("root.json", []byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`))
	for _, referrers := range []bool{false, true} {
		for _, p := range parties() {
			t.Run(fmt.Sprintf("referrers=%t/%s", referrers, p.name), func(t *testing.T) {
				f := setup(t, registry.WithReferrersSupport(referrers))
				f.acts(p, ours)
				for _, unrelated := range []bool{false, true} {
					if unrelated {
						f.unrelated(theirs)
					}
					f.judge(p, ours.public, theirs.public, root, unrelated)
				}
			})
		}
	}
}

// judge compares the verdicts of all verifiers with what they should be.
func (f *fixture) judge(p party, right, wrong, root string, unrelated bool) {
	f.Helper()
	demanding := local(right)
	demanding.Provenance = true
	if v, err := sign.Verify(f.Context(), f.artifact, demanding); err != nil {
		f.Errorf("unrelated %t: armature: %+v %v", unrelated, v, err)
	}
	f.refused(local(wrong), "signature: ")
	if p.tags && !unrelated {
		if err := f.verifies("cosign", root, false, right); err != nil {
			f.Error(err)
		}
		if err := f.verifies("cosign", root, false, wrong); err == nil {
			f.Error("cosign 2 takes another key's tags")
		}
	}
	if p.bundles {
		if err := f.verifies("cosign", root, true, right); err != nil {
			f.Errorf("unrelated %t: %v", unrelated, err)
		}
		f.sigstoreGo(right, true)
		f.sigstoreGo(wrong, unrelated)
	}
	err := f.verifies("cosign3", root, p.bundles, right)
	if blind := unrelated && !p.bundles; (err != nil) != blind {
		f.Errorf("unrelated %t: cosign 3 says %v", unrelated, err)
	}
	if !unrelated {
		if err := f.verifies("cosign3", root, p.bundles, wrong); err == nil {
			f.Error("cosign 3 takes another key")
		}
	}
}

// sigstoreGo verifies the bundles of an artifact with a key, and compares whether it
// finds any.
func (f *fixture) sigstoreGo(public string, want bool) {
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
	material := root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) {
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
	var verified int
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
		if _, err := verifier.Verify(b, verify.NewPolicy(verify.WithArtifactDigest("sha256", digest), verify.WithKey())); err == nil {
			verified++
		}
	}
	if (verified > 0) != want {
		f.Errorf("sigstore-go verifies %d bundles with %s, want any: %t", verified, public, want)
	}
}
