package integrations

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/gitops"
	"github.com/armature-dev/armature/functions/multi"
)

// fleet is Argo CD with a repository that has one package, which two Applications keep,
// each in a namespace of its name: byPlugin renders it, and byBranch takes what
// `armature hydrate` wrote.
type fleet struct {
	*gitops.ArgoCD
	t     *testing.T
	plane *controlplane.ControlPlane
	admin client.Client
	clone string // of the repository
}

const byPlugin, byBranch, branch = "by-plugin", "by-branch", "environments/prod"

var both = []string{byPlugin, byBranch}

// The real Argo CD keeps the same package by the plugin and from a hydrated branch: both are Synced
// and Healthy, injected workloads do not drift, edited objects are corrected and removed ones are
// pruned. A package that does not render, or renders to nothing, changes nothing.
//
// Only an API server runs, and no node: the test reports Deployments as available, and sets the
// status of AgentBuilds as the build controller does.
func TestArgoCDSyncs(t *testing.T) {
	f := newFleet(t)
	files := f.weather()
	f.deploy(files)
	f.judges()
	f.injected()
	f.stays()
	f.corrects()

	files["settings.yaml"] = strings.Replace(files["settings.yaml"], "key: one", "key: two", 1)
	f.deploy(files)
	f.settled()
	for _, namespace := range both {
		if got := f.settings(namespace); got != "two" {
			t.Errorf("%s: a commit of one line did not arrive: %q", namespace, got)
		}
	}

	broken := maps.Clone(files)
	broken["deployment.yaml"] += "  ]broken\n"
	f.refuses(broken, `deployment\.yaml:\d+: `, `apps/weather/deployment\.yaml:\d+: `)
	nothing := map[string]string{"armature.yaml": files["armature.yaml"]}
	f.refuses(nothing, "holds no manifests", "apps/weather")
	nothing["list.yaml"] = "apiVersion: v1\nkind: List\nitems: []\n"
	nothing["local.yaml"] = strings.Replace(files["settings.yaml"], "  name: settings\n",
		"  name: local\n  annotations:\n    config.kubernetes.io/local-config: \"true\"\n", 1)
	f.refuses(nothing, "holds no manifests", "apps/weather renders no objects")

	f.prunes(files)
}

// newFleet starts Argo CD with two Applications, and no package yet.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	argocd(t)
	plane := controlplane.StartAudited(t)
	scheme := runtime.NewScheme()
	api.AddToScheme(scheme, api.DefaultGroup)
	err := multi.Errors(clientgoscheme.AddToScheme(scheme),
		plane.InstallCRDs(filepath.Join(root, "templates", "crds",
			"agent.kagenti.dev_agentbuilds.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	plugin := t.TempDir()
	initFor(t, plugin, "argocd")
	f := &fleet{t: t, plane: plane,
		ArgoCD: gitops.Start(t, plane.Admin.Config, plugin,
			read(t, root, "examples/argocd/health.yaml"))}
	if f.admin, err = client.New(plane.Admin.Config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}

	origin := filepath.Join(t.TempDir(), "origin.git")
	f.clone = t.TempDir()
	must(t, "", "", "git", "init", "-q", "--bare", "-b", "main", origin)
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"config", "user.name", "ci"},
		{"config", "user.email", "ci@example.com"},
		{"remote", "add", "origin", "file://" + origin}} {
		must(t, f.clone, "", "git", args...)
	}
	source := func(revision string) map[string]any {
		return map[string]any{"repoURL": "file://" + origin, "targetRevision": revision,
			"path": "apps/weather"}
	}
	rendered := source("main")
	rendered["plugin"] = map[string]any{"name": "armature-v1",
		"parameters": []any{map[string]any{"name": "rollout", "string": "none"}}}
	f.commit(f.weather())
	f.hydrate()
	// Argo CD prunes in the foreground, for which it takes Kubernetes' garbage collector.
	const background = "PrunePropagationPolicy=background"
	f.Set(byPlugin, byPlugin, rendered, background)
	f.Set(byBranch, byBranch, source(branch), background, "ServerSideApply=true")
	return f
}

