package compose_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/workspace"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
)

// withSpec is a good build with further lines in its spec.
// withLogin is withSpec with an image that is pushed with a login, which keeps push out of
// the pod that builds.
func withLogin(lines string) []byte {
	return append(withSpec(lines), "    imageRepoCredentials: {name: login}\n"...)
}

func withSpec(lines string) []byte {
	return []byte(strings.Replace(good, "  mode: own\n", lines, 1))
}

// Each shipped mode builds with each builder that it offers, and the steps after
// it take the digest from the task that pushes.
func TestBuilders(t *testing.T) {
	tests := map[string]map[string]string{ // mode, builder, the task with the result IMAGE_DIGEST
		"dev": {"": "buildkit-build buildpack-build",
			"kaniko": "kaniko-build buildpack-build", "buildah": "buildah-build buildpack-build",
			"buildkit": "buildkit-build buildpack-build", "buildpacks": "buildpack-build"},
		"dev-external": {"": "push buildpack-build", "kaniko": "kaniko-build buildpack-build",
			"buildah": "buildah-build buildpack-build", "buildkit": "push buildpack-build",
			"buildpacks": "buildpack-build"},
		"dev-local": {"": "buildkit-build", "kaniko": "kaniko-build", "buildah": "buildah-build",
			"buildkit": "buildkit-build"},
		"preprod": {"": "push", "kaniko": "kaniko-build", "buildah": "buildah-build",
			"buildkit": "push"},
		"prod": {"": "push", "buildkit": "push"},
	}
	for mode, builders := range tests {
		for builder, want := range builders {
			spec := "  mode: " + mode + "\n"
			if builder != "" {
				spec += "  builder: " + builder + "\n"
			}
			if mode == "dev-external" {
				spec = strings.Replace(spec, "\n",
					"\n  buildOutput: {imageRegistry: registry.local, image: weather, imageTag: "+
						"v1, imageRepoCredentials: {name: login}}\n", 1)
			}
			text := string(withSpec(spec))
			if mode == "dev-external" {
				text = text[:strings.LastIndex(text, "  buildOutput:")]
			}
			out, err := plan(t, []byte(text), nil, compose.Settings{})
			if err != nil {
				t.Errorf("%s with %q: %v", mode, builder, err)
				continue
			}
			var makers []string
			for _, task := range out.Pipeline.Spec.Tasks {
				if slices.ContainsFunc(task.TaskSpec.Results,
					func(r tektonv1.TaskResult) bool { return r.Name == "IMAGE_DIGEST" }) {
					makers = append(makers, task.Name)
				}
				for _, p := range task.Params {
					if p.Name == "image-digest" &&
						p.Value.StringVal != "$(tasks."+want+".results.IMAGE_DIGEST)" {
						t.Errorf("%s with %q: %s takes the digest %s", mode, builder, task.Name,
							p.Value.StringVal)
					}
				}
			}
			if got := strings.Join(makers, " "); got != want {
				t.Errorf("%s with %q: the image is made by %q, want %q", mode, builder, got, want)
			}
		}
	}
}

