package compose_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/workspace"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// pods lists the tasks of a pipeline, each with its steps.
func pods(p *tektonv1.Pipeline) []string {
	var out []string
	for _, task := range slices.Concat(p.Spec.Tasks, p.Spec.Finally) {
		var steps []string
		for _, s := range task.TaskSpec.Steps {
			steps = append(steps, s.Name)
		}
		out = append(out, task.Name+": "+strings.Join(steps, " "))
	}
	return out
}

// What a shipped mode does before it runs code of the repository takes one pod, and
// a build that adjusts or lists its steps has the names that it knows.
func TestStepsThatShareAPod(t *testing.T) {
	const whole, build, push, buildpack = "github-clone: clone check-subfolder check-dockerfile",
		"buildkit-build: build base-images push", "push: push", "buildpack-build: prepare create"
	const packed = "github-clone: clone pack-source check-subfolder check-dockerfile"
	const hasDockerfile = "$(tasks.github-clone.results.has-dockerfile)"
	tests := []struct {
		what, spec string
		want       []string
		when       string // input of the condition of buildpack-build
		warning    string
	}{
		{"as shipped", "  mode: dev\n", []string{whole, build, buildpack}, hasDockerfile, ""},
		{"no check of the folder",
			"  mode: dev\n  pipeline: {steps: [{name: folder-verification, enabled: false}]}\n",
			[]string{"github-clone: clone check-dockerfile", build, buildpack}, hasDockerfile, ""},
		{"no clone", "  mode: dev\n  pipeline: {steps: [{name: github-clone, enabled: false}]}\n",
			[]string{"folder-verification: check-subfolder", "dockerfile-check: check-dockerfile",
				build, buildpack}, "$(tasks.dockerfile-check.results.has-dockerfile)", ""},
		{"a parameter of one step",
			"  mode: dev\n  pipeline: {steps: [{name: dockerfile-check, parameters: [{name: " +
				"dockerfile, value: Dockerfile.prod}]}]}\n", []string{whole, build, buildpack},
			hasDockerfile, ""},
		{"a parameter that differs",
			"  mode: dev\n  pipeline: {steps: [{name: dockerfile-check, parameters: [{name: " +
				"subfolder-path, value: other}]}]}\n",
			[]string{"github-clone: clone check-subfolder", "dockerfile-check: check-dockerfile",
				build, buildpack}, "$(tasks.dockerfile-check.results.has-dockerfile)",
			`steps[2].podOf: step "dockerfile-check" has its own pod: its parameter "subfolder-path" differs in value or type from that of step "github-clone"`},
		{"a condition",
			"  mode: dev\n  pipeline: {steps: [{name: folder-verification, whenExpressions: " +
				"[{input: a, operator: in, values: [a]}]}]}\n",
			[]string{"github-clone: clone", "folder-verification: check-subfolder",
				"dockerfile-check: check-dockerfile", build, buildpack},
			"$(tasks.dockerfile-check.results.has-dockerfile)",
			`step "dockerfile-check" has its own pod: it waits for folder-verification`},
		{"the build's own condition",
			"  mode: dev\n  pipeline: {steps: [{name: buildpack-build, whenExpressions: [{input: " +
				"$(tasks.dockerfile-check.results.dockerfile-name), operator: in, values: " +
				"[none]}]}]}\n", []string{whole, build, buildpack},
			"$(tasks.github-clone.results.dockerfile-name)", ""},
		{"the build's own list",
			"  mode: dev\n  pipeline: {steps: [{name: github-clone, configMap: " +
				"github-clone-step}, {name: folder-verification, configMap: " +
				"check-subfolder-step}, {name: dockerfile-check, configMap: " +
				"check-dockerfile-step}, {name: buildpack-build, configMap: buildpack-step}]}\n",
			[]string{"github-clone: clone", "folder-verification: check-subfolder",
				"dockerfile-check: check-dockerfile", buildpack},
			"$(tasks.dockerfile-check.results.has-dockerfile)", ""},
		{"a login", "  mode: dev\n  LOGIN", []string{whole, "buildkit-build: build base-images",
			push, buildpack}, hasDockerfile, ""},
		{"a login to pull",
			"  mode: dev\n  pipeline: {workspaces: [{name: pull-credentials, secret: " +
				"{name: pull}}]}\n", []string{whole, build, buildpack}, hasDockerfile, ""},
		{"a condition of the push",
			"  mode: dev\n  pipeline: {steps: [{name: push, whenExpressions: [{input: a, " +
				"operator: in, values: [a]}]}]}\n",
			[]string{whole, "buildkit-build: build base-images", push, buildpack}, hasDockerfile,
			`step "push" has its own pod: step "push" has whenExpressions, a timeout, retries or onError`},
		{"platforms",
			"  mode: dev-local\n  platforms: [linux/amd64, linux/arm64]\n  platformNodes: Any\n",
			[]string{whole, "buildkit-build-linux-amd64: build base-images",
				"buildkit-build-linux-arm64: build base-images", push}, "", ""},
		{"a platform", "  mode: dev-local\n  platforms: [linux/arm64]\n", []string{whole, build},
			"", ""},
		{"tests", "  mode: preprod\n",
			[]string{packed, "tests: unpack-source test",
				"buildkit-build: unpack-source build base-images", push, "sbom:", "sbom-attach:",
				"vulnerability-scan:"}, "", ""},
		{"buildpacks alone", "  mode: buildpack-dev\n",
			[]string{"github-clone: clone check-subfolder", buildpack}, "", ""},
	}
	for _, c := range tests {
		t.Run(c.what, func(t *testing.T) {
			spec := withSpec(c.spec)
			if lines, ok := strings.CutSuffix(c.spec, "  LOGIN"); ok {
				spec = withLogin(lines)
			}
			out, err := plan(t, spec, nil, compose.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			got := pods(out.Pipeline)
			if len(got) != len(c.want) || !slices.EqualFunc(got, c.want, strings.HasPrefix) {
				t.Errorf("the pods are %q, want %q", got, c.want)
			}
			names := map[string]bool{}
			for _, task := range out.Pipeline.Spec.Tasks {
				names[task.Name] = true
				for _, after := range task.RunAfter {
					if !names[after] {
						t.Errorf("%s waits for %s, which does not run before it", task.Name, after)
					}
				}
				if task.Name == "buildpack-build" && len(task.When) > 0 &&
					task.When[0].Input != c.when ||
					task.Name == "buildpack-build" && len(task.When) == 0 && c.when != "" {
					t.Errorf("buildpack-build runs when %+v, want %q", task.When, c.when)
				}
			}
			if warnings := strings.Join(out.Warnings, "\n"); !strings.Contains(warnings,
				c.warning) || c.warning == "" && warnings != "" {
				t.Errorf("the warnings are %q, want %q", warnings, c.warning)
			}
		})
	}
}

// An image that needs no login is pushed in the pod that builds it, by what the build
// reported. What the Dockerfile runs has nothing of that.
func TestPushInThePodThatBuilds(t *testing.T) {
	out, err := plan(t, withSpec("  mode: dev-local\n"), nil, compose.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(out.Pipeline.Spec.Tasks,
		func(t tektonv1.PipelineTask) bool { return t.Name == "buildkit-build" })
	task := out.Pipeline.Spec.Tasks[at]
	for _, s := range task.TaskSpec.Sidecars {
		if len(s.Workspaces) > 0 || slices.ContainsFunc(s.VolumeMounts,
			func(m corev1.VolumeMount) bool { return m.Name == "buildkit-record" }) {
			t.Errorf("sidecar %s has %v and %v", s.Name, s.Workspaces, s.VolumeMounts)
		}
	}
	for _, w := range task.TaskSpec.Workspaces {
		if !slices.ContainsFunc(task.TaskSpec.Steps, func(s tektonv1.Step) bool {
			return slices.ContainsFunc(s.Workspaces,
				func(u tektonv1.WorkspaceUsage) bool { return u.Name == w.Name })
		}) {
			t.Errorf("no step names workspace %s, so that the sidecar has it too", w.Name)
		}
	}
	push := task.TaskSpec.Steps[len(task.TaskSpec.Steps)-1]
	if push.Name != "push" ||
		!slices.Contains(push.Args, "--digest=$(results.layout-digest.path)") {
		t.Errorf("the last container is %s, with %q", push.Name, push.Args)
	}
	if push.SecurityContext.SeccompProfile == nil ||
		push.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the container that pushes has the seccomp profile %v in a pod without one",
			push.SecurityContext.SeccompProfile)
	}
	if slices.ContainsFunc(task.TaskSpec.Params,
		func(p tektonv1.ParamSpec) bool { return p.Name == "layout-digest" }) {
		t.Error("the digest is a parameter of the task that reports it")
	}

	for what, container := range map[string]string{
		"by another program": "image: crane:1, command: [crane, push, $(params.layout-digest), " +
			"$(params.image)]",
		"by an older controller": "image: registry.local/controller:v1, command: " +
			"[/ko-app/armature-controller], args: [push-layout, --digest=$(params.layout-digest)]",
		"and uses the digest elsewhere": "image: $(controller.image), command: " +
			"[/ko-app/armature-controller], args: [push-layout, " +
			"--digest=$(params.layout-digest)], env: [{name: DIGEST, value: " +
			"$(params.layout-digest)}]",
	} {
		step := configMap("push-step", templates.StepKey,
			"params: [{name: image}, {name: layout-digest}]\nresults: [{name: IMAGE_URL}, {name: "+
				"IMAGE_DIGEST}]\nsteps: [{name: push, "+container+"}]\n")
		out, err = plan(t, withSpec("  mode: dev-local\n"), fstest.MapFS{"step.yaml": step},
			compose.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		if got := pods(out.Pipeline); !slices.Contains(got, "push: push") ||
			!strings.Contains(strings.Join(out.Warnings, " "), "its own pod") {
			t.Errorf("with a step that pushes %s, the pods are %q, with warnings %q", what, got,
				out.Warnings)
		}
	}

	own := shippedTemplate(t, "pipeline-template-own", "pipeline-template-dev-local",
		"builder: buildkit\n", "builder: buildkit\nattest: true\n")
	out, err = plan(t, withSpec("  mode: own\n"), fstest.MapFS{"template.yaml": own}, compose.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	if got := pods(out.Pipeline); !slices.Contains(got, "push: push") {
		t.Errorf("where the controller attests, the pods are %q", got)
	}
}

// Two steps that cannot be one task stay two, and the plan says why.
func TestStepsThatCannotShareAPod(t *testing.T) {
	const one, two = "results:\n- name: version\nsteps:\n- name: first\n  image: busybox:1.37.0\n" +
		"  command: [echo]\n",
		"steps:\n- name: second\n  image: busybox:1.37.0\n  command: [echo]\n"
	for what, c := range map[string]struct{ first, second, rows, want string }{
		"nothing": {one, two, "", ""},
		"volume": {one + "volumes: [{name: a, emptyDir: {}}]\n",
			two + "volumes: [{name: b, emptyDir: {}}]\n", "", ""},
		"same volume": {one + "volumes: [{name: a, emptyDir: {}}]\n",
			two + "volumes: [{name: a, emptyDir: {}}]\n", "", `too has a volume "a"`},
		"same result": {one, "results: [{name: version}]\n" + two, "",
			`too has a result "version"`},
		"same container": {one, strings.Replace(two, "second", "first", 1), "",
			"have the same name, or none"},
		"no name": {one, strings.Replace(two, "- name: second\n  image", "- image", 1), "",
			"have the same name, or none"},
		"first's sidecar": {one + "sidecars: [{name: a, image: b:1}]\n", two, "",
			`step "first" has sidecars`},
		"sidecar": {one, two + "sidecars: [{name: a, image: b:1}]\n", "",
			`step "second" has sidecars`},
		"step template": {one + "stepTemplate: {env: [{name: A, value: b}]}\n", two, "",
			`step "first" has sidecars or a stepTemplate`},
		"default": {"params: [{name: a, default: b}]\n" + one,
			"params: [{name: a, default: c}]\n" + two, "", `its parameter "a" differs in value`},
		"type": {"params: [{name: a, type: string, default: b}]\n" + one,
			"params: [{name: a, type: array, default: [b]}]\n" + two, "",
			`its parameter "a" differs in value or type`},
		"same default": {"params: [{name: a, default: b}]\n" + one,
			"params: [{name: a, default: b, description: c}]\n" + two, "", ""},
		"workspace": {"workspaces: [{name: source, readOnly: true}]\n" + one,
			"workspaces: [{name: source}]\n" + two, "", `its workspace "source" differs`},
		"only read": {"workspaces: [{name: source}]\n" + one,
			"workspaces: [{name: source, readOnly: true}]\n" + two, "", ""},
		"binding": {"workspaces: [{name: source}]\n" + one,
			"workspaces: [{name: source}]\n" + two, "    workspaces: {source: other}\n",
			`its workspace "source" differs`},
		"result inside": {one,
			strings.Replace(two, "[echo]", "[echo, $(tasks.first.results.version)]", 1), "",
			"it takes the result of another step"},
		"result": {one, "params: [{name: version}]\n" + two,
			"    defaultParameters: [{name: version, value: $(tasks.first.results.version)}]\n",
			"it takes the result of another step"},
	} {
		t.Run(what, func(t *testing.T) {
			template := "steps:\n  - name: first\n    configMap: first-step\n  - name: second\n" +
				"    configMap: second-step\n    podOf: first\n" + c.rows
			build := good
			if c.rows != "" && strings.Contains(c.rows, "other") {
				build += "  pipeline: {workspaces: [{name: other, emptyDir: true}]}\n"
			}
			out, err := plan(t, []byte(build), fstest.MapFS{
				"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML,
					template),
				"first.yaml":  configMap("first-step", templates.StepKey, c.first),
				"second.yaml": configMap("second-step", templates.StepKey, c.second),
			}, compose.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			want := 1
			if c.want != "" {
				want = 2
			}
			if got := pods(out.Pipeline); len(got) != want {
				t.Errorf("the pods are %q, want %d", got, want)
			}
			if warnings := strings.Join(out.Warnings, "\n"); !strings.Contains(warnings, c.want) ||
				c.want == "" && warnings != "" {
				t.Errorf("the warnings are %q, want %q", warnings, c.want)
			}
		})
	}
}

// A template that asks for what cannot be is refused.
func TestPodOfRefused(t *testing.T) {
	row := func(name, more string) string {
		return "  - {name: " + name + ", configMap: x-step" + more + "}\n"
	}
	for rows, want := range map[string]string{
		row("a", ", podOf: b") +
			row("b", ""): `is "b", and no step before this one has that name`,
		row("a",
			", podOf: a"): `is "a", and no step before this one has that name`,
		row("a", "") + row("b", ", podOf: a") +
			row("c", ", podOf: b"): `is "b", which runs in the pod of "a"`,
		row("a", "") +
			row("b", ", podOf: a, finally: true"): "cannot be combined with",
		row("a", ", finally: true") +
			row("b", ", podOf: a"): "cannot be combined with",
		row("a", "") +
			row("b", ", podOf: a, retries: 1"): "cannot be combined with",
		row("a", "") +
			row("b", ", podOf: a, timeout: 1m"): "cannot be combined with",
		row("a", "") +
			row("b", ", podOf: a, onError: continue"): "cannot be combined with",
		row("a", "") +
			row("b", ", podOf: a, runAfter: [a]"): "cannot be combined with",
		row("a", "") +
			row("b",
				", podOf: a, whenExpressions: [{input: a, operator: in, values: [a]}]"): "cannot be combined with",
	} {
		_, err := templates.ReadTemplate(templates.ConfigMap{Name: "pipeline-template-own",
			Data: map[string]string{templates.TemplateKeyYAML: "steps:\n" + rows}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %q", rows, err, want)
		}
	}
}

// A result counts for the step that declares it, whatever pod it runs in, and
// whatever was accepted before.
func TestResultOfAStepInAnothersPod(t *testing.T) {
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	template, err := templates.ReadTemplate(library.ConfigMaps["pipeline-template-dev"])
	if err != nil {
		t.Fatal(err)
	}
	verdicts, steps, pipelines := &compose.Verdicts{}, map[string]*templates.Step{}, map[string]bool{}
	for _, c := range []struct{ task, want string }{
		{"github-clone", ""},
		{"github-clone", ""},
		{"folder-verification", `step "folder-verification" declares no such result`},
	} {
		spec := fmt.Sprintf("  mode: dev\n  pipeline: {steps: [{name: kaniko-build, "+
			"whenExpressions: [{input: $(tasks.%s.results.commit), operator: notin, values: "+
			"['']}]}]}\n", c.task)
		builds, err := manifest.Builds("build.yaml", withSpec(spec), api.DefaultGroup)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range compose.StepNames(builds[0].AgentBuild, template) {
			if steps[name] != nil {
				continue // as a burst of builds shares them
			}
			if steps[name], err = templates.ReadStep(library.ConfigMaps[name]); err != nil {
				t.Fatal(err)
			}
		}
		out, err := compose.Pipeline(compose.Input{Build: builds[0].AgentBuild, Template: template,
			Steps: steps, Verdicts: verdicts})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v, want %q", c.task, err, c.want)
		}
		if out != nil {
			pipelines[text(t, out.Pipeline)] = true
		}
	}
	if len(pipelines) != 1 {
		t.Errorf("one build became %d pipelines: composition changed the steps that builds share",
			len(pipelines))
	}
}

// In every shipped mode and with every builder Git's login is mounted into the
// container that clones and no other one. What the repository's tests run has no
// login at all, and what a Dockerfile runs has none with BuildKit, nor has its client.
func TestContainersThatHaveALogin(t *testing.T) {
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"dev", "buildpack-dev", "dev-local", "dev-external", "preprod",
		"prod", "custom"} {
		template, err := templates.ReadTemplate(library.ConfigMaps[templates.TemplateName(mode)])
		if err != nil {
			t.Fatal(err)
		}
		builders := template.Builders()
		if len(builders) == 0 {
			builders = []string{""}
		}
		for _, builder := range builders {
			spec := "  mode: " + mode + "\n"
			if builder != "" {
				spec += "  builder: " + builder + "\n"
			}
			build := string(withSpec(spec)) + "    imageRepoCredentials: {name: push-login}\n"
			build = strings.Replace(build, "    sourceRepository:",
				"    sourceCredentials: {name: git-login}\n    sourceRepository:", 1)
			out, err := plan(t, []byte(build), nil, compose.Settings{})
			if err != nil {
				t.Fatalf("%s with %q: %v", mode, builder, err)
			}
			if token :=
				out.Run.Spec.TaskRunTemplate.PodTemplate.AutomountServiceAccountToken; token ==
				nil || *token {
				t.Errorf("%s with %q: pods have a ServiceAccount token", mode, builder)
			}
			for _, s := range out.Run.Spec.TaskRunSpecs {
				if s.PodTemplate != nil && s.PodTemplate.AutomountServiceAccountToken != nil {
					t.Errorf("%s with %q: task %s has its own setting of the ServiceAccount token",
						mode, builder, s.PipelineTaskName)
				}
			}
			have := logins(t, out)
			if diff := cmp.Diff([]string{"github-clone/clone"}, have["git-login"]); diff != "" {
				t.Errorf("%s with %q: containers with Git's login (-want +got):\n%s", mode, builder, diff)
			}
			for _, container := range have["push-login"] {
				task, _, _ := strings.Cut(container, "/")
				if slices.Contains([]string{"github-clone", "tests", "buildkit-build"}, task) {
					t.Errorf("%s with %q: %s has the registry's login", mode, builder, container)
				}
			}
			if mode != "custom" && len(have["push-login"]) == 0 {
				t.Errorf("%s with %q: no container has the registry's login, so that this test "+
					"shows nothing", mode, builder)
			}
		}
	}
}

// logins of a run: for each Secret the containers that mount it, as TASK/CONTAINER.
func logins(t *testing.T, out *compose.Output) map[string][]string {
	t.Helper()
	containers, have := mounted(t, out), map[string][]string{}
	for _, w := range out.Run.Spec.Workspaces {
		if w.Secret != nil {
			have[w.Secret.SecretName] = containers[w.Name]
		}
	}
	return have
}

// mounted are for each workspace of a run the containers that mount it, as
// TASK/CONTAINER, as Tekton makes pods of the tasks.
func mounted(t *testing.T, out *compose.Output) map[string][]string {
	t.Helper()
	have := map[string][]string{}
	for _, task := range slices.Concat(out.Pipeline.Spec.Tasks, out.Pipeline.Spec.Finally) {
		var bound []tektonv1.WorkspaceBinding
		for _, w := range task.Workspaces {
			bound = append(bound, tektonv1.WorkspaceBinding{Name: w.Name,
				Secret: &corev1.SecretVolumeSource{SecretName: w.Workspace}})
		}
		volumes := workspace.CreateVolumes(bound)
		spec, err := workspace.Apply(t.Context(), *task.TaskSpec.TaskSpec.DeepCopy(), bound, volumes)
		if err != nil {
			t.Fatal(err)
		}
		workspaceOf := map[string]string{} // by the volume
		for w, v := range volumes {
			at := slices.IndexFunc(bound,
				func(b tektonv1.WorkspaceBinding) bool { return b.Name == w })
			workspaceOf[v.Name] = bound[at].Secret.SecretName
		}
		var all []corev1.VolumeMount
		if spec.StepTemplate != nil {
			all = spec.StepTemplate.VolumeMounts
		}
		note := func(container string, own []corev1.VolumeMount) {
			for _, m := range slices.Concat(all, own) {
				if w := workspaceOf[m.Name]; w != "" &&
					!slices.Contains(have[w], task.Name+"/"+container) {
					have[w] = append(have[w], task.Name+"/"+container)
				}
			}
		}
		for _, s := range spec.Steps {
			note(s.Name, s.VolumeMounts)
		}
		for _, s := range spec.Sidecars {
			note(s.Name, s.VolumeMounts)
		}
	}
	return have
}

// Whatever refers to a step leads to the pod that it runs in: the text of another
// step, what a finally step looks at, and a result of the pipeline.
func TestReferencesToAStepInAnothersPod(t *testing.T) {
	const plain = "steps:\n- name: NAME\n  image: busybox:1.37.0\n  command: [echo]\n"
	step := func(name, more string) string { return strings.Replace(plain, "NAME", name, 1) + more }
	template := "steps:\n  - {name: first, configMap: first-step}\n  - {name: second, configMap: " +
		"second-step, podOf: first}\n" +
		"  - {name: third, configMap: third-step}\n  - name: last\n    configMap: last-step\n" +
		"    finally: true\n    defaultParameters: [{name: state, value: $(tasks.second.status)}]\n"
	folder := fstest.MapFS{
		"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML, template),
		"first.yaml":    configMap("first-step", templates.StepKey, step("one", "")),
		"second.yaml": configMap("second-step", templates.StepKey,
			step("two", "results: [{name: IMAGE_URL}]\n")),
		"third.yaml": configMap("third-step", templates.StepKey, strings.Replace(step("three", ""),
			"[echo]", "[echo, $(tasks.second.results.IMAGE_URL)]", 1)),
		"last.yaml": configMap("last-step", templates.StepKey,
			step("four", "params: [{name: state}]\n")),
	}
	out, err := plan(t, []byte(good), folder, compose.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	p := out.Pipeline.Spec
	got := []string{p.Tasks[1].TaskSpec.Steps[0].Command[1], p.Finally[0].Params[0].Value.StringVal,
		p.Results[0].Value.StringVal, strings.Join(p.Tasks[1].RunAfter, " ")}
	want := []string{"$(tasks.first.results.IMAGE_URL)", "$(tasks.first.status)",
		"$(tasks.first.results.IMAGE_URL)", "first"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("references (-want +got):\n%s", diff)
	}
}