// weather is the example with its configuration, a ConfigMap and an AgentBuild.
func (f *fleet) weather() map[string]string {
	f.t.Helper()
	files := make(map[string]string)
	dir := examples(f.t, "weather-agent")
	initFor(f.t, dir, "")
	entries, err := os.ReadDir(dir)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range entries {
		files[e.Name()] = read(f.t, dir, e.Name())
	}
	files["build.yaml"] = strings.Replace(read(f.t, root, "examples/builds/weather.yaml"),
		"  namespace: team1\n", "", 1)
	files["settings.yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\n" +
		"data:\n  key: one\n"
	return files
}

// commit pushes the package with these files, and no others, and returns the commit.
func (f *fleet) commit(files map[string]string) string {
	f.t.Helper()
	folder := filepath.Join(f.clone, "apps", "weather")
	if err := multi.Errors(os.RemoveAll(folder), os.MkdirAll(folder, 0o755)); err != nil {
		f.t.Fatal(err)
	}
	for name, text := range files {
		write(f.t, folder, name, text)
	}
	must(f.t, f.clone, "", "git", "add", "-A")
	must(f.t, f.clone, "", "git", "commit", "-q", "--allow-empty", "-m", "A change")
	must(f.t, f.clone, "", "git", "push", "-q", "origin", "main")
	return strings.TrimSpace(must(f.t, f.clone, "", "git", "rev-parse", "HEAD"))
}

// hydrate hydrates the branch and returns its commit.
func (f *fleet) hydrate() string {
	f.t.Helper()
	must(f.t, f.clone, "", "armature", "hydrate", "apps/weather", "--branch", branch, "--push", "-q")
	return f.hydrated()
}

func (f *fleet) hydrated() string {
	f.t.Helper()
	head, _, _ := strings.Cut(must(f.t, f.clone, "", "git", "ls-remote", "origin",
		"refs/heads/"+branch), "\t")
	return head
}

// deploy commits a package and waits until both Applications are Synced with it.
func (f *fleet) deploy(files map[string]string) {
	f.t.Helper()
	commits := map[string]string{byPlugin: f.commit(files), byBranch: f.hydrate()}
	f.Refresh(false, both...)
	for name, commit := range commits {
		f.Eventually(name+" is Synced", func() string {
			if err := controlplane.RunDeployments(f.t.Context(), f.admin); err != nil {
				return err.Error()
			}
			app := f.Get(name)
			if app.Status.Sync.Status != "Synced" || app.Status.Sync.Revision != commit ||
				app.Operation != nil || app.Status.OperationState.Phase != "Succeeded" {
				return fmt.Sprintf("want %s: %+v", commit, app.Status)
			}
			return ""
		})
	}
}

// settled waits until both Applications are Synced and Healthy.
func (f *fleet) settled() {
	f.t.Helper()
	for _, name := range both {
		f.Eventually(name+" is Synced and Healthy", func() string {
			if err := controlplane.RunDeployments(f.t.Context(), f.admin); err != nil {
				return err.Error()
			}
			app := f.Get(name)
			if app.Status.Sync.Status != "Synced" || app.Status.Health.Status != "Healthy" ||
				app.Operation != nil || len(app.Status.Conditions) > 0 {
				return fmt.Sprintf("%+v", app.Status)
			}
			return ""
		})
	}
}

// judges sets the status of each phase in the AgentBuilds: the scripts of
// examples/argocd/health.yaml judge them, and with them the Applications.
func (f *fleet) judges() {
	f.t.Helper()
	for _, c := range []struct {
		phase           api.Phase
		message, health string
	}{
		{"", "", "Progressing"},
		{api.PhaseBuilding, "step clone runs", "Progressing"},
		{api.PhaseFailed, "no such Secret", "Degraded"},
		{api.PhaseSucceeded, "the image was built", "Healthy"},
	} {
		want := c.message
		if c.phase == "" {
			want = "waiting for the build controller"
		}
		for _, name := range both {
			if c.phase != "" {
				f.report(name, c.phase, c.message)
			}
			f.Eventually(fmt.Sprintf("the AgentBuild of %s, %q, is %s", name, c.phase, c.health),
				func() string {
					if err := controlplane.RunDeployments(f.t.Context(), f.admin); err != nil {
						return err.Error()
					}
					// another message of the same health waits for a refresh
					if c.phase == api.PhaseBuilding {
						f.Refresh(false, name)
					}
					app := f.Get(name)
					build := app.Resource("AgentBuild/weather")
					if build.Health.Status != c.health || build.Health.Message != want ||
						app.Status.Health.Status != c.health {
						return fmt.Sprintf("it is %+v, and the Application %s", build,
							app.Status.Health.Status)
					}
					return ""
				})
		}
	}
	f.settled()
}

// report writes the status of a namespace's AgentBuild as the build controller does.
func (f *fleet) report(namespace string, phase api.Phase, message string) {
	f.t.Helper()
	f.Eventually("writing a status", func() string {
		build := &api.AgentBuild{}
		err := f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: namespace, Name: "weather"}, build)
		if err == nil {
			build.Status = api.AgentBuildStatus{Phase: phase, Message: message,
				ObservedGeneration: build.Generation}
			err = f.admin.Status().Update(f.t.Context(), build)
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
}

func (f *fleet) deployment(namespace string) *appsv1.Deployment {
	f.t.Helper()
	d := &appsv1.Deployment{}
	if err := f.admin.Get(f.t.Context(),
		client.ObjectKey{Namespace: namespace, Name: "weather-agent"}, d); err != nil {
		f.t.Fatal(err)
	}
	return d
}

// sidecar is the container of AuthBridge, which the author has not written.
func sidecar(d *appsv1.Deployment) *corev1.Container {
	pod := &d.Spec.Template.Spec
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		if i := slices.IndexFunc(containers,
			func(c corev1.Container) bool { return c.Name == "authbridge-proxy" }); i >= 0 {
			return &containers[i]
		}
	}
	return nil
}

// injected compares the pods of the two Applications.
func (f *fleet) injected() {
	f.t.Helper()
	rendered := f.deployment(byPlugin)
	if sidecar(rendered) == nil {
		f.t.Fatalf("no authbridge-proxy in %+v", rendered.Spec.Template)
	}
	if diff := cmp.Diff(rendered.Spec.Template, f.deployment(byBranch).Spec.Template); diff != "" {
		f.t.Errorf("the pods (-%s +%s):\n%s", byPlugin, byBranch, diff)
	}
}

// still is what changes when anybody writes: the versions of all objects in the two
// namespaces, the number of Argo CD's requests to write there, and when it synced last.
type still struct {
	Versions map[string]string
	Writes   map[string]int
	Synced   map[string]string
}

func (f *fleet) still() still {
	f.t.Helper()
	s := still{map[string]string{}, map[string]int{}, map[string]string{}}
	for _, namespace := range both {
		for _, list := range []client.ObjectList{&appsv1.DeploymentList{}, &corev1.ConfigMapList{},
			&corev1.ServiceList{}, &corev1.ServiceAccountList{}, &api.AgentBuildList{}} {
			if err := f.admin.List(f.t.Context(), list, client.InNamespace(namespace)); err != nil {
				f.t.Fatal(err)
			}
			objects, err := runtime.DefaultUnstructuredConverter.ToUnstructured(list)
			if err != nil {
				f.t.Fatal(err)
			}
			items, _ := objects["items"].([]any)
			for _, item := range items {
				metadata := item.(map[string]any)["metadata"].(map[string]any)
				s.Versions[fmt.Sprintf("%s %T %s", namespace, list, metadata["name"])] = fmt.Sprint(
					metadata["resourceVersion"])
			}
		}
		writes, err := f.plane.Writes(gitops.User, namespace)
		if err != nil {
			f.t.Fatal(err)
		}
		s.Writes[namespace] = len(writes)
		s.Synced[namespace] = f.Get(namespace).Status.OperationState.StartedAt
	}
	return s
}

// stays refreshes both Applications again and again, at least 20 times and for as long as
// ARMATURE_TEST_DRIFT says: nothing is written.
func (f *fleet) stays() {
	f.t.Helper()
	atLeast, err := time.ParseDuration("0s" + os.Getenv("ARMATURE_TEST_DRIFT"))
	if err != nil {
		f.t.Fatalf("ARMATURE_TEST_DRIFT is to be a duration, such as 10m: %v", err)
	}
	before := f.still()
	for _, name := range both {
		if before.Writes[name] < 5 {
			f.t.Fatalf("the audit log has %d writes of Argo CD in %s", before.Writes[name], name)
		}
	}
	started, rounds := time.Now(), 0
	for ; rounds < 20 || time.Since(started) < atLeast; rounds++ {
		f.Refresh(true, both...)
		for _, name := range both {
			if s := f.Get(name).Status; s.Sync.Status != "Synced" || s.Health.Status != "Healthy" ||
				len(s.Conditions) > 0 {
				f.t.Fatalf("%s drifts in round %d: %+v", name, rounds, s)
			}
		}
	}
	f.t.Logf("%d hard refreshes of each Application in %s", rounds,
		time.Since(started).Round(time.Second))
	if diff := cmp.Diff(before, f.still()); diff != "" {
		f.t.Errorf("written while nothing changed (-before +after):\n%s", diff)
	}
}

// corrects edits and deletes what was injected.
func (f *fleet) corrects() {
	f.t.Helper()
	for _, namespace := range both {
		image := sidecar(f.deployment(namespace)).Image
		f.Eventually("an edit of authbridge-proxy", func() string {
			d := f.deployment(namespace)
			sidecar(d).Image = "example.com/by-hand:v1"
			if err := f.admin.Update(f.t.Context(), d,
				client.FieldOwner("kubectl-edit")); err != nil {
				return err.Error()
			}
			return ""
		})
		f.Eventually("the edit in "+namespace+" is corrected", func() string {
			if got := sidecar(f.deployment(namespace)).Image; got != image {
				return got
			}
			return ""
		})
		generated := f.generated(namespace)
		if len(generated) == 0 {
			f.t.Fatalf("%s has no ConfigMap that was generated", namespace)
		}
		gone := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: generated[0]}}
		if err := f.admin.Delete(f.t.Context(), gone); err != nil {
			f.t.Fatal(err)
		}
		f.Eventually(generated[0]+" is in "+namespace+" again", func() string {
			if diff := cmp.Diff(generated, f.generated(namespace)); diff != "" {
				return diff
			}
			return ""
		})
	}
	f.settled()
}

