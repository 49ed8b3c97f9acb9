package controller_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/functions/api/keys"
)

// withLogins is a build that is sold with a login of each kind.
func (w *world) withLogins(s *shop) func(*api.AgentBuild) {
	w.Helper()
	w.login("git", compose.PurposeGit, map[string]string{"username": "me", "password": "sesame",
		"unrelated": "x"})
	w.login("push", compose.PurposeRegistry,
		map[string]string{"config.json": `{"auths":{}}`, "unrelated": "x"})
	return func(b *api.AgentBuild) {
		s.sold(b)
		b.Spec.CleanupAfterBuild = new(false)
		b.Spec.Source.SourceCredentials = &corev1.LocalObjectReference{Name: "git"}
		b.Spec.BuildOutput.ImageRepoCredentials = &corev1.LocalObjectReference{Name: "push"}
	}
}

// released waits until a build's isolated run has all that it needs.
func (w *world) released(build string) (run *tektonv1.PipelineRun) {
	w.Helper()
	w.eventually("the run of "+build+" may begin", func() string {
		for _, r := range w.runs() {
			if r.Annotations[keys.AnnotationBuild] == build && r.DeletionTimestamp.IsZero() {
				if run = &r; r.Annotations[keys.AnnotationHeld] == "" && r.Spec.Status == "" {
					return ""
				}
				return "it is held"
			}
		}
		return "there is none"
	})
	return run
}

// copies are the Secrets that a run owns in the build namespace.
func (w *world) copies(run *tektonv1.PipelineRun) (out []corev1.Secret) {
	w.Helper()
	var list corev1.SecretList
	w.must(w.List(w.Context(), &list, client.InNamespace(run.Namespace)))
	for _, secret := range list.Items {
		if metav1.IsControlledBy(&secret, run) {
			out = append(out, secret)
		}
	}
	return out
}

// The run of an attested build is in the platform's namespace, with nothing of the tenant's but
// copies of the keys that it needs, and goes with the build.
func TestIsolated(t *testing.T) {
	for _, objects := range []bool{false, true} {
		t.Run(fmt.Sprintf("pipeline objects %v", objects), func(t *testing.T) {
			w, s := newWorld(t), newShop(t, true)
			w.options.Settings.PipelineObjects = objects
			w.start()
			w.create("weather", w.withLogins(s))
			w.create("dev")
			run := w.released("weather")
			if run.Namespace != w.options.Settings.BuildNamespace ||
				len(run.OwnerReferences) != 0 ||
				!regexp.MustCompile(`^weather-[0-9a-f]{32}$`).MatchString(run.Name) ||
				run.Spec.TaskRunTemplate.ServiceAccountName != compose.BuildAccount {
				t.Fatalf("run %s/%s, owners %v, account %s", run.Namespace, run.Name,
					run.OwnerReferences, run.Spec.TaskRunTemplate.ServiceAccountName)
			}
			var found []string
			for _, secret := range w.copies(run) {
				found = append(found, strings.Join(slices.Sorted(maps.Keys(secret.Data)), ","))
				named := slices.ContainsFunc(run.Spec.Workspaces,
					func(b tektonv1.WorkspaceBinding) bool {
						return b.Secret != nil && b.Secret.SecretName == secret.Name
					})
				if !named || !*secret.Immutable {
					t.Errorf("Secret %s is no workspace's of %+v", secret.Name, run.Spec.Workspaces)
				}
			}
			slices.Sort(found)
			if !slices.Equal(found, []string{"config.json", "password,username"}) {
				t.Errorf("copies with the keys %q", found)
			}
			if other := w.runOf("dev"); other.Namespace != w.namespace {
				t.Errorf("the run of mode dev is in %s", other.Namespace)
			}
			digest := s.push(t, "weather:v1")
			w.play(run, digest)
			b := w.phase("weather", api.PhaseSucceeded)
			if b.Status.Attestation == nil || b.Status.Attestation.RunUID != run.UID ||
				b.RunKey() != client.ObjectKeyFromObject(run) {
				t.Errorf("status %+v", b.Status)
			}
			s.once(t, "weather", digest)
			w.change(b, func(b *api.AgentBuild) {
				b.Annotations = map[string]string{api.RerunAnnotation(api.DefaultGroup): "1"}
			})
			var again *tektonv1.PipelineRun
			w.eventually("it is built again", func() string {
				for _, r := range w.runs() {
					if r.Annotations[keys.AnnotationNumber] == "2" {
						again = &r
						return ""
					}
				}
				return "no"
			})
			w.change(b, func(b *api.AgentBuild) { b.Spec.Cancel = true })
			w.eventually("the second run is stopped", func() string {
				w.must(w.Get(t.Context(), client.ObjectKeyFromObject(again), again))
				if again.Spec.Status != tektonv1.PipelineRunSpecStatusCancelledRunFinally {
					return string(again.Spec.Status)
				}
				return ""
			})
			w.must(w.Client.Delete(t.Context(), w.build("weather")))
			w.eventually("its runs are gone", func() string { return w.remains("weather") })
		})
	}
}

