package compose_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/compose/templates"
)

var update = flag.Bool("update", false, "write the expected parts of testdata/*.txtar")

// Each txtar holds a build, optionally settings and a folder of ConfigMaps, and
// what they compose to: pipeline.yaml and run.yaml, or problems.
func TestGoldens(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := composed(t, archive)
			if again := composed(t, archive); !cmp.Equal(got, again) {
				t.Errorf("the same input gave other bytes:\n%s", cmp.Diff(got, again))
			}
			if *update {
				write(t, file, archive, got)
				return
			}
			want := map[string]string{}
			for _, f := range archive.Files {
				if expected[f.Name] {
					want[f.Name] = string(f.Data)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("composed (-want +got):\n%s", diff)
			}
		})
	}
}

var expected = map[string]bool{"pipeline.yaml": true, "run.yaml": true, "problems": true}

// composed runs a golden's input.
func composed(t *testing.T, archive *txtar.Archive) map[string]string {
	t.Helper()
	folder := fstest.MapFS{}
	var build []byte
	var settings compose.Settings
	for _, f := range archive.Files {
		switch {
		case f.Name == "build.yaml":
			build = f.Data
		case f.Name == "settings.yaml":
			if err := yaml.UnmarshalStrict(f.Data, &settings); err != nil {
				t.Fatal(err)
			}
		case !expected[f.Name]:
			folder[f.Name] = &fstest.MapFile{Data: f.Data}
		}
	}
	out, err := plan(t, build, folder, settings)
	if err != nil {
		return map[string]string{"problems": err.Error() + "\n"}
	}
	run := *out.Run
	if !settings.PipelineObjects {
		if !cmp.Equal(out.Pipeline.Spec, *run.Spec.PipelineSpec) {
			t.Error("the run embeds another pipeline")
		}
		run.Spec.PipelineSpec = nil // shown once, in pipeline.yaml
	}
	return map[string]string{"pipeline.yaml": text(t, out.Pipeline), "run.yaml": text(t, run)}
}

// shipped is read once for all tests, and its verdicts spare a test the validation of what
// another one composed.
var shipped = sync.OnceValues(manifest.Shipped)

// plan composes the one build of a file.
func plan(t *testing.T, build []byte, folder fstest.MapFS,
	settings compose.Settings) (*compose.Output, error) {
	t.Helper()
	all, err := shipped()
	if err != nil {
		t.Fatal(err)
	}
	library := &manifest.Library{ConfigMaps: maps.Clone(all.ConfigMaps), Verdicts: all.Verdicts}
	if err := library.AddDir(folder, "folder"); err != nil {
		return nil, err
	}
	builds, err := manifest.Builds("build.yaml", build, api.DefaultGroup)
	if err != nil {
		return nil, err
	}
	out, err := library.Compose(builds[0], settings)
	if err == nil {
		strict(t, out)
	}
	return out, err
}

// strict decodes what was composed as the API server would, field by field. The
// run's text is the run.
func strict(t *testing.T, out *compose.Output) {
	t.Helper()
	for object, into := range map[any]any{out.Pipeline: &tektonv1.Pipeline{},
		out.Run: &tektonv1.PipelineRun{}} {
		data, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		unknown, err := kjson.UnmarshalStrict(data, into)
		if err != nil || len(unknown) > 0 {
			t.Errorf("%T: %v %v", object, unknown, err)
		}
	}
	data, err := out.RunJSON()
	if err != nil {
		t.Fatal(err)
	}
	var run tektonv1.PipelineRun
	unknown, err := kjson.UnmarshalStrict(data, &run)
	if err != nil || len(unknown) > 0 {
		t.Errorf("the run's text: %v %v", unknown, err)
	}
	want, err := json.Marshal(out.Run)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := json.Marshal(run); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the run's text is another run: %v (-run +text):\n%s", err,
			cmp.Diff(text(t, out.Run), text(t, run)))
	}
}

