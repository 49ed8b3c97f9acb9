package compose_test

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/finding"
)

var pairs = flag.Bool("pairs", false,
	"compose each change with each builder and each pair of changes for TestDigest, too")

// TestDigest prints a digest of what each shipped mode composes to, or refuses, with each
// builder, and with each change of the build, of what is known of it, and of the settings. A change
// that is not meant to change what is composed leaves it as it is. With -short, each change
// is composed in one of the modes.
func TestDigest(t *testing.T) {
	least := 100
	if testing.Short() {
		least = 20
	}
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	sum, composed, refused := sha256.New(), 0, 0
	modes := library.Names(templates.TemplatePrefix)
	for m, mode := range modes {
		template, err := templates.ReadTemplate(library.ConfigMaps[mode])
		if err != nil {
			t.Fatal(err)
		}
		steps := map[string]*templates.Step{}
		for name, cm := range library.ConfigMaps {
			if !strings.HasPrefix(name, templates.TemplatePrefix) {
				if steps[name], err = templates.ReadStep(cm); err != nil {
					t.Fatal(err)
				}
			}
		}
		verdicts := &compose.Verdicts{}
		one := func(builder string, changes ...func(*compose.Input)) {
			in := compose.Input{Build: builtBy(strings.TrimPrefix(mode, templates.TemplatePrefix),
				builder), Template: template, Steps: steps, Verdicts: verdicts}
			for _, change := range changes {
				change(&in)
			}
			if in.Commit != "" || in.SecretKeys != nil {
				resolvesLater(t, in)
			}
			err := writeComposed(sum, in)
			if err == nil {
				composed++
			} else {
				refused++
			}
		}
		for _, builder := range append(template.Builders(), "") {
			one(builder)
			if builder != "" && !*pairs {
				continue
			}
			for i, change := range changes {
				if testing.Short() && i%len(modes) != m {
					continue
				}
				one(builder, change)
				if *pairs && builder == "" {
					for _, other := range changes[:i] {
						one(builder, other, change)
					}
				}
			}
		}
	}
	if composed < least || refused < least/5 {
		t.Errorf("only %d inputs were composed, and %d refused", composed, refused)
	}
	t.Logf("%d composed, %d refused: %x", composed, refused, sum.Sum(nil))
}

// writeComposed writes what an input is composed to, or the error.
func writeComposed(w io.Writer, in compose.Input) error {
	spec, texts := compose.InputHashes(in.Build, in.Template, in.Steps)
	fmt.Fprintln(w, spec, texts, compose.SourceHash(in.Build, in.Template),
		compose.StepNames(in.Build, in.Template),
		compose.UsedSteps(in.Build, in.Template, in.Steps))
	out, err := compose.Pipeline(in)
	return writeOutput(w, out, err)
}

// resolvesLater composes a build before its commit and its Secrets are known, and after: the run is
// the same.
func resolvesLater(t *testing.T, in compose.Input) {
	t.Helper()
	in.Commit = strings.Repeat("1", 40)
	var want, got strings.Builder
	out, err := compose.Pipeline(in)
	_ = writeOutput(&want, out, err)
	late := in.Resolved
	in.Resolved, in.Resolves = compose.Resolved{}, true
	if out, err = compose.Pipeline(in); err == nil {
		err = out.Resolve(late)
	}
	if _ = writeOutput(&got, out, err); got.String() != want.String() {
		t.Errorf("resolved later:\n%s\nat once:\n%s", &got, &want)
	}
}

func writeOutput(w io.Writer, out *compose.Output, err error) error {
	if err != nil {
		fmt.Fprintln(w, err)
		for _, f := range findings.Of(err) {
			fmt.Fprintf(w, "%+v\n", *f)
		}
		return err
	}
	run, err := out.RunJSON()
	if err != nil {
		return err
	}
	rest, err := json.Marshal([]any{out.Pipeline, out.Run, out.Apply, out.Needs, out.Warnings,
		out.BuilderBecause})
	fmt.Fprintf(w, "%s\n%s\n", run, rest)
	return err
}

func builtBy(mode, builder string) *api.AgentBuild {
	return &api.AgentBuild{
		ObjectMeta: metav1.ObjectMeta{Name: "weather", Namespace: "team1", UID: "uid"},
		Spec: api.AgentBuildSpec{
			Mode: mode, Builder: builder, Timeout: &metav1.Duration{Duration: time.Hour},
			Source: api.SourceSpec{SourceRepository: "github.com/org/weather",
				SourceRevision: "main"},
			BuildOutput: &api.BuildOutput{ImageRegistry: "registry.local:5000", Image: "weather",
				ImageTag:             "v1",
				ImageRepoCredentials: &corev1.LocalObjectReference{Name: "push-login"}},
			Pipeline: &api.PipelineSpec{},
		},
	}
}

// spec is a change of the build's spec.
func spec(change func(s *api.AgentBuildSpec)) func(*compose.Input) {
	return func(in *compose.Input) {
		if s := &in.Build.Spec; s.BuildOutput != nil && s.Pipeline != nil {
			// else another change removed it
			change(s)
		}
	}
}

