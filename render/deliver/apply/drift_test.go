package apply_test

import (
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// What somebody deleted comes back. A field that somebody changed is a conflict,
// since they own it then; one that they removed comes back.
func TestDrift(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web, configMap("settings", "a"), configMap("gone", "a"))
	w.remove("v1", "ConfigMap", "gone")
	w.patch("v1", "ConfigMap", "settings", "kubectl-edit", `{"data":{"key":null,"more":"theirs"}}`)
	plan := w.apply(apply.Options{}, web, configMap("settings", "a"), configMap("gone", "a"))
	w.expect(plan, "unchanged Deployment NS/web", "change ConfigMap NS/settings",
		"create ConfigMap NS/gone")
	settings := w.get("v1", "ConfigMap", "settings")
	if field(settings, "data", "key") != "a" || field(settings, "data", "more") != "theirs" {
		t.Errorf("settings: %v", field(settings, "data"))
	}
	before := w.writes.count()
	w.apply(apply.Options{}, web, configMap("settings", "a"), configMap("gone", "a"))
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("wrote %v", all)
	}
}

// Fields that others add, or that the API server defaults, do not count as drift.
func TestOthersFieldsAreNoDrift(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web)
	w.patch("apps/v1", "Deployment", "web", "somebody",
		`{"metadata":{"annotations":{"note":"x"}},"spec":{"minReadySeconds":3}}`)
	w.patch("apps/v1", "Deployment", "web", "kube-controller-manager",
		`{"status":{"replicas":2,"observedGeneration":1}}`, "status")
	before := w.writes.count()
	w.expect(w.apply(apply.Options{}, web), "unchanged Deployment NS/web")
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("wrote %v", all)
	}
}
