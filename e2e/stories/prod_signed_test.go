package stories

import (
	"context"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/cosign/v2/pkg/oci"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
)

// A production image is tested, scanned and signed, has its SBOM and
// provenance attached, and cosign confirms all of it. With another key, or for an
// image that somebody swapped in with the signature copied along, it does not.
func TestProductionImagesAreSigned(t *testing.T) {
	t.Parallel()
	s := enter(t, nil)
	s.installed(t)
	commit := s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	key := s.signingKey(t)
	mode := s.labTemplate(t, "prod")

	s.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: signed}
spec:
  mode: `+mode+`
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pipeline:
    parameters:
    - {name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}
    - {name: TEST_COMMAND, value: grep -q sleep agent.sh}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: signed, imageTag: v1}
`)
	s.asOrdered(t, "signed")
	_, digest, _ := strings.Cut(s.succeeded(t, "signed").Status.BuiltImage, "@")
	repository := s.info.HostRegistry + "/" + s.namespace + "/signed"
	image := reference(t, repository+"@"+digest)

	// No transparency log can be reached here, and the step says that it uses none.
	policy := &cosign.CheckOpts{SigVerifier: key, ClaimVerifier: cosign.SimpleClaimVerifier, IgnoreTlog: true}
	if _, _, err := cosign.VerifyImageSignatures(t.Context(), image, policy); err != nil {
		t.Errorf("the signature: %v", err)
	}
	attested := &cosign.CheckOpts{SigVerifier: key, ClaimVerifier: cosign.IntotoSubjectClaimVerifier, IgnoreTlog: true}
	attestations, _, err := cosign.VerifyImageAttestations(t.Context(), image, attested)
	must(t, err)
	statements := map[string]string{}
	for _, attestation := range attestations {
		kind, statement := statementOf(t, attestation)
		statements[kind] = statement
	}
	if sbom := statements["https://spdx.dev/Document"]; !strings.Contains(sbom, `"spdxVersion"`) {
		t.Errorf("no SBOM is attested, only %v", slices.Sorted(maps.Keys(statements)))
	}
	if provenance := statements["https://slsa.dev/provenance/v1"]; !strings.Contains(provenance, commit) {
		t.Errorf("no provenance of commit %s is attested, but %v: %s", commit, slices.Sorted(maps.Keys(statements)), provenance)
	}

	swapped := s.swap(t, repository, digest)
	for what, attempt := range map[string]struct {
		image name.Reference
		key   signature.Verifier
	}{
		"another key":     {image, newKey(t).verifier},
		"a swapped image": {swapped, key},
	} {
		policy.SigVerifier = attempt.key
		var refusal *cosign.ErrNoMatchingSignatures
		if _, _, err := cosign.VerifyImageSignatures(t.Context(), attempt.image, policy); !errors.As(err, &refusal) {
			t.Errorf("%s: cosign says %v, want that no signature matches", what, err)
		}
	}
}

// asOrdered makes sure that the digest of a run's spec is the same after Tekton's
// webhook has set its defaults: the controller knows its runs by it.
func (s *stage) asOrdered(t *testing.T, build string) {
	t.Helper()
	var run tektonv1.PipelineRun
	eventually(t, 5*time.Minute, "build "+build+" has a run", func(ctx context.Context) error {
		var b api.AgentBuild
		if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: build}, &b); err != nil {
			return err
		}
		return s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: b.Status.PipelineRunName}, &run)
	})
	if want, got := run.Annotations[keys.AnnotationRunDigest], compose.RunDigest(&run.Spec); want != got {
		t.Errorf("the run's spec has digest %s, composed was %s", got, want)
	}
}

// labTemplate is a shipped mode as a platform would adapt it: its scan reads the
// lab's database, which mode prod does not let a build choose.
func (s *stage) labTemplate(t *testing.T, mode string) string {
	t.Helper()
	shipped, lab := &corev1.ConfigMap{}, &corev1.ConfigMap{}
	must(t, s.Get(t.Context(), client.ObjectKey{Namespace: "armature-system", Name: "pipeline-template-" + mode}, shipped))
	lab.Namespace, lab.Name = shipped.Namespace, shipped.Name+"-"+s.namespace
	const global = "globalParameters:\n"
	lab.Data = map[string]string{"template.yaml": strings.Replace(shipped.Data["template.yaml"], global,
		global+"  - {name: database-url, value: '"+s.info.VulnerabilityDatabase+"'}\n", 1)}
	must(t, s.Create(t.Context(), lab))
	t.Cleanup(func() {
		if err := s.Delete(context.Background(), lab); err != nil {
			t.Error(err)
		}
	})
	return mode + "-" + s.namespace
}

// statementOf opens the envelope of an attestation.
func statementOf(t *testing.T, attestation oci.Signature) (kind, statement string) {
	t.Helper()
	payload, err := attestation.Payload()
	must(t, err)
	var envelope struct{ Payload string }
	must(t, json.Unmarshal(payload, &envelope))
	text, err := base64.StdEncoding.DecodeString(envelope.Payload)
	must(t, err)
	var typed struct{ PredicateType string }
	must(t, json.Unmarshal(text, &typed))
	return typed.PredicateType, string(text)
}

type keyPair struct {
	*cosign.KeysBytes
	verifier signature.Verifier
}

const keyPassword = "open sesame"

func newKey(t *testing.T) keyPair {
	t.Helper()
	keys, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) { return []byte(keyPassword), nil })
	must(t, err)
	public, err := cryptoutils.UnmarshalPEMToPublicKey(keys.PublicBytes)
	must(t, err)
	verifier, err := signature.LoadVerifier(public, crypto.SHA256)
	must(t, err)
	return keyPair{keys, verifier}
}

// signingKey makes the Secret that mode prod signs with, and returns what
// verifies its signatures.
func (s *stage) signingKey(t *testing.T) signature.Verifier {
	t.Helper()
	key := newKey(t)
	s.secret(t, "cosign-signing-key", corev1.SecretTypeOpaque, map[string]string{
		"cosign.key": string(key.PrivateBytes), "cosign.pub": string(key.PublicBytes), "cosign.password": keyPassword,
	})
	return key.verifier
}

// swap puts another image in the repository, with the signature of the first.
func (s *stage) swap(t *testing.T, repository, digest string) name.Reference {
	t.Helper()
	_, busybox, _ := strings.Cut(s.info.Images["busybox"], "@")
	other, err := remote.Image(reference(t, s.info.HostRegistry+"/armature/busybox@"+busybox))
	must(t, err)
	must(t, remote.Write(reference(t, repository+":swapped"), other))
	signature, err := remote.Image(reference(t, repository+":"+strings.Replace(digest, ":", "-", 1)+".sig"))
	must(t, err)
	must(t, remote.Write(reference(t, repository+":"+strings.Replace(busybox, ":", "-", 1)+".sig"), signature))
	return reference(t, repository+"@"+busybox)
}

func reference(t *testing.T, text string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(text)
	must(t, err)
	return ref
}