// generated names the ConfigMaps of a namespace that a render has made.
func (f *fleet) generated(namespace string) (names []string) {
	f.t.Helper()
	var all corev1.ConfigMapList
	if err := f.admin.List(f.t.Context(), &all, client.InNamespace(namespace)); err != nil {
		f.t.Fatal(err)
	}
	for _, c := range all.Items {
		if strings.Contains(c.Name, "weather-agent") {
			names = append(names, c.Name)
		}
	}
	return names
}

// settings is the value in the ConfigMap that the author has written.
func (f *fleet) settings(namespace string) string {
	f.t.Helper()
	c := &corev1.ConfigMap{}
	if err := f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: namespace, Name: "settings"},
		c); client.IgnoreNotFound(err) != nil {
		f.t.Fatal(err)
	}
	return c.Data["key"]
}

// refuses commits a package that the plugin and hydrate refuse with these words: an
// Application shows the plugin's, the branch stays, and nothing is written.
func (f *fleet) refuses(files map[string]string, plugin, hydrate string) {
	f.t.Helper()
	before, head := f.still(), f.hydrated()
	commit := f.commit(files)
	out := mustFail(f.t, f.clone, "", "armature", "hydrate", "apps/weather", "--branch", branch, "--push")
	if !regexp.MustCompile(hydrate).MatchString(out) {
		f.t.Errorf("hydrate does not say %s:\n%s", hydrate, out)
	}
	if now := f.hydrated(); now != head {
		f.t.Errorf("hydrate wrote %s all the same", now)
	}
	for _, hard := range []bool{true, false, true} {
		f.Refresh(hard, both...)
		s := f.Get(byPlugin).Status
		if len(s.Conditions) != 1 || s.Conditions[0].Type != "ComparisonError" ||
			!regexp.MustCompile(plugin).MatchString(s.Conditions[0].Message) ||
			s.Sync.Status != "Unknown" {
			f.t.Errorf("at %s the Application does not say %s: %+v", commit, plugin, s)
		}
		if s := f.Get(byBranch).Status; s.Sync.Status != "Synced" || s.Health.Status != "Healthy" ||
			len(s.Conditions) > 0 {
			f.t.Errorf("the branch's Application is disturbed: %+v", s)
		}
	}
	if diff := cmp.Diff(before, f.still()); diff != "" {
		f.t.Errorf("written although the package is refused (-before +after):\n%s", diff)
	}
}

