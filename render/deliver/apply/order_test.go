package apply_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// job is a Job with further metadata, as YAML in one line.
func job(name, metadata string) string {
	return `apiVersion: batch/v1
kind: Job
metadata: {name: ` + name + metadata + `}
spec:
  backoffLimit: 0
  template: {spec: {restartPolicy: Never, containers: [{name: main, image: migrate}]}}
`
}

// dependsOn is metadata with the annotation.
func dependsOn(references string) string {
	return `, annotations: {config.kubernetes.io/depends-on: "` + references + `"}`
}

const (
	jobRuns     = `{"status":{"startTime":"2026-01-01T00:00:00Z","active":1,"ready":0,"uncountedTerminatedPods":{}}}`
	jobComplete = `{"status":{"startTime":"2026-01-01T00:00:00Z","completionTime":"2026-01-01T00:00:01Z","succeeded":1,"active":0,"ready":0,"uncountedTerminatedPods":{},"conditions":[
		{"type":"SuccessCriteriaMet","status":"True","reason":"CompletionsReached"},{"type":"Complete","status":"True","reason":"CompletionsReached"}]}}`
	jobFailed = `{"status":{"startTime":"2026-01-01T00:00:00Z","failed":1,"active":0,"ready":0,"uncountedTerminatedPods":{},"conditions":[
		{"type":"FailureTarget","status":"True","reason":"BackoffLimitExceeded","message":"Job has reached the specified backoff limit"},
		{"type":"Failed","status":"True","reason":"BackoffLimitExceeded","message":"Job has reached the specified backoff limit"}]}}`
)

// underWay is an apply in the background.
type underWay struct {
	*world
	lock     sync.Mutex
	messages []string
	done     chan struct{}
	plan     *apply.Plan
	err      error
}

func (w *world) start(ctx context.Context, opt apply.Options, manifests ...string) *underWay {
	w.Helper()
	u := &underWay{world: w, done: make(chan struct{})}
	opt.Tell = func(message string) {
		u.lock.Lock()
		defer u.lock.Unlock()
		u.messages = append(u.messages, message)
	}
	objects := w.read(manifests...)
	go func() {
		defer close(u.done)
		u.plan, u.err = w.Apply(ctx, w.Package, objects, opt)
	}()
	return u
}

// reports waits until the apply reports something new with these words.
func (u *underWay) reports(words string) {
	u.Helper()
	words = strings.ReplaceAll(words, "NS", u.Package.Namespace)
	from := u.reported()
	u.eventually(func() string {
		u.lock.Lock()
		defer u.lock.Unlock()
		if slices.ContainsFunc(u.messages[from:],
			func(m string) bool { return strings.Contains(m, words) }) {
			return ""
		}
		select {
		case <-u.done:
			u.Fatalf("it ended: %v\n%s", u.err, show(u.plan))
		default:
		}
		return "it does not report " + words + ", but " + strings.Join(u.messages, "\n")
	})
}

func (u *underWay) reported() int {
	u.lock.Lock()
	defer u.lock.Unlock()
	return len(u.messages)
}

func (w *world) there(apiVersion, kind, name string) {
	w.Helper()
	w.eventually(func() string {
		if w.get(apiVersion, kind, name) == nil {
			return "there is no " + kind + " " + name
		}
		return ""
	})
}

// An object comes after all that it depends on is ready, whatever its kind: a Job is
// when it is complete, not when it has begun. What depends on a late object comes
// later still. Nothing waits for that where nothing changes.
func TestDependsOn(t *testing.T) {
	w := newWorld(t)
	manifests := []string{
		strings.Replace(web, "{name: web}",
			"{name: web"+dependsOn("/namespaces/NS/ConfigMap/settings")+"}", 1),
		strings.Replace(configMap("settings", "a"), "name: settings",
			"name: settings"+dependsOn("batch/namespaces/NS/Job/migrate, /Namespace/NS-second"), 1),
		job("migrate", ""),
		"{apiVersion: v1, kind: Namespace, metadata: {name: NS-second}}",
	}
	plan, err := w.Plan(t.Context(), w.Package, w.read(manifests...), apply.Options{})
	w.must(err)
	var order []string
	for _, s := range plan.Steps {
		order = append(order, s.GroupKind.Kind)
	}
	if want := []string{"Namespace", "Job", "ConfigMap", "Deployment"}; !slices.Equal(order, want) {
		t.Errorf("the plan is %v, want %v", order, want)
	}
	u := w.start(t.Context(), apply.Options{}, manifests...)
	w.there("batch/v1", "Job", "migrate")
	w.patch("batch/v1", "Job", "migrate", "kube-controller-manager", jobRuns, "status")
	u.reports("waiting: 1 of 2 healthy; Job NS/migrate: Job in progress")
	if w.get("v1", "ConfigMap", "settings") != nil {
		t.Error("the ConfigMap is there before the Job that it depends on is complete")
	}
	w.patch("batch/v1", "Job", "migrate", "kube-controller-manager", jobComplete, "status")
	<-u.done
	w.must(u.err)
	if w.get("apps/v1", "Deployment", "web") == nil {
		t.Error("the Deployment did not come")
	}
	w.patch("batch/v1", "Job", "migrate", "somebody", `{"metadata":{"labels":{"theirs":"yes"}}}`)
	before := w.writes.count()
	w.apply(apply.Options{}, manifests...)
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("a further apply wrote %v", all)
	}
}

