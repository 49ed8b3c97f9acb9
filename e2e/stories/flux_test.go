package stories

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/render/archive"
)

// Flux's source-controller and kustomize-controller run as their modules install them,
// and between them our controller as armature install does: pods with accounts, Services
// and addresses of their own. The weather agent of the examples comes from Git: its pods
// are healthy, a commit of one line arrives, nothing is written while nothing changes, what
// is edited by hand is corrected, what goes is pruned, what is broken or empty leaves the
// last good agent running, and neither an archive that was changed, nor a tenant who names
// one of another namespace, nor kill -9 of our controller does harm.
func TestFlux(t *testing.T) {
	t.Parallel()
	f := startFlux(t)
	commit := f.commit(t)
	f.apply(t, string(f.read(t, "testdata/flux/weather.yaml")))
	f.applied(t, commit)
	if all := f.inventory(t); !all["weather-agent_apps_Deployment"] ||
		!all["weather-agent__Service"] || !all["settings__ConfigMap"] {
		t.Errorf("the inventory has %v", all)
	}
	f.runs(t, "gpt-4")

	f.files["apps/weather/deployment.yaml"] = strings.Replace(
		f.files["apps/weather/deployment.yaml"], "gpt-4", "gpt-5", 1)
	commit = f.commit(t)
	if diff := git(t, f.dir, "diff", "--numstat",
		"HEAD~"); diff != "1\t1\tapps/weather/deployment.yaml" {
		t.Errorf("the commit has more than a line: %s", diff)
	}
	f.applied(t, commit)
	f.runs(t, "gpt-5")

	f.nothingIsWritten(t)
	f.editIsCorrected(t)
	f.keepsLastGood(t)

	delete(f.files, "apps/weather/service.yaml")
	f.applied(t, f.commit(t))
	err := f.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: "weather-agent"},
		&corev1.Service{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the Service that is no longer in Git: %v, want it pruned", err)
	}
	if all := f.inventory(t); !all["weather-agent_apps_Deployment"] ||
		all["weather-agent__Service"] {
		t.Errorf("the inventory has %v", all)
	}

	f.changedArchiveIsRefused(t)
	f.foreignArchiveIsRefused(t)
	f.killedDuringReplacement(t)
}

// fluxStory is a repository with the weather agent, and what Flux makes of it.
type fluxStory struct {
	*story
	dir   string            // of the repository
	files map[string]string // that the next commit has
}

// startFlux installs all controllers, and takes them away when the story ends.
func startFlux(t *testing.T) *fluxStory {
	t.Helper()
	s := enterForAgents(t)
	controllers := []string{"source-controller", "kustomize-controller"}
	for _, name := range controllers {
		if s.info.Images[name] == "" || s.info.Process == 0 || s.info.AuditLog == "" {
			t.Skipf("it takes the image of Flux's %s, an audit log and the processes of the "+
				"cluster of `make cluster-up`", name)
		}
	}
	s.installed(t)
	s.install(t, "armature-system", "--scope=cluster", "--sources")
	s.available(t, "armature-system", "armature-sources")
	folder := s.copied(t, "flux", "kustomization.yaml", "accounts.yaml")
	for _, name := range controllers {
		module := strings.TrimSpace(string(run(t, nil, "go", "-C", "../flux", "list", "-m", "-f",
			"{{.Dir}}", "github.com/fluxcd/"+name)))
		must(t, os.CopyFS(filepath.Join(folder, name), os.DirFS(filepath.Join(module, "config"))))
	}
	s.applyObjects(t, readObjects(t, kubectl(t, nil, "kustomize", folder)))
	t.Cleanup(func() {
		if t.Failed() {
			s.tellFlux(t)
		}
		// Finalizers go while their controllers run.
		kubectl(t, nil, "delete", "--namespace="+s.namespace, "--ignore-not-found", "--timeout=3m",
			"kustomization.kustomize.toolkit.fluxcd.io/weather", "renderedsource/weather",
			"gitrepository/fleet")
		kubectl(t, nil, "delete", "--namespace="+s.namespace,
			"gitrepositories.source.toolkit.fluxcd.io", "--all", "--timeout=3m")
		kubectl(t, nil, "delete", "--namespace=flux-system", "deployment", "source-controller",
			"kustomize-controller")
		kubectl(t, nil, "delete", "--namespace=armature-system", "deployment", "armature-sources")
	})
	for _, name := range controllers {
		s.available(t, "flux-system", name)
	}

	f := &fluxStory{story: s, dir: t.TempDir(), files: map[string]string{}}
	git(t, f.dir, "init", "--quiet", "--initial-branch=main")
	config := s.copied(t, "flux", "armature.yaml")
	f.files["apps/weather/armature.yaml"] = string(f.read(t,
		filepath.Join(config, "armature.yaml")))
	found, err := filepath.Glob("../../examples/weather-agent/*.yaml")
	must(t, err)
	for _, file := range found {
		f.files["apps/weather/"+filepath.Base(file)] = string(f.read(t, file))
	}
	// Its image is not published, and the pod ends as soon as it is asked to.
	const image = `image: "ghcr.io/example/weather-agent:v1"`
	deployment := f.files["apps/weather/deployment.yaml"]
	if strings.Count(deployment, image) != 1 {
		t.Fatalf("the example has another image:\n%s", deployment)
	}
	f.files["apps/weather/deployment.yaml"] = strings.Replace(deployment, image,
		"image: "+s.info.Images["busybox"]+
			"\n          command: [sh, -c, \"trap exit TERM; sleep 3600 & wait\"]", 1)
	f.set("first")
	return f
}

