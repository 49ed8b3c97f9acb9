package stories

import (
	"strings"
	"testing"
)

// The Dockerfile is broken, or the folder to build does not exist. The status alone says
// where and why.
func TestBrokenDockerfileIsExplained(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
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
---
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: nowhere}
spec:
  mode: dev
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main, sourceSubfolder: agents/nowhere}
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: nowhere, imageTag: v1}
`)
	build := s.finished(t, "broken")
	s.failed(t, build, "buildkit-build", "build")
	if tail := logTail(build); !strings.Contains(tail, "the cupboard is bare") {
		t.Errorf("the last log lines lack the output of the Dockerfile's command:\n%s", tail)
	}
	// The steps before the build share a pod, and the one that failed is named.
	nowhere := s.finished(t, "nowhere")
	s.failed(t, nowhere, "github-clone", "check-subfolder")
	if tail := logTail(nowhere); !strings.Contains(tail, "the repository has no folder agents/nowhere") {
		t.Errorf("the last log lines do not name the folder:\n%s", tail)
	}
}
