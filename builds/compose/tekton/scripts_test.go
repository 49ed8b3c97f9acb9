package tekton_test

import (
	"testing"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/compose/tekton"
)

// TestInlineScripts checks that a script is an argument only if Kubernetes changes nothing in it: no
// value of a parameter, in any of Tekton's notations, which may contain $$ or $(NAME).
func TestInlineScripts(t *testing.T) {
	for script, want := range map[string]bool{
		"#!/bin/sh\necho $(cat a) > $(results.a.path)\n": true,
		"#!/bin/sh\necho $(cat list[1])\n":               true,
		"#!/bin/sh\necho $(params.a)\n":                  false,
		"#!/bin/sh\necho '$(params[\"a\"])'\n":           false,
		"#!/bin/sh\necho $(params['a'])\n":               false,
		"#!/bin/sh\necho $(params.list[0])\n":            false,
		"#!/bin/sh\necho $(params.list[*])\n":            false,
		"#!/bin/sh\necho $(workspaces.a.path)\n":         false,
		"#!/bin/sh\necho $$\n":                           false,
		"echo without a shell\n":                         false,
	} {
		task := tekton.InlineScripts(tektonv1.PipelineTask{TaskSpec: &tektonv1.EmbeddedTask{
			TaskSpec: tektonv1.TaskSpec{Steps: []tektonv1.Step{{Name: "a", Script: script}}}}})
		if got := task.TaskSpec.Steps[0].Script == ""; got != want {
			t.Errorf("%q is an argument: %t, want %t", script, got, want)
		}
	}
}
