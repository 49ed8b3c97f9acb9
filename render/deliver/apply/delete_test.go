package apply_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// A package that brought its own namespace, with the inventory in it, takes it
// along at the end. No controller empties namespaces here, so that it stays in
// Terminating.
func TestDeleteOwnNamespace(t *testing.T) {
	w := newWorld(t)
	w.Package.Namespace += "-home"
	w.apply(apply.Options{}, configMap("settings", "a"),
		"{apiVersion: v1, kind: Namespace, metadata: {name: "+w.Package.Namespace+"}}")
	// Another package under the name is refused: the namespace that stays is none
	// of its objects.
	w.refused(apply.Options{}, "pass --allow replace", configMap("other", "a"))
	// An apply that has it no more leaves it to delete.
	w.expect(w.apply(apply.Options{}, configMap("settings", "a")),
		"unchanged ConfigMap NS/settings", "skip Namespace NS")
	plan, err := w.Delete(t.Context(), w.Package, apply.Options{})
	w.must(err)
	w.expect(plan, "prune ConfigMap NS/settings", "prune Namespace NS")
	for _, s := range plan.Steps {
		if !s.Done {
			t.Errorf("%s was not deleted", s.Title())
		}
	}
	if w.get("v1", "ConfigMap", "settings") != nil ||
		w.get("v1", "Namespace", w.Package.Namespace).GetDeletionTimestamp() == nil {
		t.Error("something is left")
	}
}

// Delete takes out the whole package and its inventory, and nothing of others.
func TestDelete(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web, configMap("settings", "a"), everyday,
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: kept, annotations: "+
			"{kustomize.toolkit.fluxcd.io/prune: disabled}}}")
	w.create("{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs, namespace: NS}}")
	plan, err := w.PlanDelete(t.Context(), w.Package, apply.Options{})
	w.must(err)
	lines := []string{"prune Deployment NS/web", "prune ConfigMap NS/settings",
		"prune Service NS/web", "prune Secret NS/token", "prune Role NS/web:reader",
		"skip ConfigMap NS/kept"}
	w.expect(plan, lines...)
	if w.get("v1", "ConfigMap", "settings") == nil {
		t.Fatal("a plan deleted something")
	}
	plan, err = w.Delete(t.Context(), w.Package, apply.Options{Wait: true})
	w.must(err)
	w.expect(plan, lines...)
	for _, name := range []string{"settings", "armature-weather"} {
		if w.get("v1", "ConfigMap", name) != nil {
			t.Errorf("%s is still there", name)
		}
	}
	for _, name := range []string{"theirs", "kept"} {
		if w.get("v1", "ConfigMap", name) == nil {
			t.Errorf("%s is gone", name)
		}
	}
	if _, err := w.Delete(t.Context(), w.Package, apply.Options{}); !errors.Is(err,
		apply.ErrNoInventory) {
		t.Errorf("deleting twice: %v", err)
	}
}

// A delete that does not get to its end leaves an inventory that says so, from its
// first write on; an apply or another delete finishes the work.
func TestDeleteInterrupted(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, configMap("one", "a"), web)
	c := w.through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "configmaps/one") {
			return says(r, http.StatusConflict, "AlreadyExists"), nil
		}
		return next.RoundTrip(r)
	})
	if _, err := c.Delete(t.Context(), w.Package, apply.Options{}); err == nil {
		t.Fatal("no error")
	}
	v, err := w.Inventory(t.Context(), w.Package)
	w.must(err)
	if v.Complete || !v.Deleting || w.get("apps/v1", "Deployment", "web") != nil {
		t.Errorf("half of it is deleted: complete %v, deleting %v", v.Complete, v.Deleting)
	}
	w.apply(apply.Options{}, configMap("one", "a"))
	if v, err := w.Inventory(t.Context(), w.Package); err != nil || !v.Complete || v.Deleting {
		t.Errorf("applied again: %+v %v", v, err)
	}
	_, err = w.Delete(t.Context(), w.Package, apply.Options{})
	w.must(err)
	if w.get("coordination.k8s.io/v1", "Lease", "armature-weather") != nil {
		t.Error("the lease is left")
	}
}
