package stories

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/api"
)

// Story 7: the Dockerfile is broken. The status alone says where and why.
func TestStory07ABrokenDockerfileIsExplained(t *testing.T) {
	t.Parallel()
	s := enter(t, nil)
	s.installed(t)
	s.push(t, "testdata/broken", "public/"+s.namespace+".git")

	s.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: broken}
spec:
  mode: dev
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: broken, imageTag: v1}
`)
	build := s.finished(t, "broken")
	if build.Status.Phase != api.PhaseFailed || build.Status.BuiltImage != "" {
		t.Fatalf("the build ended %s with image %q, want it failed without one", build.Status.Phase, build.Status.BuiltImage)
	}
	details := build.Status.FailureDetails
	if details == nil || details.Task != "kaniko-build" || details.Step != "build-and-push" || details.ExitCode == nil || *details.ExitCode == 0 {
		t.Fatalf("the failure is described as %+v", details)
	}
	if tail := logTail(build); !strings.Contains(tail, "the cupboard is bare") {
		t.Errorf("the last log lines lack what the Dockerfile's command said:\n%s", tail)
	}
}
