package controller_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest/attesttest"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// otherDigest is of an image that nobody built.
const otherDigest = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

// reportSBOM makes the step sbom report a digest.
func (e *ended) reportSBOM(digest string) { e.reportSBOMOf("", digest) }

// reportSBOMOf does so for a platform, such as -linux-arm64, of several.
func (e *ended) reportSBOMOf(platform, digest string) {
	results := e.taskRuns["sbom"+platform].Status.Results
	for i := range results {
		if r := &results[i]; r.Name == "SBOM_DIGEST" {
			r.Value = *tektonv1.NewStructuredValues(digest)
		}
	}
}

// A bill of materials that is not what the run's step wrote of the run's image is refused
// for good, and nothing is signed.
func TestInvalidSBOMIsNotAttested(t *testing.T) {
	kept := func(document []byte) func(*world, *shop, *ended) {
		return func(w *world, s *shop, e *ended) {
			s.keep(w, "weather:v1", document)
			e.reportSBOM(attesttest.DigestOf(document))
		}
	}
	large := bytes.Replace(attesttest.SBOM(otherDigest), []byte(`"name":"weather"`),
		[]byte(`"name":"`+strings.Repeat("x", 8<<20)+`"`), 1)
	for what, attack := range map[string]struct {
		edit   func(*world, *shop, *ended)
		reason string
		says   string
	}{
		"another type": {kept([]byte(`{"buildDefinition":{},"runDetails":{}}`)),
			api.ReasonSBOMInvalid, "neither SPDX 2 nor CycloneDX"},
		"no JSON": {kept([]byte("SPDXVersion: SPDX-2.3")), api.ReasonSBOMInvalid,
			"not a document"},
		"another image": {kept(attesttest.SBOM(otherDigest)), api.ReasonSBOMInvalid,
			"describes the image " + otherDigest},
		"too large": {kept(large), api.ReasonSBOMInvalid, "more than 8 MiB"},
		"a digest that is nowhere": {func(_ *world, _ *shop, e *ended) {
			e.reportSBOM(otherDigest)
		}, api.ReasonSBOMInvalid, "does not have"},
		"a digest with words": {func(_ *world, _ *shop, e *ended) {
			e.reportSBOM("sbom.spdx.json")
		}, api.ReasonResultInvalid, "SBOM_DIGEST is not a digest"},
	} {
		t.Run(what, func(t *testing.T) {
			w, s := newWorld(t), newShop(t, true)
			w.start()
			w.create("weather", s.sold)
			run := w.run(1)
			digest := s.push(t, "weather:v1")
			w.play(run, digest, func(e *ended) { attack.edit(w, s, e) })
			b := w.phase("weather", api.PhaseFailed)
			if c := condition(b, api.ConditionAttested); c.Status != metav1.ConditionFalse ||
				c.Reason != attack.reason || !strings.Contains(c.Message, attack.says) ||
				!strings.Contains(c.Message, "hint: ") {
				t.Errorf("condition %+v", c)
			}
			if b.Status.BuiltImage != "" || b.Status.Attestation != nil {
				t.Errorf("status %+v", b.Status)
			}
			s.nothing(t, "weather", digest)
		})
	}
}

// A registry that sends a gibibyte for a bill of materials is not listened to for long.
func TestEndlessSBOM(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	var sent atomic.Int64
	s.instead = func(answer http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/blobs/"+otherDigest) {
			return false
		}
		answer.Header().Set("Content-Length", "1073741824")
		n, _ := io.Copy(answer, io.LimitReader(zeros{}, 1<<30)) // it ends with the connection
		sent.Add(n)
		return true
	}
	w.start()
	w.create("weather", s.sold)
	run := w.run(1)
	digest := s.push(t, "weather:v1")
	w.play(run, digest, func(e *ended) { e.reportSBOM(otherDigest) })
	b := w.phase("weather", api.PhaseFailed)
	if c := condition(b, api.ConditionAttested); c.Reason != api.ReasonSBOMInvalid {
		t.Errorf("condition %+v", c)
	}
	w.eventually("the registry stops sending", func() string {
		if n := sent.Load(); n == 0 {
			return "it sends"
		}
		return ""
	})
	if n := sent.Load(); n > 256<<20 { // with what is in buffers
		t.Errorf("%d bytes were sent", n)
	}
	s.nothing(t, "weather", digest)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A tenant that replaces what refers to the image, under the tag of a registry without
