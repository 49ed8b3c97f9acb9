package apply_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/render/deliver/apply"
	"github.com/armature-dev/armature/render/deliver/health"
)

const healthChecks = `healthCheckExprs:
  - apiVersion: health.example.com/v1
    kind: Widget
    inProgress: spec.phase == 'Starting'
    failed: spec.phase == 'Broken'
    current: spec.phase == 'Running' && spec.nodes.all(n, n.ready)
`

// An object whose kind has a health check is waited for until its expression is true,
// where kstatus finds nothing to wait for; one that has failed ends the wait.
func TestHealthChecks(t *testing.T) {
	w := newWorld(t)
	checks, err := health.ReadChecks("health.yaml", []byte(healthChecks))
	w.must(err)
	widget := "{apiVersion: health.example.com/v1, kind: Widget, metadata: {name: one}}"
	late := strings.Replace(configMap("late", "a"), "name: late",
		"name: late"+dependsOn("health.example.com/namespaces/NS/Widget/one"), 1)
	definition := crd("health.example.com", "v1", "Widget")
	u := w.start(t.Context(), apply.Options{HealthChecks: checks, Wait: true}, definition, widget, late)
	u.reports(
		"Widget NS/one: failed to evaluate the CEL expression 'spec.phase == 'Starting'': no such")
	for _, spec := range []string{`{phase: Starting}`,
		`{phase: Running, nodes: [{ready: true}, {ready: false}]}`} {
		w.patch("health.example.com/v1", "Widget", "one", "controller",
			asJSON(t, "{spec: "+spec+"}"))
		u.reports("Widget NS/one: InProgress")
	}
	if w.get("v1", "ConfigMap", "late") != nil {
		t.Error("what depends on it is there before it is healthy")
	}
	w.patch("health.example.com/v1", "Widget", "one", "controller",
		asJSON(t, "{spec: {phase: Running, nodes: [{ready: true}]}}"))
	<-u.done
	w.must(u.err)

	w.patch("health.example.com/v1", "Widget", "one", "controller",
		asJSON(t, "{spec: {phase: Broken}}"))
	_, err = w.Apply(t.Context(), w.Package, w.read(definition, widget, late),
		apply.Options{HealthChecks: checks, Wait: true})
	if err == nil || !strings.Contains(err.Error(),
		"applied, but failed: Widget "+w.Package.Namespace+"/one: Failed") {
		t.Errorf("error %v", err)
	}
	_, err = w.Delete(t.Context(), w.Package, apply.Options{Wait: true}) // the CRD is everybody's
	w.must(err)
}

func asJSON(t *testing.T, text string) string {
	t.Helper()
	out, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
