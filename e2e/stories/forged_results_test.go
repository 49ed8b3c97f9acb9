package stories

import (
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
)

// A Dockerfile that kaniko runs, in the container that reports the results, makes it report
// another image of the same repository, or something else than a digest. The build fails with a
// condition, and nothing is signed: the tag is not what was reported.
func TestForgedResults(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/forger", "public/"+s.namespace+".git")
	s.attestKey(t)
	mode := s.briefProd(t)
	_, busybox, _ := strings.Cut(s.info.Images["busybox"], "@")
	other, err := remote.Image(reference(t, s.info.HostRegistry+"/armature/busybox@"+busybox))
	must(t, err)
	attacks := map[string]struct{ digest, reason string }{
		"other":     {busybox, api.ReasonImageMismatch},
		"malformed": {"sha256:abc", api.ReasonResultInvalid},
	}
	for name, attack := range attacks {
		must(t, remote.Write(reference(t, s.info.HostRegistry+"/"+s.namespace+"/"+name+":other"), other))
		s.apply(t, strings.NewReplacer("MODE", mode, "NAME", name, "REPORTED", attack.digest).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec:
  mode: MODE
  builder: kaniko
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pod: {resources: {requests: {cpu: 50m, memory: 64Mi}}}
  pipeline: {parameters: [{name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}]}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}, {name: DIGEST, value: "REPORTED"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: NAME, imageTag: v1}
`))
	}
	for name, attack := range attacks {
		build := s.finished(t, name)
		c := meta.FindStatusCondition(build.Status.Conditions, api.ConditionAttested)
		if build.Status.Phase != api.PhaseFailed || c == nil || c.Status != metav1.ConditionFalse || c.Reason != attack.reason || build.Status.BuiltImage != "" {
			t.Errorf("%s: phase %s, image %q, condition %+v, want reason %s", name, build.Status.Phase, build.Status.BuiltImage, c, attack.reason)
		}
		repository := s.info.HostRegistry + "/" + s.namespace + "/" + name
		s.unsigned(t, repository, busybox, digestOf(t, repository+":v1"))
	}
}
