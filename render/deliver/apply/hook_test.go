package apply_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// hook is metadata of one.
func hook(phase, policy string) string {
	return `, annotations: {argocd.argoproj.io/hook: "` + phase +
		`", argocd.argoproj.io/hook-delete-policy: "` + policy + `"}`
}

// controllers plays Kubernetes's: what is being deleted goes, and, where jobs end, all
// of them are complete.
func (w *world) controllers(jobsEnd bool) {
	stopped := make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	w.Cleanup(func() { stop(); <-stopped })
	jobs := w.in("batch/v1", "Job", w.Package.Namespace)
	patch := func(j *unstructured.Unstructured, text string, subresource ...string) {
		// it may be another one by now
		_, _ = jobs.Patch(ctx, j.GetName(), types.MergePatchType, []byte(text),
			metav1.PatchOptions{}, subresource...)
	}
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			list, err := jobs.List(ctx, metav1.ListOptions{})
			for i := 0; err == nil && i < len(list.Items); i++ {
				j := &list.Items[i]
				switch {
				case j.GetDeletionTimestamp() != nil:
					patch(j, `{"metadata":{"uid":"`+string(j.GetUID())+`","finalizers":null}}`)
				case jobsEnd && field(j, "status", "completionTime") == nil:
					patch(j, strings.Replace(jobComplete, "{",
						`{"metadata":{"uid":"`+string(j.GetUID())+`"},`, 1), "status")
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
}

func (w *world) uid(apiVersion, kind, name string) types.UID {
	w.Helper()
	u := w.get(apiVersion, kind, name)
	if u == nil {
		w.Fatalf("there is no %s %s", kind, name)
	}
	return u.GetUID()
}

// Jobs that are hooks run before and after the other objects, each time that an apply
// changes something. One that changes nothing writes nothing, though a Job is gone.
func TestHooks(t *testing.T) {
	w := newWorld(t)
	w.controllers(false)
	w.apply(apply.Options{}, configMap("old", "a"), configMap("app", "a"))
	hooks := []string{
		job("notify", hook("PostSync", "")),
		job("migrate", hook("PreSync", "BeforeHookCreation")),
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: script" + hook("PreSync", "") + "}}",
	}
	manifests := append(hooks, configMap("app", "b"))
	plan, err := w.Plan(t.Context(), w.Package, w.read(manifests...), apply.Options{})
	w.must(err)
	w.expect(plan, "run Job NS/migrate", "create ConfigMap NS/script", "change ConfigMap NS/app",
		"prune ConfigMap NS/old", "run Job NS/notify")
	if first, second, last :=
		plan.Steps[0].Name, plan.Steps[1].Name,
		plan.Steps[len(plan.Steps)-1].Name; first != "script" || second != "migrate" || last != "notify" {
		t.Errorf("the plan begins with %s and %s, and ends with %s", first, second, last)
	}
	for _, s := range plan.Steps {
		if text, err := s.Diff(); s.Action == apply.Run &&
			(err != nil || !strings.Contains(text, "+kind: Job")) {
			t.Errorf("diff of %s: %v\n%s", s.Title(), err, text)
		}
	}

	u := w.start(t.Context(), apply.Options{}, manifests...)
	w.there("batch/v1", "Job", "migrate")
	if got := field(w.get("v1", "ConfigMap", "app"), "data", "key"); got != "a" ||
		w.get("v1", "ConfigMap", "script") == nil {
		t.Errorf(
			"it is %v before the hook is complete, or what the hook needs did not come before it", got)
	}
	w.patch("batch/v1", "Job", "migrate", "kube-controller-manager", jobComplete, "status")
	w.there("batch/v1", "Job", "notify")
	if got := field(w.get("v1", "ConfigMap", "app"), "data", "key"); got != "b" ||
		w.get("v1", "ConfigMap", "old") != nil {
		t.Errorf("it is %v when the last hook begins, or the old one is still there", got)
	}
	if v, err := w.Inventory(t.Context(), w.Package); err != nil || v.Complete {
		t.Errorf("the apply counts as complete before its last hook is: %v", err)
	}
	w.patch("batch/v1", "Job", "notify", "kube-controller-manager", jobComplete, "status")
	<-u.done
	w.must(u.err)
	all := []string{"ConfigMap app", "ConfigMap script", "Job migrate", "Job notify"}
	if got := w.inventory(); !slices.Equal(got, all) {
		t.Errorf("the inventory has %v", got)
	}

	background := metav1.DeletePropagationBackground
	w.must(w.in("batch/v1", "Job", w.Package.Namespace).Delete(t.Context(), "notify",
		metav1.DeleteOptions{PropagationPolicy: &background}))
	before := w.writes.count()
	w.expect(w.apply(apply.Options{Wait: true}, manifests...), "unchanged Job NS/migrate",
		"unchanged Job NS/notify", "unchanged ConfigMap NS/script", "unchanged ConfigMap NS/app")
	if wrote := w.writes.since(before); len(wrote) != 0 {
		t.Errorf("a further apply wrote %v", wrote)
	}
	v, err := w.Inventory(t.Context(), w.Package)
	w.must(err)
	items, err := w.Items(t.Context(), v)
	w.must(err)
	for _, item := range items {
		if item.Status != "Current" {
			t.Errorf("%s %s is %s", item.Kind, item.Name, item.Status)
		}
	}
}

