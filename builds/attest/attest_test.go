package attest_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/attest/attesttest"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	shipped "github.com/armature-dev/armature/templates"
)

const (
	sha   = "0123456789abcdef0123456789abcdef01234567"
	image = "registry.local:5000/team1/weather:v1"
	other = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var digest = "sha256:" + strings.Repeat("a", 64)

// parts are the images of the platforms, where there are several.
var parts = []string{"sha256:" + strings.Repeat("1", 64), "sha256:" + strings.Repeat("2", 64)}

func configMap(t *testing.T, file string) templates.ConfigMap {
	t.Helper()
	data, err := shipped.Files.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cm corev1.ConfigMap
	if err := yaml.UnmarshalStrict(data, &cm); err != nil {
		t.Fatal(err)
	}
	return templates.ConfigMap{Namespace: "armature-system", Name: cm.Name, Data: cm.Data}
}

// ordered is the build that is observed.
func ordered(edit ...func(*api.AgentBuild)) *api.AgentBuild {
	b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "weather", UID: "build"}}
	b.Spec.Mode = "prod"
	b.Spec.Source = api.SourceSpec{SourceRepository: "github.com/org/weather.git",
		SourceRevision: "main", SourceSubfolder: "agents/weather"}
	b.Spec.BuildOutput = &api.BuildOutput{Image: "team1/weather", ImageTag: "v1",
		ImageRegistry: "registry.local:5000"}
	value := "1"
	b.Spec.BuildArgs = []api.Parameter{{Name: "VERSION", Value: &value}}
	for _, e := range edit {
		e(b)
	}
	return b
}

// composed is a run of the shipped mode prod, whose template may be changed.
func composed(t *testing.T, change func(template string) string, settings compose.Settings,
	edit ...func(*api.AgentBuild)) (*compose.Output, error) {
	t.Helper()
	b := ordered(edit...)
	settings.BuildNamespace = "armature-builds"
	text := configMap(t, "modes/pipeline-template-prod.yaml")
	if change != nil {
		text.Data[templates.TemplateKeyYAML] = change(text.Data[templates.TemplateKeyYAML])
	}
	template, err := templates.ReadTemplate(text)
	if err != nil {
		return nil, err
	}
	steps := map[string]*templates.Step{}
	for _, name := range compose.StepNames(b, template) {
		file := "steps/" + name + ".yaml"
		if steps[name], err = templates.ReadStep(configMap(t, file)); err != nil {
			t.Fatal(err)
		}
	}
	return compose.Pipeline(compose.Input{Build: b, Template: template, Steps: steps,
		Platform: "armature-system", Number: 1,
		Resolved: compose.Resolved{Commit: sha, Ref: "refs/heads/main", Trigger: api.TriggerConfig},
		Settings: settings})
}

// observe a run of the shipped mode prod that succeeded; objects makes it refer to a
// Pipeline.
func observe(t *testing.T, objects bool, edit ...func(*api.AgentBuild)) *attest.Observed {
	t.Helper()
	out, err := composed(t, nil, compose.Settings{PipelineObjects: objects}, edit...)
	if err != nil {
		t.Fatal(err)
	}
	return ended(t, out, edit...)
}

// ended is what is observed of a composed run.
func ended(t *testing.T, out *compose.Output, edit ...func(*api.AgentBuild)) *attest.Observed {
	t.Helper()
	data, err := out.RunJSON()
	if err != nil {
		t.Fatal(err)
	}
	run := &tektonv1.PipelineRun{}
	if err := json.Unmarshal(data, run); err != nil {
		t.Fatal(err)
	}
	run.UID, run.CreationTimestamp =
		"run", metav1.NewTime(time.Date(2026, 11, 22, 20, 0, 0, 0, time.UTC))
	o := &attest.Observed{Build: ordered(edit...), Run: run}
	pipeline := run.Spec.PipelineSpec
	if run.Spec.PipelineRef != nil {
		o.Pipeline = out.Pipeline.Spec.DeepCopy()
		pipeline = o.Pipeline
	}
	o.TaskRuns = attesttest.Succeed(run, pipeline, digest, parts...)
	return o
}

