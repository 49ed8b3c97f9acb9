package stories

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
)

// A Dockerfile that kaniko runs, in the container that reports the results, makes it report
// another image of the same repository, something else than a digest, or another repository.
// One that BuildKit reads names a frontend of its own, and a source has a link that leads out
// of it. Each build fails with a condition or at the step that refuses it, and nothing is signed.
func TestForgedResults(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/forger", "public/"+s.namespace+".git")
	s.push(t, "testdata/frontend", "public/"+s.namespace+"-frontend.git")
	s.pushLink(t, "public/"+s.namespace+"-link.git")
	s.attestKey(t)
	mode := s.briefProd(t)
	_, busybox, _ := strings.Cut(s.info.Images["busybox"], "@")
	other, err := remote.Image(reference(t, s.info.HostRegistry+"/armature/busybox@"+busybox))
	must(t, err)
	build := func(name, repository, builder, digest, url string) {
		t.Helper()
		must(t, remote.Write(reference(t, s.info.HostRegistry+"/"+s.namespace+"/"+name+":other"), other))
		s.apply(t, strings.NewReplacer("MODE", mode, "NAME", name, "REPOSITORY", repository, "BUILDER", builder, "REPORTED", digest, "URLOF", url).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec:
  mode: MODE
  builder: BUILDER
  source: {sourceRepository: "${git}/public/REPOSITORY.git", sourceRevision: main}
  pod: {resources: {requests: {cpu: 50m, memory: 64Mi}}}
  pipeline: {parameters: [{name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}]}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}, {name: DIGEST, value: "REPORTED"}, {name: URL, value: "URLOF"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: NAME, imageTag: v1}
`))
	}
	attacks := map[string]struct{ digest, url, reason string }{
		"other":     {busybox, "", api.ReasonImageMismatch},
		"malformed": {"sha256:abc", "", api.ReasonResultInvalid},
		"elsewhere": {"", s.info.Registry + "/" + s.namespace + "/other:v1", api.ReasonResultInvalid},
	}
	for name, attack := range attacks {
		build(name, s.namespace, "kaniko", attack.digest, attack.url)
	}
	steps := map[string]struct{ task, step, says string }{
		"frontend": {"buildkit-build", "build", "names the frontend registry.invalid/frontend-that-lies:v1"},
		"link":     {"github-clone", "pack-source", "leads out of the source"},
	}
	for name := range steps {
		build(name, s.namespace+"-"+name, "buildkit", "", "")
	}
	for name, attack := range attacks {
		build := s.finished(t, name)
		c := meta.FindStatusCondition(build.Status.Conditions, api.ConditionAttested)
		if build.Status.Phase != api.PhaseFailed || c == nil || c.Status != metav1.ConditionFalse || c.Reason != attack.reason || build.Status.BuiltImage != "" {
			t.Errorf("%s: phase %s, image %q, condition %+v, want reason %s", name, build.Status.Phase, build.Status.BuiltImage, c, attack.reason)
		}
		if attack.url != "" && (c == nil || !strings.Contains(c.Message, "IMAGE_URL is not")) {
			t.Errorf("%s: condition %+v, want one that names IMAGE_URL", name, c)
		}
		repository := s.info.HostRegistry + "/" + s.namespace + "/" + name
		s.unsigned(t, repository, busybox, digestOf(t, repository+":v1"))
	}
	for name, attack := range steps {
		build := s.finished(t, name)
		s.failed(t, build, attack.task, attack.step)
		if tail := logTail(build); !strings.Contains(tail, attack.says) || build.Status.BuiltImage != "" || build.Status.Attestation != nil {
			t.Errorf("%s: image %q, attestation %+v, and the last log lines lack %q:\n%s", name, build.Status.BuiltImage, build.Status.Attestation, attack.says, tail)
		}
		repository := s.info.HostRegistry + "/" + s.namespace + "/" + name
		s.unsigned(t, repository, busybox)
		if tags, err := remote.List(reference(t, repository+":v1").Context()); err != nil || !slices.Equal(tags, []string{"other"}) {
			t.Errorf("%s: the repository has the tags %v: %v", name, tags, err)
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
