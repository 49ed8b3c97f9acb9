package compose_test

import (
	"testing"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
)

// The digest of an attested run's spec survives Tekton's defaults and a request to
// stop. Each change of what runs changes it.
func TestRunDigest(t *testing.T) {
	out, err := plan(t, withSpec("  mode: prod\n"), nil, compose.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	want := out.Run.Annotations[keys.AnnotationRunDigest]
	if want == "" {
		t.Fatal("the run has no digest")
	}
	stored := out.Run.DeepCopy()
	stored.SetDefaults(t.Context()) // as Tekton's webhook does
	stored.Spec.Status = "CancelledRunFinally"
	if got := compose.RunDigest(&stored.Spec); got != want {
		t.Errorf("the stored run has digest %s, composed was %s", got, want)
	}
	for name, change := range map[string]func(){
		"image": func() {
			stored.Spec.PipelineSpec.Tasks[1].TaskSpec.Steps[0].Image = "hostile"
		},
		"script": func() {
			stored.Spec.PipelineSpec.Tasks[0].TaskSpec.Steps[0].Script = "#!/bin/sh\n"
		},
		"parameter": func() { stored.Spec.Params[0].Value.StringVal += "x" },
		"task": func() {
			stored.Spec.PipelineSpec.Tasks = stored.Spec.PipelineSpec.Tasks[1:]
		},
		"workspace":       func() { stored.Spec.Workspaces[0].SubPath = "x" },
		"service account": func() { stored.Spec.TaskRunTemplate.ServiceAccountName = "x" },
	} {
		whole := stored.Spec.DeepCopy()
		change()
		if compose.RunDigest(&stored.Spec) == want {
			t.Errorf("another %s has the same digest", name)
		}
		stored.Spec = *whole
	}
}
