package compose_test

import (
	"os"
	"testing"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// BenchmarkCompose measures composing one build from steps that were read.
func BenchmarkCompose(b *testing.B) {
	data, err := os.ReadFile("../../examples/builds/weather.yaml")
	if err != nil {
		b.Fatal(err)
	}
	builds, err := manifest.Builds("weather.yaml", data, api.DefaultGroup)
	if err != nil {
		b.Fatal(err)
	}
	library, err := manifest.Shipped()
	if err != nil {
		b.Fatal(err)
	}
	template, err := templates.ReadTemplate(library.ConfigMaps["pipeline-template-dev"])
	if err != nil {
		b.Fatal(err)
	}
	steps := map[string]*templates.Step{}
	for _, name := range compose.StepNames(builds[0].AgentBuild, template) {
		if steps[name], err = templates.ReadStep(library.ConfigMaps[name]); err != nil {
			b.Fatal(err)
		}
	}
	verdicts := &compose.Verdicts{}
	for b.Loop() {
		if _, err := compose.Pipeline(compose.Input{Build: builds[0].AgentBuild, Template: template,
			Steps: steps, Verdicts: verdicts}); err != nil {
			b.Fatal(err)
		}
	}
}
