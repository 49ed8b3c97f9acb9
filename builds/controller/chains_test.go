package controller_test

import (
	"bytes"
	"crypto"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/sigstore/cosign/v2/pkg/oci/mutate"
	ociremote "github.com/sigstore/cosign/v2/pkg/oci/remote"
	cosignstatic "github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/dsse"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// tektonChains attests as Tekton Chains does: in cosign's tag format, and without a
// signature of the image.
type tektonChains struct{ key signature.SignerVerifier }

func newChains(t testing.TB) *tektonChains {
	t.Helper()
	key, _, err := signature.NewECDSASignerVerifier(elliptic.P256(), rand.Reader, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return &tektonChains{key}
}

// knows makes Chains attest for a world's controllers, and gives them its public key.
func (w *world) knows(c *tektonChains) *corev1.ConfigMap {
	w.Helper()
	public, err := c.key.PublicKey()
	w.must(err)
	text, err := cryptoutils.MarshalPublicKeyToPEM(public)
	w.must(err)
	w.options.Attest.ChainsKey = "chains-" + w.namespace
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: w.options.Attest.ChainsKey}, Data: map[string]string{"cosign.pub": string(text)}}
}

// attest puts a statement about the image of a digest beside the image at.
func (c *tektonChains) attest(t testing.TB, s *shop, at name.Digest, of, kind string, predicate any) {
	t.Helper()
	statement, err := json.Marshal(map[string]any{"_type": "https://in-toto.io/Statement/v1", "predicateType": kind, "predicate": predicate,
		"subject": []any{map[string]any{"name": at.Context().Name(), "digest": map[string]string{"sha256": strings.TrimPrefix(of, "sha256:")}}}})
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := dsse.WrapSigner(c.key, types.IntotoPayloadType).SignMessage(bytes.NewReader(statement))
	if err != nil {
		t.Fatal(err)
	}
	attestation, err := cosignstatic.NewAttestation(envelope, cosignstatic.WithLayerMediaType(types.DssePayloadType))
	if err != nil {
		t.Fatal(err)
	}
	options := ociremote.WithRemoteOptions(s.options()...)
	entity, err := ociremote.SignedEntity(at, options)
	if err != nil {
		t.Fatal(err)
	}
	if entity, err = mutate.AttachAttestationToEntity(entity, attestation); err != nil {
		t.Fatal(err)
	}
	if err := ociremote.WriteAttestations(at.Repository, entity, options); err != nil {
		t.Fatal(err)
	}
}

// byChains is the part of Chains' provenance of a run that is looked at.
func byChains(run *tektonv1.PipelineRun, repository, commit string) sign.Provenance {
	return sign.Provenance{
		BuildDefinition: sign.BuildDefinition{BuildType: "https://tekton.dev/chains/v2/slsa",
			ResolvedDependencies: []sign.ResourceDescriptor{{Name: "inputs/result", URI: "git+https://github.com/org/" + repository + ".git", Digest: map[string]string{"sha1": commit}}}},
		RunDetails: sign.RunDetails{Builder: sign.Builder{ID: "https://tekton.dev/chains/v2"}, Metadata: &sign.Metadata{InvocationID: string(run.UID)}},
	}
}

// annotateRun as whoever may patch a run can; "" removes the annotation.
func (w *world) annotateRun(run *tektonv1.PipelineRun, key, value string) {
	w.Helper()
	fresh := &tektonv1.PipelineRun{}
	w.must(w.Get(w.Context(), client.ObjectKeyFromObject(run), fresh))
	before := fresh.DeepCopy()
	if fresh.Annotations[key] = value; value == "" {
		delete(fresh.Annotations, key)
	}
	w.must(w.Patch(w.Context(), fresh, client.MergeFrom(before)))
}