// remains says which runs of a build there are; "" for none.
func (w *world) remains(build string) (names string) {
	w.Helper()
	for _, r := range w.runs() {
		if r.Annotations[keys.AnnotationBuild] == build {
			names += " " + r.Name
		}
	}
	return names
}

// isolating is a mode of the platform's own, which isolates and does not attest.
func (w *world) isolating() (mode string) {
	w.Helper()
	mode = "isolating-" + w.namespace
	for name, data := range map[string]map[string]string{
		"pipeline-template-" +
			mode: {
			"template.yaml": "isolate: true\nopen: {labels: [team]}\n" +
				"globalParameters: [{name: pipeline-timeout, value: 5m}]\n" +
				"steps: [{name: only, configMap: step-" + mode + "}]"},
		"step-" +
			mode: {"task-spec.yaml": "steps: [{name: say, image: busybox, command: [echo]}]"},
	} {
		w.must(w.Client.Create(w.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: name},
				Data: data}))
	}
	return mode
}

// A template with isolate: true has its runs where those of attested ones are, with what it opens,
// and their images are not attested.
func TestIsolateAlone(t *testing.T) {
	w := newWorld(t)
	mode := w.isolating()
	w.start()
	w.create("weather", kept, func(b *api.AgentBuild) {
		b.Spec.Mode, b.Spec.Labels =
			mode, map[string]string{"team": "a"}
	})
	run := w.run(1)
	if run.Namespace != w.options.Settings.BuildNamespace || run.Labels["team"] != "a" ||
		run.Annotations[keys.AnnotationRunDigest] != "" {
		t.Errorf("run %s/%s with labels %v, annotations %v", run.Namespace, run.Name, run.Labels,
			run.Annotations)
	}
	w.succeed(run)
	if b := w.phase("weather", api.PhaseSucceeded); b.Status.BuiltImage == "" ||
		b.Status.Attestation != nil || condition(b, api.ConditionAttested).Type != "" {
		t.Errorf("status %+v", b.Status)
	}
	w.own("pipeline-template-mine", "template.yaml",
		"isolate: true\nsteps: [{name: only, configMap: own-step}]")
	w.own("own-step", "task-spec.yaml", "steps: [{name: say, image: busybox, command: [echo]}]")
	w.create("own", func(b *api.AgentBuild) {
		b.Spec.Mode, b.Spec.Timeout =
			"mine", &metav1.Duration{Duration: time.Minute}
	})
	if b := w.phase("own",
		api.PhaseFailed); condition(b, api.ConditionReady).Reason != api.ReasonNotPlatform ||
		w.remains("own") != "" {
		t.Errorf("a tenant's template that isolates: %+v", b.Status)
	}
	w.create("labelled", func(b *api.AgentBuild) {
		b.Spec.Mode, b.Spec.Labels =
			mode, map[string]string{"other": "a"}
	})
	if b := w.phase("labelled",
		api.PhaseFailed); condition(b, api.ConditionReady).Reason != api.ReasonLocked ||
		w.remains("labelled") != "" {
		t.Errorf("status %+v", b.Status)
	}
}

// Without a namespace for them, builds of modes that isolate are refused.
func TestNoBuildNamespace(t *testing.T) {
	w := newWorld(t)
	modes := []string{"prod", w.isolating()}
	w.options.Settings.BuildNamespace = ""
	w.start()
	for i, mode := range modes {
		name := fmt.Sprintf("weather%d", i)
		w.create(name, func(b *api.AgentBuild) { b.Spec.Mode = mode })
		b := w.phase(name, api.PhaseFailed)
		if c := condition(b, api.ConditionReady); c.Reason != api.ReasonBuildNamespaceMissing ||
			!strings.Contains(c.Message, "hint: let the platform set buildNamespace") ||
			w.remains(name) != "" {
			t.Errorf("%+v, runs %s", c, w.remains(name))
		}
	}
}

