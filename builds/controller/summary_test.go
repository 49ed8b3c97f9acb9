package controller_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// summaryPolicy is the platform's policy as a ConfigMap, whose name is the namespace's.
func (w *world) summaryPolicy(builder string) *corev1.ConfigMap {
	w.options.Attest.SummaryPolicy = "images-" + w.namespace
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace,
		Name: w.options.Attest.SummaryPolicy}, Data: map[string]string{
		"cosign.pub": string(attestKey.pair().PublicBytes),
		"policy.yaml": `apiVersion: armature.dev/v1alpha1
kind: VerifyPolicy
metadata: {name: production}
spec:
  keys: [cosign.pub]
  insecureIgnoreTlog: true
  builds:
    builders: [{id: "` + builder + `", level: 3}]
    minimumLevel: 3
    sources: [{repository: "https://github.com/org/weather"}]
    sbom: true
`}}
}

const prodBuilder = "https://armature.dev/builders/prod"

// An image that the platform's policy accepts has one verification summary,
// however often it is tried and however many controllers do: it names the policy, what it
// rests on and the level, and is signed by the controller's key.
func TestSummary(t *testing.T) {
	for what, referrers := range map[string]bool{"referrers": true, "no referrers": false} {
		t.Run(what, func(t *testing.T) {
			w, s := newWorld(t), newShop(t, referrers)
			s.slow, s.busy = 10*time.Millisecond, 10
			policy := w.summaryPolicy(prodBuilder)
			w.must(w.Client.Create(t.Context(), policy))
			stop := w.start()
			w.create("weather", s.sold)
			run := w.run(1)
			stop()
			digest := s.push(t, "weather:v1")
			w.play(run, digest)
			w.start()
			w.start()
			b := w.phase("weather", api.PhaseSucceeded)
			want := api.PolicyVerdict{Policy: systemNamespace + "/" + policy.Name,
				PolicyDigest: "sha256:" + sum(policy.Data["policy.yaml"])}
			v := b.Status.Attestation.Policy
			if v == nil || v.Policy != want.Policy || v.PolicyDigest != want.PolicyDigest ||
				v.Refusal != "" {
				t.Fatalf("verdict %+v, want %+v", v, want)
			}
			if at := s.attachment(t, strings.TrimPrefix(v.Summary, s.host+"/")); at.kind !=
				sign.SummaryType {
				t.Errorf("the summary %s is of type %s", v.Summary, at.kind)
			}
			if c := condition(b, api.ConditionAttested); c.Status != metav1.ConditionTrue ||
				!strings.Contains(c.Message, want.Policy+" accepts the image") {
				t.Errorf("condition %+v", c)
			}
			// The other controller may still write, over a tag that it has read before.
			count := func(as func(n, one int) bool) string {
				summaries := len(s.attested(t, "weather", digest, sign.SummaryType))
				bundles := s.statements(t, "weather", digest)
				if !as(summaries, 1) || !as(bundles[sign.SummaryType], 1) ||
					!as(bundles[sign.PredicateType], 1) {
					return fmt.Sprintf("%d summaries, bundles %v", summaries, bundles)
				}
				return ""
			}
			once := func() string { return count(func(n, one int) bool { return n == one }) }
			w.eventually("one summary", once)
			w.never("a second summary",
				func() string { return count(func(n, one int) bool { return n <= one }) })
			w.eventually("one summary", once)
			s.checkSummary(t, digest, want.PolicyDigest)
		})
	}
}

// checkSummary compares what a summary says with what the registry has.
func (s *shop) checkSummary(t *testing.T, digest, policy string) {
	t.Helper()
	var got sign.Summary
	if err := json.Unmarshal([]byte(s.attested(t, "weather", digest, sign.SummaryType)[0]),
		&got); err != nil {
		t.Fatal(err)
	}
	if got.Verifier.ID != "https://armature.dev/armature" ||
		got.ResourceURI != s.host+"/weather@"+digest || got.VerificationResult != "PASSED" ||
		len(got.VerifiedLevels) != 1 || got.VerifiedLevels[0] != "SLSA_BUILD_LEVEL_3" ||
		got.Policy.URI != "urn:armature:verify-policy:production" ||
		"sha256:"+got.Policy.Digest["sha256"] != policy {
		t.Errorf("summary %+v", got)
	}
	if len(got.InputAttestations) != 2 { // provenance and SBOM
		t.Fatalf("it rests on %+v", got.InputAttestations)
	}
	for i, want := range []string{sign.PredicateType, sign.SPDXType} {
		input := got.InputAttestations[i]
		at, err := name.NewDigest(input.URI)
		if err != nil || at.DigestStr() != "sha256:"+input.Digest["sha256"] {
			t.Fatalf("input %+v: %v", input, err)
		}
		if kind := s.attachment(t, "weather@"+at.DigestStr()).kind; kind != want {
			t.Errorf("input %d is of type %s, want %s", i, kind, want)
		}
	}
}