// With BuildKit the task that executes the Dockerfile has neither the registry's
// nor Git's login, its daemon has no workspace at all, and its pod alone goes
// without the runtime's seccomp profile, which its client has by itself.
func TestBuildKitHasNoCredential(t *testing.T) {
	build := string(
		withSpec(
			"  mode: dev\n  builder: buildkit\n  pod: {resources: {limits: {memory: 9Gi}}}\n")) +
		"    imageRepoCredentials: {name: login}\n"
	build = strings.Replace(build, "    sourceRepository:",
		"    sourceCredentials: {name: git-login}\n    sourceRepository:", 1)
	out, err := plan(t, []byte(build), nil, compose.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	bound := map[string]string{}
	for _, task := range out.Pipeline.Spec.Tasks {
		var names []string
		for _, w := range task.Workspaces {
			names = append(names, w.Workspace)
		}
		bound[task.Name] = strings.Join(names, " ")
		if task.Name != "buildkit-build" {
			continue
		}
		daemon, client := task.TaskSpec.Sidecars[0], task.TaskSpec.Steps[0]
		if len(daemon.Workspaces) > 0 {
			t.Errorf("the daemon has the workspaces %v", daemon.Workspaces)
		}
		// not named by a step, it would be mounted into the daemon too
		for _, w := range task.TaskSpec.Workspaces {
			if !slices.ContainsFunc(client.Workspaces,
				func(u tektonv1.WorkspaceUsage) bool { return u.Name == w.Name }) {
				t.Errorf("the workspace %s is mounted into the daemon", w.Name)
			}
		}
		if client.SecurityContext.SeccompProfile == nil {
			t.Error("the client has no seccomp profile of its own")
		}
	}
	want := map[string]string{
		"github-clone":   "shared-workspace git-credentials",
		"buildkit-build": "shared-workspace", "push": "shared-workspace registry-credentials",
		"buildpack-build": "shared-workspace registry-credentials",
	}
	if diff := cmp.Diff(want, bound); diff != "" {
		t.Errorf("workspaces of the tasks (-want +got):\n%s", diff)
	}
	if out.Run.Spec.TaskRunTemplate.PodTemplate.SecurityContext.SeccompProfile == nil {
		t.Error("the run's pods have no seccomp profile")
	}
	specs := map[string]tektonv1.PipelineTaskRunSpec{}
	for _, s := range out.Run.Spec.TaskRunSpecs {
		specs[s.PipelineTaskName] = s
	}
	if got := slices.Sorted(maps.Keys(specs)); !slices.Equal(got,
		[]string{"buildkit-build", "buildpack-build"}) {
		t.Fatalf("settings of their own have %v", got)
	}
	spec := specs["buildkit-build"]
	if c := spec.PodTemplate.SecurityContext; c.SeccompProfile != nil || c.FSGroup == nil {
		t.Errorf("BuildKit's pod has the security context %+v", c)
	}
	if len(spec.SidecarSpecs) != 1 ||
		spec.SidecarSpecs[0].ComputeResources.Limits.Memory().String() != "9Gi" ||
		spec.ComputeResources != nil {
		t.Errorf("the build's resources are at %+v", spec)
	}
}

// A step that a build adjusts or switches off says which builder is meant, and so does a
// parameter of one builder's step; plan says which of the two did. Builds of releases that
// built with kaniko compose unchanged.
func TestBuilderOfABuild(t *testing.T) {
	own := configMap("pipeline-template-own", templates.TemplateKeyYAML,
		"steps:\n- {name: clone, configMap: github-clone-step}\n"+
			"- {name: kaniko-build, configMap: kaniko-docker-build-step}\n")
	older := shippedTemplate(t, "pipeline-template-own", "pipeline-template-dev",
		"builder: buildkit\n", "builder: kaniko\n")
	silent := shippedTemplate(t, "pipeline-template-own", "pipeline-template-dev",
		"builder: buildkit\n", "")
	tests := map[string]struct {
		spec     string
		template *fstest.MapFile
		want     string // the tasks that build
		because  string
	}{
		"nothing": {"  mode: dev-local\n", nil, "buildkit-build push",
			""},
		"the builder": {"  mode: dev-local\n  builder: kaniko\n" +
			"  pipeline: {parameters: [{name: kaniko-flags, array: [--insecure]}]}\n", nil,
			"kaniko-build", ""},
		"a parameter of kaniko's step": {"  mode: dev-local\n" +
			"  pipeline: {parameters: [{name: kaniko-flags, array: [--insecure]}]}\n", nil,
			"kaniko-build",
			"spec.pipeline.parameters[0]: kaniko-flags is a parameter of its step alone"},
		"with one that others have too": {"  mode: preprod\n  pipeline: {parameters: [{name: " +
			"PLAIN_HTTP, value: 'true'}, {name: kaniko-flags, array: [--insecure]}]}\n", nil,
			"kaniko-build", "spec.pipeline.parameters[1]"},
		"one that others have too": {
			"  mode: preprod\n  pipeline: {parameters: [{name: PLAIN_HTTP, value: 'true'}]}\n", nil,
			"buildkit-build push", ""},
		"a parameter of buildah's step": {
			"  mode: dev-local\n  pipeline: {parameters: [{name: TLS_VERIFY, value: 'false'}]}\n",
			nil, "buildah-build", "TLS_VERIFY"},
		"a step of kaniko's": {
			"  mode: preprod\n  pipeline: {steps: [{name: kaniko-build}]}\n", nil, "kaniko-build",
			"spec.pipeline.steps[0]: kaniko-build is a step of it"},
		"its parameter": {"  mode: dev-local\n" +
			"  pipeline: {steps: [{name: dockerfile-check}, {name: kaniko-build, parameters: " +
			"[{name: kaniko-flags, array: [--insecure]}]}]}\n", nil, "kaniko-build",
			"spec.pipeline.steps[1]"},
		"a step that is switched off": {
			"  mode: dev\n  pipeline: {steps: [{name: kaniko-build, enabled: false}]}\n", nil,
			"buildpack-build", "kaniko-build is a step of it"},
		"a step of BuildKit's": {"  mode: prod\n  pipeline: {steps: [{name: " +
			"buildkit-build, parameters: [{name: PLAIN_HTTP, value: 'true'}]}]}\n", nil,
			"buildkit-build push", ""},
		"what BuildKit alone does": {"  mode: dev-local\n  network: none\n", nil,
			"buildkit-build push", ""},
		"a template of the user's": {
			"  mode: own\n  pipeline: {parameters: [{name: kaniko-flags, array: [--insecure]}]}\n",
			own, "kaniko-build", ""},
		"a template of an older release": {"  mode: own\n", older,
			"kaniko-build buildpack-build", ""},
		"a template that names no builder": {"  mode: own\n", silent,
			"buildkit-build push buildpack-build", ""},
		"one, and a parameter": {
			"  mode: own\n  pipeline: {parameters: [{name: kaniko-flags, array: [--insecure]}]}\n",
			silent, "kaniko-build buildpack-build", "kaniko-flags"},
		"steps of the build's own": {"  mode: dev\n  pipeline: {steps: [{name: clone, " +
			"configMap: github-clone-step}, {name: kaniko-build, configMap: " +
			"kaniko-docker-build-step}], parameters: [{name: kaniko-flags, array: [--insecure]}]}\n",
			nil, "kaniko-build", "spec.pipeline.steps[1]"},
		"a parameter of a step of its own": {"  mode: dev\n  pipeline: {steps: [{name: clone, " +
			"configMap: github-clone-step}, {name: image, configMap: kaniko-docker-build-step}], " +
			"parameters: [{name: kaniko-flags, array: [--insecure]}]}\n", nil, "image", ""},
		"a parameter that has a field, too": {"  mode: dev-local\n" +
			"  pipeline: {parameters: [{name: subfolder-path, value: agents}]}\n", nil,
			"buildkit-build push", ""},
	}
	for what, c := range tests {
		t.Run(what, func(t *testing.T) {
			folder := fstest.MapFS{}
			if c.template != nil {
				folder["template.yaml"] = c.template
			}
			out, err := plan(t, withLogin(c.spec), folder, compose.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, task := range out.Pipeline.Spec.Tasks {
				if strings.HasSuffix(task.Name, "-build") || task.Name == "push" || task.Name == "image" {
					names = append(names, task.Name)
				}
			}
			if got := strings.Join(names, " "); got != c.want {
				t.Errorf("it is built by %q, want %q", got, c.want)
			}
			if (out.BuilderBecause == "") != (c.because == "") ||
				!strings.Contains(out.BuilderBecause, c.because) {
				t.Errorf("the builder was chosen because of %q, want %q", out.BuilderBecause, c.because)
			}
		})
	}
}

// The step of a builder that does not exist, or has a fault, does not concern a build that
// another one builds.
func TestStepsOfOtherBuilders(t *testing.T) {
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	delete(library.ConfigMaps, "buildah-build-step")
	library.ConfigMaps["kaniko-docker-build-step-local"] = templates.ConfigMap{
		Name: "kaniko-docker-build-step-local",
		Data: map[string]string{templates.StepKey: "steps: none"}}
	builds, err := manifest.Builds("build.yaml",
		withSpec(
			"  mode: dev-local\n  pipeline: {parameters: [{name: PLAIN_HTTP, value: 'true'}]}\n"),
		api.DefaultGroup)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := library.Compose(builds[0], compose.Settings{}); err != nil {
		t.Error(err)
	}
	builds[0].Spec.Builder = "kaniko"
	if _, err := library.Compose(builds[0], compose.Settings{}); err == nil {
		t.Error("it composes of a step that cannot be read")
	}
}

// shippedTemplate under another name, with one text in place of another.
func shippedTemplate(t *testing.T, as, name, old, with string) *fstest.MapFile {
	t.Helper()
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	text := library.ConfigMaps[name].Data[templates.TemplateKeyYAML]
	if !strings.Contains(text, old) {
		t.Fatalf("%s has no %q", name, old)
	}
	return configMap(as, templates.TemplateKeyYAML, strings.Replace(text, old, with, 1))
}

func TestBuilderRefused(t *testing.T) {
	own := func(template string) fstest.MapFS {
		cm := func(name, key, text string) string {
			data, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": map[string]any{"name": name}, "data": map[string]string{key: text}})
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
		return fstest.MapFS{
			"template.yaml": {
				Data: []byte(cm("pipeline-template-own", templates.TemplateKeyYAML, template))},
			"first.yaml":  {Data: []byte(cm("first-step", templates.StepKey, goodFirst))},
			"second.yaml": {Data: []byte(cm("second-step", templates.StepKey, goodSecond))},
		}
	}
	row := func(name, more string) string {
		return "  - {name: " + name + ", configMap: first-step" + more + "}\n"
	}
	tests := []struct{ what, spec, template, want string }{
		{"one that the mode lacks", "  mode: dev-local\n  builder: buildpacks\n", "",
			`has no builder "buildpacks"`},
		{"a mode without a choice", "  mode: custom\n  builder: buildkit\n", "",
			"offers no choice of builders"},
		{"a pipeline of the build's own",
			"  mode: dev\n  builder: buildkit\n  pipeline: {steps: [{name: kaniko-build, " +
				"configMap: kaniko-docker-build-step}]}\n", "", "lists the whole pipeline"},
		{"a registry that demands a login", "  mode: dev-external\n  builder: buildkit\n", "",
			"set spec.buildOutput.imageRepoCredentials"},
		{"the same with buildah", "  mode: dev-external\n  builder: buildah\n", "",
			"set spec.buildOutput.imageRepoCredentials"},
		{"no default", "  mode: own\n", "steps:\n" + row("a", ", builders: [kaniko]"),
			"and no builder"},
		{"a default without steps", "  mode: own\n",
			"builder: buildah\nsteps:\n" + row("a", ", builders: [kaniko]"),
			"which no step has in its builders"},
		{"a name twice for one builder", "  mode: own\n",
			"builder: kaniko\nsteps:\n" + row("a", ", builders: [kaniko, buildah]") +
				row("a", ", builders: [buildah]"), `name "a" occurs twice`},
		{"a name twice, once for all", "  mode: own\n",
			"builder: kaniko\nsteps:\n" + row("a", ", builders: [kaniko]") + row("a", ""),
			`name "a" occurs twice`},
		{"a reference without builders", "  mode: own\n",
			"steps:\n" + row("a", "") +
				"  - {name: b, configMap: second-step, defaultParameters: [{name: image, value: " +
				"$(builder.results.version)}]}\n", "refers to $(builder)"},
	}
	for _, c := range tests {
		t.Run(c.what, func(t *testing.T) {
			folder := fstest.MapFS{}
			if c.template != "" {
				folder = own(c.template)
			}
			_, err := plan(t, withSpec(c.spec), folder, compose.Settings{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("the error is %v, want one with %q", err, c.want)
			}
		})
	}
}

// push-step runs the image of the controller that composes it, whatever mirror and
// pins the other steps have; without a controller it is the latest that is published.
func TestPushStepHasTheControllersImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for _, c := range []struct {
		settings compose.Settings
		want     string
	}{
		{compose.Settings{}, compose.ControllerRepository + ":latest"},
		{compose.Settings{ControllerImage: "registry.local/controller:v9"},
			"registry.local/controller:v9"},
		{compose.Settings{
			ControllerImage: "registry.local/controller@" + digest, ImageMirror: "mirror.local/hub",
			ImagePins: map[string]string{"registry.local/controller@" + digest: "sha256:" +
				strings.Repeat("1b", 32)},
		}, "registry.local/controller@" + digest},
	} {
		out, err := plan(t, withLogin("  mode: dev-local\n  builder: buildkit\n"), nil, c.settings)
		if err != nil {
			t.Fatal(err)
		}
		images := map[string]string{}
		for _, task := range out.Pipeline.Spec.Tasks {
			images[task.Name] = task.TaskSpec.Steps[0].Image
		}
		if images["push"] != c.want {
			t.Errorf("with %+v push runs %s", c.settings, images["push"])
		}
		if mirrored := strings.HasPrefix(images["buildkit-build"],
			"mirror.local/hub/"); mirrored != (c.settings.ImageMirror != "") {
			t.Errorf("with %+v buildkit-build runs %s", c.settings, images["buildkit-build"])
		}
	}
}

// $(controller.image) is an image and nothing else: elsewhere it would reach the pod
// as it is written.
func TestControllerImageElsewhere(t *testing.T) {
	for name, second := range map[string]string{
		"argument": strings.Replace(goodSecond, "[echo, ", "[echo, $(controller.image), ", 1),
		"part":     strings.Replace(goodSecond, "busybox:1.37.0", "$(controller.image):v2", 1),
		"parameter": strings.Replace(goodSecond, "- name: image\n",
			"- name: image\n  - name: tool\n    default: $(controller.image)\n", 1),
	} {
		_, err := plan(t, []byte(good), fstest.MapFS{
			"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML,
				goodTemplate),
			"first.yaml":  configMap("first-step", templates.StepKey, goodFirst),
			"second.yaml": configMap("second-step", templates.StepKey, second),
		}, compose.Settings{})
		if err == nil || !strings.Contains(err.Error(), "$(controller.image)") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// buildKitClient runs the script of buildkit-build's client on a source with one folder and a
// Dockerfile in it. It returns the results, all that was printed, the arguments that buildctl was
// called with, and what the client left of BuildKit's record.
func buildKitClient(t *testing.T, dockerfile, record, args string,
	env ...string) (results map[string]string, printed string, given []string, left string, err error) {
	t.Helper()
	bin := stubBuildctl(t, "sha256:"+strings.Repeat("0a", 32), record,
		`printf '%s\n' "$arg" >> "$ARGS"`)
	source, calls, records := t.TempDir(), filepath.Join(t.TempDir(), "args"), t.TempDir()
	folder := filepath.Join(source, "agents/a b")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		t.Fatal(err)
	}
	script := "set -- " + args + "\n" + stepContainer(t, "buildkit-build-step", "build").Script
	results, printed, err = runScript(t, script,
		append([]string{"PATH=" + bin + ":" + os.Getenv("PATH"), "ARGS=" + calls,
			"RECORD=" + records, "SOURCE=" + source, "FOLDER=agents/a b", "DOCKERFILE=Dockerfile",
			"CREDENTIALS=", "PLATFORM=", "NETWORK=", "CACHE=", "CACHE_MODE=max", "IMAGE_CACHE="},
			env...)...)
	texts := map[string]string{calls: "", filepath.Join(records, "provenance.json"): ""}
	for file := range texts {
		data, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		texts[file] = strings.ReplaceAll(string(data), source, "SOURCE")
	}
	return results, printed, strings.Split(texts[calls],
		"\n"), texts[filepath.Join(records, "provenance.json")], err
}

// The client hands build arguments and labels on one by one, whatever they hold,
// reports the digest of BuildKit's metadata, and leaves BuildKit's record of the build.
func TestBuildKitClient(t *testing.T) {
	const record = `{"buildDefinition": {}}`
	results, printed, args, left, err := buildKitClient(t, "FROM scratch\n", record,
		"--armature-build-args 'A=1,network=host' 'B= two' --armature-image-labels 'l=$(id)' "+
			"--armature-build-secrets 'id=npm,src=/run/build-secrets/npm'",
		"NETWORK=none", "CACHE=registry.local/team/cache", "CACHE_MODE=min",
		"IMAGE_CACHE=registry.local/team/weather:cache")
	if err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	if results["layout-digest"] != "sha256:"+strings.Repeat("0a", 32) {
		t.Errorf("the digest is %q: %s", results["layout-digest"], printed)
	}
	if left != record {
		t.Errorf("it leaves the record %q, want %q", left, record)
	}
	for _, want := range []string{"--opt=build-arg:A=1,network=host", "--opt=build-arg:B= two",
		"--opt=label:l=$(id)", "--local=context=SOURCE/agents/a b", "--opt=filename=Dockerfile",
		"--secret=id=npm,src=/run/build-secrets/npm", "--opt=force-network-mode=none",
		"--opt=cmdline=built-in", "--import-cache=type=registry,ref=registry.local/team/cache",
		"--export-cache=type=registry,ref=registry.local/team/cache,mode=min,image-manifest=true," +
			"oci-mediatypes=true,ignore-error=true",
		"--import-cache=type=registry,ref=registry.local/team/weather:cache",
		"--export-cache=type=inline"} {
		if !slices.Contains(args, want) {
			t.Errorf("no argument is %q:\n%s", want, args)
		}
	}
	if _, printed, _, _, err := buildKitClient(t, "FROM scratch\n", "", ""); err == nil ||
		!strings.Contains(printed, "no record") {
		t.Errorf("a build without a record: %v: %s", err, printed)
	}
}

// BuildKit's own frontend reads each Dockerfile: one that the Dockerfile or a build
// argument names would decide what counts as a base image.
func TestBuildKitFrontend(t *testing.T) {
	for dockerfile, refused := range map[string]bool{
		"FROM busybox\n": false,
		"# syntax=docker/dockerfile:1\nFROM busybox\n":              false,
		"# syntax = docker.io/docker/dockerfile:1.7-labs\nFROM a\n": false,
		"#syntax=docker/dockerfile@sha256:00\nFROM a\n":             false,
		"FROM busybox\n# syntax=evil.example/frontend\n":            false, // a comment
		"# syntax=evil.example/frontend\nFROM busybox\n":            true,
		"# check=skip=all\n#\tSynTax\t= evil.example/f:v1 x\nFROM":  true,
		"# syntax=docker/dockerfilex\nFROM busybox\n":               true,
		"# syntax=evil.example/docker/dockerfile\nFROM busybox\n":   true,
		"# syntax=docker.io/evil/dockerfile:1\r\nFROM busybox\r\n":  true,
	} {
		_, printed, args, _, err := buildKitClient(t, dockerfile, "{}", "")
		switch {
		case refused &&
			(err == nil || !strings.Contains(printed, "none but BuildKit's own reads it") ||
				len(args) > 1):
			t.Errorf("%q: %v: %s, arguments %q", dockerfile, err, printed, args)
		case !refused && (err != nil || !slices.Contains(args, "--opt=cmdline=built-in")):
			t.Errorf("%q: %v: %s, arguments %q", dockerfile, err, printed, args)
		}
	}
	if _, printed, args, _, err := buildKitClient(t, "FROM busybox\n", "{}",
		"--armature-build-args BUILDKIT_SYNTAX=evil.example/frontend"); err == nil ||
		!strings.Contains(printed, "BUILDKIT_SYNTAX") || len(args) > 1 {
		t.Errorf("by a build argument: %v: %s, arguments %q", err, printed, args)
	}
}

// A build's secrets are files of the client, and in nothing else of the task; they
// are demanded with their purpose.
func TestBuildSecrets(t *testing.T) {
	spec := "  mode: dev\n  builder: buildkit\n  secrets: [{id: npm, name: registry-tokens, key: " +
		"token}, {id: pip, name: registry-tokens}]\n"
	out, err := plan(t, withSpec(spec), nil, compose.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range out.Pipeline.Spec.Tasks {
		text := text(t, task)
		if task.Name != "buildkit-build" {
			if strings.Contains(text, "registry-tokens") {
				t.Errorf("the task %s has the Secret:\n%s", task.Name, text)
			}
			continue
		}
		for _, want := range []string{
			"- key: token\n            path: npm\n          name: registry-tokens",
			"- key: pip\n            path: pip\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("the volume lacks %q:\n%s", want, text)
			}
		}
		var mounted []string
		for _, s := range task.TaskSpec.Steps {
			for _, m := range s.VolumeMounts {
				if m.Name == "build-secrets" {
					mounted = append(mounted, s.Name)
				}
			}
		}
		for _, s := range task.TaskSpec.Sidecars {
			for _, m := range s.VolumeMounts {
				if m.Name == "build-secrets" {
					mounted = append(mounted, s.Name)
				}
			}
		}
		if !slices.Equal(mounted, []string{"build"}) {
			t.Errorf("the containers %v have the secrets, want the client alone", mounted)
		}
	}
	var got []compose.Need
	for _, n := range out.Needs {
		if n.Name == "registry-tokens" {
			got = append(got, n)
		}
	}
	if len(got) != 1 || got[0].Purpose != compose.PurposeBuild ||
		got[0].Purpose.Fits("Opaque", nil) ||
		!got[0].Purpose.Fits("Opaque", map[string]string{keys.LabelCredentials: "build"}) {
		t.Errorf("the needs are %+v", got)
	}
}

// What the builder of a build does not take is refused, not ignored.
func TestFieldsOfABuilderThatHasNoUseForThem(t *testing.T) {
	for _, c := range []struct{ spec, want string }{
		{"  mode: dev\n  builder: kaniko\n  secrets: [{id: npm, name: tokens}]\n",
			"no step of this pipeline takes build-secrets"},
		{"  mode: dev\n  builder: kaniko\n  network: none\n",
			"no step of this pipeline takes network"},
		{"  mode: dev\n  builder: buildah\n  cache: {registry: registry.local/cache, mode: min}\n",
			"no step of this pipeline takes cache"},
		{"  mode: prod\n  builder: buildkit\n  cache: {registry: registry.local/cache}\n",
			"takes no cache"},
		{"  mode: preprod\n  builder: buildkit\n  cache: {registry: registry.local/cache}\n", ""},
		{"  mode: prod\n  builder: buildkit\n  cache: {mode: 'off'}\n", ""},
	} {
		_, err := plan(t, withSpec(c.spec), nil, compose.Settings{})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v, want %q", c.spec, err, c.want)
		}
	}
}

// Tekton mounts a workspace into all containers of a pod, unless a step names it.
// With all of them bound the daemon still has its own two volumes alone.
func TestBuildKitDaemonMountsNoWorkspace(t *testing.T) {
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	step, err := templates.ReadStep(library.ConfigMaps["buildkit-build-step"])
	if err != nil {
		t.Fatal(err)
	}
	var bound []tektonv1.WorkspaceBinding
	for _, w := range step.Task.Workspaces {
		bound = append(bound, tektonv1.WorkspaceBinding{Name: w.Name,
			Secret: &corev1.SecretVolumeSource{SecretName: w.Name}})
	}
	spec, err := workspace.Apply(t.Context(), step.Task, bound, workspace.CreateVolumes(bound))
	if err != nil {
		t.Fatal(err)
	}
	mounted := func(own, all []corev1.VolumeMount) (out []string) {
		for _, m := range append(slices.Clone(all), own...) {
			out = append(out, m.MountPath)
		}
		slices.Sort(out)
		return out
	}
	if diff := cmp.Diff([]string{"/home/user/.local/share/buildkit", "/run/buildkit-socket"},
		mounted(spec.Sidecars[0].VolumeMounts, nil)); diff != "" {
		t.Errorf("the daemon's volumes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/run/buildkit-record", "/run/buildkit-socket",
		"/workspace/handover", "/workspace/pull-credentials", "/workspace/source"},
		mounted(spec.Steps[0].VolumeMounts, spec.StepTemplate.VolumeMounts)); diff != "" {
		t.Errorf("the client's volumes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/run/buildkit-record"},
		mounted(spec.Steps[1].VolumeMounts, spec.StepTemplate.VolumeMounts)); diff != "" {
		t.Errorf("the volumes of what reads the record (-want +got):\n%s", diff)
	}
}