// Where a dependency fails, or takes too long, nothing that depends on it comes, and
// nothing is pruned. Once it is ready, the next apply does the rest. So it does after
// Ctrl-C.
func TestDependsOnFails(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, configMap("old", "a"), configMap("kept", "a"))
	late := strings.Replace(web, "{name: web}",
		"{name: web"+dependsOn("batch/namespaces/NS/Job/migrate")+"}", 1)
	manifests := []string{configMap("kept", "a"), late, job("migrate", "")}
	unfinished := func(err error, words ...string) {
		t.Helper()
		for _, word := range words {
			if err == nil || !strings.Contains(err.Error(),
				strings.ReplaceAll(word, "NS", w.Package.Namespace)) {
				t.Errorf("error %v, want %q", err, word)
			}
		}
		if w.get("apps/v1", "Deployment", "web") != nil || w.get("v1", "ConfigMap", "old") == nil {
			t.Error("the Deployment is there, or the old ConfigMap is not")
		}
	}
	_, err := w.Apply(t.Context(), w.Package, w.read(manifests...),
		apply.Options{Timeout: time.Second})
	unfinished(err, "not healthy after 1s: Job NS/migrate: InProgress",
		"app.yaml:7: Deployment NS/web: not applied, because a dependency is not ready")

	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	u := w.start(ctx, apply.Options{}, manifests...)
	u.reports("Job NS/migrate: Job not started")
	interrupt()
	<-u.done
	unfinished(u.err, "interrupted: the next apply finishes the work")
	if holder := w.holder(); holder != "" {
		t.Errorf("the lease is still held by %v", holder)
	}

	w.patch("batch/v1", "Job", "migrate", "kube-controller-manager", jobFailed, "status")
	_, err = w.Apply(t.Context(), w.Package, w.read(manifests...), apply.Options{})
	unfinished(err, "applied, but failed: Job NS/migrate: Failed")

	background := metav1.DeletePropagationBackground
	w.must(w.in("batch/v1", "Job", w.Package.Namespace).Delete(t.Context(), "migrate",
		metav1.DeleteOptions{PropagationPolicy: &background}))
	u = w.start(t.Context(), apply.Options{}, manifests...)
	u.reports("Job NS/migrate: Job not started")
	w.patch("batch/v1", "Job", "migrate", "kube-controller-manager", jobComplete, "status")
	<-u.done
	w.must(u.err)
	if w.get("apps/v1", "Deployment", "web") == nil || w.get("v1", "ConfigMap", "old") != nil {
		t.Error("the Deployment is not there, or the old ConfigMap is")
	}
}

