package compose_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/finding"
)

// values of a task's parameters.
func values(task tektonv1.PipelineTask) map[string]string {
	out := map[string]string{}
	for _, p := range task.Params {
		out[p.Name] = p.Value.StringVal
	}
	return out
}

// Each platform has a task, push waits for all and is given what each reports, and
// pods are on nodes as the build says.
func TestPlatforms(t *testing.T) {
	selectors := func(out *compose.Output) map[string]string {
		of := map[string]string{
			"": out.Run.Spec.TaskRunTemplate.PodTemplate.NodeSelector[corev1.LabelArchStable]}
		for _, spec := range out.Run.Spec.TaskRunSpecs {
			if spec.PodTemplate != nil && spec.PodTemplate.NodeSelector != nil {
				of[spec.PipelineTaskName] = spec.PodTemplate.NodeSelector[corev1.LabelArchStable]
			}
		}
		return of
	}
	tests := map[string]struct {
		spec      string
		tasks     map[string]string // its platform
		push      map[string]string
		selectors map[string]string
	}{
		"two on nodes of their own": {
			spec: "  platforms: [linux/arm64, linux/arm/v7]\n" +
				"  workspace: {accessMode: ReadWriteMany}\n",
			tasks: map[string]string{"buildkit-build-linux-arm64": "linux/arm64",
				"buildkit-build-linux-arm-v7": "linux/arm/v7"},
			push: map[string]string{
				"layout-digest": "$(tasks.buildkit-build-linux-arm64.results.layout-digest)," +
					"$(tasks.buildkit-build-linux-arm-v7.results.layout-digest)",
				"platforms": "linux/arm64,linux/arm/v7"},
			selectors: map[string]string{"": "", "buildkit-build-linux-arm64": "arm64",
				"buildkit-build-linux-arm-v7": "arm"},
		},
		"two on any node": {
			spec: "  platforms: [linux/amd64, linux/arm64]\n  platformNodes: Any\n",
			tasks: map[string]string{"buildkit-build-linux-amd64": "linux/amd64",
				"buildkit-build-linux-arm64": "linux/arm64"},
			push: map[string]string{
				"layout-digest": "$(tasks.buildkit-build-linux-amd64.results.layout-digest)," +
					"$(tasks.buildkit-build-linux-arm64.results.layout-digest)",
				"platforms": "linux/amd64,linux/arm64"},
			selectors: map[string]string{"": ""},
		},
		"one, where all pods run": {
			spec:  "  platforms: [linux/arm64]\n",
			tasks: map[string]string{"buildkit-build": "linux/arm64"},
			push: map[string]string{
				"layout-digest": "$(tasks.buildkit-build.results.layout-digest)",
				"platforms":     "linux/arm64"},
			selectors: map[string]string{"": "arm64"},
		},
		"one on any node": {
			spec:  "  platforms: [linux/arm64]\n  platformNodes: Any\n",
			tasks: map[string]string{"buildkit-build": "linux/arm64"},
			push: map[string]string{
				"layout-digest": "$(tasks.buildkit-build.results.layout-digest)",
				"platforms":     "linux/arm64"},
			selectors: map[string]string{"": ""},
		},
	}
	for what, c := range tests {
		t.Run(what, func(t *testing.T) {
			out, err := plan(t, withLogin("  mode: dev-local\n  builder: buildkit\n"+c.spec), nil,
				compose.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			given := map[string]string{}
			for _, p := range out.Run.Spec.Params {
				given["$(params."+p.Name+")"] = p.Value.StringVal
			}
			tasks, after := map[string]string{}, map[string]bool{}
			for _, task := range out.Pipeline.Spec.Tasks {
				have := values(task)
				for name, value := range have {
					if whole, ok := given[value]; ok {
						have[name] = whole
					}
				}
				switch platform, has := have["platform"]; {
				case has:
					tasks[task.Name] = platform
					after[strings.Join(task.RunAfter, " ")] = true
				case task.Name == "push":
					if diff := cmp.Diff(c.push,
						map[string]string{"layout-digest": have["layout-digest"],
							"platforms": have["platforms"]}); diff != "" {
						t.Errorf("push is given (-want +got):\n%s", diff)
					}
					if after := slices.Sorted(slices.Values(task.RunAfter)); !slices.Equal(after,
						slices.Sorted(maps.Keys(c.tasks))) {
						t.Errorf("push waits for %v", after)
					}
				}
			}
			if len(after) != 1 || after[""] { // not for each other, and for the source
				t.Errorf("the tasks wait for %v", after)
			}
			if diff := cmp.Diff(c.tasks, tasks); diff != "" {
				t.Errorf("the tasks with a platform (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.selectors, selectors(out)); diff != "" {
				t.Errorf("architectures of nodes (-want +got):\n%s", diff)
			}
			if !slices.ContainsFunc(out.Pipeline.Spec.Results,
				func(r tektonv1.PipelineResult) bool {
					return r.Name == compose.PlatformDigests &&
						r.Value.StringVal == "$(tasks.push.results.PLATFORM_DIGESTS)"
				}) {
				t.Errorf("the results are %v", out.Pipeline.Spec.Results)
			}
		})
	}
}

// A mode that is attested builds one platform.
func TestPlatformOfAnAttestedMode(t *testing.T) {
	out, err := plan(t, withSpec("  mode: prod\n  builder: buildkit\n  platforms: [linux/arm64]\n"),
		nil, compose.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	if got := out.Run.Spec.TaskRunTemplate.PodTemplate.NodeSelector[corev1.LabelArchStable]; got !=
		"arm64" {
		t.Errorf("its pods are on nodes of %q", got)
	}
}

// Of several platforms each has an SBOM and a scan, of the digest that its build
// reported, once push has found that.
func TestLookingAtPlatforms(t *testing.T) {
	for _, mode := range []string{"preprod", "prod"} {
		t.Run(mode, func(t *testing.T) {
			out, err := plan(t,
				withSpec("  mode: "+mode+
					"\n  builder: buildkit\n  platforms: [linux/amd64, linux/arm64]\n"+
					"  workspace: {accessMode: ReadWriteMany}\n"), nil, compose.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, task := range out.Pipeline.Spec.Tasks {
				have := values(task)
				text := "after " + strings.Join(task.RunAfter, " ")
				for _, name := range []string{"platform", "image-digest", "sbom-digest",
					"layout-digest"} {
					if value, ok := have[name]; ok {
						text += ", " + name + " " + value
					}
				}
				got[task.Name] = text
			}
			want := map[string]string{
				"github-clone":               "after ",
				"tests":                      "after github-clone",
				"buildkit-build-linux-amd64": "after github-clone, platform linux/amd64",
				"buildkit-build-linux-arm64": "after github-clone, platform linux/arm64",
				"push": "after tests buildkit-build-linux-amd64 " +
					"buildkit-build-linux-arm64, layout-digest " +
					"$(tasks.buildkit-build-linux-amd64.results.layout-digest),$(tasks." +
					"buildkit-build-linux-arm64.results.layout-digest)",
			}
			for _, platform := range []string{"amd64", "arm64"} {
				digest := ", platform linux/" + platform +
					", image-digest $(tasks.buildkit-build-linux-" + platform + ".results.layout-digest)"
				want["sbom-linux-"+platform] = "after push" + digest
				want["sbom-attach-linux-"+platform] = "after sbom-linux-" + platform + " push" +
					digest + ", sbom-digest $(tasks.sbom-linux-" + platform + ".results.SBOM_DIGEST)"
				want["vulnerability-scan-linux-"+platform] = "after push" + digest
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("tasks (-want +got):\n%s", diff)
			}
			for _, spec := range out.Run.Spec.TaskRunSpecs {
				if builds := strings.HasPrefix(spec.PipelineTaskName,
					"buildkit-build-"); spec.PodTemplate != nil &&
					(spec.PodTemplate.NodeSelector != nil) != builds {
					t.Errorf("%s is on nodes %v", spec.PipelineTaskName,
						spec.PodTemplate.NodeSelector)
				}
			}
			if diff := cmp.Diff([]tektonv1.PipelineResult{
				{Name: "IMAGE_URL", Type: "string",
					Value: *tektonv1.NewStructuredValues("$(tasks.push.results.IMAGE_URL)")},
				{Name: "IMAGE_DIGEST", Type: "string",
					Value: *tektonv1.NewStructuredValues("$(tasks.push.results.IMAGE_DIGEST)")},
			}, out.Pipeline.Spec.Results[:2]); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
		})
	}
}

// A step of a template's own that looks at the digest of an index, or of one platform, is
// refused, also where it has the parameter platform.
func TestLookingAtOneOfSeveral(t *testing.T) {
	const maker = "params: [{name: platform, default: ''}]\nresults: [{name: layout-digest}]\n" +
		"steps: [{name: a, image: busybox:1.37.0, script: 'true'}]\n"
	const push = "params: [{name: platforms, default: ''}, {name: layout-digest}]\n" +
		"results: [{name: IMAGE_DIGEST}, {name: other}]\n" +
		"steps: [{name: a, image: busybox:1.37.0, script: 'true'}]\n"
	const each = "params: [{name: platform, default: ''}, {name: image-digest}]\n" +
		"steps: [{name: a, image: busybox:1.37.0, script: 'true'}]\n"
	const whole = "params: [{name: image-digest}]\nsteps: [{name: a, image: busybox:1.37.0, " +
		"script: 'true'}]\n"
	for what, c := range map[string]struct {
		step, layout, digest string
		taken                string // by the task of arm64; "" for a refusal
	}{
		"of the index": {each, "$(tasks.build.results.layout-digest)",
			"$(tasks.push.results.IMAGE_DIGEST)",
			"$(tasks.build-linux-arm64.results.layout-digest)"},
		"of its own build": {each, "$(tasks.build.results.layout-digest)",
			"$(tasks.build.results.layout-digest)",
			"$(tasks.build-linux-arm64.results.layout-digest)"},
		"without a platform": {whole, "$(tasks.build.results.layout-digest)",
			"$(tasks.push.results.IMAGE_DIGEST)", ""},
		"another result of push": {each, "$(tasks.build.results.layout-digest)",
			"$(tasks.push.results.other)", ""},
		"a digest among words": {each, "$(tasks.build.results.layout-digest)",
			"x$(tasks.push.results.IMAGE_DIGEST)", ""},
		"a constant": {each, "$(tasks.build.results.layout-digest)", "sha256:x", ""},
		"a push of something else": {each, "$(tasks.build.results.layout-digest),x",
			"$(tasks.push.results.IMAGE_DIGEST)", ""},
		"a push of a constant": {each, "sha256:x", "$(tasks.push.results.IMAGE_DIGEST)", ""},
	} {
		t.Run(what, func(t *testing.T) {
			template := `steps:
- {name: build, configMap: maker-step}
- {name: push, configMap: push-own-step, defaultParameters: [{name: layout-digest, value: "` + c.layout + `"}]}
- {name: look, configMap: look-step, runAfter: [build], defaultParameters: [{name: image-digest, value: "` + c.digest + `"}]}
`
			out, err := plan(t,
				withSpec(
					"  mode: own\n  platforms: [linux/amd64, linux/arm64]\n  platformNodes: Any\n"),
				fstest.MapFS{
					"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML,
						template),
					"maker.yaml": configMap("maker-step", templates.StepKey, maker),
					"push.yaml":  configMap("push-own-step", templates.StepKey, push),
					"look.yaml":  configMap("look-step", templates.StepKey, c.step),
				}, compose.Settings{})
			if c.taken == "" {
				if !slices.ContainsFunc(findings.Of(err), func(f *finding.Finding) bool {
					return f.Place.Field == "spec.platforms" &&
						strings.Contains(f.String(), `step "look" takes the digest of one image`)
				}) {
					t.Errorf("the error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, task := range out.Pipeline.Spec.Tasks {
				if task.Name == "look-linux-arm64" &&
					(values(task)["image-digest"] != c.taken ||
						!slices.Contains(task.RunAfter, "push") == strings.Contains(c.digest, "push")) {
					t.Errorf("it is given %s after %v", values(task)["image-digest"], task.RunAfter)
				}
			}
		})
	}
}

func TestPlatformsRefused(t *testing.T) {
	const both = "  platforms: [linux/amd64, linux/arm64]\n"
	const anywhere = both + "  platformNodes: Any\n"
	const dev = "  mode: dev\n  builder: buildkit\n"
	tests := map[string]struct{ spec, field, want string }{
		"an unknown platform": {dev + "  platforms: [linux/amd64, linux/sparc]\n",
			"spec.platforms[1]", "linux/sparc, which is not supported"},
		"another system": {dev + "  platforms: [windows/amd64]\n", "spec.platforms[0]",
			"windows/amd64, which is not supported"},
		"a repeated one": {dev +
			"  platformNodes: Any\n  platforms: [linux/amd64, linux/amd64]\n", "spec.platforms[1]",
			"occurs twice"},
		"none": {dev + "  platforms: []\n", "spec.platforms",
			"at least 1 items"},
		"nodes without platforms": {dev + "  platformNodes: Any\n", "spec.platformNodes",
			"has no effect"},
		"unknown nodes": {dev + both + "  platformNodes: Mine\n", "spec.platformNodes",
			"Mine, which is not supported"},
		"kaniko": {"  mode: dev\n  builder: kaniko\n" + anywhere,
			"spec.platforms", "needs builder: buildkit"},
		"kaniko by its step": {"  mode: dev\n  platforms: [linux/amd64]\n" +
			"  pipeline: {steps: [{name: kaniko-build}]}\n", "spec.platforms",
			"use builder: buildkit"},
		"buildah": {"  mode: dev-local\n  builder: buildah\n" + anywhere,
			"spec.platforms", "needs builder: buildkit"},
		"buildpacks": {"  mode: dev\n  builder: buildpacks\n" + anywhere,
			"spec.platforms", "needs builder: buildkit"},
		"a scan's platform": {"  mode: preprod\n  builder: buildkit\n" + anywhere +
			"  pipeline: {steps: [{name: vulnerability-scan, parameters: [{name: platform, " +
			"value: linux/amd64}]}]}\n", "spec.pipeline.steps[0].parameters[platform]",
			"comes from spec.platforms"},
		"a scan's platform alone": {"  mode: preprod\n  builder: buildkit\n" +
			"  pipeline: {parameters: [{name: platform, value: linux/amd64}]}\n",
			"spec.pipeline.parameters[platform]", "comes from spec.platforms"},
		"the platforms of push": {dev + anywhere +
			"  pipeline: {parameters: [{name: platforms, value: linux/amd64}]}\n",
			"spec.pipeline.parameters[platforms]", "comes from spec.platforms"},
		"the digest of a scan": {"  mode: preprod\n  builder: buildkit\n" + anywhere +
			"  pipeline: {steps: [{name: vulnerability-scan, parameters: [{name: image-digest, " +
			"value: $(tasks.buildkit-build.results.layout-digest)}]}]}\n",
			"spec.pipeline.steps[0].parameters[image-digest]",
			"takes \"image-digest\" from another step"},
		"a digest for push": {"  mode: preprod\n  builder: buildkit\n" + anywhere +
			"  pipeline: {parameters: [{name: layout-digest, value: x}]}\n",
			"spec.pipeline.parameters[layout-digest]", "takes \"layout-digest\" from another step"},
		"nodes and one volume": {dev + both, "spec.workspace.accessMode",
			"set spec.platformNodes: Any"},
		"nodes of another selector": {dev +
			"  platforms: [linux/arm64]\n  pod: {nodeSelector: {kubernetes.io/arch: amd64}}\n",
			"spec.platforms[0]", "spec.pod.nodeSelector asks for amd64"},
		"a platform as a parameter": {dev + anywhere +
			"  pipeline: {parameters: [{name: platform, value: linux/s390x}]}\n",
			"spec.pipeline.parameters[platform]", "comes from spec.platforms"},
		"a parameter without a spec": {dev +
			"  pipeline: {steps: [{name: buildkit-build, parameters: [{name: platform, value: " +
			"linux/s390x}]}]}\n", "spec.pipeline.steps[0].parameters[platform]",
			"comes from spec.platforms"},
	}
	for what, c := range tests {
		t.Run(what, func(t *testing.T) {
			_, err := plan(t, withSpec(c.spec), nil, compose.Settings{})
			if !slices.ContainsFunc(findings.Of(err), func(f *finding.Finding) bool {
				return f.Place.Field == c.field && strings.Contains(f.String(), c.want)
			}) {
				t.Errorf("the error is %v, want one at %s with %q", err, c.field, c.want)
			}
		})
	}
}

// Composition refuses by itself what the schema refuses before it: the controller may
// meet a build that an older schema let in.
func TestPlatformsRefusedByComposition(t *testing.T) {
	tests := map[string]struct {
		change      func(*api.AgentBuildSpec)
		field, want string
	}{
		"an unknown platform": {func(s *api.AgentBuildSpec) {
			s.Platforms = []string{"linux/amd64", "linux/sparc"}
		}, "spec.platforms[1]", `"linux/sparc" is not a platform`},
		"a repeated one": {func(s *api.AgentBuildSpec) {
			s.Platforms = []string{"linux/amd64", "linux/amd64"}
		}, "spec.platforms[1]", "occurs twice"},
		"none": {func(s *api.AgentBuildSpec) {
			s.Platforms, s.PlatformNodes =
				[]string{}, ""
		}, "spec.platforms", "names no platform"},
		"unknown nodes": {func(s *api.AgentBuildSpec) { s.PlatformNodes = "Mine" },
			"spec.platformNodes", `"Mine" is unknown`},
		"nodes without platforms": {func(s *api.AgentBuildSpec) { s.Platforms = nil },
			"spec.platformNodes", "has no effect"},
		"kaniko": {func(s *api.AgentBuildSpec) { s.Builder = "kaniko" },
			"spec.platforms", `step "kaniko-build" builds for the platform of its node alone`},
		"buildah": {func(s *api.AgentBuildSpec) { s.Builder = "buildah" },
			"spec.platforms", `step "buildah-build" builds for the platform of its node alone`},
		"buildpacks": {func(s *api.AgentBuildSpec) { s.Builder = "buildpacks" },
			"spec.platforms", "no step of this pipeline has a parameter for the platform"},
	}
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range tests {
		t.Run(what, func(t *testing.T) {
			builds, err := manifest.Builds("build.yaml",
				withSpec("  mode: dev\n  builder: buildkit\n"+
					"  platforms: [linux/amd64, linux/arm64]\n  platformNodes: Any\n"), api.DefaultGroup)
			if err != nil {
				t.Fatal(err)
			}
			c.change(&builds[0].Spec)
			_, err = library.Compose(builds[0], compose.Settings{})
			if !slices.ContainsFunc(findings.Of(err), func(f *finding.Finding) bool {
				return f.Place.Field == c.field && strings.Contains(f.String(), c.want)
			}) {
				t.Errorf("the error is %v, want one at %s with %q", err, c.field, c.want)
			}
		})
	}
}

// A template's own steps run for each platform too, and one that follows a step of a
// platform follows that of its own.
func TestPlatformsOfOwnSteps(t *testing.T) {
	const first = "params: [{name: platform, default: ''}]\nresults: [{name: version}, {name: " +
		"layout-digest}]\nsteps: [{name: a, image: busybox:1.37.0, script: 'true'}]\n"
	const second = "params: [{name: platform, default: ''}, {name: tag}, {name: list, type: " +
		"array, default: []}]\nsteps: [{name: a, image: busybox:1.37.0, script: 'true'}]\n"
	const third = "params: [{name: platforms, default: ''}, {name: list, type: array}]\n" +
		"steps: [{name: a, image: busybox:1.37.0, script: 'true'}]\n"
	template := `steps:
- {name: build, configMap: first-step}
- {name: check, configMap: second-step, defaultParameters: [{name: tag, value: "v$(tasks.build.results.version)"}], whenExpressions: [{input: $(tasks.build.results.version), operator: in, values: ["1"]}]}
- {name: all, configMap: third-step, runAfter: [build, check], defaultParameters: [{name: list, value: ["$(tasks.build.results.version)", end]}]}
`
	out, err := plan(t,
		withSpec("  mode: own\n  platforms: [linux/amd64, linux/arm64]\n  platformNodes: Any\n"),
		fstest.MapFS{
			"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML, template),
			"first.yaml":    configMap("first-step", templates.StepKey, first),
			"second.yaml":   configMap("second-step", templates.StepKey, second),
			"third.yaml":    configMap("third-step", templates.StepKey, third),
		}, compose.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, task := range out.Pipeline.Spec.Tasks {
		text := "after " + strings.Join(task.RunAfter, " ")
		for _, w := range task.When {
			text += ", when " + w.Input
		}
		for _, p := range task.Params {
			text += ", " + p.Name + " " + p.Value.StringVal + strings.Join(p.Value.ArrayVal, " ")
		}
		got[task.Name] = text
	}
	want := map[string]string{
		"build-linux-amd64": "after , platform linux/amd64",
		"build-linux-arm64": "after , platform linux/arm64",
		"check-linux-amd64": "after build-linux-amd64, when " +
			"$(tasks.build-linux-amd64.results.version), tag " +
			"v$(tasks.build-linux-amd64.results.version), platform linux/amd64",
		"check-linux-arm64": "after build-linux-arm64, when " +
			"$(tasks.build-linux-arm64.results.version), tag " +
			"v$(tasks.build-linux-arm64.results.version), platform linux/arm64",
		"all": "after build-linux-amd64 build-linux-arm64 check-linux-amd64 " +
			"check-linux-arm64, platforms $(params.platforms), list " +
			"$(tasks.build-linux-amd64.results.version),$(tasks.build-linux-arm64.results.version) end",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tasks (-want +got):\n%s", diff)
	}
}

// The client asks for the platform, leaves the layout where no other platform's is,
// and sends the source without those.
func TestBuildKitClientOfAPlatform(t *testing.T) {
	bin := stubBuildctl(t, "sha256:"+strings.Repeat("0a", 32), "{}",
		`printf '%s\n' "$arg" >> "$ARGS"
  case "$arg" in --local=context=*) (cd "${arg#--local=context=}" && find . | LC_ALL=C sort) > "$ARGS.context" ;; esac`)
	record := t.TempDir()
	source, args := t.TempDir(), filepath.Join(t.TempDir(), "args")
	for _, file := range []string{".armature-layout/linux-amd64/index.json",
		".armature-layout/linux-arm-v7/old", "Dockerfile", "sub/.armature-layout/kept",
		".git/config", "..odd", "a b/c"} {
		if err := os.MkdirAll(filepath.Join(source, filepath.Dir(file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(source, file), nil, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/nowhere", filepath.Join(source, "link")); err != nil {
		t.Fatal(err)
	}
	folder, cache := ".", "registry.local:5000/weather:team1.weather-cache"
	run := func(platform string) (string, error) {
		_, printed, err := runScript(t, stepContainer(t, "buildkit-build-step", "build").Script,
			"PATH="+bin+":"+os.Getenv("PATH"), "ARGS="+args, "SOURCE="+source, "FOLDER="+folder,
			"DOCKERFILE=Dockerfile", "CREDENTIALS=", "NETWORK=", "CACHE="+cache, "CACHE_MODE=max",
			"IMAGE_CACHE=", "PLATFORM="+platform, "RECORD="+record)
		return printed, err
	}
	if printed, err := run("linux/arm/v7"); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	data, err := os.ReadFile(args)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--opt=platform=linux/arm/v7",
		"--output=type=oci,tar=false,dest=" + source + "/.armature-layout/linux-arm-v7",
		"--import-cache=type=registry,ref=" + cache + "-linux-arm-v7",
		"--export-cache=type=registry,ref=" + cache +
			"-linux-arm-v7,mode=max,image-manifest=true,oci-mediatypes=true,ignore-error=true"} {
		if !slices.Contains(strings.Split(string(data), "\n"), want) {
			t.Errorf("no argument is %q:\n%s", want, data)
		}
	}
	cache = "registry.local:5000/weather"
	if printed, err := run("linux/arm/v7"); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	if data, err := os.ReadFile(args); err != nil ||
		!strings.Contains(string(data), "ref="+cache+":linux-arm-v7\n") {
		t.Errorf("a cache without a tag, %v:\n%s", err, data)
	}
	context, err := os.ReadFile(args + ".context")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(".\n./..odd\n./.git\n./.git/config\n./Dockerfile\n./a b\n./a b/c\n./link\n"+
		"./sub\n./sub/.armature-layout\n./sub/.armature-layout/kept\n",
		string(context)); diff != "" {
		t.Errorf("the source that is sent (-want +got):\n%s", diff)
	}
	for file, there := range map[string]bool{"linux-amd64/index.json": true, "linux-arm-v7/old": false} {
		if _, err := os.Stat(filepath.Join(source, ".armature-layout", file)); (err == nil) != there {
			t.Errorf("%s: %v", file, err)
		}
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(source, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("sub", filepath.Join(source, "in")); err != nil {
		t.Fatal(err)
	}
	for _, platform := range []string{"", "linux/arm64"} {
		folder = "out"
		if printed, err := run(platform); err == nil ||
			!strings.Contains(printed, "leads out of the source") {
			t.Errorf("a folder that is a link out of the source: %v: %s", err, printed)
		}
		folder = "in"
		if printed, err := run(platform); err != nil {
			t.Errorf("a folder that is a link within the source: %v: %s", err, printed)
		}
	}
	folder = "."
	if _, err := run("linux/../../x y"); err == nil {
		t.Error("a platform that leads out is taken")
	}
}
