package compose_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// TestOrderWithoutDisabledSteps checks that a step waits for the enabled steps before the disabled
// ones that its row names: also if several of these wait for the same disabled step.
func TestOrderWithoutDisabledSteps(t *testing.T) {
	const template = `steps:
- {name: clone, configMap: own-step}
- {name: generate, configMap: own-step, runAfter: [clone], enabled: false}
- {name: check, configMap: own-step, runAfter: [generate], enabled: false}
- {name: scan, configMap: own-step, runAfter: [generate], enabled: false}
- {name: gate, configMap: own-step, runAfter: [check, scan], enabled: false}
- {name: build, configMap: own-step, runAfter: [gate]}
`
	composed := func(template string) (after string, err error) {
		out, err := plan(t, withSpec("  mode: own\n"), fstest.MapFS{
			"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML, template),
			"step.yaml": configMap("own-step", templates.StepKey, "params: [{name: image}]\n"+
				"steps: [{name: a, image: busybox:1.37.0, command: [a]}]\n"),
		}, compose.Settings{})
		if err != nil {
			return "", err
		}
		return strings.Join(out.Pipeline.Spec.Tasks[1].RunAfter, " "), nil
	}
	if after, err := composed(template); err != nil || after != "clone" {
		t.Errorf("build waits for %q, want clone; %v", after, err)
	}
	circle := strings.Replace(template, "runAfter: [clone]", "runAfter: [gate]", 1)
	if _, err := composed(circle); err == nil ||
		!strings.Contains(err.Error(), `waits for step "gate", which does not exist`) {
		t.Errorf("disabled steps that wait for each other: %v", err)
	}
}
