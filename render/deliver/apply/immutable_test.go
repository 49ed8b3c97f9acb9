package apply_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// An immutable field ends the apply with the field's name, and nothing written.
// The object is recreated only on request.
func TestImmutable(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web, configMap("settings", "a"))
	before := w.get("apps/v1", "Deployment", "web")
	other := strings.ReplaceAll(web, "app: web", "app: site")
	plan := w.refused(apply.Options{}, "recreate it with --allow recreate", other,
		configMap("settings", "b"))
	if text := show(plan); !strings.Contains(text, "spec.selector") ||
		!strings.Contains(text, "field is immutable") {
		t.Errorf("the field is not named:\n%s", text)
	}
	w.expect(w.apply(apply.Options{Recreate: true}, other, configMap("settings", "b")),
		"recreate Deployment NS/web", "change ConfigMap NS/settings")
	after := w.get("apps/v1", "Deployment", "web")
	if after.GetUID() == before.GetUID() ||
		field(after, "spec", "selector", "matchLabels", "app") != "site" {
		t.Errorf("not recreated: %v", field(after, "spec", "selector"))
	}
	writes := w.writes.count()
	w.apply(apply.Options{}, other, configMap("settings", "b"))
	if all := w.writes.since(writes); len(all) != 0 {
		t.Errorf("wrote %v", all)
	}
}

// What is invalid for another reason is not deleted, --recreate or not; neither
// is what could not be created again.
func TestInvalidIsNotRecreated(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web)
	uid := w.get("apps/v1", "Deployment", "web").GetUID()
	w.refused(apply.Options{Recreate: true}, "spec.replicas",
		strings.Replace(web, "replicas: 2", "replicas: -2", 1))
	w.refused(apply.Options{Recreate: true}, "could not be created again either",
		strings.ReplaceAll(strings.Replace(web, "replicas: 2", "replicas: -2", 1), "app: web",
			"app: site"))
	w.refused(apply.Options{Recreate: true}, "field not declared in schema",
		strings.Replace(web, "replicas: 2", "replikas: 2", 1))
	if w.get("apps/v1", "Deployment", "web").GetUID() != uid {
		t.Error("deleted")
	}
}

// Flux's annotation asks for it, for one object.
func TestForceAnnotation(t *testing.T) {
	w := newWorld(t)
	annotated := strings.Replace(web, "metadata: {name: web}",
		`metadata: {name: web, annotations: {kustomize.toolkit.fluxcd.io/force: enabled}}`, 1)
	w.apply(apply.Options{}, annotated)
	w.expect(w.apply(apply.Options{}, strings.ReplaceAll(annotated, "app: web", "app: site")),
		"recreate Deployment NS/web")
}

// What holds data or other objects is never recreated.
func TestPreciousIsNotRecreated(t *testing.T) {
	w := newWorld(t)
	claim := "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data}, spec: " +
		"{accessModes: [ReadWriteOnce], storageClassName: SLOW, resources: {requests: " +
		"{storage: 1Gi}}}}"
	w.apply(apply.Options{}, strings.Replace(claim, "SLOW", "slow", 1))
	w.refused(apply.Options{Recreate: true}, "would lose its data",
		strings.Replace(claim, "SLOW", "fast", 1))
}

// Confirm sees what would be deleted, and its error ends it all.
func TestConfirm(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web, configMap("one", "a"))
	no := errors.New("no")
	var destructive []*apply.Step
	opt := apply.Options{Recreate: true,
		Confirm: func(p *apply.Plan) error { destructive = p.Destructive(); return no }}
	w.refused(opt, "no", strings.ReplaceAll(web, "app: web", "app: site"))
	if len(destructive) != 2 {
		t.Errorf("asked about %v", destructive)
	}
}
