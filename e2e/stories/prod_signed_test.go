package stories

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// A production image is tested and scanned and has its SBOM attached by the pipeline;
// the controller signs it, its SBOM and its provenance with the platform's key, and cosign 2
// and 3 confirm all three. With another key, or for an image that somebody swapped in with the
// signature copied along, they do not. The tests edit the source and remove the Dockerfile, and
// what is built is what was cloned.
func TestProductionImagesAreSigned(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	commit := s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	public := s.attestKey(t)
	s.prod(t, "signed")
	s.asOrdered(t, "signed")
	build := s.succeeded(t, "signed")
	if c := meta.FindStatusCondition(build.Status.Conditions, api.ConditionAttested); c == nil ||
		c.Status != metav1.ConditionTrue || build.Status.Attestation == nil {
		t.Fatalf("it is not attested: %+v", build.Status)
	}
	_, digest, _ := strings.Cut(build.Status.BuiltImage, "@")
	repository := s.info.HostRegistry + "/" + s.namespace + "/signed"
	image := reference(t, repository+"@"+digest)
	agent, err := os.ReadFile("testdata/hello/agent.sh")
	must(t, err)
	if got := s.fileOf(t, image.String(), "agent.sh"); got != string(agent) {
		t.Errorf("the image has the agent %q, and %q was cloned: the tests changed what is built",
			got, agent)
	}

	statements := statementsOf(t, image.(name.Digest))
	provenance, sbom := statements[sign.PredicateType], statements[sign.SPDXType]
	if tests := statements[sign.TestResultType]; !strings.Contains(tests, `"result":"PASSED"`) ||
		!strings.Contains(tests, `"name":"tests"`) {
		t.Errorf("the verdict of the tests is not attested, but %s", tests)
	}
	if len(statements) != 4 || !strings.Contains(provenance, `"gitCommit":"`+commit+`"`) ||
		!strings.Contains(provenance, "@refs/heads/main") {
		t.Errorf("no provenance of commit %s is attested, but %v", commit, statements)
	}
	t.Logf("the provenance:\n%s", provenance)
	_, hex, _ := strings.Cut(digest, ":")
	if !strings.Contains(sbom, `"spdxVersion":"SPDX-2.`) ||
		!strings.Contains(sbom, `"checksumValue":"`+hex+`"`) ||
		build.Status.Attestation.SBOMDigest == "" {
		t.Errorf("no SBOM of %s is attested, but %s", digest, sbom)
	}
	confirmed(t, public, image, "slsaprovenance1", "spdxjson")

	swapped := s.swap(t, repository, digest)
	other := filepath.Join(t.TempDir(), "other.pub")
	must(t, os.WriteFile(other, newKey(t).PublicBytes, 0o600))
	for what, attempt := range map[string]struct {
		image name.Reference
		key   string
	}{
		"another key":     {image, other},
		"a swapped image": {swapped, public},
	} {
		if asked, refusals := judged(t, attempt.key, attempt.image,
			"slsaprovenance1"); len(refusals) != asked {
			t.Errorf("%s: %d of %d questions are refused: %v", what, len(refusals), asked, refusals)
		}
	}
	s.policies(t, public, build, image.(name.Digest), swapped.(name.Digest))
}

// confirmed fails unless cosign 2 and 3 accept an image's signature and its attestations of
// some types.
func confirmed(t *testing.T, key string, image name.Reference, types ...string) {
	t.Helper()
	if _, refusals := judged(t, key, image, types...); len(refusals) > 0 {
		t.Error(strings.Join(refusals, "\n"))
	}
}