// parameter that the pipeline is given.
func parameter(name, value string) func(*compose.Input) {
	return spec(func(s *api.AgentBuildSpec) {
		s.Pipeline.Parameters = append(s.Pipeline.Parameters,
			api.Parameter{Name: name, Value: &value})
	})
}

// steps that the pipeline has or adjusts.
func steps(all ...api.Step) func(*compose.Input) {
	return spec(func(s *api.AgentBuildSpec) { s.Pipeline.Steps = append(s.Pipeline.Steps, all...) })
}

// bound is a workspace of the pipeline.
func bound(w api.WorkspaceBinding) func(*compose.Input) {
	return spec(func(s *api.AgentBuildSpec) {
		s.Pipeline.Workspaces = append(s.Pipeline.Workspaces, w)
	})
}

var changes = []func(*compose.Input){
	spec(func(s *api.AgentBuildSpec) { s.BuildOutput.ImageRepoCredentials = nil }),
	spec(func(s *api.AgentBuildSpec) { s.BuildOutput = nil }),
	spec(func(s *api.AgentBuildSpec) { s.BuildOutput.Image = "<later>" }),
	spec(func(s *api.AgentBuildSpec) { s.BuildOutput.Image = "Not/An//Image" }),
	spec(func(s *api.AgentBuildSpec) {
		s.BuildOutput.Labels, s.BuildOutput.Annotations =
			map[string]string{"b": "2", "a": "1"}, map[string]string{"c": "3"}
	}),
	spec(func(s *api.AgentBuildSpec) {
		s.Source.SourceCredentials = &corev1.LocalObjectReference{Name: "git-login"}
	}),
	spec(func(s *api.AgentBuildSpec) {
		s.Source.SourceRepository, s.Source.SourceCredentials =
			"http://git.local/a/b", &corev1.LocalObjectReference{Name: "git-login"}
	}),
	spec(func(s *api.AgentBuildSpec) {
		s.Source.SourceRepository, s.Source.SourceRevision =
			"", ""
	}),
	spec(func(s *api.AgentBuildSpec) {
		s.Source.SourceSubfolder, s.Source.RepoUser =
			"agent", "me"
	}),
	spec(func(s *api.AgentBuildSpec) { s.Source.SourceRevision = "--upload-pack=x" }),
	spec(func(s *api.AgentBuildSpec) { s.Platforms = []string{"linux/arm64"} }),
	spec(func(s *api.AgentBuildSpec) {
		s.Platforms, s.PlatformNodes = []string{"linux/amd64", "linux/arm64"}, api.PlatformNodesAny
	}),
	spec(func(s *api.AgentBuildSpec) { s.Platforms = []string{"linux/amd64", "linux/arm64"} }),
	spec(func(s *api.AgentBuildSpec) {
		s.Platforms, s.Workspace =
			[]string{"linux/amd64", "linux/arm64"}, &api.Workspace{AccessMode: corev1.ReadWriteMany}
	}),
	spec(func(s *api.AgentBuildSpec) { s.Platforms = []string{"linux/none", "linux/none"} }),
	spec(func(s *api.AgentBuildSpec) { s.Cache = &api.BuildCache{Mode: "off"} }),
	spec(func(s *api.AgentBuildSpec) { s.Cache = &api.BuildCache{Mode: "min"} }),
	spec(func(s *api.AgentBuildSpec) {
		s.Cache = &api.BuildCache{Registry: "registry.local/cache"}
	}),
	spec(func(s *api.AgentBuildSpec) {
		s.BuildArgs, s.Network =
			[]api.Parameter{{Name: "A", Value: ptr.To("1")}, {Name: "B"}}, "none"
	}),
	spec(func(s *api.AgentBuildSpec) {
		s.Secrets = []api.BuildSecret{{ID: "npm", Name: "npm"},
			{ID: "pip", Name: "pip", Key: "token"}}
	}),
	spec(func(s *api.AgentBuildSpec) { s.Timeout = nil }),
	spec(func(s *api.AgentBuildSpec) {
		s.Labels, s.Annotations =
			map[string]string{"a": "b", "app.kubernetes.io/managed-by": "me"}, map[string]string{"c": "d"}
	}),
	spec(func(s *api.AgentBuildSpec) { s.Labels = map[string]string{"team": "a"} }),
	spec(func(s *api.AgentBuildSpec) {
		s.Workspace = &api.Workspace{Keep: true, Size: ptr.To(resource.MustParse("5Gi")),
			StorageClassName: ptr.To("fast")}
	}),
	spec(func(s *api.AgentBuildSpec) {
		s.Pod = &api.PodSettings{NodeSelector: map[string]string{"disk": "fast"},
			AutomountServiceAccountToken: true,
			Resources: &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}
	}),
	spec(func(s *api.AgentBuildSpec) {
		s.Pod = &api.PodSettings{NodeSelector: map[string]string{"kubernetes.io/arch": "arm64"},
			SecurityContext: &corev1.PodSecurityContext{}}
	}),
	spec(func(s *api.AgentBuildSpec) { s.Pipeline = nil }),
	parameter("DOCKERFILE", "Dockerfile.prod"),
	parameter("SOURCE_REVISION", "v2"),
	parameter("revision", "v3"),
	parameter("image", "registry.local/other:v2"),
	parameter("image-digest", "sha256:0"),
	parameter("commit", "$(tasks.github-clone.results.commit)"),
	parameter("pipeline-timeout", "20m"),
	parameter("pipeline-timeout", "soon"),
	parameter("platform", "linux/amd64"),
	parameter("nobody-takes-it", "x"),
	parameter("PLAIN_HTTP", "true"),
	parameter("repo-url", "https://me:s3cret@github.com/org/weather"),
	parameter("test-command", "$(params.revision) $(params.none)"),
	spec(func(s *api.AgentBuildSpec) {
		s.Pipeline.Parameters = append(s.Pipeline.Parameters,
			api.Parameter{Name: "EXTRA_ARGS", Array: []string{"--a", "$(tasks.none.results.x)"}})
	}),
	steps(api.Step{Name: "kaniko-build", Enabled: ptr.To(false)}),
	steps(api.Step{Name: "folder-verification", Enabled: ptr.To(false)}),
	steps(api.Step{Name: "tests", Enabled: ptr.To(true),
		Parameters: []api.Parameter{{Name: "test-command", Value: ptr.To("make test")}}}),
	steps(api.Step{Name: "push",
		WhenExpressions: []api.WhenExpression{{Input: "$(tasks.github-clone.results.commit)",
			Operator: "notin", Values: []string{""}}}}),
	steps(api.Step{Name: "github-clone",
		Parameters:         []api.Parameter{{Name: "nobody-takes-it", Value: ptr.To("x")}},
		RequiredParameters: []string{"revision", "token"}}),
	steps(api.Step{Name: "buildkit-build", RequiredParameters: []string{}}),
	steps(api.Step{Name: "none"}),
	steps(api.Step{Name: "github-clone", ConfigMap: "github-clone-step"},
		api.Step{Name: "buildkit-build", ConfigMap: "buildkit-build-step"},
		api.Step{Name: "push", ConfigMap: "push-step"}),
	steps(api.Step{Name: "git-clone", ConfigMap: "github-clone-step"},
		api.Step{Name: "kaniko-build", ConfigMap: "kaniko-docker-build-step"},
		api.Step{Name: "sign", ConfigMap: "cosign-sign-step"}),
	bound(api.WorkspaceBinding{Name: "pull-credentials",
		Secret: &corev1.LocalObjectReference{Name: "pull"}}),
	bound(api.WorkspaceBinding{Name: "source",
		PersistentVolumeClaim: &corev1.LocalObjectReference{Name: "mine"}}),
	bound(api.WorkspaceBinding{Name: "own-source", EmptyDir: true}),
	bound(api.WorkspaceBinding{Name: "nobody-has-it",
		ConfigMap: &corev1.LocalObjectReference{Name: "x"}}),
	func(in *compose.Input) { in.Commit, in.Ref = strings.Repeat("1", 40), "refs/heads/main" },
	func(in *compose.Input) { in.Number, in.Trigger, in.Attempt = 3, api.TriggerCommit, 2 },
	func(in *compose.Input) {
		in.SecretKeys = map[string][]string{"push-login": {"config.json"}, "npm": {"npm"}}
	},
	func(in *compose.Input) {
		in.SecretKeys = map[string][]string{"push-login": {"password"}, "npm": nil}
	},
	func(in *compose.Input) { in.Platform = "armature-system" },
	func(in *compose.Input) { in.Place = finding.Place{File: "build.yaml", Line: 3} },
	func(in *compose.Input) { in.Settings.PipelineObjects = true },
	func(in *compose.Input) {
		in.Settings.ServiceAccountName, in.Settings.CreateServiceAccount = "builder", true
	},
	func(in *compose.Input) { in.Settings.Timeout = 30 * time.Minute },
	func(in *compose.Input) {
		in.Settings.ImageMirror, in.Settings.ControllerImage =
			"mirror.local/hub/", "registry.local/controller:v1"
	},
	func(in *compose.Input) { in.Settings.ImageMirror = "https://mirror" },
	func(in *compose.Input) { in.Settings.PlainHTTPHosts = []string{"git.local"} },
	func(in *compose.Input) {
		in.Settings.ImagePins = map[string]string{
			"docker.io/alpine/git:v2.49.1": "sha256:" + strings.Repeat("1", 64)}
	},
	func(in *compose.Input) { in.Build.Name, in.Build.UID = "a.b", "" },
	func(in *compose.Input) {
		in.Steps = map[string]*templates.Step{"github-clone-step": in.Steps["github-clone-step"]}
	},
}
