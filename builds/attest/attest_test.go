package attest_test

import (
	"encoding/json"
	"errors"
	"slices"
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
	"github.com/armature-dev/armature/builds/recipe"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/templates"
)

const (
	sha   = "0123456789abcdef0123456789abcdef01234567"
	image = "registry.local:5000/team1/weather:v1"
	other = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var digest = "sha256:" + strings.Repeat("a", 64)

// parts are the images of the platforms, where there are several.
var parts = []string{"sha256:" + strings.Repeat("1", 64), "sha256:" + strings.Repeat("2", 64)}

func configMap(t *testing.T, file string) recipe.ConfigMap {
	t.Helper()
	data, err := templates.Files.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cm corev1.ConfigMap
	if err := yaml.UnmarshalStrict(data, &cm); err != nil {
		t.Fatal(err)
	}
	return recipe.ConfigMap{Namespace: "armature-system", Name: cm.Name, Data: cm.Data}
}

// ordered is the build that is observed.
func ordered(edit ...func(*api.AgentBuild)) *api.AgentBuild {
	b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "weather", UID: "build"}}
	b.Spec.Mode = "prod"
	b.Spec.Source = api.SourceSpec{SourceRepository: "github.com/org/weather.git", SourceRevision: "main", SourceSubfolder: "agents/weather"}
	b.Spec.BuildOutput = &api.BuildOutput{Image: "team1/weather", ImageTag: "v1", ImageRegistry: "registry.local:5000"}
	value := "1"
	b.Spec.BuildArgs = []api.Parameter{{Name: "VERSION", Value: &value}}
	for _, e := range edit {
		e(b)
	}
	return b
}

// composed is a run of the shipped mode prod, whose template may be changed.
func composed(t *testing.T, change func(template string) string, settings compose.Settings, edit ...func(*api.AgentBuild)) (*compose.Output, error) {
	t.Helper()
	b := ordered(edit...)
	text := configMap(t, "modes/pipeline-template-prod.yaml")
	if change != nil {
		text.Data[recipe.TemplateKeyYAML] = change(text.Data[recipe.TemplateKeyYAML])
	}
	template, err := recipe.ReadTemplate(text)
	if err != nil {
		return nil, err
	}
	steps := map[string]*recipe.Step{}
	for _, name := range compose.StepNames(b, template) {
		file := "steps/" + name + ".yaml"
		if steps[name], err = recipe.ReadStep(configMap(t, file)); err != nil {
			t.Fatal(err)
		}
	}
	return compose.Pipeline(compose.Input{Build: b, Template: template, Steps: steps, Platform: "armature-system", Commit: sha, Ref: "refs/heads/main",
		Number: 1, Trigger: api.TriggerConfig, Settings: settings})
}

// observe a run of the shipped mode prod that succeeded; objects makes it refer to a
// Pipeline.
func observe(t *testing.T, objects bool, edit ...func(*api.AgentBuild)) *attest.Observed {
	t.Helper()
	b := ordered(edit...)
	out, err := composed(t, nil, compose.Settings{PipelineObjects: objects}, edit...)
	if err != nil {
		t.Fatal(err)
	}
	data, err := out.RunJSON()
	if err != nil {
		t.Fatal(err)
	}
	run := &tektonv1.PipelineRun{}
	if err := json.Unmarshal(data, run); err != nil {
		t.Fatal(err)
	}
	run.UID, run.CreationTimestamp = "run", metav1.NewTime(time.Date(2026, 11, 22, 20, 0, 0, 0, time.UTC))
	o := &attest.Observed{Build: b, RunUID: "run", Run: run}
	pipeline := run.Spec.PipelineSpec
	if objects {
		o.Pipeline = out.Pipeline.Spec.DeepCopy()
		pipeline = o.Pipeline
	}
	played := attesttest.Succeed(run, pipeline, digest, parts...)
	o.TaskRuns, o.Pods = played.TaskRuns, played.Pods
	return o
}