// What an isolated run must not have is refused, and nothing is started.
func TestIsolatedRefuses(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	w.start()
	for name, c := range map[string]struct {
		edit func(*api.AgentBuildSpec)
		want string
	}{
		"account": {func(b *api.AgentBuildSpec) { b.ServiceAccountName = "deployer" },
			"spec.serviceAccountName"},
		"keep": {func(b *api.AgentBuildSpec) { b.Workspace = &api.Workspace{Keep: true} },
			"spec.workspace.keep"},
		"user": {func(b *api.AgentBuildSpec) {
			b.Pod = &api.PodSettings{SecurityContext: &corev1.PodSecurityContext{}}
		}, "spec.pod.securityContext"},
		"kaniko": {func(b *api.AgentBuildSpec) { b.Builder = "kaniko" },
			"kaniko runs the Dockerfile in the container that reports the digest"},
		"buildah": {func(b *api.AgentBuildSpec) { b.Builder = "buildah" },
			"buildah runs the Dockerfile in the container that reports the digest"},
		"claim": {func(b *api.AgentBuildSpec) {
			b.Pipeline = &api.PipelineSpec{
				Workspaces: []api.WorkspaceBinding{{Name: "shared-workspace",
					PersistentVolumeClaim: &corev1.LocalObjectReference{Name: "mine"}}}}
		}, "spec.pipeline.workspaces[0]: mode prod locks out the claim mine"},
		"configmap": {func(b *api.AgentBuildSpec) {
			b.Pipeline = &api.PipelineSpec{
				Workspaces: []api.WorkspaceBinding{{Name: "shared-workspace",
					ConfigMap: &corev1.LocalObjectReference{Name: "mine"}}}}
		}, "spec.pipeline.workspaces[0]: mode prod locks out the ConfigMap mine"},
		"cache": {func(b *api.AgentBuildSpec) {
			b.Cache = &api.BuildCache{Registry: "registry.local/mine"}
		}, "takes no cache"},
		"label": {func(b *api.AgentBuildSpec) {
			b.Labels = map[string]string{"tekton.dev/pipelineTask": "x"}
		}, "spec.labels"},
	} {
		w.create(name, s.sold, func(b *api.AgentBuild) { c.edit(&b.Spec) })
		b := w.phase(name, api.PhaseFailed)
		if !strings.Contains(b.Status.Message, c.want) || w.remains(name) != "" {
			t.Errorf("%s: %s, runs %s", name, b.Status.Message, w.remains(name))
		}
	}
}

// An admin of the tenant's namespace cannot make a run that counts, lose one, or take another's.
func TestIsolatedFromAdmin(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	stop := w.start()
	b := w.create("weather", w.withLogins(s))
	run := w.released("weather")
	w.phase("weather", api.PhaseBuilding)

	// Runs of the admin's own, with all that ours says or all but the digest, have ended with an
	// image of its choice.
	var foreign *tektonv1.PipelineRun
	for _, name := range []string{"plain", "forged"} {
		foreign = &tektonv1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace,
			Name: name, Labels: maps.Clone(run.Labels), Annotations: maps.Clone(run.Annotations),
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: api.GroupVersion(api.DefaultGroup).String(), Kind: api.Kind,
					Name: b.Name, UID: b.UID, Controller: new(true)}}}, Spec: run.Spec}
		if foreign.Annotations[keys.AnnotationNumber] = "2"; name == "plain" {
			delete(foreign.Annotations, keys.AnnotationRunDigest)
		}
		w.must(w.Client.Create(t.Context(), foreign))
		w.succeed(foreign)
	}
	// Nor does it help to say in the build's status that it is the one.
	forged := w.build("weather")
	forged.Status.PipelineRunNamespace, forged.Status.PipelineRunName,
		forged.Status.PipelineRunUID = w.namespace, "forged", foreign.UID
	w.must(w.Status().Update(t.Context(), forged))
	w.never("the forged run counts", func() string {
		if b := w.build("weather"); b.Status.BuiltImage != "" || b.Status.Attestation != nil {
			return fmt.Sprintf("%+v", b.Status)
		}
		return ""
	})
	w.must(w.DeleteAllOf(t.Context(), &tektonv1.PipelineRun{}, client.InNamespace(w.namespace)))

	// Recreated under its name, the build has nothing of the one before.
	stop()
	w.strip("weather")
	fresh := w.create("weather", s.sold)
	w.start()
	w.eventually("the run of the new build is alone", func() string {
		if all := w.runs(); len(all) != 1 ||
			all[0].Annotations[keys.AnnotationBuildUID] != string(fresh.UID) || all[0].Name == run.Name {
			return fmt.Sprint(len(all), " runs:", w.remains("weather"))
		}
		return ""
	})
	// Deleted without its finalizer, it leaves no run.
	w.phase("weather", api.PhaseBuilding)
	w.strip("weather")
	w.eventually("its run is gone", func() string { return w.remains("weather") })
}

