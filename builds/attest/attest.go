// Package attest decides whether the controller may vouch for a run, and what it
// says then. It is pure: it looks at what was observed of a run that ended, and
// gives a SLSA v1 provenance, or a refusal that names what does not match. It knows
// no clock, network or cluster.
//
// What it trusts is the API server, the kubelet and the run's annotations, which the
// caller has found to be the controller's own. From these it goes on: the digest in
// the annotations pins the run's spec, the spec pins what each TaskRun has to be, a
// TaskRun's UID pins its pod, and the pod, whose status the kubelet writes, has the
// results. The status of runs and TaskRuns is compared with that and never believed.
package attest

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/recipe"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// Observed is what was seen of a run that ended.
type Observed struct {
	// Build as it is now.
	Build *api.AgentBuild
	// RunUID is what the create of the run returned.
	RunUID types.UID
	// Run as it is now. The caller has checked the proof in its annotations.
	Run *tektonv1.PipelineRun
	// Pipeline that the run refers to, nil where the run embeds it.
	Pipeline *tektonv1.PipelineSpec
	// TaskRuns that the run lists as its children.
	TaskRuns []*tektonv1.TaskRun
	// Pods of the TaskRuns, by the UID of the TaskRun.
	Pods map[types.UID]*corev1.Pod
}

// Built is what a run made, as far as it can be vouched for. That the registry has
// Digest under Image is for the caller to find out.
type Built struct {
	// Image is what spec.buildOutput names, with its tag.
	Image string
	// Digest is "sha256:" and 64 hexadecimal digits.
	Digest string
	// Platforms are the images of an image for several platforms, in the order of
	// spec.platforms; nil for one image. That the index which has Digest lists them is for the
	// caller to find out.
	Platforms []api.PlatformStatus
	// Bills of materials, blobs beside the image; nil where no step reports one. What the
	// registry has there is for the caller to judge, with ReadSBOM.
	Bills []Bill
	// Tests are the verdicts of steps; nil where no step reports one.
	Tests []Test
	// Provenance is the predicate of SLSA v1. The same run has the same.
	Provenance sign.Provenance
}

// Bill is a bill of materials that a step reported.
type Bill struct {
	// Digest of the document.
	Digest string
	// Of is the digest of the image of a platform that it has to describe; "" is the
	// image, or any of its platforms.
	Of string
}

// Level is the SLSA build level that the provenance of an attested mode has: it is
// made and signed by the control plane, out of the tenant's reach. Level 3 would
// need builds that are isolated from each other and from their own results.
const Level = 2

// refuse says why a run is not vouched for. It is final for that run.
func refuse(reason, hint, format string, args ...any) error {
	return krm.Place{}.Fault(reason, fmt.Sprintf(format, args...), hint)
}

const (
	rerun     = "start again with `armature build rerun`"
	tampered  = "somebody or something else writes to the build's runs, TaskRuns or pods: look at the audit log for who has such rights in the namespace, then " + rerun
	wrongStep = "a step of the template does not report what it has to: see docs/builds-operate.md on steps, then " + rerun
)

// inspection is the state while one run is looked at.
type inspection struct {
	Observed
	// ordered is the spec that the run was composed from, as far as it shapes a run: the one
	// whose SHA-256 the controller noted on the run when it made it.
	ordered  api.AgentBuildSpec
	pipeline tektonv1.PipelineSpec
	tasks    []*task // in the pipeline's order
	image    string
	digest   string
	// platforms of an index, nil for one image
	platforms []api.PlatformStatus
	bills     []Bill
	tests     []Test
	commit    string
}

// task is one task of the pipeline with what came of it. The TaskRun is nil for one
// that was skipped.
type task struct {
	ordered tektonv1.PipelineTask
	run     *tektonv1.TaskRun
	pod     *corev1.Pod
	results map[string]tektonv1.ResultValue
}

