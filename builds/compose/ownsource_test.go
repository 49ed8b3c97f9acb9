package compose_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// In the modes that test, no container that runs code of the repository mounts the volume
// that tasks share, and what reads the source there refuses another digest.
func TestContainersThatShareAVolume(t *testing.T) {
	clone := []string{"github-clone/clone", "github-clone/pack-source",
		"github-clone/check-subfolder", "github-clone/check-dockerfile"}
	sbom := []string{"sbom/check", "sbom/sbom", "sbom/digest", "sbom-attach/take"}
	// what mounts the shared volume, and what mounts a source of its own
	for builder, own := range map[string][2][]string{
		"kaniko": {{"kaniko-build/unpack-source"},
			{"kaniko-build/unpack-source", "kaniko-build/build-and-push"}},
		"buildah": {{"buildah-build/unpack-source"},
			{"buildah-build/unpack-source", "buildah-build/build-and-push"}},
		"buildkit": {{"buildkit-build/unpack-source", "buildkit-build/build", "push/push"},
			{"buildkit-build/unpack-source", "buildkit-build/build"}},
	} {
		for _, mode := range []string{"preprod", "prod"} {
			if mode == "prod" && builder != "buildkit" {
				continue // it is refused
			}
			out, err := plan(t,
				withSpec("  mode: "+mode+"\n  builder: "+builder+"\n  workspace: {size: 3Gi}\n"),
				nil, compose.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			if len(out.Warnings) > 0 {
				t.Errorf("%s with %s: warnings %q", mode, builder, out.Warnings)
			}
			have := mounted(t, out)
			want := map[string][]string{
				"shared-workspace": slices.Concat([]string{"github-clone/pack-source",
					"tests/unpack-source"}, own[0], sbom),
				"own-source": slices.Concat(clone,
					[]string{"tests/unpack-source", "tests/test"}, own[1]),
			}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("%s with %s: containers by volume (-want +got):\n%s", mode, builder, diff)
			}
			for _, w := range out.Run.Spec.Workspaces {
				if w.Name == "own-source" &&
					(w.EmptyDir == nil || w.EmptyDir.SizeLimit.String() != "3Gi") {
					t.Errorf("%s with %s: a source of its own is %+v", mode, builder, w)
				}
			}
			for _, task := range out.Pipeline.Spec.Tasks {
				digest := slices.IndexFunc(task.Params,
					func(p tektonv1.Param) bool { return p.Name == "source-digest" })
				if unpacks := task.TaskSpec.Steps[0].Name == "unpack-source"; unpacks != (digest >= 0) {
					t.Errorf("%s with %s: %s takes a digest: %v", mode, builder, task.Name, digest >= 0)
				} else if unpacks &&
					task.Params[digest].Value.StringVal !=
						"$(tasks.github-clone.results.source-digest)" {
					t.Errorf("%s with %s: %s takes the digest %s", mode, builder, task.Name,
						task.Params[digest].Value.StringVal)
				}
			}
		}
	}
}