// referrers, changes nothing: the bill of materials is read by the digest that its step
// reported.
func TestReplacedSBOMTag(t *testing.T) {
	w, s := newWorld(t), newShop(t, false)
	w.start()
	w.create("weather", s.sold)
	run := w.run(1)
	digest := s.push(t, "weather:v1")
	tag := "weather:" + strings.Replace(digest, ":", "-", 1)
	document := bytes.Replace(attesttest.SBOM(digest), []byte("69.0.0"), []byte("70.0.0"), 1)
	artifact, err := mutate.AppendLayers(empty.Image,
		static.NewLayer(document, "application/spdx+json"))
	w.must(err)
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: artifact,
		Descriptor: v1.Descriptor{ArtifactType: "application/spdx+json"}})
	w.must(remote.WriteIndex(s.ref(t, tag), index, s.options()...))
	w.play(run, digest)
	b := w.phase("weather", api.PhaseSucceeded)
	if want := attesttest.DigestOf(attesttest.SBOM(digest)); b.Status.Attestation.SBOMDigest != want {
		t.Errorf("SBOM %s, want %s", b.Status.Attestation.SBOMDigest, want)
	}
	if diff := cmp.Diff([]string{string(attesttest.SBOM(digest))},
		s.attested(t, "weather", digest, sign.SPDXType)); diff != "" {
		t.Error(diff)
	}
}

// The bill of materials of one platform of an image is attested of this platform, and not
// of the whole.
func TestSBOMOfOnePlatform(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	w.start()
	w.create("weather", s.sold)
	run := w.run(1)
	index, err := random.Index(64, 1, 2)
	w.must(err)
	w.must(remote.WriteIndex(s.ref(t, "weather:v1"), index, s.options()...))
	whole, err := index.Digest()
	w.must(err)
	manifest, err := index.IndexManifest()
	w.must(err)
	part := manifest.Manifests[1].Digest.String()
	document := attesttest.SBOM(part)
	s.keep(t, "weather:v1", document)
	w.play(run, whole.String(), func(e *ended) { e.reportSBOM(attesttest.DigestOf(document)) })
	b := w.phase("weather", api.PhaseSucceeded)
	a := b.Status.Attestation
	if at := s.attachment(t,
		strings.TrimPrefix(a.SBOM,
			s.host+"/")); at != (attached{sign.SPDXType, string(document)}) || a.Provenance == a.SBOM {
		t.Errorf("attestation %+v, its SBOM %v", a, at)
	}
	if diff := cmp.Diff([]string{string(document)},
		s.attested(t, "weather", part, sign.SPDXType)); diff != "" {
		t.Error(diff)
	}
	if of := s.attested(t, "weather", whole.String(), sign.SPDXType); len(of) != 0 {
		t.Errorf("the whole image has the SBOM %s", of)
	}
	if bundles := s.statements(t, "weather", whole.String()); bundles[sign.PredicateType] != 1 {
		t.Errorf("bundles %v", bundles)
	}
}

// A platform's template without a step that reports a bill of materials is attested
// without one, and a policy that demands one refuses its image.
func TestAttestedWithoutSBOM(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	shipped, bare := &corev1.ConfigMap{}, &corev1.ConfigMap{}
	w.must(w.Get(t.Context(),
		client.ObjectKey{Namespace: systemNamespace, Name: "pipeline-template-prod"}, shipped))
	mode := "bare-" + w.namespace
	text := shipped.Data["template.yaml"]
	from, to := strings.Index(text, "  - name: sbom\n"), strings.Index(text,
		"  - name: vulnerability-scan\n")
	if from < 0 || to < from {
		t.Fatal(text)
	}
	bare.Namespace, bare.Name, bare.Data = systemNamespace, "pipeline-template-"+mode,
		map[string]string{"template.yaml": text[:from] + text[to:]}
	w.must(w.Client.Create(t.Context(), bare))
	w.start()
	w.create("weather", s.sold, func(b *api.AgentBuild) { b.Spec.Mode = mode })
	run := w.run(1)
	digest := s.push(t, "weather:v1")
	w.play(run, digest)
	b := w.phase("weather", api.PhaseSucceeded)
	if a := b.Status.Attestation; a.SBOM != "" || a.SBOMDigest != "" ||
		strings.Contains(condition(b, api.ConditionAttested).Message, "SBOM") {
		t.Errorf("attestation %+v, conditions %+v", a, b.Status.Conditions)
	}
	policy := s.policy(t, b.Status.Attestation.BuilderID)
	artifact := s.ref(t, "weather@"+digest).(name.Digest)
	if _, err := sign.Verify(t.Context(), artifact, policy); err == nil ||
		!strings.Contains(err.Error(), "bill of materials") {
		t.Errorf("it is refused with %v", err)
	}
	policy.Builds.SBOM = false
	if _, err := sign.Verify(t.Context(), artifact, policy); err != nil {
		t.Error(err)
	}
}
