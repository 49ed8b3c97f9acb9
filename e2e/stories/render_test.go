package stories

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// enterForAgents creates a story in a namespace in which agents with their sidecars can run.
func enterForAgents(t *testing.T) *story {
	t.Helper()
	// proxy-init needs it: docs/containers.md, "Pod Security".
	s := newStory(t, map[string]string{"pod-security.kubernetes.io/enforce": "privileged"})
	var driver storagev1.CSIDriver
	if err := s.Get(t.Context(), client.ObjectKey{Name: "csi.spiffe.io"}, &driver); err != nil {
		t.Skipf("agents need SPIFFE's CSI driver in the cluster: %v", err)
	}
	s.secret(t, "keycloak-admin-secret", corev1.SecretTypeOpaque, map[string]string{
		"KEYCLOAK_ADMIN_USERNAME": "admin", "KEYCLOAK_ADMIN_PASSWORD": "none",
	})
	return s
}

// agents is a copy of files of testdata/agents.
func (s *story) agents(t *testing.T, files ...string) (folder string) {
	t.Helper()
	return s.copied(t, "agents", append(files, "armature.yaml")...)
}

// copied are files of a folder of testdata, where ${image:NAME} is replaced by an
// image of the cluster.
func (s *story) copied(t *testing.T, from string, files ...string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join("testdata", from, file))
		must(t, err)
		text = regexp.MustCompile(`\$\{image:([a-z-]+)\}`).ReplaceAllFunc(text,
			func(match []byte) []byte {
				name := string(match[len("${image:") : len(match)-1])
				if s.info.Images[name] == "" {
					t.Fatalf("the cluster has no image %s", name)
				}
				return []byte(s.info.Images[name])
			})
		must(t, os.WriteFile(filepath.Join(folder, file), text, 0o644))
	}
	return folder
}

// rewrite changes a file of such a copy.
func rewrite(t *testing.T, folder, file, old, new string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, file))
	must(t, err)
	if !strings.Contains(string(text), old) {
		t.Fatalf("%s lacks %q", file, old)
	}
	must(t, os.WriteFile(filepath.Join(folder, file),
		[]byte(strings.ReplaceAll(string(text), old, new)), 0o644))
}

// rendered is what `armature render` makes of a folder, for the story's namespace.
func (s *story) rendered(t *testing.T, folder string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := ssautil.ReadObjects(bytes.NewReader(armature(t, "render", folder)))
	must(t, err)
	for _, object := range objects {
		object.SetNamespace(s.namespace)
	}
	return objects
}

// running waits until the only pod with that label is ready.
func (s *story) running(t *testing.T, app string) corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	eventually(t, 5*time.Minute, app+" is ready", func(ctx context.Context) error {
		if err := s.List(ctx, &pods, client.InNamespace(s.namespace),
			client.MatchingLabels{"app": app}); err != nil {
			return err
		}
		if len(pods.Items) != 1 || !ready(pods.Items[0]) {
			return fmt.Errorf("it has %d pods, and not one that is ready", len(pods.Items))
		}
		return nil
	})
	return pods.Items[0]
}

func ready(pod corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// stillRuns fails unless a pod is the one that it was, and none of its containers
// was started again.
func (s *story) stillRuns(t *testing.T, before corev1.Pod) {
	t.Helper()
	var now corev1.Pod
	must(t, s.Get(t.Context(), client.ObjectKeyFromObject(&before), &now))
	if now.UID != before.UID || !ready(now) {
		t.Errorf("pod %s was replaced or is not ready: %+v", before.Name, now.Status.Conditions)
	}
	for _, container := range append(now.Status.InitContainerStatuses,
		now.Status.ContainerStatuses...) {
		if container.RestartCount > 0 {
			t.Errorf("container %s of pod %s was started again", container.Name, before.Name)
		}
	}
}
