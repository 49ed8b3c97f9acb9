package stories

import (
	"debug/elf"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// A Go program is compiled for two platforms by tasks beside each other on the one node, and
// pushed as an index: the node pulls its own image from it and runs that, and a client finds the
// other one.
func TestPlatforms(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/goprogram", "public/"+s.namespace+".git")
	s.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hello}
spec:
  mode: dev-local
  platforms: [linux/amd64, linux/arm64]
  platformNodes: Any
  cleanupAfterBuild: false
  pod: {resources: {requests: {cpu: 50m, memory: 128Mi}}}
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  buildArgs: [{name: BASE, value: "${registry}/armature/golang:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: hello, imageTag: v1}
`)
	build := s.succeeded(t, "hello")
	host := strings.Replace(build.Status.BuiltImage, s.info.Registry, s.info.HostRegistry, 1)
	index, err := remote.Index(reference(t, host))
	must(t, err)
	manifest, err := index.IndexManifest()
	must(t, err)
	var have []api.PlatformStatus
	for _, d := range manifest.Manifests {
		have = append(have,
			api.PlatformStatus{Platform: d.Platform.String(), Digest: d.Digest.String()})
	}
	if len(have) != 2 || have[0].Platform != "linux/amd64" || have[1].Platform != "linux/arm64" ||
		!slices.Equal(have, build.Status.Platforms) {
		t.Fatalf("the index has %v, and status %v", have, build.Status.Platforms)
	}
	tagged, err := remote.Head(reference(t, s.info.HostRegistry+"/"+s.namespace+"/hello:v1"))
	must(t, err)
	if !strings.HasSuffix(build.Status.BuiltImage, "@"+tagged.Digest.String()) {
		t.Errorf("the tag is at %s, and status.builtImage is %s", tagged.Digest, build.Status.BuiltImage)
	}
	for _, p := range have {
		platform, err := v1.ParsePlatform(p.Platform)
		must(t, err)
		img, err := remote.Image(reference(t, host), remote.WithPlatform(*platform))
		must(t, err)
		digest, err := img.Digest()
		must(t, err)
		if digest.String() != p.Digest {
			t.Errorf("a pull for %s gets %s, want %s", p.Platform, digest, p.Digest)
		}
		image := host[:strings.Index(host, "@")] + "@" + p.Digest
		program, err := elf.NewFile(strings.NewReader(s.fileOf(t, image, "hello")))
		must(t, err)
		if want := map[string]elf.Machine{"linux/amd64": elf.EM_X86_64,
			"linux/arm64": elf.EM_AARCH64}[p.Platform]; program.Machine != want {
			t.Errorf("the program of %s is for %s, want %s", p.Platform, program.Machine, want)
		}
		if got := s.fileOf(t, image, "layouts"); got != "" {
			t.Errorf("the source of %s had layouts in it, of its repository or of the other "+
				"platform:\n%s", p.Platform, got)
		}
	}

	must(t, s.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: s.namespace},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "agent", Image: build.Status.BuiltImage}}},
	}))
	s.says(t, "hello", "hello from linux/amd64")
}

// A production image for two platforms: each has an SBOM and a scan of its own, and the
// controller signs the index and both images. cosign 2 and 3, and a policy that demands
// provenance and SBOM, accept the index, and each image by its digest.
func TestProductionPlatforms(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/platforms", "public/"+s.namespace+".git")
	public := s.attestKey(t)
	s.apply(t, strings.Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hello}
spec:
  mode: MODE
  builder: buildkit
  platforms: [linux/amd64, linux/arm64]
  platformNodes: Any
  pod: {resources: {requests: {cpu: 50m, memory: 128Mi}}}
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pipeline:
    parameters:
    - {name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}
    - {name: TEST_COMMAND, value: "test -f Dockerfile"}
    - {name: PLAIN_HTTP, value: "true"}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: hello, imageTag: v1}
`, "MODE", s.labTemplate(t, "prod", "hello"), 1))
	s.asOrdered(t, "hello")
	build := s.succeeded(t, "hello")
	a := build.Status.Attestation
	if a == nil || len(a.Platforms) != 2 || len(build.Status.Platforms) != 2 {
		t.Fatalf("it is attested as %+v, for %v", a, build.Status.Platforms)
	}
	repository := s.info.HostRegistry + "/" + s.namespace + "/hello"
	_, index, _ := strings.Cut(build.Status.BuiltImage, "@")
	policy := sign.Policy{Keys: []string{public}, IgnoreTlog: true,
		Builds: &sign.Builds{MinimumLevel: 3, SBOM: true,
			Builders: []sign.TrustedBuilder{{ID: a.BuilderID, Level: int(a.Level)}},
			Sources:  []sign.Source{{Repository: build.Spec.Source.SourceRepository}}}}
	types := map[string][]string{index: {"slsaprovenance1"}}
	for _, p := range a.Platforms {
		types[p.Digest] = []string{"slsaprovenance1", "spdxjson"}
		if p.SBOMDigest == "" {
			t.Errorf("%s has no SBOM", p.Platform)
		}
	}
	for digest, attested := range types {
		image := reference(t, repository+"@"+digest).(name.Digest)
		if _, err := sign.Verify(t.Context(), image, policy); err != nil {
			t.Errorf("%s is refused: %v", digest, err)
		}
		confirmed(t, public, image, attested...)
	}
	other, err := remote.Image(reference(t, repository+"@"+a.Platforms[1].Digest))
	must(t, err)
	config, err := other.ConfigFile()
	must(t, err)
	if config.Architecture != "arm64" {
		t.Errorf("the image of %s is for %s", a.Platforms[1].Platform, config.Architecture)
	}
}
