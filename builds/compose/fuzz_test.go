package compose_test

import (
	"testing"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// Whatever a user writes, reading and composing it ends in a value or in problems, never in
// a panic.
func FuzzTemplateAndStep(f *testing.F) {
	for _, test := range broken {
		if len(test.second) < 1<<16 { // not the one that is too large
			f.Add(test.template, test.second)
		}
	}
	f.Add(goodTemplate, goodSecond)
	f.Fuzz(func(t *testing.T, templateText, stepText string) {
		template, err := templates.ReadTemplate(templates.ConfigMap{Name: "t",
			Data: map[string]string{templates.TemplateKeyYAML: templateText}})
		if template == nil && err == nil {
			t.Fatal("neither a template nor a problem")
		}
		step, _ := templates.ReadStep(templates.ConfigMap{Name: "s",
			Data: map[string]string{templates.StepKey: stepText}})
		if template == nil {
			return
		}
		build := &api.AgentBuild{}
		build.Name = "fuzz"
		steps := map[string]*templates.Step{}
		for _, name := range compose.StepNames(build, template) {
			steps[name] = step
		}
		out, err := compose.Pipeline(compose.Input{Build: build, Template: template, Steps: steps})
		if out != nil && err != nil {
			t.Errorf("both a pipeline and a problem: %v", err)
		}
	})
}