// Where Tekton Chains attests, the build waits for it, over a restart too, and the
// controller signs nothing.
func TestChainsAttests(t *testing.T) {
	w, s, chains := newWorld(t), newShop(t, true), newChains(t)
	w.must(w.Client.Create(t.Context(), w.knows(chains)))
	stop := w.start()
	w.create("weather", s.sold)
	run := w.run(1)
	digest := s.push(t, "weather:v1")
	w.play(run, digest)
	waits := func() string {
		b := w.build("weather")
		c := condition(b, api.ConditionAttested)
		if c.Status != metav1.ConditionUnknown || c.Reason != api.ReasonRetrying || !strings.Contains(c.Message, "Tekton Chains has not attested run "+run.Name+" yet") || b.Status.BuiltImage != "" {
			return fmt.Sprintf("image %q, condition %+v", b.Status.BuiltImage, c)
		}
		return ""
	}
	w.eventually("the build waits for Chains", waits)
	w.never("without an attestation it is more", waits)
	stop()
	chains.attest(t, s, s.ref(t, "weather@"+digest).(name.Digest), digest, sign.PredicateType, byChains(run, "weather", sha))
	w.start()
	b := w.phase("weather", api.PhaseSucceeded)
	image, tag := s.host+"/weather:v1@"+digest, s.host+"/weather:sha256-"+strings.TrimPrefix(digest, "sha256:")
	a, c := b.Status.Attestation, condition(b, api.ConditionAttested)
	if b.Status.BuiltImage != image || a == nil || a.Image != image || a.RunUID != run.UID || a.BuilderID != "https://tekton.dev/chains/v2" || a.Level != 2 ||
		a.Provenance != tag+".att" || a.ProvenanceDigest == "" || a.Signature != "" || a.SBOM != "" {
		t.Errorf("builtImage %s, attestation %+v", b.Status.BuiltImage, a)
	}
	if c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "Tekton Chains") || condition(b, api.ConditionReady).Status != metav1.ConditionTrue {
		t.Errorf("conditions %+v", b.Status.Conditions)
	}
	if signatures, attestations, bundles := s.statements(t, "weather", digest); signatures != 0 || attestations != 1 || len(bundles) != 0 {
		t.Errorf("%d signatures, %d attestations and bundles %v, want Chains' attestation alone", signatures, attestations, bundles)
	}
}

// What Chains' key did not sign about this image and of this run does not count, and
// neither does Chains' mark on the run. The build says so, and goes on when Chains
// has attested.
func TestNotByChains(t *testing.T) {
	w, s, chains := newWorld(t), newShop(t, true), newChains(t)
	w.must(w.Client.Create(t.Context(), w.knows(chains)))
	stop := w.start()
	attacks := map[string]struct {
		do func(at name.Digest, run *tektonv1.PipelineRun)
		// late makes the run one that ended an hour ago.
		late         bool
		reason, says string
	}{
		"nothing": {reason: api.ReasonRetrying, says: "yet"},
		"other-key": {do: func(at name.Digest, run *tektonv1.PipelineRun) {
			newChains(t).attest(t, s, at, at.DigestStr(), sign.PredicateType, byChains(run, "other-key", sha))
		}, late: true, reason: api.ReasonChainsNotSigned, says: "0 by the key in ConfigMap " + systemNamespace + "/" + w.options.Attest.ChainsKey + " are of other runs, and 1 are not by this key"},
		"other-run": {do: func(at name.Digest, run *tektonv1.PipelineRun) {
			another := run.DeepCopy()
			another.UID = "11111111-2222-3333-4444-555555555555"
			chains.attest(t, s, at, at.DigestStr(), sign.PredicateType, byChains(another, "other-run", sha))
		}, late: true, reason: api.ReasonChainsNotSigned, says: "1 by the key in ConfigMap " + systemNamespace + "/" + w.options.Attest.ChainsKey + " are of other runs, and 0 are not by this key"},
		"other-image": {do: func(at name.Digest, run *tektonv1.PipelineRun) {
			chains.attest(t, s, at, otherDigest, sign.PredicateType, byChains(run, "other-image", sha))
		}, reason: api.ReasonRetrying, says: "yet"},
		"other-type": {do: func(at name.Digest, run *tektonv1.PipelineRun) {
			chains.attest(t, s, at, at.DigestStr(), "https://slsa.dev/provenance/v0.2", byChains(run, "other-type", sha))
		}, late: true, reason: api.ReasonChainsNotSigned, says: "within 10m0s of its end"},
		"marked": {do: func(_ name.Digest, run *tektonv1.PipelineRun) {
			w.annotateRun(run, chainsMark, "true")
		}, reason: api.ReasonChainsNotSigned, says: chainsMark + `: "true"`},
		"failed": {do: func(_ name.Digest, run *tektonv1.PipelineRun) {
			w.annotateRun(run, chainsMark, "failed")
		}, reason: api.ReasonChainsNotSigned, says: chainsMark + `: "failed"`},
	}
	runs, images := map[string]*tektonv1.PipelineRun{}, map[string]name.Digest{}
	for build, attack := range attacks {
		w.create(build, s.sold)
		run := w.runOf(build)
		digest := s.push(t, build+":v1")
		runs[build], images[build] = run, s.ref(t, build+"@"+digest).(name.Digest)
		if attack.do != nil {
			attack.do(images[build], run)
		}
		w.play(run, digest, func(e *ended) {
			if attack.late {
				e.run.Status.CompletionTime = &metav1.Time{Time: time.Now().Add(-time.Hour)}
			}
		})
	}
	judge := func() string {
		for build, attack := range attacks {
			b := w.build(build)
			c := condition(b, api.ConditionAttested)
			if c.Status != metav1.ConditionUnknown || c.Reason != attack.reason || !strings.Contains(c.Message, attack.says) || b.Status.BuiltImage != "" || b.Status.Attestation != nil {
				return fmt.Sprintf("%s: image %q, condition %+v", build, b.Status.BuiltImage, c)
			}
		}
		return ""
	}
	w.eventually("each build says that Chains has not attested it", judge)
	w.never("what does not count does so later", judge)
	stop() // its next look may be a minute away
	for build, run := range runs {
		chains.attest(t, s, images[build], images[build].DigestStr(), sign.PredicateType, byChains(run, build, sha))
	}
	w.start()
	for build, run := range runs {
		if b := w.phase(build, api.PhaseSucceeded); b.Status.Attestation.RunUID != run.UID {
			t.Errorf("%s: attestation %+v", build, b.Status.Attestation)
		}
	}
}