// Tasks that do not depend on each other run beside each other. Nothing is pushed before
// the tests have passed.
func TestTasksBesideEachOther(t *testing.T) {
	for builder, want := range map[string]map[string]string{
		"kaniko": {"github-clone": "", "tests": "github-clone", "kaniko-build": "tests",
			"sbom": "kaniko-build", "sbom-attach": "sbom", "vulnerability-scan": "kaniko-build"},
		"buildkit": {"github-clone": "", "tests": "github-clone", "buildkit-build": "github-clone",
			"push": "tests buildkit-build", "sbom": "push", "sbom-attach": "sbom",
			"vulnerability-scan": "push"},
	} {
		for _, mode := range []string{"preprod", "prod"} {
			if mode == "prod" && builder != "buildkit" {
				continue // it is refused
			}
			out, err := plan(t, withSpec("  mode: "+mode+"\n  builder: "+builder+"\n"), nil,
				compose.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			have := map[string]string{}
			for _, task := range out.Pipeline.Spec.Tasks {
				have[task.Name] = strings.Join(task.RunAfter, " ")
			}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("%s with %s: what tasks wait for (-want +got):\n%s", mode, builder, diff)
			}
		}
	}
	out, err := plan(t,
		withSpec("  mode: preprod\n  builder: buildkit\n  pipeline: {steps: [{name: tests, "+
			"enabled: false}]}\n"), nil, compose.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range out.Pipeline.Spec.Tasks {
		if got := strings.Join(task.RunAfter, " "); task.Name == "push" &&
			got != "github-clone buildkit-build" {
			t.Errorf("without tests push waits for %s", got)
		}
	}
}

// A step that cannot be in the pod that packs the source unpacks it, and a build that
// lists the whole pipeline shares the source unless it lists the step that packs.
func TestSourceOfAdjustedSteps(t *testing.T) {
	const clone, pack, tests, kaniko = "{name: github-clone, configMap: github-clone-step}, ",
		"{name: pack-source}, ", "{name: tests}, ",
		"{name: kaniko-build, parameters: [{name: DOCKERFILE, value: Dockerfile}]}"
	for what, c := range map[string]struct {
		steps   string
		want    []string
		source  map[string]string // what the workspace source of a task is bound to
		digest  string
		warning string
	}{
		"a condition": {
			"{name: folder-verification, whenExpressions: [{input: a, operator: in, values: [a]}]}",
			[]string{"github-clone: clone pack-source",
				"folder-verification: unpack-source check-subfolder",
				"dockerfile-check: unpack-source check-dockerfile", "tests: unpack-source"},
			map[string]string{"github-clone": "own-source", "folder-verification": "own-source",
				"dockerfile-check": "own-source", "tests": "own-source",
				"sbom": "shared-workspace"},
			"$(tasks.github-clone.results.source-digest)", "has its own pod"},
		"no clone": {"{name: github-clone, enabled: false}",
			[]string{"pack-source: pack-source", "folder-verification: unpack-source",
				"dockerfile-check: unpack-source", "tests: unpack-source"},
			map[string]string{"pack-source": "shared-workspace", "tests": "own-source"},
			"$(tasks.pack-source.results.source-digest)", ""},
		"the whole list": {clone + tests + kaniko,
			[]string{"github-clone: clone", "tests: test", "kaniko-build: build-and-push"},
			map[string]string{"github-clone": "shared-workspace", "tests": "shared-workspace",
				"kaniko-build": "shared-workspace"}, "",
			`sourceFrom: refers to step "pack-source", which spec.pipeline.steps leaves out`},
		"the whole list with a step that packs": {clone + pack + tests + kaniko,
			[]string{"github-clone: clone", "pack-source: pack-source", "tests: unpack-source test",
				"kaniko-build: unpack-source build-and-push"},
			map[string]string{"github-clone": "shared-workspace", "pack-source": "shared-workspace",
				"tests": "own-source", "kaniko-build": "own-source"},
			"$(tasks.pack-source.results.source-digest)", "defaultParameters[DOCKERFILE]"},
		"a step of the build's own": {clone + "{name: edit, configMap: run-tests-step}, " + pack +
			kaniko,
			[]string{"github-clone: clone", "edit: test", "pack-source: pack-source",
				"kaniko-build: unpack-source build-and-push"},
			map[string]string{"edit": "shared-workspace", "kaniko-build": "own-source"},
			"$(tasks.pack-source.results.source-digest)", "defaultParameters[DOCKERFILE]"},
	} {
		t.Run(what, func(t *testing.T) {
			out, err := plan(t, withSpec("  mode: preprod\n  pipeline: {steps: ["+c.steps+"]}\n"),
				nil, compose.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			got := pods(out.Pipeline)
			if len(got) < len(c.want) ||
				!slices.EqualFunc(got[:len(c.want)], c.want, strings.HasPrefix) {
				t.Errorf("the pods are %q, want %q", got, c.want)
			}
			if warnings := strings.Join(out.Warnings, "\n"); !strings.Contains(warnings,
				c.warning) || c.warning == "" && warnings != "" {
				t.Errorf("the warnings are %q, want %q", warnings, c.warning)
			}
			bound := map[string]string{}
			for _, task := range out.Pipeline.Spec.Tasks {
				for _, w := range task.Workspaces {
					if _, asked := c.source[task.Name]; asked && w.Name == "source" {
						bound[task.Name] = w.Workspace
					}
				}
				for _, p := range task.Params {
					if p.Name == "source-digest" && p.Value.StringVal != c.digest {
						t.Errorf("%s takes the digest %s, want %s", task.Name, p.Value.StringVal,
							c.digest)
					}
				}
			}
			if diff := cmp.Diff(c.source, bound); diff != "" {
				t.Errorf("sources (-want +got):\n%s", diff)
			}
		})
	}
}

// The containers of a step keep the workspaces that they had, whether they named them or
// not, and the one that unpacks has none but the two that it is for.
func TestWorkspacesBesideAnOwnSource(t *testing.T) {
	const pack = "workspaces: [{name: source}]\nresults: [{name: source-digest}]\n" +
		"steps: [{name: pack, image: a, command: [a]}]\n"
	const step = "workspaces: [{name: source, readOnly: true}, {name: registry-credentials}, " +
		"{name: cache}, {name: dockerconfig}]\n" +
		"steps: [{name: one, image: a, command: [a]}, {name: two, image: a, command: [a], " +
		"workspaces: [{name: cache}]}]\n" +
		"sidecars: [{name: beside, image: a}, {name: alone, image: a, workspaces: [{name: " +
		"dockerconfig}]}]\n"
	out, err := plan(t,
		[]byte(good+
			"    imageRepoCredentials: {name: login}\n  pipeline: {workspaces: [{name: cache, "+
			"secret: {name: cached}}, {name: source, persistentVolumeClaim: {name: mine}}]}\n"),
		fstest.MapFS{
			"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML,
				"steps:\n- {name: pack, configMap: pack-step}\n"+
					"- {name: use, configMap: use-step, sourceFrom: pack}\n"+
					"- {name: last, configMap: use-step, sourceFrom: pack, finally: true}\n"),
			"pack.yaml": configMap("pack-step", templates.StepKey, pack),
			"use.yaml":  configMap("use-step", templates.StepKey, step),
		}, compose.Settings{ControllerImage: "registry.local/controller:v9",
			ImageMirror: "mirror.local"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		// the volume of the build's own, which tasks share
		"source": {"pack/pack", "use/unpack-source", "last/unpack-source"},
		"own-source": {"use/unpack-source", "use/one", "use/two", "use/beside",
			"use/alone", "last/unpack-source", "last/one", "last/two", "last/beside", "last/alone"},
		"cache": {"use/two", "last/two"},
		"registry-credentials": {"use/one", "use/two", "use/beside", "use/alone", "last/one",
			"last/two", "last/beside", "last/alone"},
	}
	if diff := cmp.Diff(want, mounted(t, out)); diff != "" {
		t.Errorf("containers by workspace (-want +got):\n%s", diff)
	}
	for _, task := range []tektonv1.PipelineTask{out.Pipeline.Spec.Tasks[1],
		out.Pipeline.Spec.Finally[0]} {
		unpack := task.TaskSpec.Steps[0]
		if unpack.Image != "registry.local/controller:v9" ||
			unpack.SecurityContext.RunAsUser == nil || *unpack.SecurityContext.RunAsUser == 0 {
			t.Errorf("%s unpacks with %s as %+v", task.Name, unpack.Image, unpack.SecurityContext)
		}
		for _, w := range task.TaskSpec.Workspaces {
			if w.ReadOnly != (w.Name == "handover") {
				t.Errorf("%s: the workspace %s is read-only: %v", task.Name, w.Name, w.ReadOnly)
			}
		}
	}
}

// A template or a build in which the source could not be handed on is refused.
func TestSourceFromRefused(t *testing.T) {
	const pack, use = "workspaces: [{name: source}]\nresults: [{name: source-digest}]\n" +
		goodSteps, "workspaces: [{name: source}]\n" + goodSteps
	const rows = "steps:\n- {name: pack, configMap: pack-step}\n" +
		"- {name: use, configMap: use-step, sourceFrom: pack}\n"
	for what, c := range map[string]struct{ template, pack, use, build, want string }{
		"nothing": {"", "", "", "", ""},
		"no such step": {strings.Replace(rows, "sourceFrom: pack", "sourceFrom: packer", 1),
			"", "", "", `is "packer", and no step before this one has that name`},
		"a later step": {"steps:\n- {name: use, configMap: use-step, sourceFrom: pack}\n" +
			"- {name: pack, configMap: pack-step}\n", "", "", "",
			`is "pack", and no step before this one`},
		"itself": {rows + "- {name: a, configMap: use-step, sourceFrom: a}\n", "", "",
			"", `is "a", and no step before this one`},
		"a step that takes it": {rows + "- {name: a, configMap: pack-step, sourceFrom: use}\n", "",
			"", "", `is "use", and no step before this one`},
		"a finally step": {strings.Replace(rows, "pack-step}", "pack-step, finally: true}",
			1), "", "", "", `is "pack", and no step before this one`},
		"no result": {"", use, "", "",
			`takes the source from step "pack", which has no result source-digest`},
		"no workspace": {"", "", goodSteps, "", `step "use" has no workspace "source"`},
		"a folder of the source": {"", "",
			"workspaces: [{name: source}]\n" + strings.Replace(goodSteps, "command",
				"workingDir: $(workspaces.source.path)/sub, command", 1), "",
			"steps[0].workingDir: is a folder of the source"},
		"switched off": {"", "", "",
			"  pipeline: {steps: [{name: pack, enabled: false}]}\n",
			`takes the source from step "pack", which is not enabled`},
		"a workspace of ours": {"", "", "",
			"  pipeline: {workspaces: [{name: own-source, emptyDir: true}]}\n", `"own-source"`},
		"the handover": {"", "",
			"workspaces: [{name: source}, {name: handover}]\n" + goodSteps,
			"  pipeline: {workspaces: [{name: handover, emptyDir: true}]}\n",
			`"handover" is bound by the pipeline itself`},
		"a digest of the build's": {"", "", "",
			"  pipeline: {parameters: [{name: source-digest, value: 'sha256:00'}]}\n",
			`no enabled step has a parameter "source-digest"`},
		"a digest for one step": {"", "", "",
			"  pipeline: {steps: [{name: use, parameters: [{name: source-digest, value: " +
				"'sha256:00'}]}]}\n", `step "use" has no parameter "source-digest"`},
		"a step's own digest": {"", "", "params: [{name: source-digest, default: ''}]\n" + use,
			"  pipeline: {parameters: [{name: source-digest, value: 'sha256:00'}]}\n",
			`step "use" takes "source-digest" from another step`},
		"a digest that is opened": {"attest: true\nopen: {parameters: [source-digest]}\n" + rows,
			"", "", "", `parameter "source-digest" is handed from step to step`},
		"another SBOM": {"attest: true\nopen: {parameters: [sbom-digest]}\n" + rows, "",
			"", "", `parameter "sbom-digest" is handed from step to step`},
	} {
		t.Run(what, func(t *testing.T) {
			or := func(text, otherwise string) string {
				if text == "" {
					return otherwise
				}
				return text
			}
			_, err := plan(t, []byte(good+c.build), fstest.MapFS{
				"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML,
					or(c.template, rows)),
				"pack.yaml": configMap("pack-step", templates.StepKey, or(c.pack, pack)),
				"use.yaml":  configMap("use-step", templates.StepKey, or(c.use, use)),
			}, compose.Settings{})
			if (err == nil) != (c.want == "") ||
				err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
}

const goodSteps = "steps: [{name: a, image: busybox:1.37.0, command: [a]}]\n"

// Modes in which nothing but the build comes after the clone have the pods and containers
// that they need for that.
func TestSmallBuildsUnpackNothing(t *testing.T) {
	for _, mode := range []string{"dev", "dev-local", "dev-external", "buildpack-dev", "custom"} {
		build := string(withSpec("  mode: "+mode+"\n")) +
			"    imageRepoCredentials: {name: login}\n"
		out, err := plan(t, []byte(build), nil, compose.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		if containers := slices.Sorted(maps.Keys(mounted(t, out))); slices.Contains(containers,
			"own-source") || strings.Contains(text(t, out.Pipeline), "unpack-source") {
			t.Errorf("%s: %v", mode, containers)
		}
	}
}