// A hook runs again where something changed, where it has changed itself, and after an
// apply that did not end; its former Job goes first. One that the package has no more
// is pruned.
func TestHookRunsAgain(t *testing.T) {
	w := newWorld(t)
	w.controllers(true)
	migrate, notify :=
		job("migrate", hook("PreSync", "")), job("notify", hook("PostSync", "HookSucceeded"))
	w.apply(apply.Options{}, migrate, notify, configMap("app", "a"))
	first := w.uid("batch/v1", "Job", "migrate")
	w.eventually(func() string {
		if w.get("batch/v1", "Job", "notify") != nil {
			return "the Job is still there, but HookSucceeded deletes it"
		}
		return ""
	})
	w.expect(w.apply(apply.Options{}, migrate, notify, configMap("app", "b")), "run Job NS/migrate",
		"run Job NS/notify", "change ConfigMap NS/app")
	second := w.uid("batch/v1", "Job", "migrate")
	if first == second {
		t.Error("the hook did not run again")
	}
	w.expect(w.apply(apply.Options{}, strings.Replace(migrate, "image: migrate", "image: migrate:2",
		1), notify, configMap("app", "b")), "run Job NS/migrate", "unchanged Job NS/notify",
		"unchanged ConfigMap NS/app")
	if second == w.uid("batch/v1", "Job", "migrate") {
		t.Error("the changed hook did not run")
	}
	w.expect(w.apply(apply.Options{}, configMap("app", "b")), "unchanged ConfigMap NS/app",
		"prune Job NS/migrate")
	w.create(job("migrate", ", namespace: NS"))
	w.refused(apply.Options{}, "another client created a Job of this name", migrate,
		configMap("app", "b"))
}