func (f fixture) task(name string) (*tektonv1.TaskRun, *corev1.Pod) {
	for _, tr := range f.TaskRuns {
		if tr.Labels["tekton.dev/pipelineTask"] == name {
			return tr, f.Pods[tr.UID]
		}
	}
	panic(name)
}

type fixture struct{ *attest.Observed }

// report a result in the TaskRun's status and, as the pod's kubelet would, in the
// pod's.
func (f fixture) report(task, name, value string, byPod, byTaskRun, byRun bool) {
	tr, pod := f.task(task)
	for i := range tr.Status.Results {
		if r := &tr.Status.Results[i]; r.Name == name {
			last := pod.Status.ContainerStatuses[len(pod.Status.ContainerStatuses)-1].State.Terminated
			if byPod {
				last.Message = strings.ReplaceAll(last.Message, `"key":"`+name+`","value":"`+r.Value.StringVal, `"key":"`+name+`","value":"`+value)
			}
			for _, reader := range f.TaskRuns { // Tekton hands it on
				for n := range reader.Spec.Params {
					if p := &reader.Spec.Params[n]; byPod && reader != tr && p.Value.StringVal == r.Value.StringVal && strings.HasSuffix(p.Name, "-digest") {
						p.Value.StringVal = value
					}
				}
			}
			if byTaskRun {
				r.Value = *tektonv1.NewStructuredValues(value)
			}
		}
	}
	for i := range f.Run.Status.Results {
		if r := &f.Run.Status.Results[i]; byRun && (r.Name == name || strings.HasSuffix(r.Name, "-"+name)) {
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
			if built.Image != image || built.Digest != digest || len(built.Bills) != 1 || built.Bills[0] != (attest.Bill{Digest: attesttest.DigestOf(attesttest.SBOM(digest))}) {
				t.Errorf("image %s@%s, SBOMs %v", built.Image, built.Digest, built.Bills)
			}
			p := built.Provenance
			if p.BuildDefinition.BuildType != "https://armature.dev/agent-build/v1" || p.RunDetails.Builder.ID != "https://armature.dev/builders/prod" || p.RunDetails.Metadata.InvocationID != "run" {
				t.Errorf("build type %s, builder %s, invocation %s", p.BuildDefinition.BuildType, p.RunDetails.Builder.ID, p.RunDetails.Metadata.InvocationID)
			}
			source := p.BuildDefinition.ResolvedDependencies[0]
			if source.URI != "git+https://github.com/org/weather.git@refs/heads/main" || source.Digest["gitCommit"] != sha ||
				marshal(t, source.Annotations) != `{"armature_repository":"https://github.com/org/weather.git","armature_ref":"refs/heads/main"}` {
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
			if diff := cmp.Diff(compose.Shape(o.Build), stated.ExternalParameters.AgentBuild.Spec); diff != "" {
				t.Error(diff)
			}
			const inAnothersPod = 3 // pack-source, folder-verification and dockerfile-check have no task of their own
			if stated.InternalParameters.RunDigest != o.Run.Annotations[keys.AnnotationRunDigest] || stated.InternalParameters.Template.Digest == "" || len(stated.InternalParameters.Steps) != len(o.TaskRuns)+inAnothersPod {
				t.Errorf("internal parameters %+v", stated.InternalParameters)
			}
			// What shapes no run does not change what is stated, so that a second look adds nothing.
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

// What Tekton does with a pipeline's task is not taken for an attack: it puts values
// into the task's text, and admission puts digests behind tags.
func TestWhatTektonDoes(t *testing.T) {
	for name, edit := range map[string]func(fixture){
		"values in the text": func(f fixture) {
			tr, _ := f.task("buildkit-build")
			fill := func(env []corev1.EnvVar, args []string) {
				for i := range env {
					env[i].Value = strings.ReplaceAll(env[i].Value, "$(params.image)", image)
				}
				for i := range args {
					args[i] = strings.ReplaceAll(args[i], "$(params.build-args[*])", "VERSION=1")
				}
			}
			for _, s := range tr.Spec.TaskSpec.Steps {
				fill(s.Env, s.Args)
			}
			for _, s := range tr.Spec.TaskSpec.Sidecars {
				fill(s.Env, s.Args)
			}
		},
		"a digest behind a tag": func(f fixture) {
			_, pod := f.task("tests")
			pod.Spec.Containers[0].Image += "@" + other
		},
		"a status without what a task gave": func(f fixture) { f.Run.Status.Results = f.Run.Status.Results[:1] },
		"the spec's settings without effect on runs": func(f fixture) {
			f.Build.Spec.Retries = &api.Retries{Limit: 3}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := fixture{observe(t, false)}
			edit(f)
			if _, err := attest.Check(*f.Observed); err != nil {
				t.Error(err)
			}
		})
	}
}

// Each attack is refused, with what does not match.
func TestRefusals(t *testing.T) {
	fresh := metav1.NewTime(time.Date(2026, 11, 22, 19, 59, 0, 0, time.UTC))
	for name, attack := range map[string]struct {
		do     func(fixture)
		reason string
		says   string
	}{
		"run of another UID":      {func(f fixture) { f.RunUID = "another" }, api.ReasonNotAsOrdered, "UID"},
		"run of another build":    {func(f fixture) { f.Run.OwnerReferences[0].UID = "another" }, api.ReasonNotAsOrdered, "not owned by build"},
		"run edited":              {func(f fixture) { f.Run.Spec.PipelineSpec.Tasks[0].TaskSpec.Steps[0].Image = "evil" }, api.ReasonNotAsOrdered, "not the one that was composed"},
		"run's parameter edited":  {func(f fixture) { f.Run.Spec.Params[0].Value = *tektonv1.NewStructuredValues("evil") }, api.ReasonNotAsOrdered, "not the one that was composed"},
		"run stopped":             {func(f fixture) { f.Run.Spec.Status = "StoppedRunFinally" }, api.ReasonNotAsOrdered, "asked to stop"},
		"run failed":              {func(f fixture) { f.Run.Status.Conditions[0].Status = "False" }, api.ReasonNotAsOrdered, "did not succeed"},
		"spec changed":            {func(f fixture) { f.Build.Spec.Source.SourceRevision = "evil" }, api.ReasonSpecChanged, "the spec changed"},
		"image of another build":  {func(f fixture) { f.Run.Annotations[keys.AnnotationImage] = "registry.local:5000/other:v1" }, api.ReasonNotAsOrdered, "spec.buildOutput"},
		"no commit":               {func(f fixture) { f.Run.Annotations[keys.AnnotationCommit] = "main" }, api.ReasonNotAsOrdered, "one commit"},
		"no materials":            {func(f fixture) { delete(f.Run.Annotations, keys.AnnotationMaterials) }, api.ReasonNotAsOrdered, "which template"},
		"foreign TaskRun's owner": {func(f fixture) { f.TaskRuns[0].OwnerReferences[0].UID = "another" }, api.ReasonNotAsOrdered, "not owned by run"},
		"old TaskRun":             {func(f fixture) { f.TaskRuns[0].CreationTimestamp = fresh }, api.ReasonNotAsOrdered, "older than run"},
		"failed TaskRun":          {func(f fixture) { f.TaskRuns[0].Status.Conditions[0].Status = "False" }, api.ReasonNotAsOrdered, "did not succeed"},
		"TaskRun of no task":      {func(f fixture) { f.TaskRuns[0].Labels["tekton.dev/pipelineTask"] = "evil" }, api.ReasonNotAsOrdered, "the pipeline does not have"},
		"two TaskRuns of a task":  {func(f fixture) { f.TaskRuns = append(f.TaskRuns, f.TaskRuns[0]) }, api.ReasonNotAsOrdered, "two TaskRuns"},
		"a task left out":         {func(f fixture) { f.TaskRuns = f.TaskRuns[1:] }, api.ReasonNotAsOrdered, "did not run"},
		"another script":          {func(f fixture) { tr, _ := f.task("buildkit-build"); tr.Spec.TaskSpec.Steps[0].Script = "evil" }, api.ReasonNotAsOrdered, "its task is another"},
		"a further step": {func(f fixture) {
			tr, _ := f.task("buildkit-build")
			tr.Spec.TaskSpec.Steps = append(tr.Spec.TaskSpec.Steps, tektonv1.Step{Name: "evil"})
		}, api.ReasonNotAsOrdered, "its task is another"},
		"another field": {func(f fixture) {
			tr, _ := f.task("buildkit-build")
			tr.Spec.TaskSpec.StepTemplate = &tektonv1.StepTemplate{Env: []corev1.EnvVar{{Name: "EVIL"}}}
		}, api.ReasonNotAsOrdered, "its task is another"},
		"a reference to a task": {func(f fixture) { f.TaskRuns[0].Spec.TaskRef = &tektonv1.TaskRef{Name: "evil"} }, api.ReasonNotAsOrdered, "its task is another"},
		"another parameter": {func(f fixture) {
			tr, _ := f.task("buildkit-build")
			tr.Spec.Params[0].Value = *tektonv1.NewStructuredValues("evil")
		}, api.ReasonNotAsOrdered, "its parameters"},
		"a further parameter": {func(f fixture) {
			tr, _ := f.task("tests")
			tr.Spec.Params = append(tr.Spec.Params, tektonv1.Param{Name: "TEST_COMMAND", Value: *tektonv1.NewStructuredValues("true")})
		}, api.ReasonNotAsOrdered, "its parameters"},
		"another volume": {func(f fixture) {
			tr, _ := f.task("buildkit-build")
			at := slices.IndexFunc(tr.Spec.Workspaces, func(w tektonv1.WorkspaceBinding) bool { return w.PersistentVolumeClaim != nil })
			tr.Spec.Workspaces[at].PersistentVolumeClaim.ClaimName = "mine"
		}, api.ReasonNotAsOrdered, "workspaces"},
		"a volume for a source of its own": {func(f fixture) {
			tr, _ := f.task("buildkit-build")
			at := slices.IndexFunc(tr.Spec.Workspaces, func(w tektonv1.WorkspaceBinding) bool { return w.Name == "source" })
			tr.Spec.Workspaces[at] = tektonv1.WorkspaceBinding{Name: "source", PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "mine"}}
		}, api.ReasonNotAsOrdered, "workspaces"},
		"another source": {func(f fixture) {
			f.report("github-clone", "source-digest", other, true, false, false)
		}, api.ReasonResultsForged, "source-digest"},
		"another ServiceAccount": {func(f fixture) { f.TaskRuns[0].Spec.ServiceAccountName = "evil" }, api.ReasonNotAsOrdered, "pod's settings"},
		"a breakpoint": {func(f fixture) {
			f.TaskRuns[0].Spec.Debug = &tektonv1.TaskRunDebug{Breakpoints: &tektonv1.TaskBreakpoints{OnFailure: "enabled"}}
		}, api.ReasonNotAsOrdered, "pod's settings"},
		"pod of another UID":  {func(f fixture) { f.Pods[f.TaskRuns[0].UID].OwnerReferences[0].UID = "old" }, api.ReasonNotAsOrdered, "not owned by the TaskRun"},
		"pod of another name": {func(f fixture) { f.Pods[f.TaskRuns[0].UID].Name = "evil" }, api.ReasonNotAsOrdered, "not owned by the TaskRun"},
		"old pod":             {func(f fixture) { f.Pods[f.TaskRuns[0].UID].CreationTimestamp = fresh }, api.ReasonNotAsOrdered, "older than the TaskRun"},
		"pod is gone":         {func(f fixture) { delete(f.Pods, f.TaskRuns[0].UID) }, api.ReasonNotAsOrdered, "does not exist"},
		"finished before the run": {func(f fixture) {
			f.Pods[f.TaskRuns[0].UID].Status.ContainerStatuses[0].State.Terminated.FinishedAt = fresh
		}, api.ReasonNotAsOrdered, "before run"},
		"a step that failed": {func(f fixture) {
			f.Pods[f.TaskRuns[0].UID].Status.ContainerStatuses[0].State.Terminated.ExitCode = 1
		}, api.ReasonNotAsOrdered, "exit code 1"},
		"a step still running":          {func(f fixture) { f.Pods[f.TaskRuns[0].UID].Status.ContainerStatuses[0].State.Terminated = nil }, api.ReasonNotAsOrdered, "did not finish"},
		"another image":                 {func(f fixture) { f.Pods[f.TaskRuns[0].UID].Spec.Containers[0].Image = "evil" }, api.ReasonNotAsOrdered, "runs image"},
		"an image changed and put back": {func(f fixture) { f.Pods[f.TaskRuns[0].UID].Generation = 3 }, api.ReasonNotAsOrdered, "changed after it was made"},
		"a container that restarted": {func(f fixture) {
			f.Pods[f.TaskRuns[0].UID].Status.ContainerStatuses[0].RestartCount = 1
		}, api.ReasonNotAsOrdered, "restarted the container"},
		"a container more": {func(f fixture) {
			pod := f.Pods[f.TaskRuns[0].UID]
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "evil"})
		}, api.ReasonNotAsOrdered, "no step or sidecar orders"},
		"a debug container": {func(f fixture) {
			f.Pods[f.TaskRuns[0].UID].Spec.EphemeralContainers = []corev1.EphemeralContainer{{}}
		}, api.ReasonNotAsOrdered, "debugging"},
		"TaskRun's result forged":         {func(f fixture) { f.report("push", "IMAGE_DIGEST", other, false, true, true) }, api.ReasonResultsForged, "IMAGE_DIGEST of TaskRun"},
		"run's result forged":             {func(f fixture) { f.report("push", "IMAGE_DIGEST", other, false, false, true) }, api.ReasonResultsForged, "IMAGE_DIGEST of run"},
		"TaskRun's result removed":        {func(f fixture) { tr, _ := f.task("github-clone"); tr.Status.Results = nil }, api.ReasonResultsForged, "is missing"},
		"a result that no task declares":  {func(f fixture) { f.Run.Status.Results[0].Name = "evil" }, api.ReasonResultsForged, "does not declare"},
		"digest with something behind it": {func(f fixture) { f.report("push", "IMAGE_DIGEST", digest+" $(id)", true, true, true) }, api.ReasonResultInvalid, "not a digest"},
		"digest too short":                {func(f fixture) { f.report("push", "IMAGE_DIGEST", "sha256:aa", true, true, true) }, api.ReasonResultInvalid, "not a digest"},
		"another tag":                     {func(f fixture) { f.report("push", "IMAGE_URL", image+"2", true, true, true) }, api.ReasonResultInvalid, "IMAGE_URL is not"},
		"another repository":              {func(f fixture) { f.report("push", "IMAGE_URL", "evil.example/x:v1", true, true, true) }, api.ReasonResultInvalid, "IMAGE_URL is not"},
		"another commit": {func(f fixture) {
			f.report("github-clone", "CHAINS-GIT_COMMIT", strings.Repeat("b", 40), true, true, true)
		}, api.ReasonResultInvalid, "CHAINS-GIT_COMMIT"},
		"TaskRun's SBOM digest forged": {func(f fixture) { f.report("sbom", "SBOM_DIGEST", other, false, true, true) }, api.ReasonResultsForged, "SBOM_DIGEST of TaskRun"},
		"SBOM digest with words":       {func(f fixture) { f.report("sbom", "SBOM_DIGEST", "the digest", true, true, true) }, api.ReasonResultInvalid, "SBOM_DIGEST is not a digest"},
		"SBOM digest not reported": {func(f fixture) {
			tr, pod := f.task("sbom")
			tr.Status.Results = nil
			pod.Status.ContainerStatuses[len(pod.Status.ContainerStatuses)-1].State.Terminated.Message = ""
			next, _ := f.task("sbom-attach") // Tekton has nothing to put in
			at := slices.IndexFunc(next.Spec.Params, func(p tektonv1.Param) bool { return p.Name == "sbom-digest" })
			next.Spec.Params[at].Value = *tektonv1.NewStructuredValues("$(tasks.sbom.results.SBOM_DIGEST)")
		}, api.ReasonResultInvalid, "SBOM_DIGEST is not a digest"},
		"a report that is not JSON": {func(f fixture) {
			_, pod := f.task("github-clone")
			pod.Status.ContainerStatuses[0].State.Terminated.Message = "{"
		}, api.ReasonResultInvalid, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			f := fixture{observe(t, false)}
			attack.do(f)
			built, err := attest.Check(*f.Observed)
			var refusal *krm.Finding
			if !errors.As(err, &refusal) || built != nil {
				t.Fatalf("it is attested: %v, %v", built, err)
			}
			if refusal.Rule != attack.reason || !strings.Contains(refusal.Message, attack.says) || refusal.Hint == "" {
				t.Errorf("refused with %s: %v", refusal.Rule, refusal)
			}
		})
	}
}

