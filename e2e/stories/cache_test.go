package stories

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// A build keeps its layers beside its image without any setting: built again with
// another last layer, its first stage is not run again. A build of another name has
// nothing of that.
func TestCache(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	folder := filepath.Join(t.TempDir(), "uncertain")
	must(t, os.CopyFS(folder, os.DirFS("testdata/uncertain")))
	s.push(t, folder, "public/"+s.namespace+".git")
	build := func(name, tag string) (made, note string) {
		t.Helper()
		s.apply(t, strings.NewReplacer("NAME", name, "TAG", tag).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec:
  mode: dev-local
  builder: buildkit
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: uncertain, imageTag: TAG}
`))
		image := ""
		eventually(t, 10*time.Minute, "build "+name+" has made "+tag, func(ctx context.Context) error {
			build := &api.AgentBuild{}
			if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, build); err != nil {
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
		image = strings.Replace(image, s.info.Registry, s.info.HostRegistry, 1)
		return s.fileOf(t, image, "made"), s.fileOf(t, image, "note")
	}
	made, note := build("one", "v1")
	must(t, os.WriteFile(filepath.Join(folder, "note"), []byte("second\n"), 0o644))
	s.push(t, folder, "public/"+s.namespace+".git")
	again, second := build("one", "v2")
	if again != made || note == second {
		t.Errorf("the stage made %q, and once more %q; the note is %q, and was %q", made, again, second, note)
	}
	if other, _ := build("other", "v3"); other == made {
		t.Error("another build has the layer of the first one")
	}
}
