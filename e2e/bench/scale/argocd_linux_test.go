package scale_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/bench/scale"
	"github.com/armature-dev/armature/e2e/bench/workload"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/gitops"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/functions/api/keys"
)

// BenchmarkScaleArgoCD prints how long Argo CD takes from a new revision until as many Applications
// are synced, through our plugin, and beside that of plain folders and of kustomize. Each has an
// agent's workload and a ConfigMap; all are in one repository.
func BenchmarkScaleArgoCD(b *testing.B) {
	sizes := scale.Sizes(b, 50)
	programs.Peer(b, "argocd")
	for _, file := range []string{scale.Program(b, "armature-fn"), programs.Peer(b, "kustomize")} {
		b.Setenv("PATH", filepath.Dir(file)+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	plane := controlplane.Start(b)
	c, err := client.New(plane.Admin.Config, client.Options{})
	must(b, err)
	plugin := b.TempDir()
	text, err := os.ReadFile("../../../templates/wiring/argocd/plugin.yaml")
	must(b, err)
	write(b, plugin, "plugin.yaml", string(text))
	a := &applications{TB: b, Client: c, argocd: gitops.Start(b, plane.Admin.Config, plugin)}
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) { a.measure(b, n) })
	}
}

type applications struct {
	testing.TB
	client.Client
	argocd *gitops.ArgoCD
}

func (a *applications) measure(b *testing.B, n int) {
	a.TB = b
	origin := b.TempDir()
	git(b, origin, "init", "-q", "-b", "main")
	kinds := []string{"plugin", "folder", "kustomize"}
	costs := map[string]scale.Cost{}
	for _, kind := range kinds {
		commit := a.commit(origin, n, "one")
		namespace := fmt.Sprintf("%s-%d", kind, n)
		for i := range n {
			source := map[string]any{"repoURL": "file://" + origin, "targetRevision": "main",
				"path": fmt.Sprintf("%s/%04d", kind, i)}
			if kind == "plugin" {
				source["plugin"] = map[string]any{"name": "armature-v1"}
			}
			a.argocd.Set(fmt.Sprintf("%s-%04d", namespace, i), namespace, source)
		}
		a.synced(n, namespace, commit)
		commit = a.commit(origin, n, "two of "+kind)
		start := time.Now()
		for i := range n {
			a.must(a.Patch(b.Context(), application(fmt.Sprintf("%s-%04d", namespace, i)),
				client.RawPatch("application/merge-patch+json",
					[]byte(
						`{"metadata":{"annotations":{"argocd.argoproj.io/refresh":"normal"}}}`))))
		}
		costs[kind] = scale.Cost{Wall: a.synced(n, namespace, commit).Sub(start)}
		var agent appsv1.Deployment
		a.must(a.Get(b.Context(),
			client.ObjectKey{Namespace: namespace, Name: "weather-agent-00000"}, &agent))
		if injected := strings.Contains(fmt.Sprint(agent.Spec.Template),
			"authbridge-proxy"); injected != (kind == "plugin") {
			b.Errorf("%s: that the workload is injected is %v", kind, injected)
		}
		for i := range n {
			a.argocd.Delete(fmt.Sprintf("%s-%04d", namespace, i))
		}
	}
	for _, kind := range kinds[1:] {
		scale.Row(fmt.Sprint("argocd:", n),
			"Applications through our plugin, new revision to Synced", n, costs["plugin"],
			"Argo CD, "+kind, costs[kind])
	}
}

func (a *applications) must(err error) {
	a.Helper()
	must(a, err)
}

// commit the Applications of each kind with a text in their ConfigMaps.
func (a *applications) commit(origin string, n int, text string) string {
	a.Helper()
	for i := range n {
		var agent bytes.Buffer
		a.must(workload.Write(&agent, i))
		all := strings.Replace(agent.String(), fmt.Sprintf("  namespace: team-%03d\n", i/100), "", 1) +
			fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings-%04d\n"+
				"data:\n  text: %s\n", i, text)
		for kind, more := range map[string]string{
			"plugin/%04d/armature.yaml": "apiVersion: " + keys.V1alpha1 +
				"\nkind: RenderConfig\nmetadata:\n  name: armature\n",
			"folder/%04d/NOTES.txt":             "",
			"kustomize/%04d/kustomization.yaml": "resources: [agent.yaml]\n",
		} {
			file := fmt.Sprintf(kind, i)
			write(a, origin, file, more)
			write(a, origin, filepath.Join(filepath.Dir(file), "agent.yaml"), all)
		}
	}
	git(a, origin, "add", "-A")
	git(a, origin, "commit", "-q", "-m", "A change")
	return git(a, origin, "rev-parse", "HEAD")
}

// synced waits until all Applications of a namespace are synced with a commit.
func (a *applications) synced(n int, namespace, commit string) time.Time {
	a.Helper()
	return scale.Await(a, "Applications of "+namespace+" are synced", n, 5*time.Minute,
		func() (have int, why string) {
			var all unstructured.UnstructuredList
			all.SetGroupVersionKind(application("").GroupVersionKind())
			a.must(a.List(a.Context(), &all, client.InNamespace(gitops.Namespace)))
			for _, o := range all.Items {
				sync, _, _ := unstructured.NestedMap(o.Object, "status", "sync")
				phase, _, _ := unstructured.NestedString(o.Object, "status", "operationState", "phase")
				done, _, _ := unstructured.NestedString(o.Object, "status", "operationState",
					"syncResult", "revision")
				if strings.HasPrefix(o.GetName(), namespace) && sync["status"] == "Synced" &&
					sync["revision"] == commit && phase == "Succeeded" && done == commit {
					have++
				} else {
					conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
					why = fmt.Sprint(o.GetName(), " is ", phase, " ", sync["status"], " ", conditions)
				}
			}
			return have, why
		})
}

func application(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("argoproj.io/v1alpha1")
	o.SetKind("Application")
	o.SetNamespace(gitops.Namespace)
	o.SetName(name)
	return o
}

func git(t testing.TB, folder string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