// tellFlux is for the reader of a failed story.
func (s *story) tellFlux(t *testing.T) {
	t.Logf("%s", kubectl(t, nil, "get", "--namespace="+s.namespace, "-o", "yaml",
		"kustomizations.kustomize.toolkit.fluxcd.io,renderedsources,gitrepositories,externalartifacts"))
	t.Logf("%s", kubectl(t, nil, "logs", "--namespace=flux-system", "--selector=app", "--prefix",
		"--tail=40", "--ignore-errors"))
	t.Logf("%s", kubectl(t, nil, "logs", "--namespace=armature-system",
		"--selector=app.kubernetes.io/name=armature-sources", "--tail=40", "--ignore-errors"))
}

func (f *fluxStory) read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return text
}

// set the value of the ConfigMap settings, in a file that takes a moment to store.
func (f *fluxStory) set(value string) {
	f.files["apps/weather/settings.yaml"] = configMap("settings", value) +
		strings.Repeat("# a long comment, so that writing takes a moment\n", 20_000)
}

func configMap(name, value string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\ndata:\n  key: " +
		value + "\n"
}

// commit the files, and no others.
func (f *fluxStory) commit(t *testing.T) string {
	t.Helper()
	git(t, f.dir, "rm", "-r", "--quiet", "--ignore-unmatch", ".")
	for name, text := range f.files {
		file := filepath.Join(f.dir, filepath.FromSlash(name))
		must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must(t, os.WriteFile(file, []byte(text), 0o644))
	}
	return f.pushed(t, f.dir, "public/"+f.namespace+".git")
}

// object of one of the kinds between Git and the cluster.
func (f *fluxStory) object(ctx context.Context,
	group, version, kind, name string) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(group + "/" + version)
	o.SetKind(kind)
	err := f.Get(ctx, client.ObjectKey{Namespace: f.namespace, Name: name}, o)
	return o, err
}

// published is status.artifact of the ExternalArtifact.
func (f *fluxStory) published(ctx context.Context) (map[string]any, error) {
	o, err := f.object(ctx, "source.toolkit.fluxcd.io", "v1", "ExternalArtifact", "weather")
	if err != nil {
		return nil, err
	}
	artifact, _, err := unstructured.NestedMap(o.Object, "status", "artifact")
	return artifact, err
}

func (f *fluxStory) mustPublish(t *testing.T) map[string]any {
	t.Helper()
	artifact, err := f.published(t.Context())
	must(t, err)
	return artifact
}