// What a package says wrong about its order is an error with the place and the
// remedy, before anything is written.
func TestDependsOnRefused(t *testing.T) {
	w := newWorld(t)
	settings := configMap("settings", "a")
	tools := `{apiVersion: v1, kind: ConfigMap, metadata: {name: tools, annotations: {config.kubernetes.io/local-config: "true"}}}`
	for name, c := range map[string]struct {
		references string
		words      []string
	}{
		"malformed": {"ConfigMap/settings", []string{`"ConfigMap/settings" is not a reference`,
			"hint: write GROUP/namespaces/NAMESPACE/KIND/NAME"}},
		"empty":         {"", []string{`"" is not a reference`}},
		"no kind":       {"/namespaces/NS//settings", []string{"is not a reference"}},
		"no namespace":  {"/namespaces//ConfigMap/settings", []string{"is not a reference"}},
		"no namespaces": {"/namespace/NS/ConfigMap/settings", []string{"is not a reference"}},
		"twice": {"/namespaces/NS/ConfigMap/settings,/namespaces/NS/ConfigMap/settings",
			[]string{"is in it twice"}},
		"elsewhere": {"/namespaces/other/ConfigMap/settings",
			[]string{`the package applies no "/namespaces/other/ConfigMap/settings"`,
				`hint: write "/namespaces/NS/ConfigMap/settings"`}},
		"cluster-wide": {"/ConfigMap/settings",
			[]string{`hint: write "/namespaces/NS/ConfigMap/settings"`}},
		"outside": {"/namespaces/NS/ConfigMap/others",
			[]string{"the package applies no", "hint: add the object to the package"}},
		"for tools": {"/namespaces/NS/ConfigMap/tools",
			[]string{"the package applies no", "hint: add the object to the package"}},
		"itself": {"apps/namespaces/NS/Deployment/web",
			[]string{"Deployment NS/web depends on itself", "hint: remove one of the annotations"}},
	} {
		t.Run(name, func(t *testing.T) {
			late := strings.Replace(web, "{name: web}", "{name: web"+dependsOn(c.references)+"}", 1)
			for _, word := range append(c.words, "app.yaml:9: Deployment NS/web") {
				w.refused(apply.Options{}, strings.ReplaceAll(word, "NS", w.Package.Namespace),
					settings, tools, late)
			}
		})
	}
}

// A cycle is named with all of its objects, and what comes first cannot come later.
func TestDependsOnCycle(t *testing.T) {
	w := newWorld(t)
	settings := strings.Replace(configMap("settings", "a"), "name: settings",
		"name: settings"+dependsOn("apps/namespaces/NS/Deployment/web"), 1)
	late := strings.Replace(web, "{name: web}",
		"{name: web"+dependsOn("batch/namespaces/NS/Job/migrate")+"}", 1)
	w.refused(apply.Options{},
		strings.ReplaceAll("app.yaml:1: ConfigMap NS/settings depends on itself: it depends on "+
			"Deployment NS/web (app.yaml:7), which depends on Job NS/migrate (app.yaml:24), "+
			"which depends on ConfigMap NS/settings (app.yaml:1)", "NS", w.Package.Namespace),
		settings, late, job("migrate", dependsOn("/namespaces/NS/ConfigMap/settings")))
	w.refused(apply.Options{}, "namespaces and CRDs come before everything else, ConfigMap",
		configMap("settings", "a"),
		"{apiVersion: v1, kind: Namespace, metadata: {name: NS-second"+
			dependsOn("/namespaces/NS/ConfigMap/settings")+"}}")
}

// What depends on something is pruned before it, and is gone before it goes: it may be
// needed for that. So it is when all is deleted.
func TestPruneDependsOn(t *testing.T) {
	w := newWorld(t)
	manifests := []string{
		configMap("kept", "a"), configMap("operator", "a"),
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: slow, finalizers: [example.com/slow]" +
			dependsOn("/namespaces/NS/ConfigMap/operator") + "}}",
	}
	objects := w.read(manifests[0])
	remove := map[string]func(apply.Options) error{
		"apply": func(opt apply.Options) error {
			_, err := w.Apply(t.Context(), w.Package, objects, opt)
			return err
		},
		"delete": func(opt apply.Options) error {
			_, err := w.Delete(t.Context(), w.Package, opt)
			return err
		},
	}
	for _, name := range []string{"apply", "delete"} {
		w.apply(apply.Options{}, manifests...)
		waits, done := make(chan bool, 100), make(chan error, 1)
		tell := func(message string) {
			if message == "waiting until ConfigMap "+w.Package.Namespace+"/slow is gone" {
				waits <- true
			}
		}
		go func() { done <- remove[name](apply.Options{Tell: tell}) }()
		select {
		case <-waits:
		case err := <-done:
			t.Fatalf("%s: it did not wait: %v", name, err)
		}
		if w.get("v1", "ConfigMap", "operator") == nil {
			t.Errorf("%s: what it depends on went first", name)
		}
		w.patch("v1", "ConfigMap", "slow", "operator", `{"metadata":{"finalizers":null}}`)
		w.must(<-done)
		for _, gone := range []string{"slow", "operator"} {
			if w.get("v1", "ConfigMap", gone) != nil {
				t.Errorf("%s: %s is still there", name, gone)
			}
		}
	}
}
