package manifest_test

import (
	"testing"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/manifest"
)

// Whatever a user writes, reading it ends in a value or in problems with a
// place, never in a panic.
func FuzzBuilds(f *testing.F) {
	for _, test := range broken {
		f.Add(test.build)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, text string) {
		builds, err := manifest.Builds("build.yaml", []byte(text), api.DefaultGroup)
		if err == nil && len(builds) == 0 {
			t.Error("neither builds nor a problem")
		}
		for _, f := range compose.Findings(err) {
			if f.File != "build.yaml" || f.Rule == "" {
				t.Errorf("a finding without a place or a rule: %v", f)
			}
		}
	})
}

func FuzzTemplateAndStep(f *testing.F) {
	for _, test := range broken {
		if len(test.second) < 1<<16 { // not the one that is too large
			f.Add(test.template, test.second)
		}
	}
	f.Add(goodTemplate, goodSecond)
	f.Fuzz(func(t *testing.T, templateText, stepText string) {
		template, err := compose.ReadTemplate(compose.ConfigMap{Name: "t", Data: map[string]string{compose.TemplateKeyYAML: templateText}})
		if template == nil && err == nil {
			t.Fatal("neither a template nor a problem")
		}
		step, _ := compose.ReadStep(compose.ConfigMap{Name: "s", Data: map[string]string{compose.StepKey: stepText}})
		if template == nil {
			return
		}
		build := &api.AgentBuild{}
		build.Name = "fuzz"
		steps := map[string]*compose.StepFile{}
		for _, name := range compose.StepNames(build, template) {
			steps[name] = step
		}
		out, err := compose.Pipeline(compose.Input{Build: build, Template: template, Steps: steps})
		if out != nil && err != nil {
			t.Errorf("both a pipeline and a problem: %v", err)
		}
	})
}