func (f *fluxStory) kustomization(ctx context.Context) (*unstructured.Unstructured, error) {
	return f.object(ctx, "kustomize.toolkit.fluxcd.io", "v1", "Kustomization", "weather")
}

// condition as STATUS REASON: MESSAGE.
func condition(o *unstructured.Unstructured, kind string) string {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		if c := c.(map[string]any); c["type"] == kind {
			return fmt.Sprintf("%s %s: %s", c["status"], c["reason"], c["message"])
		}
	}
	return ""
}

// applied waits until Flux has applied a commit and found it healthy.
func (f *fluxStory) applied(t *testing.T, commit string) {
	t.Helper()
	eventually(t, 5*time.Minute, "Flux applies commit "+commit, func(ctx context.Context) error {
		artifact, err := f.published(ctx)
		if err != nil {
			return err
		}
		k, err := f.kustomization(ctx)
		if err != nil {
			return err
		}
		revision, _, _ := unstructured.NestedString(k.Object, "status", "lastAppliedRevision")
		origin, _, _ := unstructured.NestedString(k.Object, "status", "lastAppliedOriginRevision")
		if revision != artifact["revision"] || origin != "main@sha1:"+commit {
			return fmt.Errorf("it has applied %s of %s; %v is published; Ready is %s", revision,
				origin, artifact["revision"], condition(k, "Ready"))
		}
		if ready, healthy :=
			condition(k, "Ready"), condition(k, "Healthy"); !strings.HasPrefix(ready,
			"True ReconciliationSucceeded") || !strings.HasPrefix(healthy, "True ") {
			return fmt.Errorf("Ready is %s, Healthy is %s", ready, healthy)
		}
		return nil
	})
}

// inventory is what Flux has recorded as applied, as NAME_GROUP_KIND.
func (f *fluxStory) inventory(t *testing.T) map[string]bool {
	t.Helper()
	k, err := f.kustomization(t.Context())
	must(t, err)
	entries, _, err := unstructured.NestedSlice(k.Object, "status", "inventory", "entries")
	must(t, err)
	out := map[string]bool{}
	for _, e := range entries {
		id, _ := e.(map[string]any)["id"].(string)
		out[strings.TrimPrefix(id, f.namespace+"_")] = true
	}
	return out
}

// runs makes sure that the agent, which Flux has called healthy, runs in one ready pod
// with its sidecars and that model.
func (f *fluxStory) runs(t *testing.T, model string) {
	t.Helper()
	var d appsv1.Deployment
	must(t, f.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: "weather-agent"}, &d))
	if s := d.Status; s.ObservedGeneration != d.Generation || s.UpdatedReplicas != 1 ||
		s.AvailableReplicas != 1 {
		t.Errorf("Flux calls a Deployment healthy with %+v", s)
	}
	pod := f.running(t, "weather-agent")
	var containers []string
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		containers = append(containers, c.Name)
	}
	if text := fmt.Sprint(containers); !strings.Contains(text, "envoy-proxy") ||
		!strings.Contains(text, "agent") {
		t.Errorf("the pod has the containers %s", text)
	}
	for _, c := range pod.Spec.Containers {
		if c.Name == "agent" && (len(c.Env) == 0 || c.Env[0].Value != model) {
			t.Errorf("the agent has the environment %v, want the model %s", c.Env, model)
		}
	}
}

// nothingIsWritten makes sure, by the audit log, that controllers write nothing in two
// intervals and more in which nothing changes, except Flux its own progress.
func (f *fluxStory) nothingIsWritten(t *testing.T) {
	t.Helper()
	since := f.auditSize(t)
	var asked []request
	eventually(t, 5*time.Minute, "each controller has passed two intervals",
		func(context.Context) error {
			asked = f.auditLog(t, since)
			compared, checked := 0, 0
			for _, r := range asked {
				switch {
				case r.ObjectRef.Namespace != f.namespace:
				case r.Verb == "patch" && r.dryRun() && r.ObjectRef.Resource == "deployments" &&
					strings.HasSuffix(r.User.Username, ":kustomize-controller"):
					compared++
				case r.Verb == "get" && r.ObjectRef.Resource == "externalartifacts" &&
					strings.HasSuffix(r.User.Username, ":armature-sources"):
					checked++
				}
			}
			if compared < 3 || checked < 3 {
				return fmt.Errorf("Flux has compared the Deployment %d times, our controller the "+
					"ExternalArtifact %d times", compared, checked)
			}
			return nil
		})
	for _, r := range asked {
		if r.ObjectRef.Namespace == f.namespace && r.writes() && !fluxProgress(r) {
			t.Errorf("while nothing changed, %s sent %s %s", r.User.Username, r.Verb, r.RequestURI)
		}
	}
}