// Check what was observed. The error is a refusal, which is final for the run: a
// *krm.Finding whose rule is one of the api.Reason constants.
func Check(o Observed) (*Built, error) {
	i := &inspection{Observed: o}
	var provenance sign.Provenance
	for _, look := range []func() error{i.checkRun, i.findPipeline, i.findTasks, i.checkPods, i.checkTasks, i.checkResults, i.findTests, i.judgePods,
		func() (err error) { provenance, err = i.provenance(); return err }} {
		err := look()
		var refusal *krm.Finding
		if errors.As(err, &refusal) {
			refusal.Place = compose.Place(o.Build)
		}
		if err != nil {
			return nil, err
		}
	}
	return &Built{Image: i.image, Digest: i.digest, Platforms: i.platforms, Bills: i.bills, Tests: i.tests, Provenance: provenance}, nil
}

// checkRun makes sure that the run is ours, made of the spec as it is, and over.
func (i *inspection) checkRun() error {
	run, build := i.Run, i.Build
	if i.RunUID == "" || run.UID != i.RunUID {
		return refuse(api.ReasonNotAsOrdered, tampered, "run %s has the UID %s, and the controller created %s", run.Name, run.UID, i.RunUID)
	}
	if !metav1.IsControlledBy(run, build) && run.Annotations[keys.AnnotationBuildUID] != string(build.UID) {
		return refuse(api.ReasonNotAsOrdered, tampered, "run %s is not owned by build %s", run.Name, build.Name)
	}
	now, _ := compose.InputHashes(build, recipe.NoTemplate(), nil)
	if run.Annotations[keys.AnnotationSpec] != now {
		return refuse(api.ReasonSpecChanged, rerun, "the spec changed while run %s was under way, and the run is of the one before", run.Name)
	}
	i.ordered = compose.Shape(build)
	if want := run.Annotations[keys.AnnotationRunDigest]; want == "" || compose.RunDigest(&run.Spec) != want {
		return refuse(api.ReasonNotAsOrdered, tampered, "the spec of run %s is not the one that was composed", run.Name)
	}
	if run.Spec.Status != "" {
		return refuse(api.ReasonNotAsOrdered, rerun, "run %s was asked to stop (%s)", run.Name, run.Spec.Status)
	}
	if c := run.Status.GetCondition("Succeeded"); !c.IsTrue() || run.Status.CompletionTime == nil || run.Status.StartTime == nil {
		return refuse(api.ReasonNotAsOrdered, tampered, "run %s did not succeed", run.Name)
	}
	i.image, i.commit = run.Annotations[keys.AnnotationImage], run.Annotations[keys.AnnotationCommit]
	if want := compose.Image(build); i.image == "" || i.image != want {
		return refuse(api.ReasonNotAsOrdered, rerun, "run %s builds %q, and spec.buildOutput names %q", run.Name, i.image, want)
	}
	if !commitForm.MatchString(i.commit) {
		return refuse(api.ReasonNotAsOrdered, rerun, "run %s was not made for one commit", run.Name)
	}
	return nil
}

var (
	commitForm = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)
	digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// findPipeline is what the run embeds, which its digest covers, or the Pipeline that
// it refers to, which has a digest of its own.
func (i *inspection) findPipeline() error {
	if i.Run.Spec.PipelineSpec != nil {
		i.pipeline = *i.Run.Spec.PipelineSpec.DeepCopy()
		return nil
	}
	want := i.Run.Annotations[keys.AnnotationPipelineDigest]
	if i.Pipeline == nil || want == "" || compose.PipelineDigest(i.Pipeline) != want {
		return refuse(api.ReasonNotAsOrdered, tampered, "the Pipeline that run %s refers to is not the one that was composed", i.Run.Name)
	}
	i.pipeline = *i.Pipeline.DeepCopy()
	return nil
}

