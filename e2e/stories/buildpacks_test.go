package stories

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// There is no Dockerfile. Cloud Native Buildpacks find out what the
// source is, build it with the real lifecycle, and the image runs.
func TestWithoutADockerfile(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/buildpack", "public/"+s.namespace+".git")

	s.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: buildpack}
spec:
  mode: buildpack-dev
  cleanupAfterBuild: false
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: buildpack, imageTag: v1}
`)
	image := s.succeeded(t, "buildpack").Status.BuiltImage
	must(t, s.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "buildpack", Namespace: s.namespace},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: image}}},
	}))
	s.says(t, "buildpack", "built without a Dockerfile")

	// What a buildpack caches is beside the image for the next build.
	made := s.fileOf(t, strings.Replace(image, s.info.Registry, s.info.HostRegistry, 1),
		"layers/armature_hello/made/id")
	var build api.AgentBuild
	must(t, s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "buildpack"}, &build))
	build.Spec.BuildOutput.ImageTag = "v2"
	must(t, s.Update(t.Context(), &build))
	eventually(t, 10*time.Minute, "it is built again", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(&build), &build); err != nil {
			return err
		}
		if build.Status.Phase == api.PhaseFailed ||
			!strings.Contains(build.Status.BuiltImage, ":v2@") {
			return fmt.Errorf("it is %s, with image %s", build.Status.Phase, build.Status.BuiltImage)
		}
		return nil
	})
	if again := s.fileOf(t, strings.Replace(build.Status.BuiltImage, s.info.Registry,
		s.info.HostRegistry, 1), "layers/armature_hello/made/id"); again != made {
		t.Errorf("the cached layer was made as %q, and again as %q", made, again)
	}
	s.securityContexts(t)
	s.atRestricted(t)
}
