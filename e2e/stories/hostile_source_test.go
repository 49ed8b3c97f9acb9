package stories

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// A Dockerfile names a frontend of its own for BuildKit, and a source has a link that leads out of
// it. Each build fails at the step that refuses it, and nothing is pushed or signed.
func TestHostileSources(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/frontend", "public/"+s.namespace+"-frontend.git")
	s.pushLink(t, "public/"+s.namespace+"-link.git")
	s.attestKey(t)
	mode := s.briefProd(t)
	steps := map[string]struct{ task, step, says string }{
		"frontend": {"buildkit-build", "build",
			"names the frontend registry.invalid/frontend-that-lies:v1"},
		"link": {"github-clone", "pack-source", "leads out of the source"},
	}
	for name := range steps {
		s.apply(t, strings.NewReplacer("MODE", mode, "NAME", name).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec:
  mode: MODE
  source: {sourceRepository: "${git}/public/${namespace}-NAME.git", sourceRevision: main}
  pod: {resources: {requests: {cpu: 50m, memory: 64Mi}}}
  pipeline: {parameters: [{name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}]}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: NAME, imageTag: v1}
`))
	}
	for name, attack := range steps {
		build := s.finished(t, name)
		s.failed(t, build, attack.task, attack.step)
		if tail := logTail(build); !strings.Contains(tail, attack.says) ||
			build.Status.Attestation != nil {
			t.Errorf("%s: attestation %+v, and the last log lines lack %q:\n%s", name,
				build.Status.Attestation, attack.says, tail)
		}
		if tags, err := remote.List(
			reference(t, s.info.HostRegistry+"/"+s.namespace+"/"+name+":v1").Context()); err == nil {
			t.Errorf("%s: the repository has the tags %v", name, tags)
		}
	}
}

// pushLink makes a repository whose commit has a link that leads out of it.
func (s *story) pushLink(t *testing.T, repository string) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS("testdata/hello")))
	must(t, os.Symlink("../../etc/passwd", filepath.Join(dir, "passwd")))
	git(t, dir, "init", "--quiet", "--initial-branch=main")
	s.pushed(t, dir, repository)
}