// A Pipeline that somebody changed after it was composed is not believed.
func TestChangedPipeline(t *testing.T) {
	o := observe(t, true)
	o.Pipeline.Tasks[0].TaskSpec.Steps[0].Script = "evil"
	if _, err := attest.Check(*o); !errors.As(err, new(*krm.Finding)) || !strings.Contains(err.Error(), "Pipeline") {
		t.Errorf("refused with %v", err)
	}
	o.Pipeline = nil
	if _, err := attest.Check(*o); !errors.As(err, new(*krm.Finding)) {
		t.Errorf("refused with %v", err)
	}
}

// What the platform's policy found of the commit is an annotation of the source; what a
// tenant's own policy found is not.
func TestVerifiedSource(t *testing.T) {
	tenants := api.SourceVerification{Policy: "team1/own", PolicyDigest: "sha256:1", Ref: "refs/heads/any", Signer: "mallory"}
	platforms := api.SourceVerification{Policy: "armature-system/release", PolicyDigest: "sha256:2", Platform: true, Ref: "refs/heads/main", Signer: "alice"}
	const plain = `{"armature_repository":"https://github.com/org/weather.git","armature_ref":"refs/heads/main"}`
	for name, test := range map[string]struct {
		text string
		want string // "" for a refusal
	}{
		"none":            {"", plain},
		"tenant's":        {marshal(t, []api.SourceVerification{tenants}), plain},
		"both":            {marshal(t, []api.SourceVerification{platforms, tenants}), `{"armature_repository":"https://github.com/org/weather.git","armature_ref":"refs/heads/main","sourceRefs":["refs/heads/main"],"armature_policy":"armature-system/release","armature_policyDigest":"sha256:2","armature_signer":"alice"}`},
		"the other order": {marshal(t, []api.SourceVerification{tenants, platforms}), `{"armature_repository":"https://github.com/org/weather.git","armature_ref":"refs/heads/main","sourceRefs":["refs/heads/main"],"armature_policy":"armature-system/release","armature_policyDigest":"sha256:2","armature_signer":"alice"}`},
		"no list":         {"yes", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := observe(t, false)
			if test.text != "" {
				o.Run.Annotations[keys.AnnotationVerified] = test.text
			}
			built, err := attest.Check(*o)
			if test.want == "" {
				if err == nil || !strings.Contains(err.Error(), "does not say how its commit was verified") {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := marshal(t, built.Provenance.BuildDefinition.ResolvedDependencies[0].Annotations); got != test.want {
				t.Errorf("annotations %s, want %s", got, test.want)
			}
		})
	}
}