// strip deletes a build past its finalizer.
func (w *world) strip(name string) {
	w.Helper()
	b := w.build(name)
	b.Finalizers = nil
	w.must(w.Update(w.Context(), b))
	w.must(client.IgnoreNotFound(w.Client.Delete(w.Context(), b)))
}

// Two namespaces have builds of one name, and neither has the other's run or Secrets. An object
// under the name of a run is not taken for the run.
func TestIsolatedNames(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	other := newWorldBeside(w)
	w.options.Namespaces = append(w.options.Namespaces, other.namespace)
	stop := w.start()
	w.create("weather", w.withLogins(s))
	other.create("weather", other.withLogins(s))
	w.phase("weather", api.PhaseBuilding)
	other.phase("weather", api.PhaseBuilding)
	names := map[string]string{}
	for _, r := range w.runs() {
		names[r.Annotations[keys.AnnotationBuildNamespace]] = r.Name
	}
	if len(names) != 2 || names[w.namespace] == names[other.namespace] {
		t.Fatalf("runs %v", names)
	}
	w.must(w.Client.Delete(t.Context(), other.build("weather")))
	w.eventually("the other's run is gone", func() string {
		if all := w.runs(); len(all) != 1 || all[0].Name != names[w.namespace] {
			return fmt.Sprint(len(all))
		}
		return ""
	})

	stop()
	run := w.released("weather")
	w.must(w.Client.Delete(t.Context(), run))
	b := w.build("weather")
	b.Status = api.AgentBuildStatus{}
	w.must(w.Status().Update(t.Context(), b))
	w.must(w.Client.Create(t.Context(),
		&tektonv1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace,
			Name: run.Name, Labels: run.Labels}, Spec: run.Spec}))
	w.start()
	if b := w.phase("weather", api.PhaseFailed); condition(b, api.ConditionReady).Reason !=
		api.ReasonRunForeign {
		t.Errorf("%+v", b.Status)
	}
}

// newWorldBeside is another namespace that the controllers of a world look after.
func newWorldBeside(w *world) *world {
	w.Helper()
	other := *w
	other.namespace = fmt.Sprintf("team%d", worlds.Add(1))
	w.must(w.Client.Create(w.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other.namespace}}))
	return &other
}

// startKilled starts a controller that dies before or after its n-th write.
func (w *world) startKilled(n int32, before bool) (done <-chan error) {
	ctx, cancel := context.WithCancel(w.Context())
	var writes atomic.Int32
	var dead atomic.Bool
	cfg := rest.CopyConfig(w.config)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			mine := r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events") &&
				writes.Add(1) == n
			if mine && before || dead.Load() {
				dead.Store(true)
				cancel()
				return nil, errKilled
			}
			response, err := next.RoundTrip(r)
			if mine {
				dead.Store(true)
				cancel()
				return nil, errKilled
			}
			return response, err
		})
	})
	over := make(chan error, 1)
	go func() { over <- controller.Run(ctx, cfg, w.options) }()
	w.Cleanup(cancel)
	return over
}

// A controller that dies before or after any of its writes makes one run and one statement of each
// kind, with a second one that goes on or that works beside it, and no Secret is left without its
// run.
func TestIsolatedKilled(t *testing.T) {
	for n := range int32(15) {
		for _, before := range []bool{true, false} {
			for _, beside := range []bool{false, true} {
				t.Run(fmt.Sprintf("write %d before %v beside %v", n+1, before, beside),
					func(t *testing.T) { isolatedKilled(newWorld(t), n+1, before, beside) })
			}
		}
	}
}

