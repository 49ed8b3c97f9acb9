package apply_test

import (
	"slices"
	"testing"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/apply"
)

const everyday = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80}]
---
apiVersion: v1
kind: Secret
metadata: {name: token}
stringData: {password: hunter2}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: "web:reader"}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]
`

// The first apply creates everything; the second writes nothing at all, not
// even to the inventory, and asks about nothing but the Secret.
func TestFirstAndNoOp(t *testing.T) {
	w := newWorld(t)
	plan := w.apply(apply.Options{}, web, configMap("settings", "a"), everyday)
	w.expect(plan, "create ConfigMap NS/settings", "create Deployment NS/web",
		"create Service NS/web", "create Secret NS/token", "create Role NS/web:reader")
	for _, s := range plan.Steps {
		if !s.Done {
			t.Errorf("%s was not done", s.Title())
		}
	}
	deployment := w.get("apps/v1", "Deployment", "web")
	if got := deployment.GetLabels(); got[keys.LabelName] != "weather" ||
		got[keys.LabelNamespace] != w.Package.Namespace {
		t.Errorf("labels %v", got)
	}
	if got := field(w.get("v1", "Secret", "token"), "data", "password"); got != "aHVudGVyMg==" {
		t.Errorf("password is %v", got)
	}
	if got := w.inventory(); !slices.Equal(got, []string{"ConfigMap settings", "Deployment web",
		"Role web:reader", "Secret token", "Service web"}) {
		t.Errorf("inventory %v", got)
	}

	before, dryRuns := w.writes.count(), w.writes.dryRuns
	plan = w.apply(apply.Options{}, web, configMap("settings", "a"), everyday)
	w.expect(plan, "unchanged ConfigMap NS/settings", "unchanged Deployment NS/web",
		"unchanged Service NS/web", "unchanged Secret NS/token", "unchanged Role NS/web:reader")
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("a no-op wrote: %v", all)
	}
	if n := w.writes.dryRuns - dryRuns; n != 1 {
		t.Errorf("%d dry runs, want one, of the Secret", n)
	}
	if now := w.get("apps/v1", "Deployment",
		"web"); now.GetResourceVersion() != deployment.GetResourceVersion() {
		t.Error("the Deployment was written")
	}
}

// A changed package changes what changed, and nothing else. A field that is no
// longer in the package is removed.
func TestChange(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web, configMap("settings", "a"), configMap("other", "a"), everyday)
	plan := w.apply(apply.Options{}, web, configMap("settings", "b"), configMap("other", "a"),
		"apiVersion: v1\nkind: Secret\nmetadata: {name: token}\nstringData: {user: me}\n---\n"+
			everyday[:len("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n"+
				"  selector: {app: web}\n  ports: [{port: 80}]\n")])
	w.expect(plan, "change ConfigMap NS/settings", "unchanged ConfigMap NS/other",
		"unchanged Deployment NS/web", "change Secret NS/token", "unchanged Service NS/web",
		"prune Role NS/web:reader")
	if got := field(w.get("v1", "ConfigMap", "settings"), "data", "key"); got != "b" {
		t.Errorf("key is %v", got)
	}
	if got := field(w.get("v1", "Secret", "token"), "data", "password"); got != nil {
		t.Errorf("the password is still there: %v", got)
	}
}

// A dry run says the same as the apply, and writes nothing.
func TestDryRun(t *testing.T) {
	w := newWorld(t)
	plan, err := w.Plan(t.Context(), w.Package, w.read(web, everyday), apply.Options{})
	w.must(err)
	w.expect(plan, "create Deployment NS/web", "create Service NS/web", "create Secret NS/token",
		"create Role NS/web:reader")
	if n := w.writes.count(); n != 0 {
		t.Errorf("%d writes", n)
	}
	plan, err = w.Plan(t.Context(), w.Package,
		w.read("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {prots: []}\n"),
		apply.Options{})
	w.must(err)
	w.expect(plan, "refused Service NS/web")
}
