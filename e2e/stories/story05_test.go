package stories

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
)

// Story 5: a production image is tested, signed, has its SBOM and provenance
// attached, and cosign confirms all three. An image that somebody swapped in,
// signature copied along, is refused. (The vulnerability scan is left out: its
// database comes from the internet.)
func TestStory05ProductionImagesAreSigned(t *testing.T) {
	t.Parallel()
	s := enter(t, nil)
	s.installed(t)
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	key := s.signingKey(t)

	s.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: signed}
spec:
  mode: prod
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pipeline:
    steps: [{name: vulnerability-scan, enabled: false}]
    parameters:
    - {name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}
    - {name: TEST_COMMAND, value: grep -q sleep agent.sh}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: signed, imageTag: v1}
`)
	built := s.succeeded(t, "signed").Status.BuiltImage
	_, digest, _ := strings.Cut(built, "@")
	repository := s.info.HostRegistry + "/" + s.namespace + "/signed"

	image := repository + "@" + digest
	for _, args := range [][]string{
		{"verify", image},
		{"verify-attestation", "--type=spdxjson", image},
		{"verify-attestation", "--type=slsaprovenance1", image},
	} {
		if out, err := cosign(key, args...); err != nil {
			t.Errorf("cosign %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}

	swapped := s.swap(t, repository, digest)
	if out, err := cosign(key, "verify", swapped); err == nil {
		t.Errorf("cosign accepts the swapped image:\n%s", out)
	} else if !strings.Contains(out, "invalid or missing digest in claim") && !strings.Contains(out, "no matching signatures") {
		t.Errorf("cosign refuses the swapped image for another reason: %s", out)
	}
}

// signingKey makes the Secret that mode prod signs with, and returns the path of
// its public half.
func (s *stage) signingKey(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	generate := exec.Command("cosign", "generate-key-pair")
	generate.Dir, generate.Env = dir, append(os.Environ(), "COSIGN_PASSWORD=open sesame")
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data := map[string]string{"cosign.password": "open sesame"}
	for _, file := range []string{"cosign.key", "cosign.pub"} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		must(t, err)
		data[file] = string(text)
	}
	s.secret(t, "cosign-signing-key", corev1.SecretTypeOpaque, data)
	return filepath.Join(dir, "cosign.pub")
}

func cosign(key string, args ...string) (string, error) {
	args = append([]string{args[0], "--insecure-ignore-tlog=true", "--key=" + key}, args[1:]...)
	out, err := exec.Command("cosign", args...).CombinedOutput()
	return string(out), err
}

// swap puts another image in the repository, with the signature of the first.
func (s *stage) swap(t *testing.T, repository, digest string) string {
	t.Helper()
	_, busybox, _ := strings.Cut(s.info.Images["busybox"], "@")
	other, err := remote.Image(reference(t, s.info.HostRegistry+"/armature/busybox@"+busybox))
	must(t, err)
	must(t, remote.Write(reference(t, repository+":swapped"), other))
	signature, err := remote.Image(reference(t, repository+":"+strings.Replace(digest, ":", "-", 1)+".sig"))
	must(t, err)
	must(t, remote.Write(reference(t, repository+":"+strings.Replace(busybox, ":", "-", 1)+".sig"), signature))
	return repository + "@" + busybox
}

func reference(t *testing.T, text string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(text)
	must(t, err)
	return ref
}