func isolatedKilled(w *world, n int32, before, beside bool) {
	t, s := w.TB, newShop(w.TB, true)
	build := w.withLogins(s)
	died, second := w.startKilled(n, before), func() {}
	if beside {
		second = w.start()
	}
	w.create("weather", build)
	digest, played, deleted, uid := s.push(t, "weather:v1"), false, false, ""
	w.eventually("the build came and went", func() string {
		select {
		case <-died:
			if died = nil; !beside {
				second = w.start()
			}
		default:
		}
		b := &api.AgentBuild{}
		err := w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "weather"}, b)
		switch {
		case apierrors.IsNotFound(err):
			return w.remains("weather")
		case err != nil:
			return err.Error()
		case !played:
			if run := w.begun(); run != nil {
				w.play(run, digest)
				played, uid = true, string(run.UID)
				if len(w.copies(run)) != 2 {
					t.Errorf("%d copies", len(w.copies(run)))
				}
			}
			return "not played"
		case b.Status.Phase == api.PhaseSucceeded && !deleted:
			if all := w.runs(); len(all) != 1 || string(all[0].UID) != uid {
				t.Errorf("%d runs", len(all))
			}
			w.must(w.Client.Delete(t.Context(), b))
			deleted = true
		}
		return fmt.Sprintf("%s: %s", b.Status.Phase, b.Status.Message)
	})
	second()
	s.once(t, "weather", digest)
	var secrets corev1.SecretList
	w.must(w.List(t.Context(), &secrets, client.InNamespace(w.options.Settings.BuildNamespace)))
	for _, secret := range secrets.Items { // which the cluster collects
		if len(secret.OwnerReferences) != 1 {
			t.Errorf("Secret %s has no owner", secret.Name)
		}
	}
}

// begun is the one run that may begin, if there is one.
func (w *world) begun() *tektonv1.PipelineRun {
	w.Helper()
	for _, r := range w.runs() {
		if r.Annotations[keys.AnnotationHeld] == "" && r.DeletionTimestamp.IsZero() &&
			r.Status.CompletionTime == nil {
			return &r
		}
	}
	return nil
}

// A Secret that cannot be copied holds the build, leaves no run, and is tried again.
func TestIsolatedQuota(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.options.Settings.BuildNamespace, Name: "none"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/secrets": {}}}}
	w.must(w.Client.Create(t.Context(), quota))
	quota.Status.Hard, quota.Status.Used = quota.Spec.Hard, quota.Spec.Hard
	w.must(w.Status().Update(t.Context(), quota))
	w.start()
	w.create("weather", w.withLogins(s))
	b := w.phase("weather", api.PhaseFailed)
	if condition(b, api.ConditionReady).Reason != api.ReasonRunDenied || w.remains("weather") != "" {
		t.Errorf("%+v, runs %s", b.Status, w.remains("weather"))
	}
	time.Sleep(time.Second)
	if n := w.writes.by["POST pipelineruns"]; n > 3 {
		t.Errorf("%d runs were created in a second", n)
	}
	w.must(w.Client.Delete(t.Context(), quota))
	w.released("weather")
}

// A namespace has so many isolated runs at once, whatever another one has, and a controller that
// starts counts those that there are. A build that asks for more than all may have is refused.
func TestIsolatedLimits(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	other := newWorldBeside(w)
	w.options.Namespaces = append(w.options.Namespaces, other.namespace)
	w.options.Isolated = runs.Limits{runs.Isolated: resource.MustParse("1"),
		corev1.ResourceCPU: resource.MustParse("16")}
	stop := w.start()
	w.create("first", s.sold)
	first := w.released("first")
	w.phase("first", api.PhaseBuilding)
	if text := first.Annotations[keys.AnnotationRequests]; !strings.Contains(text, `"cpu":`) {
		t.Errorf("the run does not say what it requests: %q", text)
	}
	w.create("second", s.sold)
	w.queued("second", inLine)
	w.create("dev")
	w.runOf("dev")
	other.create("second", s.sold)
	other.phase("second", api.PhaseBuilding)
	stop()
	w.start()
	w.create("large", s.sold, func(b *api.AgentBuild) {
		b.Spec.Pod = &api.PodSettings{
			Resources: &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("17")}}}
	})
	if b := w.phase("large",
		api.PhaseFailed); !strings.Contains(b.Status.Message, "spec.pod.resources") ||
		!strings.Contains(b.Status.Message, "of cpu, of 16 that all runs") {
		t.Errorf("%s", b.Status.Message)
	}
	w.never("the second one begins beside the first",
		func() string { return w.remainsIn(w.namespace, "second") })
	w.succeed(first)
	w.eventually("the second one begins", func() string {
		if w.remainsIn(w.namespace, "second") == "" {
			return "no run"
		}
		return ""
	})
}

// remainsIn says which isolated runs of a namespace's build there are; "" for none.
func (w *world) remainsIn(namespace, build string) (names string) {
	w.Helper()
	for _, r := range w.runs() {
		if r.Annotations[keys.AnnotationBuildNamespace] == namespace &&
			r.Annotations[keys.AnnotationBuild] == build {
			names += " " + r.Name
		}
	}
	return names
}
