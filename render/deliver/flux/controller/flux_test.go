package controller_test

import (
	"fmt"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/ports"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/render/deliver/flux/api"
)

// flux runs one of Flux's controllers until the test ends.
func flux(t *testing.T, plane *controlplane.ControlPlane, name string, args ...string) {
	t.Helper()
	var log controlplane.Output
	cmd := exec.Command(programs.Peer(t, name),
		append(args, "--metrics-addr=0", "--health-addr=127.0.0.1:0")...)
	dir := t.TempDir()
	cmd.Env = append(os.Environ(), "KUBECONFIG="+plane.Admin.Kubeconfig,
		"RUNTIME_NAMESPACE=flux-system", "HOME="+dir, "TMPDIR="+dir)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if text := log.String(); t.Failed() {
			t.Logf("%s:\n%s", name, text[max(0, len(text)-6000):])
		}
	})
}

// storage returns the flags of a source-controller that keeps its archives in a folder, and names
// their address.
func storage(t testing.TB, folder string) (flags []string) {
	t.Helper()
	port, err := ports.Free()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"--storage-path=" + folder, "--storage-addr=127.0.0.1:" + port,
		"--storage-adv-addr=127.0.0.1:" + port}
}

// remote is a Git repository that Git's own HTTP server serves.
type remote struct {
	*world
	dir, url string
}

// serveGit serves an empty repository.
func (w *world) serveGit() *remote {
	w.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		w.Skip("git is not installed\n  hint: apt-get install git")
	}
	r := &remote{world: w, dir: filepath.Join(w.TempDir(), "fleet")}
	w.must(os.Mkdir(r.dir, 0o755))
	r.git("init", "-q", "-b", "main")
	server := httptest.NewServer(&cgi.Handler{Path: git, Args: []string{"http-backend"},
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(r.dir), "GIT_HTTP_EXPORT_ALL=1"}})
	w.Cleanup(server.Close)
	r.url = server.URL + "/fleet/.git"
	return r
}

func (r *remote) git(args ...string) string {
	r.Helper()
	cmd := exec.CommandContext(r.Context(), "git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit commits these files, and no others, and returns the commit.
func (r *remote) commit(files map[string]string) string {
	r.Helper()
	r.git("rm", "-rq", "--ignore-unmatch", ".")
	for name, text := range files {
		file := filepath.Join(r.dir, filepath.FromSlash(name))
		r.must(os.MkdirAll(filepath.Dir(file), 0o755))
		r.must(os.WriteFile(file, []byte(text), 0o644))
	}
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "A change")
	return r.git("rev-parse", "HEAD")
}

// kustomization of Flux as it is.
func (w *world) kustomization(name string) *unstructured.Unstructured {
	w.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "kustomize.toolkit.fluxcd.io",
		Version: "v1", Kind: "Kustomization"})
	o.SetNamespace(w.namespace)
	o.SetName(name)
	if err := w.Get(w.Context(), client.ObjectKeyFromObject(o),
		o); client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
	return o
}

// applied waits until Flux has applied and found healthy what is published.
func (w *world) applied(name string) *unstructured.Unstructured {
	w.Helper()
	w.eventually("Flux applies "+name, func() string {
		if err := controlplane.RunDeployments(w.Context(), w,
			client.InNamespace(w.namespace)); err != nil {
			return err.Error()
		}
		k, want := w.kustomization(name), w.published(name)["revision"]
		revision, _, _ := unstructured.NestedString(k.Object, "status", "lastAppliedRevision")
		conditions, _, _ := unstructured.NestedSlice(k.Object, "status", "conditions")
		all := map[string]string{}
		for _, c := range conditions {
			c := c.(map[string]any)
			all[c["type"].(string)] = fmt.Sprint(c["status"], " ", c["reason"], " ", c["message"])
		}
		if revision != want || !strings.HasPrefix(all["Ready"], "True ReconciliationSucceeded") ||
			!strings.HasPrefix(all["Healthy"], "True") {
			return fmt.Sprintf("revision %s, want %s; %v", revision, want, all)
		}
		return ""
	})
	return w.kustomization(name)
}

