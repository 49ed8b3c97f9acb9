package apply_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/armature-dev/armature/render/apply"
)

// withAnnotations is a manifest with annotations, as YAML.
func withAnnotations(manifest string, annotations ...string) string {
	return strings.Replace(manifest, "metadata: {", "metadata: {annotations: {"+strings.Join(annotations, ", ")+"}, ", 1)
}

// kapp's annotations; the group is example.com/migrations.
const (
	inGroup = `kapp.k14s.io/change-group: example.com/migrations`
	rule    = `kapp.k14s.io/change-rule: `
	group   = ` example.com/migrations`
)

// Rules set the order of objects that are applied, beside depends-on and in the same
// waves: each comes once what it comes after is ready. Nothing waits where nothing
// changes.
func TestChangeGroups(t *testing.T) {
	w := newWorld(t)
	manifests := []string{
		withAnnotations(web, `kapp.k14s.io/change-rule.first: upsert after upserting`+group, `kapp.k14s.io/change-rule.second: delete after deleting`+group),
		withAnnotations(job("migrate", ""), `kapp.k14s.io/change-group.one: example.com/other`, `kapp.k14s.io/change-group.two: example.com/migrations`),
		withAnnotations(job("warm", ""), rule+`upsert before upserting`+group),
		withAnnotations(configMap("last", "a"), `config.kubernetes.io/depends-on: apps/namespaces/NS/Deployment/web`),
	}
	plan, err := w.Plan(t.Context(), w.Package, w.read(manifests...), apply.Options{})
	w.must(err)
	var order []string
	for _, s := range plan.Steps {
		order = append(order, s.Name)
	}
	if want := []string{"warm", "migrate", "web", "last"}; !slices.Equal(order, want) {
		t.Errorf("the plan is %v, want %v", order, want)
	}
	u := w.start(t.Context(), apply.Options{}, manifests...)
	w.there("batch/v1", "Job", "warm")
	u.reports("Job NS/warm: Job not started")
	if w.get("batch/v1", "Job", "migrate") != nil {
		t.Error("Job migrate is there before warm is complete")
	}
	w.patch("batch/v1", "Job", "warm", "kube-controller-manager", jobComplete, "status")
	w.there("batch/v1", "Job", "migrate")
	u.reports("Job NS/migrate: Job not started")
	if w.get("apps/v1", "Deployment", "web") != nil {
		t.Error("the Deployment is there before Job migrate is complete")
	}
	w.patch("batch/v1", "Job", "migrate", "kube-controller-manager", jobComplete, "status")
	w.there("apps/v1", "Deployment", "web")
	w.patch("apps/v1", "Deployment", "web", "kube-controller-manager", `{"status":{"observedGeneration":1,"replicas":2,"updatedReplicas":2,"readyReplicas":2,"availableReplicas":2,"conditions":[{"type":"Available","status":"True"},{"type":"Progressing","status":"True","reason":"NewReplicaSetAvailable"}]}}`, "status")
	<-u.done
	w.must(u.err)
	before := w.writes.count()
	w.apply(apply.Options{}, manifests...)
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("a further apply wrote %v", all)
	}
}

// Rules set the order in which objects are pruned, each gone before the next, in an
// apply and when all is deleted.
func TestChangeGroupsPruned(t *testing.T) {
	w := newWorld(t)
	kept := configMap("kept", "a")
	objects := w.read(kept)
	slow := "{apiVersion: v1, kind: ConfigMap, metadata: {name: slow, finalizers: [example.com/slow]}}"
	for name, manifests := range map[string][]string{
		"before": {withAnnotations(slow, rule+`delete before deleting`+group), withAnnotations(configMap("operator", "a"), inGroup)},
		"after":  {withAnnotations(slow, inGroup), withAnnotations(configMap("operator", "a"), rule+`delete after deleting`+group)},
	} {
		for _, how := range []string{"apply", "delete"} {
			w.apply(apply.Options{}, append(manifests, kept)...)
			waits, done := make(chan bool, 100), make(chan error, 1)
			opt := apply.Options{Tell: func(message string) {
				if message == "waiting until ConfigMap "+w.Package.Namespace+"/slow is gone" {
					waits <- true
				}
			}}
			go func() {
				var err error
				if how == "apply" {
					_, err = w.Apply(t.Context(), w.Package, objects, opt)
				} else {
					_, err = w.Delete(t.Context(), w.Package, opt)
				}
				done <- err
			}()
			select {
			case <-waits:
			case err := <-done:
				t.Fatalf("%s, %s: it did not wait: %v", name, how, err)
			}
			if w.get("v1", "ConfigMap", "operator") == nil {
				t.Errorf("%s, %s: what goes last went first", name, how)
			}
			w.patch("v1", "ConfigMap", "slow", "operator", `{"metadata":{"finalizers":null}}`)
			w.must(<-done)
			for _, gone := range []string{"slow", "operator"} {
				if w.get("v1", "ConfigMap", gone) != nil {
					t.Errorf("%s, %s: %s is still there", name, how, gone)
				}
			}
		}
	}
}

