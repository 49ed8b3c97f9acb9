package controller_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest/attesttest"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// soldForTwo makes a build of mode prod for two platforms.
func (s *shop) soldForTwo(b *api.AgentBuild) {
	s.sold(b)
	b.Spec.Builder, b.Spec.Platforms, b.Spec.PlatformNodes =
		"buildkit", []string{"linux/amd64", "linux/arm64"}, api.PlatformNodesAny
}

// pushIndex pushes an image for platforms, with a bill of materials of each, and returns its digest
// and those of its images.
func (s *shop) pushIndex(t testing.TB, tag string,
	platforms ...string) (whole string, parts []string) {
	t.Helper()
	index := v1.ImageIndex(empty.Index)
	for _, platform := range platforms {
		img, err := random.Image(64, 1)
		if err != nil {
			t.Fatal(err)
		}
		of, err := v1.ParsePlatform(platform)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		index = mutate.AppendManifests(index,
			mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: of}})
		s.keep(t, tag, attesttest.SBOM(digest.String()))
		parts = append(parts, digest.String())
	}
	if err := remote.WriteIndex(s.ref(t, tag), index, s.options()...); err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.String(), parts
}

// The index of two platforms is signed, and so is each image, which has a bill of materials of its
// own; all have the provenance. Policies and cosign accept the index and each image by digest.
func TestAttestedPlatforms(t *testing.T) {
	for what, referrers := range map[string]bool{"referrers": true, "no referrers": false} {
		t.Run(what, func(t *testing.T) {
			w, s := newWorld(t), newShop(t, referrers)
			w.start()
			w.create("weather", s.soldForTwo)
			run := w.run(1)
			whole, parts := s.pushIndex(t, "weather:v1", "linux/amd64", "linux/arm64")
			w.playParts(run, whole, parts)
			b := w.phase("weather", api.PhaseSucceeded)
			if want := s.host + "/weather:v1@" + whole; b.Status.BuiltImage != want {
				t.Errorf("builtImage %s, want %s", b.Status.BuiltImage, want)
			}
			if diff := cmp.Diff([]api.PlatformStatus{{Platform: "linux/amd64", Digest: parts[0]},
				{Platform: "linux/arm64", Digest: parts[1]}}, b.Status.Platforms); diff != "" {
				t.Error(diff)
			}
			a := b.Status.Attestation
			if diff := cmp.Diff([]api.PlatformAttestation{
				{Platform: "linux/amd64", Digest: parts[0],
					SBOMDigest: attesttest.DigestOf(attesttest.SBOM(parts[0]))},
				{Platform: "linux/arm64", Digest: parts[1],
					SBOMDigest: attesttest.DigestOf(attesttest.SBOM(parts[1]))},
			}, a.Platforms); diff != "" || a.SBOM != "" {
				t.Errorf("attestation %+v: %s", a, diff)
			}
			if c := condition(b, api.ConditionAttested); c.Status != metav1.ConditionTrue ||
				!strings.Contains(c.Message, "the images of 2 platforms, their SBOMs") {
				t.Errorf("condition %+v", c)
			}
			bundles := s.statements(t, "weather", whole)
			if len(bundles) != 3 || bundles[sign.PredicateType] != 1 ||
				bundles[sign.TestResultType] != 1 {
				t.Errorf("the index has bundles %v", bundles)
			}
			provenance := s.attested(t, "weather", whole, sign.PredicateType)
			for _, part := range parts {
				s.once(t, "weather", part)
				if diff := cmp.Diff(provenance,
					s.attested(t, "weather", part, sign.PredicateType)); diff != "" {
					t.Errorf("the provenance of %s is another: %s", part, diff)
				}
			}
			for _, digest := range append(slices.Clone(parts), whole) {
				if _, err := sign.Verify(t.Context(), s.ref(t, "weather@"+digest).(name.Digest),
					s.policy(t, a.BuilderID)); err != nil {
					t.Errorf("%s: %v", digest, err)
				}
			}
			for _, program := range []string{"cosign", "cosign3"} {
				s.cosign(t, program, parts, whole)
			}
		})
	}
}

