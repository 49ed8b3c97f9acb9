package apply_test

import (
	"slices"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// A field that somebody else set is named with its manager, and nothing at all
// is written. It is taken over from managers that the user names, and from no
// others.
func TestConflict(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web, configMap("settings", "a"))
	w.patch("apps/v1", "Deployment", "web", "kubectl-edit",
		`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"nginx:2","ports":[{"containerPort":80,"protocol":"TCP"}],"env":[{"name":"MODE","value":"fast"}]}]}}}}`)

	plan := w.refused(apply.Options{},
		`kubectl-edit has set spec.template.spec.containers[name="web"].image`, web,
		configMap("settings", "b"))
	w.expect(plan, "conflict Deployment NS/web", "change ConfigMap NS/settings")
	i := slices.IndexFunc(plan.Steps, func(s *apply.Step) bool {
		return s.Action == apply.Conflict
	})
	if c := plan.Steps[i].Conflicts; len(c) == 0 || c[0].Manager != "kubectl-edit" {
		t.Errorf("conflicts %v", c)
	}
	w.refused(apply.Options{ForceConflicts: []string{"helm"}}, "kubectl-edit", web,
		configMap("settings", "b"))

	w.expect(w.apply(apply.Options{ForceConflicts: []string{"kubectl-edit"}}, web,
		configMap("settings", "b")), "change Deployment NS/web", "change ConfigMap NS/settings")
	containers, _ := field(w.get("apps/v1", "Deployment", "web"), "spec", "template", "spec",
		"containers").([]any)
	if image := containers[0].(map[string]any)["image"]; image != "nginx:1" {
		t.Errorf("the image is %v", image)
	}
	before := w.writes.count()
	w.apply(apply.Options{}, web, configMap("settings", "b"))
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("wrote %v", all)
	}
}

// Two managers hold fields of one object: to name one of them takes nothing.
func TestConflictWithTwo(t *testing.T) {
	w := newWorld(t)
	w.create("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: NS}, data: " +
		"{one: theirs}}")
	w.patch("v1", "ConfigMap", "settings", "helm", `{"data":{"two":"helm's"}}`)
	mine := "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {one: mine, " +
		"two: mine}}"
	w.refused(apply.Options{ForceConflicts: []string{"helm"}}, "somebody has set data.one", mine)
	w.apply(apply.Options{ForceConflicts: []string{"helm", "somebody"}}, mine)
	if got := field(w.get("v1", "ConfigMap", "settings"), "data", "two"); got != "mine" {
		t.Errorf("two is %v", got)
	}
}

// An object of another package is not touched unless that package is named; it
// is then this package's, and the other one prunes it no more.
func TestOtherPackage(t *testing.T) {
	w := newWorld(t)
	other := apply.Package{Namespace: w.Package.Namespace, Name: "other"}
	_, err := w.Apply(t.Context(), other,
		w.read(configMap("settings", "a"), configMap("second", "a")), apply.Options{})
	w.must(err)
	w.refused(apply.Options{},
		"it belongs to the package "+other.String()+": apply with `--name "+other.Name+" -n "+
			other.Namespace+"` to update that package, or with `--allow adopt="+other.String()+
			"` to take the object over", configMap("settings", "a"))
	w.apply(apply.Options{Adopt: []apply.Package{other}}, configMap("settings", "a"))
	_, err = w.Apply(t.Context(), other, w.read(configMap("second", "a")), apply.Options{})
	w.must(err)
	if w.get("v1", "ConfigMap", "settings") == nil {
		t.Error("the other package pruned what it had lost")
	}
}