// An image that the policy refuses is attested and has no summary; status says why.
func TestRefusedSummary(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	w.must(w.Client.Create(t.Context(), w.summaryPolicy("https://armature.dev/builders/other")))
	w.start()
	w.create("weather", s.sold)
	run := w.run(1)
	digest := s.push(t, "weather:v1")
	w.play(run, digest)
	b := w.phase("weather", api.PhaseSucceeded)
	v := b.Status.Attestation.Policy
	if v == nil || v.Summary != "" ||
		!strings.Contains(v.Refusal, `the builder "`+prodBuilder+`" is none of the policy's`) {
		t.Fatalf("verdict %+v", v)
	}
	if c := condition(b, api.ConditionAttested); c.Status != metav1.ConditionTrue ||
		!strings.Contains(c.Message, "refuses the image: ") {
		t.Errorf("condition %+v", c)
	}
	s.once(t, "weather", digest)
}

// A policy that is missing, or that cannot be used, keeps the image from being signed at
// all until the platform writes one that can.
func TestUnusableSummaryPolicy(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	good := w.summaryPolicy(prodBuilder)
	w.start()
	w.create("weather", s.sold)
	run := w.run(1)
	digest := s.push(t, "weather:v1")
	w.play(run, digest)
	waits := func(why string) {
		t.Helper()
		w.eventually("the build waits for the policy: "+why, func() string {
			c := condition(w.build("weather"), api.ConditionAttested)
			if c.Status != metav1.ConditionUnknown || c.Reason != api.ReasonRetrying ||
				!strings.Contains(c.Message, "ConfigMap "+systemNamespace+"/"+good.Name) ||
				!strings.Contains(c.Message, why) {
				return fmt.Sprintf("%+v", c)
			}
			return ""
		})
		s.nothing(t, "weather", digest)
	}
	waits("not found")
	online := good.DeepCopy()
	online.Data["policy.yaml"] = strings.Replace(online.Data["policy.yaml"],
		"insecureIgnoreTlog: true", "insecureIgnoreTlog: false", 1)
	w.must(w.Client.Create(t.Context(), online))
	waits("needs Sigstore's public instance")
	before := online.DeepCopy()
	online.Data = good.Data
	w.must(w.Patch(t.Context(), online, client.MergeFrom(before)))
	if v := w.phase("weather", api.PhaseSucceeded).Status.Attestation.Policy; v == nil ||
		v.Summary == "" {
		t.Errorf("verdict %+v", v)
	}
}

// While the registry does not answer, there is no verdict: no image is refused because
// nobody could look.
func TestSummaryWaitsForTheRegistry(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	w.must(w.Client.Create(t.Context(), w.summaryPolicy(prodBuilder)))
	var attested, open atomic.Bool
	s.instead = func(answer http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/sha256:") {
			body, _ := io.ReadAll(r.Body) // it is in memory
			attested.Store(attested.Load() || strings.Contains(string(body), sign.PredicateType))
			r.Body = io.NopCloser(strings.NewReader(string(body)))
		}
		// where our verifier looks as well
		if !attested.Load() || open.Load() || !strings.HasSuffix(r.URL.Path, ".sig") {
			return false
		}
		http.Error(answer, "busy: secret-of-another-service", http.StatusServiceUnavailable)
		return true
	}
	w.start()
	w.create("weather", s.sold)
	run := w.run(1)
	digest := s.push(t, "weather:v1")
	w.play(run, digest)
	w.attestWaits("503", "secret")
	open.Store(true)
	if v := w.phase("weather", api.PhaseSucceeded).Status.Attestation.Policy; v == nil ||
		v.Summary == "" {
		t.Errorf("verdict %+v", v)
	}
}
