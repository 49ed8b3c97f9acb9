package stories

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Before production an image is tested, its SBOM is attached to it, and
// it is scanned. What has a high vulnerability passes; a critical one fails the
// build, and so does a test, before there is an image: with BuildKit the tests run beside
// the build, and nothing is pushed before they have passed.
func TestBeforeProductionImagesAreTestedAndScanned(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/scanned", "public/"+s.namespace+".git")

	const build = `
---
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: BUILD}
spec:
  mode: preprod
  builder: MAKER
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pipeline:
    parameters:
    - {name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}
    - {name: TEST_COMMAND, value: "TESTS"}
    - {name: database-url, value: "${vulnerabilityDatabase}"}
    - {name: PLAIN_HTTP, value: "true"}
  buildArgs:
  - {name: BASE, value: "${registry}/armature/busybox:latest"}
  - {name: NAME, value: PACKAGE}
  - {name: VERSION, value: RELEASE}
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: BUILD, imageTag: v1}
`
	for _, values := range [][]string{
		{"BUILD", "good", "MAKER", "kaniko", "PACKAGE", "setuptools", "RELEASE", "69.0.0", "TESTS",
			""},
		{"BUILD", "vulnerable", "MAKER", "buildkit", "PACKAGE", "PyYAML", "RELEASE", "5.3.1",
			"TESTS", ""},
		{"BUILD", "broken", "MAKER", "buildkit", "PACKAGE", "none", "RELEASE", "1.0.0", "TESTS",
			"echo one test failed; exit 3"},
	} {
		s.apply(t, strings.NewReplacer(values...).Replace(build))
	}

	t.Run("good", func(t *testing.T) {
		t.Parallel()
		_, digest, _ := strings.Cut(s.succeeded(t, "good").Status.BuiltImage, "@")
		packages := s.attachedSBOM(t, s.info.HostRegistry+"/"+s.namespace+"/good@"+digest)
		if packages["setuptools"] != "69.0.0" {
			t.Errorf("the SBOM lists %v, want setuptools 69.0.0 among them", packages)
		}
	})
	t.Run("vulnerable", func(t *testing.T) {
		t.Parallel()
		build := s.finished(t, "vulnerable")
		details := s.failed(t, build, "vulnerability-scan", "vulnerability-scan")
		if details.Reason != "VulnerabilitiesFound" {
			t.Errorf("the reason is %q, want %q", details.Reason, "VulnerabilitiesFound")
		}
		if tail := logTail(build); !strings.Contains(tail, "GHSA-8q59-q68h-6hv4") ||
			!strings.Contains(tail, "Critical") {
			t.Errorf("the last log lines do not say what was found:\n%s", tail)
		}
		s.securityContexts(t)
	})
	t.Run("broken", func(t *testing.T) {
		t.Parallel()
		build := s.finished(t, "broken")
		details := s.failed(t, build, "tests", "test")
		if *details.ExitCode != 3 || !strings.Contains(logTail(build), "one test failed") {
			t.Errorf("the failure is described as exit code %d and\n%s", *details.ExitCode,
				logTail(build))
		}
		if _, err := remote.Head(reference(t,
			s.info.HostRegistry+"/"+s.namespace+"/broken:v1")); err == nil {
			t.Error("the image was pushed although the tests failed")
		}
	})
}

// attachedSBOM reads the packages, by name, from the SPDX document that refers to
// an image.
func (s *story) attachedSBOM(t *testing.T, image string) map[string]string {
	t.Helper()
	digest, err := name.NewDigest(image)
	must(t, err)
	index, err := remote.Referrers(digest)
	must(t, err)
	referrers, err := index.IndexManifest()
	must(t, err)
	for _, referrer := range referrers.Manifests {
		artifact, err := remote.Image(digest.Context().Digest(referrer.Digest.String()))
		must(t, err)
		layers, err := artifact.Layers()
		must(t, err)
		kind, err := layers[0].MediaType()
		must(t, err)
		if kind != "application/spdx+json" {
			continue
		}
		content, err := layers[0].Compressed() // as it was sent, which is not compressed
		must(t, err)
		defer content.Close()
		var sbom struct {
			Packages []struct{ Name, VersionInfo string }
		}
		must(t, json.NewDecoder(content).Decode(&sbom))
		packages := map[string]string{}
		for _, p := range sbom.Packages {
			packages[p.Name] = p.VersionInfo
		}
		return packages
	}
	t.Fatalf("no SBOM refers to %s, only %+v", image, referrers.Manifests)
	return nil
}
