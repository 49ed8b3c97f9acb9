package stories

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// A build keeps its layers beside its image without any setting, with a login as without
// one: built again with another last layer, its first stage is not run again. A build of
// another name has nothing of that.
func TestCache(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ spec, output string }{
		"without a login": {"mode: dev-local", "imageRegistry: \"${registry}/${namespace}\""},
		"with a login": {"mode: dev-external\n  pipeline: {workspaces: [{name: pull-credentials, " +
			"secret: {name: pull}}]}",
			"imageRegistry: \"${privateRegistry}/${namespace}\", imageRepoCredentials: " +
				"{name: login}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cacheOf(t, c.spec, c.output)
		})
	}
}

func cacheOf(t *testing.T, spec, output string) {
	s := newStory(t, nil)
	s.installed(t)
	for _, name := range []string{"login", "pull"} {
		s.secret(t, name, corev1.SecretTypeDockerConfigJson,
			map[string]string{corev1.DockerConfigJsonKey: s.registryLogin(t)})
	}
	folder := filepath.Join(t.TempDir(), "uncertain")
	must(t, os.CopyFS(folder, os.DirFS("testdata/uncertain")))
	s.push(t, folder, "public/"+s.namespace+".git")
	build := func(name, tag string) (made, note string) {
		t.Helper()
		s.apply(t,
			strings.NewReplacer("NAME", name, "TAG", tag, "SPEC", spec, "OUTPUT", output).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec:
  SPEC
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {OUTPUT, image: uncertain, imageTag: TAG}
`))
		image := ""
		eventually(t, 10*time.Minute, "build "+name+" has made "+tag,
			func(ctx context.Context) error {
				build := &api.AgentBuild{}
				if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name},
					build); err != nil {
					return err
				}
				if build.Status.Phase == api.PhaseFailed {
					t.Fatalf("build %s failed: %s\n%s", name, build.Status.Message, logTail(build))
				}
				if image = build.Status.BuiltImage; !strings.Contains(image, ":"+tag+"@") {
					return fmt.Errorf("it is %q with image %q", build.Status.Phase, image)
				}
				return nil
			})
		image = strings.NewReplacer(s.info.Registry, s.info.HostRegistry, s.info.PrivateRegistry,
			s.info.HostPrivateRegistry).Replace(image)
		return s.fileOf(t, image, "made"), s.fileOf(t, image, "note")
	}
	made, note := build("one", "v1")
	must(t, os.WriteFile(filepath.Join(folder, "note"), []byte("second\n"), 0o644))
	s.push(t, folder, "public/"+s.namespace+".git")
	again, second := build("one", "v2")
	if again != made || note == second {
		t.Errorf("the stage made %q, and once more %q; the note is %q, and was %q", made, again,
			second, note)
	}
	if other, _ := build("other", "v3"); other == made {
		t.Error("another build has the layer of the first one")
	}
}
