package stories

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	s.securityContexts(t)
	s.atRestricted(t)
}