// judged asks cosign 2 and 3 for an image's signature and its attestations of some types, all
// as bundles, and returns how often it asked and what they refuse with.
func judged(t *testing.T, key string, image name.Reference,
	types ...string) (asked int, refusals []string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root.json") // no transparency log can be reached here
	must(t,
		os.WriteFile(root,
			[]byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`), 0o600))
	commands := [][]string{{"verify"}}
	for _, kind := range types {
		commands = append(commands, []string{"verify-attestation", "--type", kind})
	}
	for program, flags := range map[string][]string{"cosign": {"--new-bundle-format",
		"--trusted-root", root}, "cosign3": nil} {
		file, err := programs.Find(program)
		if errors.Is(err, programs.ErrMissing) && !programs.Required() {
			t.Logf("not asked: %s: %v", program, err)
			continue
		}
		must(t, err)
		for _, args := range commands {
			asked++
			args = slices.Concat(args, flags,
				[]string{"--insecure-ignore-tlog=true", "--key", key, image.String()})
			if out, err := exec.CommandContext(t.Context(), file, args...).CombinedOutput(); err != nil {
				refusals = append(refusals, fmt.Sprintf("%s %v: %v\n%s", program, args, err, out))
			}
		}
	}
	return asked, refusals
}

// policies of consumers accept what was built and attested, and refuse an image with the
// attestations of another, and an image of another source.
func (s *story) policies(t *testing.T, key string, build *api.AgentBuild,
	built, swapped name.Digest) {
	t.Helper()
	policy := func(repository string) sign.Policy {
		return sign.Policy{Keys: []string{key}, IgnoreTlog: true,
			Builds: &sign.Builds{MinimumLevel: 3, SBOM: true,
				Builders: []sign.TrustedBuilder{{ID: build.Status.Attestation.BuilderID,
					Level: int(build.Status.Attestation.Level)}},
				Sources: []sign.Source{{Repository: repository}}}}
	}
	source := build.Spec.Source.SourceRepository
	if _, err := sign.Verify(t.Context(), built, policy(source)); err != nil {
		t.Errorf("what was built is refused: %v", err)
	}
	for what, attempt := range map[string]struct {
		image  name.Digest
		policy sign.Policy
	}{
		"attestations of another image": {swapped, policy(source)},
		"attestations of another image, none demanded": {swapped,
			sign.Policy{Keys: []string{key}, IgnoreTlog: true}},
		"an attestation of another source": {built,
			policy(strings.Replace(source, "public", "private", 1))},
	} {
		if _, err := sign.Verify(t.Context(), attempt.image, attempt.policy); err == nil {
			t.Errorf("%s: it passes", what)
		}
	}
}

// prod orders a build of the shipped mode prod, with the lab's vulnerability database.
func (s *story) prod(t *testing.T, name string) {
	t.Helper()
	s.apply(t, strings.NewReplacer("MODE", s.labTemplate(t, "prod", name), "NAME", name).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec:
  mode: MODE
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pipeline:
    parameters:
    - {name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}
    - {name: TEST_COMMAND, value: "grep -q sleep agent.sh && echo evil > agent.sh && ! grep -q sleep agent.sh && rm Dockerfile"}
    - {name: PLAIN_HTTP, value: "true"}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: NAME, imageTag: v1}
`))
}

// asOrdered makes sure that the digest of a run's spec is the same after Tekton's
// webhook has set its defaults: the controller knows its runs by it.
func (s *story) asOrdered(t *testing.T, build string) {
	t.Helper()
	run := s.runOf(t, build)
	if want, got :=
		run.Annotations[keys.AnnotationRunDigest], compose.RunDigest(&run.Spec); want != got {
		t.Errorf("the run's spec has digest %s, composed was %s", got, want)
	}
}

// runOf a build, which may have to begin first.
func (s *story) runOf(t *testing.T, build string) *tektonv1.PipelineRun {
	t.Helper()
	run := &tektonv1.PipelineRun{}
	eventually(t, 5*time.Minute, "build "+build+" has a run", func(ctx context.Context) error {
		var b api.AgentBuild
		if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: build}, &b); err != nil {
			return err
		}
		return s.Get(ctx, b.RunKey(), run)
	})
	return run
}

// labTemplate is a shipped mode as a platform would adapt it: its scan reads the
// lab's database, which mode prod does not let a build choose.
func (s *story) labTemplate(t *testing.T, mode, build string) string {
	t.Helper()
	const global = "globalParameters:\n"
	return s.adapted(t, mode, build, func(template string) string {
		return strings.Replace(template, global,
			global+"  - {name: database-url, value: '"+s.info.VulnerabilityDatabase+"'}\n", 1)
	})
}

// briefProd is mode prod without what lists and scans the image's contents: it attests
// what it builds like prod, and is quick enough to be attacked often.
func (s *story) briefProd(t *testing.T) string {
	t.Helper()
	return s.adapted(t, "prod", "brief", func(text string) string {
		var template map[string]any
		must(t, yaml.Unmarshal([]byte(text), &template))
		steps, _ := template["steps"].([]any)
		template["steps"] = slices.DeleteFunc(steps, func(step any) bool {
			row, _ := step.(map[string]any)
			return row["name"] == "sbom" || row["name"] == "sbom-attach" ||
				row["name"] == "vulnerability-scan"
		})
		brief, err := yaml.Marshal(template)
		must(t, err)
		return string(brief)
	})
}