// What is pruned stays until what it comes after is ready, whichever of the two has
// the rule, and where that takes too long.
func TestChangeGroupsReplace(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct{ old, next string }{
		"rule of the new": {withAnnotations(configMap("old", "a"), inGroup), withAnnotations(job("next", ""), rule+`upsert before deleting`+group)},
		"rule of the old": {withAnnotations(configMap("old", "a"), rule+`delete after upserting`+group), withAnnotations(job("next", ""), inGroup)},
	} {
		w.apply(apply.Options{}, c.old, configMap("kept", "a"))
		_, err := w.Apply(t.Context(), w.Package, w.read(c.next, configMap("kept", "a")), apply.Options{Timeout: time.Second})
		if want := "ConfigMap " + w.Package.Namespace + "/old: not pruned, because it comes after what is not ready"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
		if w.get("v1", "ConfigMap", "old") == nil {
			t.Errorf("%s: it is pruned before what replaces it is ready", name)
		}
		w.patch("batch/v1", "Job", "next", "kube-controller-manager", jobComplete, "status")
		w.apply(apply.Options{}, c.next, configMap("kept", "a"))
		if w.get("v1", "ConfigMap", "old") != nil {
			t.Errorf("%s: it is not pruned", name)
		}
		_, err = w.Delete(t.Context(), w.Package, apply.Options{Wait: true})
		w.must(err)
	}
}

// What cannot be ordered is an error with place and remedy, before anything is written.
func TestChangeGroupsRefused(t *testing.T) {
	w := newWorld(t)
	settings := withAnnotations(configMap("settings", "a"), inGroup)
	namespace := "{apiVersion: v1, kind: Namespace, metadata: {name: NS-second}}"
	const at = "app.yaml:7: Deployment NS/web: annotation kapp.k14s.io/change-rule: "
	for _, c := range []struct {
		settings, second string
		words            []string
	}{
		{settings, withAnnotations(web, rule+`upsert after example.com/migrations`), []string{at + `"upsert after example.com/migrations" is not a rule`, "hint: write upsert or delete, before or after"}},
		{settings, withAnnotations(web, rule+`""`), []string{at + `"" is not a rule`}},
		{settings, withAnnotations(web, rule+`update after upserting`+group), []string{"is not a rule"}},
		{settings, withAnnotations(web, rule+`upsert after deleting`+group), []string{at + `"upsert after deleting example.com/migrations" is not supported: what is pruned is deleted after all others are applied`, "hint: remove the rule"}},
		{settings, withAnnotations(web, rule+`delete before upserting`+group), []string{"is not supported"}},
		{settings, withAnnotations(web, rule+`upsert after upserting example.com/migration`), []string{at + `no object of the package is in the group "example.com/migration"`, "hint: correct the name"}},
		{settings, withAnnotations(web, rule+`delete before deleting example.com/migration`), []string{"no object of the package is in the group"}},
		{settings, withAnnotations(web, `kapp.k14s.io/change-rule: 'upsert after upserting x/{name}'`), []string{`"x/{name}" has a placeholder`, "hint: write the name of the group out"}},
		{settings, withAnnotations(web, `kapp.k14s.io/change-group: '{name}'`), []string{"annotation kapp.k14s.io/change-group: \"{name}\" has a placeholder"}},
		{settings, withAnnotations(web, `kapp.k14s.io/change-group.x: two words`), []string{`annotation kapp.k14s.io/change-group.x: "two words" is not the name of a group`}},
		{settings, withAnnotations(namespace, rule+`upsert after upserting`+group), []string{"app.yaml:7: Namespace NS-second: annotation", "namespaces and CRDs come before everything else, Namespace NS-second too"}},
		{withAnnotations(configMap("settings", "a"), rule+`upsert before upserting`+group), withAnnotations(namespace, inGroup), []string{"app.yaml:1: ConfigMap NS/settings: annotation", "namespaces and CRDs come before everything else, Namespace NS-second too"}},
		{settings, withAnnotations(namespace, rule+`delete before deleting`+group), []string{"namespaces and CRDs are pruned after everything else, Namespace NS-second too"}},
		{settings, withAnnotations(job("migrate", ""), `argocd.argoproj.io/hook: PreSync`, rule+`upsert after upserting`+group), []string{"app.yaml:7: Job NS/migrate: annotations argocd.argoproj.io/hook and kapp.k14s.io/change-group or kapp.k14s.io/change-rule exclude each other"}},
		// Cycles, of what is applied and of what would be deleted.
		{settings, withAnnotations(web, inGroup, rule+`upsert after upserting`+group), []string{"app.yaml:7: Deployment NS/web depends on itself: it depends on Deployment NS/web (app.yaml:7)", "hint: remove one of the annotations"}},
		{withAnnotations(configMap("settings", "a"), inGroup, `config.kubernetes.io/depends-on: apps/namespaces/NS/Deployment/web`), withAnnotations(web, rule+`upsert after upserting`+group),
			[]string{"app.yaml:1: ConfigMap NS/settings depends on itself: it depends on Deployment NS/web (app.yaml:7), which depends on ConfigMap NS/settings (app.yaml:1)"}},
		{withAnnotations(configMap("settings", "a"), inGroup, rule+`delete before deleting example.com/web`), withAnnotations(web, `kapp.k14s.io/change-group: example.com/web`, rule+`delete before deleting`+group),
			[]string{"app.yaml:1: ConfigMap NS/settings is pruned before itself: it is pruned before Deployment NS/web (app.yaml:7), which is pruned before ConfigMap NS/settings (app.yaml:1)", "hint: remove one of the annotations"}},
		{withAnnotations(configMap("settings", "a"), inGroup), withAnnotations(web, `config.kubernetes.io/depends-on: /namespaces/NS/ConfigMap/settings`, rule+`delete after deleting`+group), []string{"is pruned before itself"}},
	} {
		for _, word := range c.words {
			w.refused(apply.Options{}, strings.ReplaceAll(word, "NS", w.Package.Namespace), c.settings, c.second)
		}
	}
}