// wiring makes sure that the API server takes what init writes for hosts, without
// unknown fields.
func (w *world) wiring(hosts ...string) {
	w.Helper()
	for _, host := range hosts {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "templates", "wiring", host,
			host+".yaml"))
		w.must(err)
		objects := 0
		for _, doc := range strings.Split(string(text), "\n---\n") {
			o := &unstructured.Unstructured{}
			w.must(yaml.Unmarshal([]byte(doc), o))
			o.SetNamespace(w.namespace)
			if err := w.Create(w.Context(), o, client.DryRunAll,
				client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
				w.Errorf("init --for %s: %v", host, err)
			}
			objects++
		}
		if objects < 2 {
			w.Errorf("init --for %s writes %d objects", host, objects)
		}
	}
}

// weather is the example in a repository, with a ConfigMap beside it.
func (w *world) weather(value string) map[string]string {
	w.Helper()
	out := map[string]string{}
	found, err := filepath.Glob(filepath.Join("..", "..", "..", "..", "examples", "weather-agent",
		"*.yaml"))
	w.must(err)
	for _, f := range found {
		data, err := os.ReadFile(f)
		w.must(err)
		out["apps/weather/"+filepath.Base(f)] = string(data)
	}
	if len(out) == 0 {
		w.Fatal("the example has no files")
	}
	out["config/large.yaml"] = "apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\n" +
		"metadata: {name: large}\nspec: {components: {authbridge-proxy: {resources: {limits: " +
		"{memory: 999Mi}}}}}\n"
	if value != "" {
		out["apps/weather/settings.yaml"] = configMap("settings", value)
	}
	return out
}