// What the controller refuses to sign it refuses where Chains has signed it, and so it does
// where Chains signed something else than what was observed.
func TestChainsAttestsWhatIsRefused(t *testing.T) {
	w, s, chains := newWorld(t), newShop(t, true), newChains(t)
	w.must(w.Client.Create(t.Context(), w.knows(chains)))
	w.start()
	for build, c := range map[string]struct {
		commit, reason string
		edit           func(*ended)
	}{
		"other-commit": {strings.Repeat("c", 40), api.ReasonChainsMismatch, func(*ended) {}},
		"forged": {sha, api.ReasonResultsForged, func(e *ended) {
			for i := range e.taskRuns["push"].Status.Results {
				if r := &e.taskRuns["push"].Status.Results[i]; r.Name == "IMAGE_DIGEST" {
					r.Value = *tektonv1.NewStructuredValues(otherDigest)
				}
			}
		}},
		"moved": {sha, api.ReasonImageMismatch, func(*ended) { s.push(t, "moved:v1") }},
	} {
		t.Run(build, func(t *testing.T) {
			w.create(build, s.sold)
			run := w.runOf(build)
			digest := s.push(t, build+":v1")
			chains.attest(t, s, s.ref(t, build+"@"+digest).(name.Digest), digest, sign.PredicateType, byChains(run, build, c.commit))
			w.play(run, digest, c.edit)
			b := w.phase(build, api.PhaseFailed)
			attested, ready := condition(b, api.ConditionAttested), condition(b, api.ConditionReady)
			if attested.Status != metav1.ConditionFalse || attested.Reason != c.reason || ready.Reason != c.reason || b.Status.BuiltImage != "" || b.Status.Attestation != nil {
				t.Errorf("Attested %+v, Ready %+v, status %+v", attested, ready, b.Status)
			}
		})
	}
}

// Without Chains' public key no attested build runs, and the build says how to give it.
func TestNoChainsKey(t *testing.T) {
	w, s, chains := newWorld(t), newShop(t, true), newChains(t)
	key := w.knows(chains)
	public := key.Data["cosign.pub"]
	key.Data["cosign.pub"] = "not a key"
	w.must(w.Client.Create(t.Context(), key))
	w.start()
	w.create("weather", s.sold)
	c := condition(w.phase("weather", api.PhaseFailed), api.ConditionReady)
	if c.Reason != api.ReasonAttestKeyMissing || !strings.Contains(c.Message, "kubectl create configmap -n "+systemNamespace+" "+key.Name) || len(w.runs()) != 0 {
		t.Errorf("%d runs, condition %+v", len(w.runs()), c)
	}
	key.Data["cosign.pub"] = public
	w.must(w.Update(t.Context(), key))
	w.run(1)
}
