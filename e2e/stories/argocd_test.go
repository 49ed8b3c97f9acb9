package stories

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/gitops"
)

// An agent with its sidecars is Synced and Healthy in Argo CD by its real pod. Rendered by
// the plugin first, it is then taken from the branch that `armature hydrate` wrote: the pod
// runs on, and refreshes find nothing to write. Argo CD's servers are processes of this
// machine, and watch only what an agent consists of.
func TestArgoCD(t *testing.T) {
	t.Parallel()
	s := enterForAgents(t)
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("E2E_KUBECONFIG"))
	must(t, err)
	plugin := t.TempDir()
	armature(t, "init", plugin, "--for", "argocd")
	argo := gitops.Start(t, config, plugin, `apiVersion: v1
kind: ConfigMap
metadata:
  name: argocd-cm
data:
  resource.inclusions: |
    - {apiGroups: [""], kinds: [ConfigMap, Namespace, Pod, ServiceAccount], clusters: ["*"]}
    - {apiGroups: [apps], kinds: [Deployment, ReplicaSet], clusters: ["*"]}
`)

	clone, origin := t.TempDir(), filepath.Join(t.TempDir(), "origin.git")
	must(t, os.Mkdir(filepath.Join(clone, "apps"), 0o755))
	must(t,
		os.CopyFS(filepath.Join(clone, "apps", "agent"), os.DirFS(s.agents(t, "deployment.yaml"))))
	git := func(args ...string) { run(t, nil, "git", append([]string{"-C", clone}, args...)...) }
	git("init", "-q", "--bare", "-b", "main", origin)
	git("init", "-q", "-b", "main")
	git("config", "user.name", "story")
	git("config", "user.email", "story@example.com")
	git("remote", "add", "origin", "file://"+origin)
	git("add", "-A")
	git("commit", "-q", "-m", "An agent")
	git("push", "-q", "origin", "main")
	hydrate := exec.CommandContext(t.Context(), "armature", "hydrate", "apps/agent", "--branch",
		"environments/prod", "--push")
	hydrate.Dir = clone
	if out, err := hydrate.CombinedOutput(); err != nil {
		t.Fatalf("armature hydrate: %v\n%s", err, out)
	}

	source := func(revision string) map[string]any {
		return map[string]any{"repoURL": "file://" + origin, "targetRevision": revision,
			"path": "apps/agent"}
	}
	app := s.namespace
	t.Cleanup(func() { argo.Delete(app) })
	argo.Set(app, s.namespace, source("main"))
	healthy := func(sourceType string) {
		eventually(t, 5*time.Minute, sourceType+": Synced and Healthy",
			func(context.Context) error {
				status := argo.Get(app).Status
				if status.Sync.Status != "Synced" || status.Health.Status != "Healthy" ||
					status.SourceType != sourceType || len(status.Conditions) > 0 {
					return fmt.Errorf("it is %+v", status)
				}
				return nil
			})
	}
	healthy("Plugin")
	pod := s.running(t, "deployment")
	if len(pod.Spec.InitContainers)+len(pod.Spec.Containers) != 6 {
		t.Errorf("the pod has not all of its sidecars: %+v", pod.Spec)
	}

	synced, before := argo.Get(app).Status.OperationState.StartedAt, s.writes(t, gitops.User)
	refresh := func() {
		for range 5 {
			argo.Refresh(true, app)
		}
	}
	refresh()
	argo.Set(app, s.namespace, source("environments/prod"))
	healthy("Directory")
	refresh()
	healthy("Directory")
	s.stillRuns(t, pod)
	if diff := cmp.Diff(before, s.writes(t, gitops.User)); diff != "" {
		t.Errorf("Argo CD wrote while nothing changed (-before +after):\n%s", diff)
	}
	if now := argo.Get(app).Status.OperationState.StartedAt; now != synced {
		t.Errorf("a sync began at %s, after that of %s", now, synced)
	}

	// What is deleted by hand comes back.
	var generated corev1.ConfigMapList
	must(t, s.List(t.Context(), &generated, client.InNamespace(s.namespace)))
	for _, m := range generated.Items {
		if strings.HasPrefix(m.Name, "deployment-") {
			must(t,
				s.Delete(t.Context(),
					&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace,
						Name: m.Name}}))
			eventually(t, 5*time.Minute, "Argo CD makes "+m.Name+" again",
				func(ctx context.Context) error {
					return s.Get(ctx, client.ObjectKeyFromObject(&m), &corev1.ConfigMap{})
				})
			return
		}
	}
	t.Error("no ConfigMap was generated")
}

// writes are the requests of an account to change something in the story's namespace; none
// where the cluster has no audit log.
func (s *story) writes(t *testing.T, account string) (all []string) {
	t.Helper()
	if s.info.AuditLog == "" {
		return nil
	}
	for _, asked := range s.auditLog(t, 0) {
		if asked.User.Username == account && asked.ObjectRef.Namespace == s.namespace && asked.writes() {
			all = append(all, asked.Verb+" "+asked.RequestURI)
		}
	}
	if len(all) == 0 {
		t.Errorf("the audit log lacks what %s wrote", account)
	}
	return all
}