// prunes takes the label that opts in, the custom resources and the ConfigMap away: all
// that was generated goes, and the agent stays.
func (f *fleet) prunes(files map[string]string) {
	f.t.Helper()
	for _, name := range []string{"settings.yaml", "token-exchange.yaml", "agent-trace.yaml",
		"agent-card.yaml"} {
		if files[name] == "" {
			f.t.Fatal(name, fs.ErrNotExist)
		}
		delete(files, name)
	}
	const label = "    kagenti.io/inject: enabled\n"
	if !strings.Contains(files["deployment.yaml"], label) {
		f.t.Fatalf("the example lacks %q", label)
	}
	files["deployment.yaml"] = strings.Replace(files["deployment.yaml"], label, "", 1)
	f.deploy(files)
	for _, namespace := range both {
		d := f.deployment(namespace)
		if pod := d.Spec.Template.Spec; sidecar(d) != nil || len(pod.InitContainers) > 0 ||
			len(pod.Containers) != 1 || len(pod.Volumes) > 0 {
			f.t.Errorf("%s: what was injected is left: %+v", namespace, pod)
		}
		f.Eventually("pruning in "+namespace, func() string {
			return strings.Join(f.generated(namespace), ", ") + f.settings(namespace)
		})
		if app := f.Get(namespace); app.Resource("Service/weather-agent").Status != "Synced" {
			f.t.Errorf("%s: the Service is %+v", namespace, app.Resource("Service/weather-agent"))
		}
	}
	f.settled()
}
