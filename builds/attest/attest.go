// Package attest decides whether the controller may attest a run. It is pure: it reads the observed
// objects of an isolated run that ended, and returns a SLSA v1 provenance, or a refusal that names
// the mismatch. It reads no clock, network or cluster.
//
// No tenant has rights in the namespace of the run, so the statuses that Tekton writes to the run
// and its TaskRuns are trusted. The digest in the run's annotations pins the composed spec. Check
// compares the results of steps about the image with the composed run; the caller compares them
// with the registry.
package attest

import (
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// Observed holds the objects of an isolated run that ended.
type Observed struct {
	// Build is the current AgentBuild.
	Build *api.AgentBuild
	// Run of the build.
	Run *tektonv1.PipelineRun
	// Pipeline is the spec that the run refers to; nil if the run embeds it.
	Pipeline *tektonv1.PipelineSpec
	// TaskRuns of the run by the task of the pipeline. Skipped tasks have none.
	TaskRuns map[string]*tektonv1.TaskRun
}

// Built holds the results of a run that Check verified. The caller has to verify that the registry
// has Digest under Image.
type Built struct {
	// Image is the image of spec.buildOutput with its tag.
	Image string
	// Digest is "sha256:" and 64 hexadecimal digits.
	Digest string
	// Platforms are the images of several platforms, in the order of spec.platforms; nil for one
	// image. The caller has to verify that the index with Digest lists them.
	Platforms []api.PlatformStatus
	// Bills of materials, which are blobs in the image's repository; nil if no step reports one.
	// The caller has to verify their content with ReadSBOM.
	Bills []Bill
	// Tests are the verdicts of steps; nil if no step reports one.
	Tests []Test
	// Level of SLSA's Build track.
	Level int32
	// Provenance is the predicate of SLSA v1. It is equal for equal runs.
	Provenance sign.Provenance
}

// Bill is a bill of materials that a step reported.
type Bill struct {
	// Digest of the document.
	Digest string
	// Of is the digest of the platform's image that the document must describe; "" means the
	// image, or the image of any platform.
	Of string
}

// level returns the level of SLSA's Build track that a run of a pipeline meets;
// docs/threat-model.md lists the requirements. It is 3 if a step of the platform pushes the image
// that another task built, so that no program of the author runs in the container that reports the
// digest; otherwise it is 2.
func level(p *tektonv1.PipelineSpec) int32 {
	for task := range tekton.Tasks(p) {
		if tekton.Reports(&task.TaskSpec.TaskSpec, "IMAGE_DIGEST") &&
			!templates.Declares(task.TaskSpec.Params, tekton.LayoutDigest) {
			return 2
		}
	}
	return 3
}

// refuse returns the reason not to attest a run. It is final for this run.
func (i *inspection) refuse(reason, hint, format string, args ...any) error {
	return compose.Place(i.Build).Fault(reason, fmt.Sprintf(format, args...), hint)
}

// invalid returns a refusal because of a step's result.
func (i *inspection) invalid(format string, args ...any) error {
	return i.refuse(api.ReasonResultInvalid, wrongStep, format, args...)
}

const (
	rerun   = "start again with `armature build rerun`"
	changed = "look which admission webhook or policy changes runs in the build namespace, and " +
		"who may write there, then " + rerun
	wrongStep = "a step of the template does not report what it has to: see " +
		"docs/builds-templates.md on steps, then " + rerun
)

// inspection is the state of Check.
type inspection struct {
	Observed
	Built
	materials compose.Materials
	tasks     []*task // those that ran, in the pipeline's order
	commit    string
}

// task is one task of the pipeline and its TaskRun.
type task struct {
	ordered tektonv1.PipelineTask
	run     *tektonv1.TaskRun
}

// reports iterates over the tasks that declare a result, with the reported value, or "".
func (i *inspection) reports(result string) iter.Seq2[*task, string] {
	return func(yield func(*task, string) bool) {
		for _, t := range i.tasks {
			if !tekton.Reports(&t.ordered.TaskSpec.TaskSpec, result) {
				continue
			}
			var value string
			for _, r := range t.run.Status.Results {
				if r.Name == result {
					value = strings.TrimSpace(r.Value.StringVal)
				}
			}
			if !yield(t, value) {
				return
			}
		}
	}
}

// Check verifies the observed run. The error is a refusal, which is final for the run: a
// *finding.Finding whose rule is one of the api.Reason constants.
func Check(o Observed) (*Built, error) {
	i := &inspection{Observed: o}
	for _, step := range []func() error{i.checkRun, i.findPipeline, i.checkResults, i.findBills,
		i.findTests, i.makeProvenance} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	i.Level = level(i.Pipeline)
	return &i.Built, nil
}

// checkRun refuses a run that was not composed of the current spec, was changed after composition,
// or did not succeed.
func (i *inspection) checkRun() error {
	run, build := i.Run, i.Build
	now, _ := compose.InputHashes(build, templates.NoTemplate(), nil)
	i.Image, i.commit =
		run.Annotations[keys.AnnotationImage], run.Annotations[keys.AnnotationCommit]
	unread := json.Unmarshal([]byte(run.Annotations[keys.AnnotationMaterials]), &i.materials)
	c := run.Status.GetCondition("Succeeded")
	switch ordered, want := run.Annotations[keys.AnnotationRunDigest], compose.Image(build); {
	case run.Annotations[keys.AnnotationSpec] != now:
		return i.refuse(api.ReasonSpecChanged, rerun,
			"the spec changed while run %s was under way, and the run is of the one before", run.Name)
	case ordered == "" || compose.RunDigest(&run.Spec) != ordered:
		return i.refuse(api.ReasonNotAsOrdered, changed,
			"the spec of run %s is not the one that was composed", run.Name)
	case run.Spec.Status != "":
		return i.refuse(api.ReasonNotAsOrdered, rerun, "run %s was asked to stop (%s)", run.Name,
			run.Spec.Status)
	case !c.IsTrue() || run.Status.CompletionTime == nil || run.Status.StartTime == nil:
		return i.refuse(api.ReasonNotAsOrdered, changed, "run %s did not succeed", run.Name)
	case i.Image == "" || i.Image != want:
		return i.refuse(api.ReasonNotAsOrdered, rerun,
			"run %s builds %q, and spec.buildOutput names %q", run.Name, i.Image, want)
	case !api.IsCommit(i.commit):
		return i.refuse(api.ReasonNotAsOrdered, rerun, "run %s was not made for one commit", run.Name)
	case unread != nil || i.materials.Template.Digest == "":
		return i.refuse(api.ReasonNotAsOrdered, changed,
			"run %s does not say which template it was composed from", run.Name)
	}
	return nil
}

// findPipeline sets the pipeline that the run embeds, which the run's digest covers, or the
// Pipeline that the run refers to, whose digest it compares. It also sets the tasks.
func (i *inspection) findPipeline() error {
	if i.Run.Spec.PipelineSpec != nil {
		i.Pipeline = i.Run.Spec.PipelineSpec
	} else if want := i.Run.Annotations[keys.AnnotationPipelineDigest]; i.Pipeline == nil ||
		want == "" || compose.PipelineDigest(i.Pipeline) != want {
		return i.refuse(api.ReasonNotAsOrdered, changed,
			"the Pipeline that run %s refers to is not the one that was composed", i.Run.Name)
	}
	for ordered := range tekton.Tasks(i.Pipeline) {
		if run := i.TaskRuns[ordered.Name]; run != nil {
			i.tasks = append(i.tasks, &task{*ordered, run})
		}
	}
	return nil
}

// checkResults sets the image's digest from the results of the run, and compares the other results.
func (i *inspection) checkResults() error {
	of := map[string][]string{} // values by the last part of the name
	for _, reported := range i.Run.Status.Results {
		for _, name := range []string{"IMAGE_DIGEST", "IMAGE_URL", "CHAINS-GIT_COMMIT",
			compose.PlatformDigests} {
			// If several tasks have a result, the task's name precedes its name.
			if reported.Name == name || strings.HasSuffix(reported.Name, "-"+name) {
				of[name] = append(of[name], strings.TrimSpace(reported.Value.StringVal))
			}
		}
	}
	digests, commits := of["IMAGE_DIGEST"], of["CHAINS-GIT_COMMIT"]
	switch {
	case len(digests) != 1:
		return i.invalid("%d tasks gave the result IMAGE_DIGEST, and one has to", len(digests))
	case !api.IsDigest(digests[0]):
		return i.invalid("the result IMAGE_DIGEST is not a digest")
	case slices.ContainsFunc(of["IMAGE_URL"], func(url string) bool { return url != i.Image }):
		return i.invalid("the result IMAGE_URL is not %s, which spec.buildOutput names", i.Image)
	case len(commits) != 1 || commits[0] != i.commit:
		return i.invalid("the result CHAINS-GIT_COMMIT is not the commit %s", i.commit)
	}
	i.Digest = digests[0]
	return i.checkPlatforms(of[compose.PlatformDigests])
}

// checkPlatforms compares the pushed images with spec.platforms: a single platform is the image
// itself, several are different images of an index.
func (i *inspection) checkPlatforms(reported []string) error {
	want := i.Build.Spec.Platforms
	if len(want) == 0 {
		return nil
	}
	var have []api.PlatformStatus
	if len(reported) == 1 {
		have, _ = api.ReadPlatforms(reported[0])
	}
	ok := slices.EqualFunc(have, want, func(p api.PlatformStatus, platform string) bool {
		return p.Platform == platform
	})
	if len(want) == 1 {
		ok = ok && have[0].Digest == i.Digest
	} else {
		digests := map[string]bool{i.Digest: true}
		for _, p := range have {
			ok = ok && !digests[p.Digest]
			digests[p.Digest] = true
		}
		i.Platforms = have
	}
	if !ok {
		return i.invalid("the result %s is not the digest of %s", compose.PlatformDigests,
			strings.Join(want, ", "))
	}
	return nil
}

// platformOf returns the platform whose image a task inspects or makes in a run for several
// platforms; the zero value for other tasks.
func (i *inspection) platformOf(t *task) (none api.PlatformStatus) {
	for _, p := range t.ordered.Params {
		for _, platform := range i.Platforms {
			if p.Name == templates.Platform && p.Value.StringVal == platform.Platform {
				return platform
			}
		}
	}
	return none
}