// A hook that fails ends the apply with the reason of its Job and the last lines of
// its pod; so does one that takes too long. Nothing else is applied or pruned, and the
// next apply runs it again. So it does after Ctrl-C.
func TestHookFails(t *testing.T) {
	w := newWorld(t)
	w.controllers(false)
	w.create("{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: NS}}")
	config := rest.CopyConfig(shared.Get(t).Admin.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { // no kubelet answers for the pod
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/pods/migrate-x/log") &&
				r.URL.Query().Get("container") == "main" {
				return &http.Response{StatusCode: 200,
					Header:  http.Header{"Content-Type": {"text/plain"}},
					Body:    io.NopCloser(strings.NewReader("begins\n\x1b[2Jno such table\n")),
					Request: r}, nil
			}
			return next.RoundTrip(r)
		})
	})
	c, err := apply.Connect(config)
	w.must(err)
	w.Cluster = c
	w.apply(apply.Options{}, configMap("app", "a"), configMap("old", "a"))
	manifests := []string{job("migrate", hook("PreSync", "")), configMap("app", "b")}
	unfinished := func(err error, words ...string) {
		t.Helper()
		for _, word := range words {
			if err == nil || !strings.Contains(err.Error(),
				strings.ReplaceAll(word, "NS", w.Package.Namespace)) {
				t.Errorf("error %v, want %q", err, word)
			}
		}
		if field(w.get("v1", "ConfigMap", "app"), "data", "key") != "a" ||
			w.get("v1", "ConfigMap", "old") == nil {
			t.Error("the ConfigMap was changed, or the old one pruned")
		}
	}
	_, err = w.Apply(t.Context(), w.Package, w.read(manifests...),
		apply.Options{Timeout: time.Second})
	unfinished(err, "not healthy after 1s: Job NS/migrate: InProgress",
		"a PreSync hook did not succeed, nothing else was applied; the next apply deletes its "+
			"Job and runs it again")
	first := w.uid("batch/v1", "Job", "migrate")

	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	u := w.start(ctx, apply.Options{}, manifests...)
	u.reports("Job NS/migrate: Job not started")
	interrupt()
	<-u.done
	unfinished(u.err, "interrupted: the next apply finishes the work")
	second := w.uid("batch/v1", "Job", "migrate")
	if first == second {
		t.Error("the hook that took too long did not run again")
	}

	u = w.start(t.Context(), apply.Options{}, manifests...)
	w.eventually(func() string {
		if j := w.get("batch/v1", "Job", "migrate"); j == nil || j.GetUID() == second {
			return "the interrupted hook does not run again"
		}
		return ""
	})
	owner := fmt.Sprintf("namespace: NS, labels: {batch.kubernetes.io/controller-uid: %q}",
		w.uid("batch/v1", "Job", "migrate"))
	w.create(strings.Replace(strings.Replace(pod("migrate-x", ""), "namespace: NS", owner, 1),
		"name: a,", "name: main,", 1))
	w.patch("v1", "Pod", "migrate-x", "kubelet",
		`{"status":{"phase":"Failed","containerStatuses":[{"name":"main","image":"a","imageID":"","ready":false,"restartCount":0,"state":{"terminated":{"exitCode":3,"reason":"Error"}}}]}}`, "status")
	w.patch("batch/v1", "Job", "migrate", "kube-controller-manager", jobFailed, "status")
	<-u.done
	unfinished(u.err, "applied, but failed: Job NS/migrate: Failed", "exit code 3",
		"Job NS/migrate: BackoffLimitExceeded: Job has reached the specified backoff limit",
		"the last lines of pod migrate-x:\n", "    begins\n", "\uFFFD[2Jno such table")
	if strings.Contains(u.err.Error(), "\x1b") {
		t.Errorf("the error has what a terminal obeys: %q", u.err)
	}

	third := w.uid("batch/v1", "Job", "migrate")
	u = w.start(t.Context(), apply.Options{}, manifests...)
	w.eventually(func() string {
		if j := w.get("batch/v1", "Job", "migrate"); j == nil || j.GetUID() == third {
			return "the failed hook does not run again"
		}
		return ""
	})
	w.patch("batch/v1", "Job", "migrate", "kube-controller-manager", jobComplete, "status")
	<-u.done
	w.must(u.err)
}

// What a package says wrong about its hooks is an error with the place and the remedy,
// before anything is written.
func TestHookRefused(t *testing.T) {
	w := newWorld(t)
	deployment := func(annotations string) string {
		return strings.Replace(web, "{name: web}", "{name: web"+annotations+"}", 1)
	}
	for words, manifest := range map[string]string{
		`Job NS/x: annotation argocd.argoproj.io/hook: "SyncFail" is not supported`: job(
			"x", hook("SyncFail", "")),
		`"PreSync,PostSync" is not supported`: job(
			"x", hook("PreSync,PostSync", "")),
		`"Skip" is not supported`: "{apiVersion: v1, kind: ConfigMap, metadata: {name: x" +
			hook("Skip", "") + "}}",
		`annotation argocd.argoproj.io/hook-delete-policy: "HookFailed" is not supported`: job(
			"x", hook("PostSync", "HookSucceeded,HookFailed")),
		`Deployment NS/web: annotation argocd.argoproj.io/hook: Deployment cannot be a hook`: deployment(
			hook("PreSync", "")),
		`annotation helm.sh/hook: "pre-delete" is run by Helm only`: job(
			"x", ", annotations: {helm.sh/hook: pre-delete}"),
		`annotation argocd.argoproj.io/sync-wave: hooks of a phase run in parallel`: job(
			"x",
			`, annotations: {argocd.argoproj.io/hook: PreSync, argocd.argoproj.io/sync-wave: "1"}`),
		`annotations argocd.argoproj.io/hook and config.kubernetes.io/depends-on exclude each other`: job(
			"x",
			`, annotations: {argocd.argoproj.io/hook: PreSync, config.kubernetes.io/depends-on: "/namespaces/NS/ConfigMap/one"}`),
		`Job NS/x is a hook, which runs before or after all others (app.yaml:24)`: deployment(
			dependsOn("batch/namespaces/NS/Job/x")) + "\n---\n" + job("x", hook("PreSync", "")),
		`Job NS/x spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`: strings.Replace(job("x", hook("PreSync", "")), "restartPolicy: Never, ", "", 1),
	} {
		w.refused(apply.Options{}, strings.ReplaceAll(words, "NS", w.Package.Namespace),
			configMap("one", "a"), manifest)
		if strings.HasSuffix(words, "not supported") {
			w.refused(apply.Options{}, "app.yaml:7: ", configMap("one", "a"), manifest)
		}
	}
}