// Flux's own source-controller and kustomize-controller have a RenderedSource between
// them: commits arrive, what is edited is corrected, what goes is pruned, a broken commit
// keeps the last good one, and archives that were changed are refused.
func TestFlux(t *testing.T) {
	for _, name := range []string{"source-controller", "kustomize-controller"} {
		programs.Peer(t, name)
	}
	plane := controlplane.Start(t)
	folders, err := crdFolders()
	if err == nil {
		var kustomizations string
		kustomizations, err = fluxCRDs("github.com/fluxcd/kustomize-controller@v1.9.5")
		folders = append(folders, kustomizations,
			filepath.Join("..", "..", "..", "..", "templates", "crds", "catalog"))
	}
	if err == nil {
		err = plane.InstallCRDs(folders...)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, plane)
	w.start()
	stored := t.TempDir()
	flux(t, plane, "source-controller", storage(t, stored)...)
	flux(t, plane, "kustomize-controller", "--feature-gates=ExternalArtifact=true",
		"--requeue-dependency=1s")
	w.wiring("flux", "flux-oci")
	fleet := w.serveGit()
	commit := fleet.commit(w.weather("one"))
	source := w.object("GitRepository", "fleet")
	source.Object["spec"] = map[string]any{"url": fleet.url, "interval": "2s",
		"ref": map[string]any{"branch": "main"}}
	w.must(w.Create(t.Context(), source))
	w.rendered("weather", "fleet", at("apps/weather"), every("1s"))
	w.ready("weather", commit)
	k := w.kustomization("weather")
	k.Object["spec"] = map[string]any{
		"interval": "2s", "retryInterval": "2s", "timeout": "2m", "prune": true, "wait": true,
		"targetNamespace": w.namespace, "path": "./",
		"sourceRef": map[string]any{"kind": "ExternalArtifact", "name": "weather"},
	}
	w.must(w.Create(t.Context(), k))

	k = w.applied("weather")
	if origin, _, _ := unstructured.NestedString(k.Object, "status",
		"lastAppliedOriginRevision"); origin != "main@sha1:"+commit {
		t.Errorf("lastAppliedOriginRevision %q", origin)
	}
	entries, _, _ := unstructured.NestedSlice(k.Object, "status", "inventory", "entries")
	if text := fmt.Sprint(entries); !strings.Contains(text, "apps_Deployment") ||
		!strings.Contains(text, "_settings__ConfigMap") {
		t.Errorf("inventory %s", text)
	}
	if got := w.injected(); got != 1 {
		t.Fatalf("%d Deployments are injected", got)
	}

	commit = fleet.commit(w.weather("two"))
	if diff := fleet.git("diff", "--numstat", "HEAD~"); diff != "1\t1\tapps/weather/settings.yaml" {
		t.Errorf("the commit has more than a line: %s", diff)
	}
	w.ready("weather", commit)
	w.applied("weather")
	if got := w.value(); got != "two" {
		t.Errorf("the commit did not arrive: %s", got)
	}

	before := w.versions()
	time.Sleep(5 * time.Second) // two intervals of each controller, and more
	if after := w.versions(); after != before {
		t.Errorf("objects were written while nothing changed:\n%s\n%s", before, after)
	}

	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "settings"}}
	w.must(w.Patch(t.Context(), c,
		client.RawPatch("application/merge-patch+json", []byte(`{"data":{"key":"by hand"}}`))))
	w.eventually("the edit is corrected",
		func() string { return strings.TrimPrefix(w.value(), "two") })

	broken := w.weather("three")
	broken["apps/weather/deployment.yaml"] += "  ]broken\n"
	fleet.commit(broken)
	if message := w.fails("weather",
		"RenderFailed"); !regexp.MustCompile(`\napps/weather/deployment\.yaml:\d+: `).MatchString(
		message) {
		t.Errorf("no file and line in %s", message)
	}
	w.applied("weather")
	if got := w.value(); got != "two" {
		t.Errorf("a broken commit arrived: %s", got)
	}

	fleet.commit(map[string]string{"apps/weather/README.md": "all manifests are gone\n"})
	w.eventually("an empty render is refused", func() string {
		if _, _, message := w.condition("weather", "Ready"); !strings.Contains(message,
			"no Kubernetes object is left") {
			return message
		}
		return ""
	})
	w.applied("weather")
	if w.value() != "two" || w.injected() != 1 {
		t.Errorf("an empty render arrived: the value is %q, and %d Deployments are injected",
			w.value(), w.injected())
	}

	commit = fleet.commit(w.weather(""))
	w.ready("weather", commit)
	w.applied("weather")
	w.eventually("the ConfigMap is pruned", w.value)
	if got := w.injected(); got != 1 {
		t.Errorf("%d injected Deployments are left", got)
	}
	w.renderedAgain(commit)
	w.changedArchives(stored)
}

// renderedAgain changes what a commit renders to, without another commit: the revision is
// another one, so that Flux applies it.
func (w *world) renderedAgain(commit string) {
	w.Helper()
	before := w.published("weather")["revision"]
	w.change("weather", func(s *api.RenderedSource) { s.Spec.Config = "config/large.yaml" })
	w.eventually("the commit is rendered again", func() string {
		after := w.published("weather")["revision"].(string)
		if after == before || !strings.HasPrefix(after, "main@sha1:"+commit+"+sha256:") {
			return fmt.Sprintf("published is %s, and was %s", after, before)
		}
		return ""
	})
	w.applied("weather")
	d := &appsv1.Deployment{}
	w.must(w.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: "weather-agent"}, d))
	for _, c := range append(d.Spec.Template.Spec.InitContainers,
		d.Spec.Template.Spec.Containers...) {
		if c.Name == "authbridge-proxy" && c.Resources.Limits.Memory().String() == "999Mi" {
			return
		}
	}
	w.Errorf("Flux has not applied what the commit renders to now: %v", d.Spec.Template.Spec)
}

