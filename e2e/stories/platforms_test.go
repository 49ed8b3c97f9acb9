package stories

import (
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
)

// Two platforms are built by tasks beside each other on the one node, and pushed as an index: the
// node pulls its own image from it and runs that, and a client finds the other one.
func TestPlatforms(t *testing.T) {
	t.Parallel()
	s := newStory(t, atBaseline)
	s.installed(t)
	s.push(t, "testdata/platforms", "public/"+s.namespace+".git")
	s.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hello}
spec:
  mode: dev-local
  builder: buildkit
  platforms: [linux/amd64, linux/arm64]
  platformNodes: Any
  cleanupAfterBuild: false
  pod: {resources: {requests: {cpu: 50m, memory: 128Mi}}}
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
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
		have = append(have, api.PlatformStatus{Platform: d.Platform.String(), Digest: d.Digest.String()})
	}
	if len(have) != 2 || have[0].Platform != "linux/amd64" || have[1].Platform != "linux/arm64" || !slices.Equal(have, build.Status.Platforms) {
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
		if got := s.fileOf(t, image, "greeting"); got != "hello from "+p.Platform+"\n" {
			t.Errorf("the image of %s says %q", p.Platform, got)
		}
		if got := s.fileOf(t, image, "layouts"); got != "" {
			t.Errorf("the source of %s had layouts in it, of its repository or of the other platform:\n%s", p.Platform, got)
		}
	}

	must(t, s.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: s.namespace},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: build.Status.BuiltImage}}},
	}))
	s.says(t, "hello", "hello from linux/amd64")
}