// adapted makes a mode of the platform's own of a shipped one, until the story ends.
func (s *story) adapted(t testing.TB, mode, name string, edit func(template string) string) string {
	t.Helper()
	shipped, own := &corev1.ConfigMap{}, &corev1.ConfigMap{}
	must(t,
		s.Get(t.Context(),
			client.ObjectKey{Namespace: s.platform, Name: "pipeline-template-" + mode}, shipped))
	mode += "-" + s.namespace + "-" + name
	own.Namespace, own.Name = shipped.Namespace, "pipeline-template-"+mode
	own.Data = map[string]string{"template.yaml": edit(shipped.Data["template.yaml"])}
	must(t, s.Create(t.Context(), own))
	t.Cleanup(func() {
		if err := s.Delete(context.Background(), own); err != nil {
			t.Error(err)
		}
	})
	return mode
}

// statementsOf are the statements in the bundles of an image, by their type.
func statementsOf(t *testing.T, image name.Digest) map[string]string {
	t.Helper()
	index, err := remote.Referrers(image)
	must(t, err)
	manifest, err := index.IndexManifest()
	must(t, err)
	statements := map[string]string{}
	for _, d := range manifest.Manifests {
		artifact, err := remote.Image(image.Context().Digest(d.Digest.String()))
		must(t, err)
		layers, err := artifact.Layers()
		must(t, err)
		content, err := layers[0].Uncompressed()
		must(t, err)
		var bundle struct{ DSSEEnvelope struct{ Payload []byte } }
		must(t, json.NewDecoder(content).Decode(&bundle))
		if len(bundle.DSSEEnvelope.Payload) == 0 {
			continue // the SBOM that the pipeline attaches
		}
		var typed struct{ PredicateType string }
		must(t, json.Unmarshal(bundle.DSSEEnvelope.Payload, &typed))
		statements[typed.PredicateType] = string(bundle.DSSEEnvelope.Payload)
	}
	return statements
}

const keyPassword = "open sesame"

func newKey(t *testing.T) *cosign.KeysBytes {
	t.Helper()
	keys, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) {
		return []byte(keyPassword), nil
	})
	must(t, err)
	return keys
}

var thePlatformKey sync.Mutex

// attestKey makes the Secret that the controller attests with, unless another story did,
// and returns a file with the public key.
func (s *story) attestKey(t *testing.T) (file string) {
	t.Helper()
	thePlatformKey.Lock()
	defer thePlatformKey.Unlock()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "armature-system",
		Name: "armature-attest-key"}}
	err := s.Get(t.Context(), client.ObjectKeyFromObject(secret), secret)
	if apierrors.IsNotFound(err) {
		pair := newKey(t)
		secret.Data = map[string][]byte{"cosign.key": pair.PrivateBytes,
			"cosign.pub": pair.PublicBytes, "cosign.password": []byte(keyPassword)}
		err = s.Create(t.Context(), secret)
	}
	must(t, err)
	file = filepath.Join(t.TempDir(), "cosign.pub")
	must(t, os.WriteFile(file, secret.Data["cosign.pub"], 0o600))
	return file
}

// swap puts another image in the repository, with all that refers to the first.
func (s *story) swap(t *testing.T, repository, digest string) name.Reference {
	t.Helper()
	_, busybox, _ := strings.Cut(s.info.Images["busybox"], "@")
	other, err := remote.Image(reference(t, s.info.HostRegistry+"/armature/busybox@"+busybox))
	must(t, err)
	must(t, remote.Write(reference(t, repository+":swapped"), other))
	swapped := reference(t, repository+"@"+busybox).(name.Digest)
	subject, err := remote.Get(swapped)
	must(t, err)
	index, err := remote.Referrers(swapped.Context().Digest(digest))
	must(t, err)
	referrers, err := index.IndexManifest()
	must(t, err)
	for _, referrer := range referrers.Manifests {
		artifact, err := remote.Image(swapped.Context().Digest(referrer.Digest.String()))
		must(t, err)
		replayed := mutate.Subject(artifact, subject.Descriptor).(v1.Image)
		of, err := replayed.Digest()
		must(t, err)
		must(t, remote.Write(swapped.Context().Digest(of.String()), replayed))
	}
	if n := s.bundles(t, repository, busybox); n == 0 {
		t.Error("no bundle was replayed")
	}
	return swapped
}

func reference(t *testing.T, text string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(text)
	must(t, err)
	return ref
}
