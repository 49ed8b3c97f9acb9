package compose_test

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// Tekton adds an init container to a pod for scripts, and one for working directories in
// a workspace. The pods of the shipped modes need neither, and do what the steps say.
func TestPodsWithoutInitContainers(t *testing.T) {
	ran := map[string]bool{}
	for _, mode := range []string{"dev\n  builder: kaniko", "dev\n  builder: buildkit",
		"dev\n  builder: buildpacks", "dev-local\n  builder: buildah",
		"dev-external\n  builder: kaniko", "buildpack-dev", "preprod\n  builder: buildkit", "prod"} {
		build := strings.Replace(good, "mode: own", "mode: "+mode, 1)
		if strings.HasPrefix(mode, "dev-external") {
			build += "    imageRepoCredentials: {name: login}\n"
		}
		out, err := plan(t, []byte(build), fstest.MapFS{}, compose.Settings{})
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		for _, task := range slices.Concat(out.Pipeline.Spec.Tasks, out.Pipeline.Spec.Finally) {
			for _, s := range task.TaskSpec.Steps {
				if s.Script != "" || strings.Contains(s.WorkingDir, "workspaces.") {
					t.Errorf(
						"%s: step %s of task %s has a script or a working directory in a workspace",
						mode, s.Name, task.Name)
				}
				if len(s.Command) == 4 {
					ran[s.Command[2]] = true
				}
			}
			for _, s := range task.TaskSpec.Sidecars {
				if s.Script != "" {
					t.Errorf("%s: sidecar %s of task %s has a script", mode, s.Name, task.Name)
				}
			}
		}
	}
	for name, container := range map[string]string{"github-clone-step": "clone",
		"buildkit-build-step": "build", "kaniko-docker-build-step": "build-and-push",
		"run-tests-step": "test", "sbom-step": "digest"} {
		if script := stepContainer(t, name, container).Script; script == "" || !ran[script] {
			t.Errorf("no container runs the script of %s", name)
		}
	}
}

// A script stays one where it would be another as an argument, and so do all of its task.
func TestScriptsThatStay(t *testing.T) {
	for script, command := range map[string]string{
		"#!/bin/sh\nset -eu\necho \"$(pwd -P)\" \"${HOME}\" $1 > $(results.version.path)\n": "/bin/sh",
		"#!/busybox/sh\necho 1\n":                                          "/busybox/sh",
		"#!/bin/bash\necho \"$(id | wc -l)\"\n":                            "/bin/bash",
		"#!/bin/sh -eu\necho 1\n":                                          "",
		"#!/usr/bin/env python3\nprint(1)\n":                               "",
		"#!/usr/bin/python3\nprint(1)\n":                                   "",
		"echo 1\n":                                                         "",
		"#!/bin/sh\necho $$\n":                                             "",
		"#!/bin/sh\necho \"$(HOME)\"\n":                                    "",
		"#!/bin/sh\necho \"$(pwd)\"\n":                                     "",
		"#!/bin/sh\necho \"$(params.image)\"\n":                            "",
		"#!/bin/sh\nls \"$(workspaces.x.path)/$(id -u)\"\n":                "",
		"#!/bin/sh\n" + strings.Repeat(strings.Repeat("#", 80)+"\n", 1000): "",
	} {
		step := "params: [{name: image}]\nworkspaces: [{name: x, optional: true}]\n" +
			"results: [{name: version}]\nsteps:\n  - name: say\n    image: a\n" +
			"    args: [b, $(params.image)]\n    script: |\n      " +
			strings.ReplaceAll(strings.TrimSpace(script), "\n", "\n      ") +
			"\n  - {name: other, image: a, script: \"#!/bin/sh\\ntrue\\n\"}\n"
		out, err := plan(t, []byte(good), fstest.MapFS{
			"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML,
				"steps: [{name: only, configMap: own-step}]\n"),
			"step.yaml": configMap("own-step", templates.StepKey, step),
		}, compose.Settings{})
		if err != nil {
			t.Fatalf("%.40q: %v", script, err)
		}
		want := tektonv1.Step{Script: script}
		if command != "" {
			want = tektonv1.Step{Command: []string{command, "-c", script, "say"}}
		}
		steps := out.Pipeline.Spec.Tasks[0].TaskSpec.Steps
		if have := steps[0]; have.Script != want.Script ||
			!slices.Equal(have.Command, want.Command) ||
			!slices.Equal(have.Args, []string{"b", "$(params.image)"}) {
			t.Errorf("%.40q became the command %.60q with the script %.40q", script, have.Command,
				have.Script)
		}
		if (steps[1].Script == "") != (command != "") {
			t.Errorf("%.40q: the other script of its task is %q", script, steps[1].Script)
		}
	}
}