func text(t *testing.T, object any) string {
	t.Helper()
	data, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func write(t *testing.T, file string, archive *txtar.Archive, got map[string]string) {
	t.Helper()
	fresh := &txtar.Archive{Comment: archive.Comment}
	for _, f := range archive.Files {
		if !expected[f.Name] {
			fresh.Files = append(fresh.Files, f)
		}
	}
	for _, name := range []string{"pipeline.yaml", "run.yaml", "problems"} {
		if text, ok := got[name]; ok {
			fresh.Files = append(fresh.Files, txtar.File{Name: name, Data: []byte(text)})
		}
	}
	if err := os.WriteFile(file, txtar.Format(fresh), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Builds of different names never share an object.
func TestNamesDiffer(t *testing.T) {
	long := strings.Repeat("a", 60)
	seen := map[string]string{}
	for _, name := range []string{"a-b", "a.b", long + "-b", long + ".b", long + ".c"} {
		build := strings.Replace(good, "name: weather", "name: "+name, 1)
		out, err := plan(t,
			[]byte(strings.Replace(build, "mode: own", "mode: dev\n  workspace: {keep: true}", 1)),
			fstest.MapFS{}, compose.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		for _, made := range []string{out.Apply[0].GetName(), out.Pipeline.Name, out.Run.Name} {
			if before := seen[made]; before != "" || len(made) > 63 {
				t.Errorf("%s of %s has %d letters, and belongs to %q too", made, name, len(made), before)
			}
			seen[made] = name
		}
	}
}

// A step with two volumes, which Tekton refuses by default, is warned of whether
// or not the run embeds its pipeline.
func TestTwoVolumesOfAStep(t *testing.T) {
	configMap := func(name, key, text string) *fstest.MapFile {
		return &fstest.MapFile{
			Data: []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name +
				"}\ndata:\n  " + key + ": |\n    " +
				strings.ReplaceAll(text, "\n", "\n    ") + "\n")}
	}
	folder := fstest.MapFS{
		"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML,
			"steps: [{name: only, configMap: own-step}]"),
		"step.yaml": configMap("own-step", templates.StepKey,
			"workspaces: [{name: source}, {name: cache}]\nparams: [{name: image}]\n"+
				goodSecond[strings.Index(goodSecond, "steps:"):]),
	}
	build := good +
		"  pipeline: {workspaces: [{name: cache, persistentVolumeClaim: {name: cache}}]}\n"
	for _, objects := range []bool{false, true} {
		out, err := plan(t, []byte(build), folder, compose.Settings{PipelineObjects: objects})
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Warnings) != 1 || !strings.Contains(out.Warnings[0],
			`step "only" uses 2 volumes (cache, shared-workspace)`) {
			t.Errorf("with Pipeline objects %v: warnings %q", objects, out.Warnings)
		}
	}
}

// A build that lists its own steps gets a warning about the template's steps that it loses.
func TestStepsThatAreLeftOut(t *testing.T) {
	build := func(steps string) []byte {
		return []byte(strings.Replace(good, "mode: own", "mode: dev", 1) + "  pipeline: {steps: [" +
			steps + "]}\n")
	}
	const clone, kaniko = "{name: git-clone, configMap: github-clone-step}, {name: folder-check, " +
		"configMap: check-subfolder-step}, ",
		"{name: kaniko-build, configMap: kaniko-docker-build-step}"
	out, err := plan(t, build(clone+kaniko), fstest.MapFS{}, compose.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	warnings := strings.Join(out.Warnings, "\n")
	for _, want := range []string{"defaultParameters[DOCKERFILE]", "whenExpressions[0]",
		`refers to step "dockerfile-check", which spec.pipeline.steps leaves out`} {
		if !strings.Contains(warnings, want) {
			t.Errorf("%q is not in %q", want, warnings)
		}
	}
	last := out.Pipeline.Spec.Tasks[2]
	if last.Name != "kaniko-build" || len(last.When) > 0 || cmp.Equal(last.RunAfter, nil) {
		t.Errorf("task %s when %v after %v", last.Name, last.When, last.RunAfter)
	}
	// What the author says of the step is not dropped, and what is listed is referred to.
	out, err = plan(t,
		build(clone+"{name: dockerfile-check, configMap: check-dockerfile-step}, "+kaniko),
		fstest.MapFS{}, compose.Settings{})
	if err != nil || len(out.Warnings) > 0 || len(out.Pipeline.Spec.Tasks[3].When) != 1 {
		t.Errorf("%v, warnings %q", err, out.Warnings)
	}
	own := strings.Replace(kaniko, "}",
		", whenExpressions: [{input: $(tasks.dockerfile-check.results.has-dockerfile), operator: "+
			"in, values: ['true']}]}", 1)
	if _, err = plan(t, build(clone+own), fstest.MapFS{}, compose.Settings{}); err == nil ||
		!strings.Contains(err.Error(), `no enabled step is named "dockerfile-check"`) {
		t.Errorf("the author's own reference: %v", err)
	}
}

// A volume that is kept is given to the build's group each time, so that what a
// step made as root can be removed by the next run.
func TestKeptVolumeBelongsToTheGroup(t *testing.T) {
	for keep, want := range map[string]corev1.PodFSGroupChangePolicy{
		"true": corev1.FSGroupChangeAlways, "false": corev1.FSGroupChangeOnRootMismatch} {
		build := strings.Replace(good, "mode: own", "mode: dev\n  workspace: {keep: "+keep+"}", 1)
		out, err := plan(t, []byte(build), fstest.MapFS{}, compose.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		if got :=
			*out.Run.Spec.TaskRunTemplate.PodTemplate.SecurityContext.FSGroupChangePolicy; got != want {
			t.Errorf("keep %s: %s", keep, got)
		}
	}
}

// What a Dockerfile or a test runs finds no token, unless the build asks for one.
func TestPodsHaveNoServiceAccountToken(t *testing.T) {
	for setting, want := range map[string]bool{"": false,
		"  pod: {automountServiceAccountToken: true}\n": true} {
		build := "apiVersion: agent.kagenti.dev/v1alpha1\nkind: AgentBuild\n" +
			"metadata: {name: a, namespace: team1}\nspec:\n" + setting +
			"  source: {sourceRepository: git.local/a/b}\n  buildOutput: {imageRegistry: " +
			"registry.local, image: a, imageTag: v1}\n"
		out, err := plan(t, []byte(build), nil, compose.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		if got := out.Run.Spec.TaskRunTemplate.PodTemplate.AutomountServiceAccountToken; got ==
			nil || *got != want {
			t.Errorf("with %q the pods have a token: %v, want %v", setting, got, want)
		}
	}
}

// A Dockerfile of another name is looked for and built under that name, so that
// buildpacks do not step in for it.
func TestDockerfileName(t *testing.T) {
	for _, parameter := range []string{"DOCKERFILE", "dockerfile"} {
		build := strings.Replace(good, "mode: own", "mode: dev", 1) +
			"  pipeline: {parameters: [{name: " + parameter + ", value: Dockerfile.prod}]}\n"
		out, err := plan(t, []byte(build), fstest.MapFS{}, compose.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, task := range out.Pipeline.Spec.Tasks {
			for _, p := range task.Params {
				if strings.EqualFold(p.Name, "dockerfile") {
					got[task.Name] = p.Value.StringVal
				}
			}
		}
		want := map[string]string{"github-clone": "Dockerfile.prod",
			"buildkit-build": "Dockerfile.prod"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", parameter, diff)
		}
	}
}