// fluxProgress is what Flux's controllers write about themselves at each interval: the
// status of the objects that they reconcile, and events.
func fluxProgress(r request) bool {
	if !strings.HasPrefix(r.User.Username, "system:serviceaccount:flux-system:") {
		return false
	}
	return r.ObjectRef.Resource == "events" ||
		r.ObjectRef.Subresource == "status" &&
			(r.ObjectRef.Resource == "kustomizations" || r.ObjectRef.Resource == "gitrepositories")
}

// editIsCorrected scales the agent by hand, which Flux reverts; the audit log shows it.
func (f *fluxStory) editIsCorrected(t *testing.T) {
	t.Helper()
	since := f.auditSize(t)
	kubectl(t, nil, "scale", "--namespace="+f.namespace, "deployment/weather-agent", "--replicas=0")
	eventually(t, 5*time.Minute, "the edit is corrected", func(ctx context.Context) error {
		var d appsv1.Deployment
		if err := f.Get(ctx, client.ObjectKey{Namespace: f.namespace, Name: "weather-agent"},
			&d); err != nil {
			return err
		}
		if *d.Spec.Replicas != 1 || d.Status.AvailableReplicas != 1 ||
			d.Status.ObservedGeneration != d.Generation {
			return fmt.Errorf("%d replicas, and the status %+v", *d.Spec.Replicas, d.Status)
		}
		return nil
	})
	for _, r := range f.auditLog(t, since) {
		if r.ObjectRef.Namespace == f.namespace && r.ObjectRef.Resource == "deployments" &&
			r.writes() &&
			r.User.Username == "system:serviceaccount:flux-system:kustomize-controller" {
			return
		}
	}
	t.Error("the audit log lacks the patch of the Deployment, so it would lack others as well")
}

// keepsLastGood commits what does not render, and then nothing to render. The agent and
// what is published stay, and condition and event report file and line.
func (f *fluxStory) keepsLastGood(t *testing.T) {
	t.Helper()
	published, pod, whole := f.mustPublish(t), f.running(t, "weather-agent"), f.files
	broken := map[string]string{}
	for name, text := range whole {
		broken[name] = text
	}
	broken["apps/weather/deployment.yaml"] += "  ]broken\n"
	for _, c := range []struct {
		files   map[string]string
		message string
	}{
		{broken, `apps/weather/deployment\.yaml:\d+: `},
		{map[string]string{"apps/weather/README.md": "all manifests are gone\n"},
			`no Kubernetes object is left`},
	} {
		f.files = c.files
		commit, message := f.commit(t), regexp.MustCompile(c.message)
		eventually(t, 5*time.Minute, "the RenderedSource refuses "+commit,
			func(ctx context.Context) error {
				o, err := f.object(ctx, "armature.dev", "v1alpha1", "RenderedSource", "weather")
				if err != nil {
					return err
				}
				if text := condition(o, "Ready"); !strings.HasPrefix(text,
					"False RenderFailed: main@sha1:"+commit) || !message.MatchString(text) {
					return fmt.Errorf("Ready is %s", text)
				}
				var events eventsv1.EventList
				if err := f.List(ctx, &events, client.InNamespace(f.namespace)); err != nil {
					return err
				}
				for _, e := range events.Items {
					if e.Regarding.Kind == "RenderedSource" && e.Reason == "RenderFailed" &&
						message.MatchString(e.Note) {
						return nil
					}
				}
				return errors.New("no event reports it")
			})
	}
	if diff := cmp.Diff(published, f.mustPublish(t)); diff != "" {
		t.Errorf("the last good artifact is gone: %s", diff)
	}
	f.stillRuns(t, pod)
	f.files = whole
}