// cosign verifies an index and its images.
func (s *shop) cosign(t *testing.T, program string, parts []string, whole string) {
	t.Helper()
	file, err := programs.Find(program)
	if err != nil {
		t.Logf("not confirmed by %s: %v", program, err)
		return
	}
	var bundles []string // the flags by which cosign 2 reads them
	key := filepath.Join(t.TempDir(), "cosign.pub")
	if err := os.WriteFile(key, attestKey.pair().PublicBytes, 0o600); err != nil {
		t.Fatal(err)
	}
	if program == "cosign" {
		root := filepath.Join(t.TempDir(), "root.json")
		if err := os.WriteFile(root,
			[]byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`),
			0o600); err != nil {
			t.Fatal(err)
		}
		bundles = []string{"--new-bundle-format", "--trusted-root", root}
	}
	verify := func(digest string, args ...string) {
		args = append(append(args, bundles...), "--insecure-ignore-tlog=true",
			"--allow-http-registry", "--key", key, s.host+"/weather@"+digest)
		if out, err := exec.CommandContext(t.Context(), file, args...).CombinedOutput(); err != nil {
			t.Errorf("%s %v: %v\n%s", program, args, err, out)
		}
	}
	for _, digest := range append(slices.Clone(parts), whole) {
		verify(digest, "verify")
		verify(digest, "verify-attestation", "--type", "slsaprovenance1")
	}
	for _, part := range parts {
		verify(part, "verify-attestation", "--type", "spdxjson")
	}
}

// What does not fit together of an image for two platforms is refused for good, and
// neither the index nor an image is signed.
func TestForgedPlatformsAreNotAttested(t *testing.T) {
	report := func(e *ended, task, name, before, after string) {
		tr := e.taskRuns[task]
		for i := range tr.Status.Results {
			if r := &tr.Status.Results[i]; r.Name == name {
				r.Value = *tektonv1.NewStructuredValues(strings.ReplaceAll(r.Value.StringVal,
					before, after))
			}
		}
		for i := range e.run.Status.Results {
			if r := &e.run.Status.Results[i]; r.Name == name {
				r.Value = *tektonv1.NewStructuredValues(strings.ReplaceAll(r.Value.StringVal,
					before, after))
			}
		}
	}
	two := []string{"linux/amd64", "linux/arm64"}
	for what, attack := range map[string]struct {
		pushed []string
		edit   func(w *world, s *shop, e *ended, parts []string)
		reason string
	}{
		"another digest than the index lists": {two,
			func(_ *world, _ *shop, e *ended, parts []string) {
				report(e, "push", "PLATFORM_DIGESTS", parts[1], otherDigest)
			}, api.ReasonImageMismatch},
		"an index of another platform": {[]string{"linux/amd64", "linux/s390x"}, nil,
			api.ReasonImageMismatch},
		"an index in another order": {[]string{"linux/arm64", "linux/amd64"}, nil,
			api.ReasonImageMismatch},
		"an index with one more": {append(slices.Clone(two), "linux/s390x"), nil,
			api.ReasonImageMismatch},
		"the SBOM of the other platform": {two, func(_ *world, _ *shop, e *ended, parts []string) {
			e.reportSBOMOf("-linux-arm64", attesttest.DigestOf(attesttest.SBOM(parts[0])))
		}, api.ReasonSBOMInvalid},
		"an SBOM of the index": {two, func(w *world, s *shop, e *ended, parts []string) {
			index, err := remote.Get(s.ref(w, "weather:v1"), s.options()...)
			w.must(err)
			document := attesttest.SBOM(index.Digest.String())
			s.keep(w, "weather:v1", document)
			e.reportSBOMOf("-linux-arm64", attesttest.DigestOf(document))
		}, api.ReasonSBOMInvalid},
		"one image under the tag": {two, func(w *world, s *shop, _ *ended, _ []string) {
			s.push(w, "weather:v1")
		}, api.ReasonImageMismatch},
	} {
		t.Run(what, func(t *testing.T) {
			w, s := newWorld(t), newShop(t, true)
			w.start()
			w.create("weather", s.soldForTwo)
			run := w.run(1)
			whole, parts := s.pushIndex(t, "weather:v1", attack.pushed...)
			w.playParts(run, whole, parts, func(e *ended) {
				if attack.edit != nil {
					attack.edit(w, s, e, parts)
				}
			})
			b := w.phase("weather", api.PhaseFailed)
			if c := condition(b, api.ConditionAttested); c.Status != metav1.ConditionFalse ||
				c.Reason != attack.reason {
				t.Errorf("condition %+v", c)
			}
			if b.Status.BuiltImage != "" || b.Status.Attestation != nil ||
				len(b.Status.Platforms) > 0 {
				t.Errorf("status %+v", b.Status)
			}
			for _, digest := range append(slices.Clone(parts), whole) {
				s.nothing(t, "weather", digest)
			}
		})
	}
}

// A policy that demands an SBOM of an index demands one of each image.
func TestPolicyOfPlatforms(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	w.start()
	w.create("weather", s.soldForTwo)
	run := w.run(1)
	whole, parts := s.pushIndex(t, "weather:v1", "linux/amd64", "linux/arm64")
	w.playParts(run, whole, parts)
	b := w.phase("weather", api.PhaseSucceeded)
	policy := s.policy(t, b.Status.Attestation.BuilderID)
	artifact := s.ref(t, "weather@"+whole).(name.Digest)
	verified, err := sign.Verify(t.Context(), artifact, policy)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(verified.Attestations); n != 3 { // the provenance, and two SBOMs
		t.Errorf("it rests on %+v", verified.Attestations)
	}
	// What is attached to one of them is gone.
	index, err := remote.Referrers(s.ref(t, "weather@"+parts[1]).(name.Digest), s.options()...)
	w.must(err)
	manifest, err := index.IndexManifest()
	w.must(err)
	for _, d := range manifest.Manifests {
		w.must(remote.Delete(s.ref(t, "weather@"+d.Digest.String()), s.options()...))
	}
	if _, err := sign.Verify(t.Context(), artifact, policy); err == nil ||
		!strings.Contains(err.Error(), "bill of materials") ||
		!strings.Contains(err.Error(), parts[1]) {
		t.Errorf("it is refused with %v", err)
	}
	policy.Builds.SBOM = false
	if _, err := sign.Verify(t.Context(), artifact, policy); err != nil {
		t.Error(err)
	}
}