// Charts come with tests, which `helm install` does not create either.
func TestHelmTest(t *testing.T) {
	w := newWorld(t)
	pod := "{apiVersion: v1, kind: Pod, metadata: {name: test-connection, annotations: " +
		"{helm.sh/hook: EVENTS}}, spec: {containers: [{name: wget, image: busybox}]}}"
	plan := w.apply(apply.Options{}, configMap("settings", "a"),
		strings.Replace(pod, "EVENTS", `"test-success, test"`, 1))
	w.expect(plan, "create ConfigMap NS/settings", "skip Pod test-connection")
	if w.get("v1", "Pod", "test-connection") != nil {
		t.Error("it was applied")
	}
	w.refused(apply.Options{}, `"test,post-install" is run by Helm only`,
		strings.Replace(pod, "EVENTS", `"test,post-install"`, 1))
}

// Two applies at once run a hook once: the second finds nothing to do.
func TestHookConcurrent(t *testing.T) {
	w := newWorld(t)
	w.controllers(true)
	manifests := []string{job("migrate", hook("PreSync", "")), configMap("app", "a")}
	first := w.start(t.Context(), apply.Options{}, manifests...)
	second := w.start(t.Context(), apply.Options{}, manifests...)
	for _, u := range []*underWay{first, second} {
		<-u.done
		w.must(u.err)
	}
	created := 0
	for _, write := range w.writes.since(0) {
		if strings.HasPrefix(write, "PATCH ") && strings.HasSuffix(write, "/jobs/migrate") {
			created++
		}
	}
	if created != 1 {
		t.Errorf("the hook ran %d times", created)
	}
}

// A process that is killed at any of its writes leaves what the next apply finishes:
// hooks have run to their end, and a further apply writes nothing.
func TestHookKill(t *testing.T) {
	w := newWorld(t)
	w.controllers(true)
	w.apply(apply.Options{}, configMap("always", "a"))
	killed := 0
	for n := range 9 {
		manifests := []string{job("migrate", hook("PreSync", "")), configMap("always", "a"),
			configMap("app", fmt.Sprint(n)), job("notify", hook("PostSync", "HookSucceeded"))}
		if w.applyAndDie(manifests, n+1, n%2 == 0) {
			killed++
			w.expire()
		}
		w.apply(apply.Options{}, manifests...)
		if got := field(w.get("v1", "ConfigMap", "app"), "data", "key"); got != fmt.Sprint(n) ||
			field(w.get("batch/v1", "Job", "migrate"), "status", "completionTime") == nil {
			t.Errorf("kill at write %d: the ConfigMap has %v, or the hook is not complete", n+1, got)
		}
		if got := w.inventory(); !slices.Equal(got,
			[]string{"ConfigMap always", "ConfigMap app", "Job migrate"}) {
			t.Errorf("kill at write %d: the inventory has %v", n+1, got)
		}
		before := w.writes.count()
		w.apply(apply.Options{}, manifests...)
		if all := w.writes.since(before); len(all) != 0 {
			t.Errorf("kill at write %d: a further apply wrote %v", n+1, all)
		}
	}
	if killed < 5 {
		t.Errorf("%d processes were killed, want most", killed)
	}
}
