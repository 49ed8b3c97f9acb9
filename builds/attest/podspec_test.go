package attest

import (
	"testing"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
)

// A step may have no words of its own: the image or a script says what runs.
func TestStepsWithoutWords(t *testing.T) {
	for name, c := range map[string]struct {
		step tektonv1.Step
		args []string
		want string
	}{
		"image":          {tektonv1.Step{Name: "a"}, []string{"-post_file", "/tekton/run/0/out", "-entrypoint", "/run", "--"}, ""},
		"script":         {tektonv1.Step{Name: "a", Script: "#!/bin/python\n"}, []string{"-entrypoint", "/tekton/scripts/script-0-abc", "--"}, ""},
		"another script": {tektonv1.Step{Name: "a", Script: "#!/bin/python\n"}, []string{"-entrypoint", "/tekton/scripts/../evil", "--"}, "script"},
		"more words":     {tektonv1.Step{Name: "a", Script: "#!/bin/python\n"}, []string{"-entrypoint", "/tekton/scripts/script-0-abc", "--", "evil"}, "list of args"},
	} {
		spec := &podSpec{steps: []tektonv1.Step{c.step}}
		if what := spec.judgeStep(0, corev1.Container{Command: []string{"/tekton/bin/entrypoint"}, Args: c.args}, nil); what != c.want {
			t.Errorf("%s: %q, want %q", name, what, c.want)
		}
	}
}
