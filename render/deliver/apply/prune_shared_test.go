package apply_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// A namespace, or a CRD, that holds objects of another package is not pruned, and
// not deleted with its own package, unless that is asked for.
func TestPruneShared(t *testing.T) {
	w := newWorld(t)
	shared := w.Package.Namespace + "-shared"
	namespace := "{apiVersion: v1, kind: Namespace, metadata: {name: " + shared + "}}"
	kind := strings.Replace(w.Package.Namespace, "team", "Shared", 1)
	group := w.Package.Namespace + ".example.com"
	definition := crd(group, "v1", kind)
	w.apply(apply.Options{Wait: true}, configMap("one", "a"), namespace, definition)
	other := apply.Package{Namespace: w.Package.Namespace, Name: "other"}
	guest := "{apiVersion: v1, kind: ConfigMap, metadata: {name: guest, namespace: " + shared + "}}"
	instance := "{apiVersion: " + group + "/v1, kind: " + kind + ", metadata: {name: guest}}"
	_, err := w.Apply(t.Context(), other, w.read(guest, instance), apply.Options{})
	w.must(err)

	plan := w.refused(apply.Options{},
		"pruning it would delete objects of other packages: ConfigMap "+shared+"/guest of "+
			other.String()+"; allow that with --allow prune-shared", configMap("one", "a"))
	if n := plan.Count(apply.Refused); n != 2 {
		t.Errorf("%d refusals, want two:\n%s", n, show(plan))
	}
	before := w.writes.count()
	if plan, err := w.Delete(t.Context(), w.Package, apply.Options{}); err == nil ||
		!strings.Contains(err.Error(), "nothing was deleted: 2 of 3 objects cannot be") {
		t.Errorf("delete: %v\n%s", err, show(plan))
	}
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("wrote %v", all)
	}
	w.expect(w.apply(apply.Options{PruneShared: true}, configMap("one", "a")),
		"unchanged ConfigMap NS/one", "prune Namespace "+shared,
		"prune CustomResourceDefinition "+strings.ToLower(kind)+"s."+group)
}

// The namespace of a package's own inventory may hold the inventory of another.
func TestDeleteSharedNamespace(t *testing.T) {
	w := newWorld(t)
	w.Package.Namespace += "-home"
	w.apply(apply.Options{}, configMap("settings", "a"),
		"{apiVersion: v1, kind: Namespace, metadata: {name: "+w.Package.Namespace+"}}")
	other := apply.Package{Namespace: w.Package.Namespace, Name: "other"}
	_, err := w.Apply(t.Context(), other, w.read(configMap("guest", "a")), apply.Options{})
	w.must(err)
	plan, err := w.PlanDelete(t.Context(), w.Package, apply.Options{})
	w.must(err)
	w.expect(plan, "refused Namespace NS", "prune ConfigMap NS/settings")
	_, err = w.Delete(t.Context(), w.Package, apply.Options{PruneShared: true})
	w.must(err)
}
