package apply_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// What the package has no more is deleted, and nothing else.
func TestPrune(t *testing.T) {
	w := newWorld(t)
	w.create("{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs, namespace: NS}}")
	w.apply(apply.Options{}, web, configMap("one", "a"), configMap("two", "a"))
	plan := w.apply(apply.Options{}, configMap("one", "a"))
	w.expect(plan, "unchanged ConfigMap NS/one", "prune ConfigMap NS/two", "prune Deployment NS/web")
	if last := plan.Steps[len(plan.Steps)-1]; last.GroupKind.Kind != "ConfigMap" {
		t.Errorf("%s is pruned last: the Deployment that uses it comes first", last.Title())
	}
	if w.get("v1", "ConfigMap", "two") != nil || w.get("apps/v1", "Deployment", "web") != nil {
		t.Error("not pruned")
	}
	if w.get("v1", "ConfigMap", "theirs") == nil {
		t.Error("somebody else's object was pruned")
	}
	if got := w.inventory(); !slices.Equal(got, []string{"ConfigMap one"}) {
		t.Errorf("inventory %v", got)
	}
}

// What somebody else deleted and made again under the same name survives, even
// with a copy of our labels; so does what carries our labels no more, and what
// is marked to be kept.
func TestPruneRefused(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, configMap("stays", "a"), configMap("again", "a"),
		configMap("copied", "a"), configMap("unlabelled", "a"),
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: kept, annotations: "+
			"{kustomize.toolkit.fluxcd.io/prune: disabled}}}")
	w.remove("v1", "ConfigMap", "again")
	w.create("{apiVersion: v1, kind: ConfigMap, metadata: {name: again, namespace: NS}}")
	w.remove("v1", "ConfigMap", "copied")
	w.create("{apiVersion: v1, kind: ConfigMap, metadata: {name: copied, namespace: NS, labels: " +
		"{armature.dev/name: weather, armature.dev/namespace: NS}}}")
	w.patch("v1", "ConfigMap", "unlabelled", "somebody", `{"metadata":{"labels":null}}`)

	plan := w.apply(apply.Options{}, configMap("stays", "a"))
	w.expect(plan, "unchanged ConfigMap NS/stays", "skip ConfigMap NS/again",
		"skip ConfigMap NS/copied", "skip ConfigMap NS/unlabelled", "skip ConfigMap NS/kept")
	for _, s := range plan.Steps {
		if s.Action == apply.Skip && !strings.HasPrefix(s.Reason, "not pruned: ") {
			t.Errorf("%s: %q", s.Title(), s.Reason)
		}
	}
	for _, name := range []string{"again", "copied", "unlabelled", "kept"} {
		if w.get("v1", "ConfigMap", name) == nil {
			t.Errorf("%s was pruned", name)
		}
	}
	if got := w.inventory(); !slices.Equal(got, []string{"ConfigMap stays"}) {
		t.Errorf("inventory %v", got)
	}
}

// Another folder of the same name would prune everything: that has to be meant.
// No objects at all are a mistake in any case.
func TestPruneAll(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, configMap("one", "a"), configMap("two", "a"))
	w.refused(apply.Options{}, "give it another --name", configMap("three", "a"))
	w.refused(apply.Options{Replace: true}, "there are no objects to apply")
	w.expect(w.apply(apply.Options{Replace: true}, configMap("three", "a")),
		"create ConfigMap NS/three", "prune ConfigMap NS/one", "prune ConfigMap NS/two")
}

// A finalizer keeps a pruned object for a while. The inventory names it until it
// is gone.
func TestPruneFinalizer(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, configMap("one", "a"),
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: slow, finalizers: [example.com/slow]}}")
	w.apply(apply.Options{}, configMap("one", "a"))
	if got := w.inventory(); !slices.Contains(got, "ConfigMap slow") {
		t.Errorf("the inventory forgot it: %v", got)
	}
	done := make(chan *apply.Plan)
	go func() {
		plan, err := w.Apply(t.Context(), w.Package, w.read(configMap("one", "a")),
			apply.Options{Wait: true})
		if err != nil {
			t.Error(err)
		}
		done <- plan
	}()
	w.patch("v1", "ConfigMap", "slow", "somebody", `{"metadata":{"finalizers":null}}`)
	<-done
	if got := w.inventory(); !slices.Equal(got, []string{"ConfigMap one"}) {
		t.Errorf("inventory %v", got)
	}
}