// sourcesProgram is our controller of RenderedSources among the others of the same program.
const sourcesProgram = "/ko-app/armature-controller\x00--controllers=sources"

// data is the folder of the archives of our controller's pod.
func (f *fluxStory) data(t *testing.T) string {
	t.Helper()
	for pid := range f.processes(t, sourcesProgram) {
		return fmt.Sprintf("/proc/%d/root/data", pid)
	}
	t.Fatal("our controller does not run")
	return ""
}

// changedArchiveIsRefused writes another archive to where the file server takes the
// published one from, so that it answers with that.
func (f *fluxStory) changedArchiveIsRefused(t *testing.T) {
	t.Helper()
	evil, err := archive.Write(map[string][]byte{"evil.yaml": []byte(configMap("evil", "x"))})
	must(t, err)
	published := f.mustPublish(t)
	file := filepath.Join(f.data(t), filepath.FromSlash(published["path"].(string)))
	eventually(t, 5*time.Minute, "Flux refuses the archive", func(ctx context.Context) error {
		// Again, since its owner repairs it at each interval.
		if err := os.WriteFile(file, evil, 0o600); err != nil {
			return err
		}
		k, err := f.kustomization(ctx)
		if err != nil {
			return err
		}
		if ready := condition(k, "Ready"); !strings.HasPrefix(ready, "False ArtifactFailed") ||
			!strings.Contains(ready, "digest") {
			return fmt.Errorf("Ready is %s", ready)
		}
		return nil
	})
	commit, _, _ := strings.Cut(strings.TrimPrefix(published["revision"].(string), "main@sha1:"), "+")
	f.applied(t, commit)
	err = f.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: "evil"}, &corev1.ConfigMap{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the changed archive was applied: %v", err)
	}
}

// killedDuringReplacement ends our controller by SIGKILL at a random moment after the source has a
// new commit: TestKilled in render/deliver/flux/controller does so at many. Every archive on its
// disk is whole, the published one is there, and Flux applies the commit when the controller is
// back.
func (f *fluxStory) killedDuringReplacement(t *testing.T) {
	t.Helper()
	const value = "second"
	f.set(value)
	commit := f.commit(t)
	eventually(t, 5*time.Minute, "the source has commit "+commit, func(ctx context.Context) error {
		o, err := f.object(ctx, "source.toolkit.fluxcd.io", "v1", "GitRepository", "fleet")
		if err != nil {
			return err
		}
		if revision, _, _ := unstructured.NestedString(o.Object, "status", "artifact",
			"revision"); revision != "main@sha1:"+commit {
			return fmt.Errorf("it has %s", revision)
		}
		return nil
	})
	moment := rand.N(300 * time.Millisecond)
	time.Sleep(moment)
	f.kill(t, sourcesProgram)
	published, whole := f.mustPublish(t), 0
	data := f.data(t)
	must(t, filepath.WalkDir(filepath.Join(data, "externalartifact", f.namespace),
		func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(file, ".tar.gz") {
				return err
			}
			text, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // the new process collects it
			}
			if err != nil {
				return err
			}
			whole++
			return archive.Check(text, "sha256:"+strings.TrimSuffix(filepath.Base(file), ".tar.gz"))
		}))
	text, err := os.ReadFile(filepath.Join(data, filepath.FromSlash(published["path"].(string))))
	if err == nil {
		err = archive.Check(text, published["digest"].(string))
	}
	if err != nil {
		t.Errorf("killed after %s, it leaves %d whole archives, and of the published one: %v",
			moment, whole, err)
	}
	t.Logf("killed after %s: %v is published, of %d archives", moment, published["revision"], whole)
	f.applied(t, commit)
	var c corev1.ConfigMap
	must(t, f.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: "settings"}, &c))
	if c.Data["key"] != value {
		t.Errorf("Flux has applied %q, want %q", c.Data["key"], value)
	}
}