// changedArchives replaces the archives that the two controllers have stored: the one of
// the RenderedSource, and the one of the source.
func (w *world) changedArchives(stored string) {
	w.Helper()
	evil := pack(w, map[string]string{"apps/weather/evil.yaml": configMap("evil", "x")})
	file := filepath.Join(w.dir, filepath.FromSlash(w.published("weather")["path"].(string)))
	w.eventually("Flux refuses the archive", func() string {
		// again, since its owner repairs it at each interval
		w.must(os.WriteFile(file, evil, 0o600))
		text := fmt.Sprint(w.kustomization("weather").Object["status"])
		if !strings.Contains(text, "digest") || !strings.Contains(text, "ArtifactFailed") {
			return text
		}
		return ""
	})
	w.noEvil()
	w.request("weather", "now")
	w.applied("weather")

	source := w.object("GitRepository", "fleet")
	w.must(w.Get(w.Context(), client.ObjectKeyFromObject(source), source))
	path, _, err := unstructured.NestedString(source.Object, "status", "artifact", "path")
	w.must(err)
	published, asked := w.published("weather"), 0
	w.request("weather", "again 0")
	w.eventually("the source's archive is refused", func() string {
		w.must(os.WriteFile(filepath.Join(stored, filepath.FromSlash(path)), evil, 0o600))
		if w.get("weather").Status.LastHandledReconcileAt == fmt.Sprint("again ", asked) {
			asked++
			w.request("weather", fmt.Sprint("again ", asked))
		}
		_, reason, message := w.condition("weather", "Ready")
		if reason != "InvalidArchive" || !strings.Contains(message, "does not have the digest") ||
			!strings.Contains(message, "stays published") {
			return reason + ": " + message
		}
		return ""
	})
	if diff := cmp.Diff(published, w.published("weather")); diff != "" {
		w.Errorf("the last good artifact is gone: %s", diff)
	}
	w.noEvil()
	w.must(w.Patch(w.Context(), source, client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"reconcile.fluxcd.io/requestedAt":"now"}}}`))))
	w.eventually("what Flux has fetched again is rendered", func() string {
		if status, reason, message := w.condition("weather", "Ready"); status != "True" {
			return reason + ": " + message
		}
		return ""
	})
}

// noEvil makes sure that nothing of a changed archive was applied.
func (w *world) noEvil() {
	w.Helper()
	err := w.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: "evil"}, &corev1.ConfigMap{})
	if err == nil || client.IgnoreNotFound(err) != nil {
		w.Errorf("the changed archive was applied: %v", err)
	}
}

// value is that of the ConfigMap settings, "" where it does not exist.
func (w *world) value() string {
	c := &corev1.ConfigMap{}
	if err := w.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: "settings"},
		c); client.IgnoreNotFound(err) != nil {
		return err.Error()
	}
	return c.Data["key"]
}

// injected counts the Deployments that a render has injected.
func (w *world) injected() (n int) {
	w.Helper()
	var all appsv1.DeploymentList
	w.must(w.List(w.Context(), &all, client.InNamespace(w.namespace)))
	for _, d := range all.Items {
		if d.Annotations["armature.dev/injected"] != "" {
			n++
		}
	}
	return n
}

// versions are those of all that is applied, and of what is published: each write to an
// object changes its version.
func (w *world) versions() (out string) {
	w.Helper()
	note := func(o client.Object) {
		out += fmt.Sprintf("%T %s %s\n", o, o.GetName(), o.GetResourceVersion())
	}
	var deployments appsv1.DeploymentList
	var maps corev1.ConfigMapList
	var services corev1.ServiceList
	var accounts corev1.ServiceAccountList
	for _, l := range []client.ObjectList{&deployments, &maps, &services, &accounts} {
		w.must(w.List(w.Context(), l, client.InNamespace(w.namespace)))
	}
	for i := range deployments.Items {
		note(&deployments.Items[i])
	}
	for i := range maps.Items {
		note(&maps.Items[i])
	}
	for i := range services.Items {
		note(&services.Items[i])
	}
	for i := range accounts.Items {
		note(&accounts.Items[i])
	}
	note(w.get("weather"))
	external := w.object("ExternalArtifact", "weather")
	w.must(w.Get(w.Context(), client.ObjectKeyFromObject(external), external))
	note(external)
	return out
}