// findTasks gives each task of the pipeline its TaskRun, and refuses others.
func (i *inspection) findTasks() error {
	byName := map[string]*task{}
	for _, list := range [][]tektonv1.PipelineTask{i.pipeline.Tasks, i.pipeline.Finally} {
		for _, ordered := range list {
			if ordered.TaskSpec == nil || ordered.Matrix != nil {
				return refuse(api.ReasonNotAsOrdered, tampered, "task %s is not embedded in the pipeline", ordered.Name)
			}
			t := &task{ordered: ordered}
			byName[ordered.Name], i.tasks = t, append(i.tasks, t)
		}
	}
	for _, run := range i.TaskRuns {
		t := byName[run.Labels[pipelineTaskLabel]]
		switch {
		case t == nil:
			return refuse(api.ReasonNotAsOrdered, tampered, "TaskRun %s is of task %q, which the pipeline does not have", run.Name, run.Labels[pipelineTaskLabel])
		case t.run != nil:
			return refuse(api.ReasonNotAsOrdered, tampered, "task %s has two TaskRuns, %s and %s", t.ordered.Name, t.run.Name, run.Name)
		case !controlledBy(run, i.Run.UID):
			return refuse(api.ReasonNotAsOrdered, tampered, "TaskRun %s is not owned by run %s of UID %s", run.Name, i.Run.Name, i.Run.UID)
		case run.CreationTimestamp.Before(&i.Run.CreationTimestamp):
			return refuse(api.ReasonNotAsOrdered, tampered, "TaskRun %s is older than run %s", run.Name, i.Run.Name)
		case !run.Status.GetCondition("Succeeded").IsTrue():
			return refuse(api.ReasonNotAsOrdered, tampered, "TaskRun %s did not succeed", run.Name)
		}
		t.run, t.pod = run, i.Pods[run.UID]
	}
	return nil
}

// pipelineTaskLabel of a TaskRun names its task.
const pipelineTaskLabel = "tekton.dev/pipelineTask"

func controlledBy(o metav1.Object, owner types.UID) bool {
	ref := metav1.GetControllerOf(o)
	return ref != nil && ref.UID == owner
}

// checkResults finds the image's digest, and compares what the run says with what
// its pods reported.
func (i *inspection) checkResults() error {
	have := map[string]string{}
	for _, result := range i.Run.Status.Results {
		have[result.Name] = canonical(result.Value)
	}
	of := map[string][]string{} // values by the last part of the name
	for _, declared := range i.pipeline.Results {
		value, known := i.pipelineResult(declared)
		if got, reported := have[declared.Name]; reported && (!known || got != canonical(value)) {
			return refuse(api.ReasonResultsForged, tampered, "the result %s of run %s is not what its pods reported", declared.Name, i.Run.Name)
		}
		delete(have, declared.Name)
		if known {
			for _, name := range []string{"IMAGE_DIGEST", "IMAGE_URL", "CHAINS-GIT_COMMIT", compose.PlatformDigests} {
				if endsIn(declared.Name, name) {
					of[name] = append(of[name], trimmed(value))
				}
			}
		}
	}
	for name := range have {
		return refuse(api.ReasonResultsForged, tampered, "run %s has a result %q, which its pipeline does not declare", i.Run.Name, name)
	}
	if len(of["IMAGE_DIGEST"]) != 1 {
		return refuse(api.ReasonResultInvalid, wrongStep, "%d tasks gave the result IMAGE_DIGEST, and one has to", len(of["IMAGE_DIGEST"]))
	}
	if i.digest = of["IMAGE_DIGEST"][0]; !digestForm.MatchString(i.digest) {
		return refuse(api.ReasonResultInvalid, wrongStep, "the result IMAGE_DIGEST is not a digest")
	}
	for _, url := range of["IMAGE_URL"] {
		if url != i.image {
			return refuse(api.ReasonResultInvalid, wrongStep, "the result IMAGE_URL is not %s, which spec.buildOutput names", i.image)
		}
	}
	if err := i.checkPlatforms(of[compose.PlatformDigests]); err != nil {
		return err
	}
	if commits := of["CHAINS-GIT_COMMIT"]; len(commits) != 1 || commits[0] != i.commit {
		return refuse(api.ReasonResultInvalid, wrongStep, "the result CHAINS-GIT_COMMIT is not the commit %s", i.commit)
	}
	return i.findBills()
}

// canonical text of a value, to compare by.
func canonical(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("attest: marshalling %T: %v", v, err))
	}
	return string(data)
}