type fixture struct{ *attest.Observed }

// report a result of a task, as Tekton says that its last container wrote it.
func (f fixture) report(task, name, value string) {
	status := &f.TaskRuns[task].Status
	for i := range status.Results {
		if r := &status.Results[i]; r.Name == name {
			last := status.Steps[len(status.Steps)-1].Terminated
			last.Message = strings.ReplaceAll(last.Message,
				`"key":"`+name+`","value":"`+r.Value.StringVal, `"key":"`+name+`","value":"`+value)
			r.Value = *tektonv1.NewStructuredValues(value)
		}
	}
	for i := range f.Run.Status.Results {
		if r := &f.Run.Status.Results[i]; r.Name == name || strings.HasSuffix(r.Name, "-"+name) {
			r.Value = *tektonv1.NewStructuredValues(value)
		}
	}
}

// A run that went as it was ordered has a provenance that says all of it.
func TestProvenance(t *testing.T) {
	for name, objects := range map[string]bool{"embedded": false, "pipeline-object": true} {
		t.Run(name, func(t *testing.T) {
			o := observe(t, objects)
			built, err := attest.Check(*o)
			if err != nil {
				t.Fatal(err)
			}
			if built.Image != image || built.Digest != digest || len(built.Bills) != 1 ||
				built.Bills[0] !=
					(attest.Bill{Digest: attesttest.DigestOf(attesttest.SBOM(digest))}) {
				t.Errorf("image %s@%s, SBOMs %v", built.Image, built.Digest, built.Bills)
			}
			p := built.Provenance
			if p.BuildDefinition.BuildType != "https://armature.dev/agent-build/v1" ||
				p.RunDetails.Builder.ID != "https://armature.dev/builders/prod" ||
				p.RunDetails.Metadata.InvocationID != "run" {
				t.Errorf("build type %s, builder %s, invocation %s", p.BuildDefinition.BuildType,
					p.RunDetails.Builder.ID, p.RunDetails.Metadata.InvocationID)
			}
			source := p.BuildDefinition.ResolvedDependencies[0]
			if source.URI != "git+https://github.com/org/weather.git@refs/heads/main" ||
				source.Digest["gitCommit"] != sha ||
				marshal(t, source.Annotations) !=
					`{"armature_repository":"https://github.com/org/weather.git","armature_ref":"refs/heads/main"}` {
				t.Errorf("source %+v", source)
			}
			commits := 0
			images := map[string]string{}
			for _, d := range p.BuildDefinition.ResolvedDependencies {
				if d.Digest["gitCommit"] != "" {
					commits++
				}
				images[d.Name] = d.URI
			}
			if commits != 1 || images["tests/test"] != "docker.io/library/python:3.13.5-slim" {
				t.Errorf("%d commits, images %v", commits, images)
			}
			var stated struct {
				ExternalParameters struct {
					AgentBuild struct {
						Namespace, Name string
						Spec            api.AgentBuildSpec
					}
				}
				InternalParameters struct {
					Template  compose.Material
					Steps     map[string]compose.Material
					RunDigest string
				}
			}
			text, err := json.Marshal(p.BuildDefinition)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &stated); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(compose.Shape(o.Build),
				stated.ExternalParameters.AgentBuild.Spec); diff != "" {
				t.Error(diff)
			}
			// pack-source, folder-verification and dockerfile-check have no task of their own
			const inAnothersPod = 3
			if stated.InternalParameters.RunDigest != o.Run.Annotations[keys.AnnotationRunDigest] ||
				stated.InternalParameters.Template.Digest == "" ||
				len(stated.InternalParameters.Steps) != len(o.TaskRuns)+inAnothersPod {
				t.Errorf("internal parameters %+v", stated.InternalParameters)
			}
			// What shapes no run does not change what is stated, so that a second look adds
			// nothing.
			no := false
			o.Build.Spec.CleanupAfterBuild, o.Build.Spec.Retention = &no, &api.Retention{}
			again, err := attest.Check(*o)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(marshal(t, built), marshal(t, again)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// What is not as it was ordered, or not what a step has to report, is refused with what does not
// match.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		do     func(fixture)
		reason string
		says   string
	}{
		"run edited": {func(f fixture) {
			f.Run.Spec.PipelineSpec.Tasks[0].TaskSpec.Steps[0].Image = "evil"
		}, api.ReasonNotAsOrdered, "not the one that was composed"},
		"run's parameter edited": {func(f fixture) {
			f.Run.Spec.Params[0].Value = *tektonv1.NewStructuredValues("evil")
		}, api.ReasonNotAsOrdered, "not the one that was composed"},
		"run without its digest": {func(f fixture) {
			delete(f.Run.Annotations, keys.AnnotationRunDigest)
		}, api.ReasonNotAsOrdered, "not the one that was composed"},
		"run stopped": {func(f fixture) { f.Run.Spec.Status = "StoppedRunFinally" },
			api.ReasonNotAsOrdered, "asked to stop"},
		"run failed": {func(f fixture) { f.Run.Status.Conditions[0].Status = "False" },
			api.ReasonNotAsOrdered, "did not succeed"},
		"run not over": {func(f fixture) { f.Run.Status.CompletionTime = nil },
			api.ReasonNotAsOrdered, "did not succeed"},
		"spec changed": {func(f fixture) { f.Build.Spec.Source.SourceRevision = "evil" },
			api.ReasonSpecChanged, "the spec changed"},
		"image of another build": {func(f fixture) {
			f.Run.Annotations[keys.AnnotationImage] = "registry.local:5000/other:v1"
		}, api.ReasonNotAsOrdered, "spec.buildOutput"},
		"no commit": {func(f fixture) {
			f.Run.Annotations[keys.AnnotationCommit] = "main"
		}, api.ReasonNotAsOrdered, "one commit"},
		"no materials": {func(f fixture) {
			delete(f.Run.Annotations, keys.AnnotationMaterials)
		}, api.ReasonNotAsOrdered, "which template"},
		"no results": {func(f fixture) { f.Run.Status.Results = nil },
			api.ReasonResultInvalid, "0 tasks gave the result IMAGE_DIGEST"},
		"two digests": {func(f fixture) {
			f.Run.Status.Results = append(f.Run.Status.Results,
				tektonv1.PipelineRunResult{Name: "other-IMAGE_DIGEST",
					Value: *tektonv1.NewStructuredValues(other)})
		}, api.ReasonResultInvalid, "2 tasks gave the result IMAGE_DIGEST"},
		"digest with something behind it": {func(f fixture) {
			f.report("push", "IMAGE_DIGEST", digest+" $(id)")
		}, api.ReasonResultInvalid, "not a digest"},
		"digest too short": {func(f fixture) {
			f.report("push", "IMAGE_DIGEST", "sha256:aa")
		}, api.ReasonResultInvalid, "not a digest"},
		"another tag": {func(f fixture) {
			f.report("push", "IMAGE_URL", image+"2")
		}, api.ReasonResultInvalid, "IMAGE_URL is not"},
		"another repository": {func(f fixture) {
			f.report("push", "IMAGE_URL", "evil.example/x:v1")
		}, api.ReasonResultInvalid, "IMAGE_URL is not"},
		"another commit": {func(f fixture) {
			f.report("github-clone", "CHAINS-GIT_COMMIT", strings.Repeat("b", 40))
		}, api.ReasonResultInvalid, "CHAINS-GIT_COMMIT"},
		"SBOM digest with words": {func(f fixture) {
			f.report("sbom", "SBOM_DIGEST", "the digest")
		}, api.ReasonResultInvalid, "SBOM_DIGEST is not a digest"},
		"SBOM digest not reported": {func(f fixture) {
			f.TaskRuns["sbom"].Status.Results = nil
		}, api.ReasonResultInvalid, "SBOM_DIGEST is not a digest"},
	} {
		t.Run(name, func(t *testing.T) {
			f := fixture{observe(t, false)}
			c.do(f)
			built, err := attest.Check(*f.Observed)
			var refusal *finding.Finding
			if !errors.As(err, &refusal) || built != nil {
				t.Fatalf("it is attested: %v, %v", built, err)
			}
			if refusal.Rule != c.reason || !strings.Contains(refusal.Message, c.says) ||
				refusal.Hint == "" {
				t.Errorf("refused with %s: %v", refusal.Rule, refusal)
			}
		})
	}
}

// The spec's settings without effect on runs may change, and a task may be left out.
func TestNotRefused(t *testing.T) {
	f := fixture{observe(t, false)}
	f.Build.Spec.Retries = &api.Retries{Limit: 3}
	delete(f.TaskRuns, "tests")
	if built, err := attest.Check(*f.Observed); err != nil || len(built.Tests) > 0 {
		t.Errorf("%v, %v", built, err)
	}
}

// A run whose digest is reported by the container that ran a Dockerfile has a level less.
func TestLevel(t *testing.T) {
	for what, c := range map[string]struct {
		change func(template string) string
		want   int32
	}{
		"prod": {nil, 3},
		"a step of kaniko's, which the template does not call a builder": {
			func(template string) string {
				return strings.NewReplacer("builders: [kaniko]", "builders: [custom]",
					"builder: buildkit", "builder: custom").Replace(template)
			}, 2},
	} {
		out, err := composed(t, c.change, compose.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		o := ended(t, out)
		built, err := attest.Check(*o)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if built.Level != c.want {
			t.Errorf("%s has the level %d, want %d", what, built.Level, c.want)
		}
	}
}

// A Pipeline that somebody changed after it was composed is not believed.
func TestChangedPipeline(t *testing.T) {
	o := observe(t, true)
	o.Pipeline.Tasks[0].TaskSpec.Steps[0].Script = "evil"
	if _, err := attest.Check(*o); !errors.As(err, new(*finding.Finding)) ||
		!strings.Contains(err.Error(), "Pipeline") {
		t.Errorf("refused with %v", err)
	}
	o.Pipeline = nil
	if _, err := attest.Check(*o); !errors.As(err, new(*finding.Finding)) {
		t.Errorf("refused with %v", err)
	}
}

// What the platform's policy found of the commit is an annotation of the source; what a
// tenant's own policy found is not.
func TestVerifiedSource(t *testing.T) {
	tenants := api.SourceVerification{Policy: "team1/own", PolicyDigest: "sha256:1",
		Ref: "refs/heads/any", Signer: "mallory"}
	platforms := api.SourceVerification{Policy: "armature-system/release", PolicyDigest: "sha256:2",
		Platform: true, Ref: "refs/heads/main", Signer: "alice"}
	const plain = `{"armature_repository":"https://github.com/org/weather.git","armature_ref":"refs/heads/main"}`
	for name, test := range map[string]struct {
		text string
		want string // "" for a refusal
	}{
		"none":     {"", plain},
		"tenant's": {marshal(t, []api.SourceVerification{tenants}), plain},
		"both": {marshal(t, []api.SourceVerification{platforms, tenants}),
			`{"armature_repository":"https://github.com/org/weather.git","armature_ref":"refs/heads/main","sourceRefs":["refs/heads/main"],"armature_policy":"armature-system/release","armature_policyDigest":"sha256:2","armature_signer":"alice"}`},
		"the other order": {marshal(t, []api.SourceVerification{tenants, platforms}),
			`{"armature_repository":"https://github.com/org/weather.git","armature_ref":"refs/heads/main","sourceRefs":["refs/heads/main"],"armature_policy":"armature-system/release","armature_policyDigest":"sha256:2","armature_signer":"alice"}`},
		"no list": {"yes", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := observe(t, false)
			if test.text != "" {
				o.Run.Annotations[keys.AnnotationVerified] = test.text
			}
			built, err := attest.Check(*o)
			if test.want == "" {
				if err == nil ||
					!strings.Contains(err.Error(), "does not say how its commit was verified") {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := marshal(t,
				built.Provenance.BuildDefinition.ResolvedDependencies[0].Annotations); got != test.want {
				t.Errorf("annotations %s, want %s", got, test.want)
			}
		})
	}
}
