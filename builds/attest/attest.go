// Package attest decides whether the controller may vouch for a run, and what it
// says then. It is pure: it looks at what was observed of an isolated run that ended, and
// gives a SLSA v1 provenance, or a refusal that names what does not match. It knows
// no clock, network or cluster.
//
// No tenant has rights where the run was, so what Tekton reports of it and of its TaskRuns
// is believed. The digest in the run's annotations pins what was ordered. What the steps of
// the run report about the image is compared with the order, and by the caller with the
// registry.
package attest

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// Observed is what was seen of an isolated run that ended.
type Observed struct {
	// Build as it is now.
	Build *api.AgentBuild
	// Run of the build.
	Run *tektonv1.PipelineRun
	// Pipeline that the run refers to, nil where the run embeds it.
	Pipeline *tektonv1.PipelineSpec
	// TaskRuns of the run by the task of the pipeline. Tasks that were skipped have none.
	TaskRuns map[string]*tektonv1.TaskRun
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
	// Level of SLSA's Build track.
	Level int32
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

// level returns the level of SLSA's Build track that a run of a pipeline meets:
//
//   - L1, provenance exists: it is made of every attested run, and attached to its image.
//   - L2, hosted and authentic: the controller signs it, with a key that neither a tenant nor
//     a step reaches. What is in it comes from the order, from Tekton and from the kubelet; the
//     digest is compared with the registry.
//   - L3, unforgeable: no container of the run has the key, or a token. The digest is reported by
//     a step of the platform that pushes what another task built, so that no program of the
//     author's is in the container that reports it. Where one is, the level is 2.
//   - L3, isolated: the run is where no tenant has rights, nothing in it outlives it, and it takes
//     no cache: compose refuses volumes, Secrets and caches that would. One build reaches another
//     neither through the cluster's API nor, where NetworkPolicies are enforced, over the network.
//
// Trusted are the API server, Tekton, the nodes, admission for the whole cluster, and the template
// with what it opens.
func level(p *tektonv1.PipelineSpec) int32 {
	for task := range tekton.Tasks(p) {
		if tekton.Reports(&task.TaskSpec.TaskSpec, "IMAGE_DIGEST") && !recipe.Declares(task.TaskSpec.Params, tekton.LayoutDigest) {
			return 2
		}
	}
	return 3
}

// refuse says why a run is not vouched for. It is final for that run.
func refuse(reason, hint, format string, args ...any) error {
	return finding.Place{}.Fault(reason, fmt.Sprintf(format, args...), hint)
}

const (
	rerun     = "start again with `armature build rerun`"
	changed   = "look which admission webhook or policy changes runs in the build namespace, and who may write there, then " + rerun
	wrongStep = "a step of the template does not report what it has to: see docs/builds-operate.md on steps, then " + rerun
)

// inspection is the state while one run is looked at.
type inspection struct {
	Observed
	// ordered is the spec that the run was composed from, as far as it shapes a run: the one
	// whose SHA-256 the controller noted on the run when it made it.
	ordered   api.AgentBuildSpec
	pipeline  tektonv1.PipelineSpec
	materials compose.Materials
	tasks     []*task // that ran, in the pipeline's order
	image     string
	digest    string
	// platforms of an index, nil for one image
	platforms []api.PlatformStatus
	bills     []Bill
	tests     []Test
	commit    string
}

// task is one task of the pipeline with what came of it.
type task struct {
	ordered tektonv1.PipelineTask
	run     *tektonv1.TaskRun
}

// result that a task reported, "" for none.
func (t *task) result(name string) string {
	for _, r := range t.run.Status.Results {
		if r.Name == name {
			return strings.TrimSpace(r.Value.StringVal)
		}
	}
	return ""
}

// declares reports whether a task has a result.
func (t *task) declares(name string) bool { return tekton.Reports(&t.ordered.TaskSpec.TaskSpec, name) }

// Check what was observed. The error is a refusal, which is final for the run: a
// *finding.Finding whose rule is one of the api.Reason constants.
func Check(o Observed) (*Built, error) {
	i := &inspection{Observed: o}
	var provenance sign.Provenance
	for _, look := range []func() error{i.checkRun, i.findPipeline, i.checkResults, i.findTests,
		func() (err error) { provenance, err = i.provenance(); return err }} {
		err := look()
		var refusal *finding.Finding
		if errors.As(err, &refusal) {
			refusal.Place = compose.Place(o.Build)
		}
		if err != nil {
			return nil, err
		}
	}
	return &Built{Image: i.image, Digest: i.digest, Platforms: i.platforms, Bills: i.bills, Tests: i.tests, Level: level(&i.pipeline), Provenance: provenance}, nil
}

// checkRun makes sure that the run is made of the spec as it is, as it was ordered, and over.
func (i *inspection) checkRun() error {
	run, build := i.Run, i.Build
	now, _ := compose.InputHashes(build, recipe.NoTemplate(), nil)
	if run.Annotations[keys.AnnotationSpec] != now {
		return refuse(api.ReasonSpecChanged, rerun, "the spec changed while run %s was under way, and the run is of the one before", run.Name)
	}
	i.ordered = compose.Shape(build)
	if want := run.Annotations[keys.AnnotationRunDigest]; want == "" || compose.RunDigest(&run.Spec) != want {
		return refuse(api.ReasonNotAsOrdered, changed, "the spec of run %s is not the one that was composed", run.Name)
	}
	if run.Spec.Status != "" {
		return refuse(api.ReasonNotAsOrdered, rerun, "run %s was asked to stop (%s)", run.Name, run.Spec.Status)
	}
	if c := run.Status.GetCondition("Succeeded"); !c.IsTrue() || run.Status.CompletionTime == nil || run.Status.StartTime == nil {
		return refuse(api.ReasonNotAsOrdered, changed, "run %s did not succeed", run.Name)
	}
	i.image, i.commit = run.Annotations[keys.AnnotationImage], run.Annotations[keys.AnnotationCommit]
	if want := compose.Image(build); i.image == "" || i.image != want {
		return refuse(api.ReasonNotAsOrdered, rerun, "run %s builds %q, and spec.buildOutput names %q", run.Name, i.image, want)
	}
	if !commitForm.MatchString(i.commit) {
		return refuse(api.ReasonNotAsOrdered, rerun, "run %s was not made for one commit", run.Name)
	}
	if err := json.Unmarshal([]byte(run.Annotations[keys.AnnotationMaterials]), &i.materials); err != nil || i.materials.Template.Digest == "" {
		return refuse(api.ReasonNotAsOrdered, changed, "run %s does not say which template it was composed from", run.Name)
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
		i.pipeline = *i.Run.Spec.PipelineSpec
	} else {
		want := i.Run.Annotations[keys.AnnotationPipelineDigest]
		if i.Pipeline == nil || want == "" || compose.PipelineDigest(i.Pipeline) != want {
			return refuse(api.ReasonNotAsOrdered, changed, "the Pipeline that run %s refers to is not the one that was composed", i.Run.Name)
		}
		i.pipeline = *i.Pipeline
	}
	for ordered := range tekton.Tasks(&i.pipeline) {
		if run := i.TaskRuns[ordered.Name]; run != nil {
			i.tasks = append(i.tasks, &task{*ordered, run})
		}
	}
	return nil
}

// checkResults finds the image's digest in what Tekton reports of the run.
func (i *inspection) checkResults() error {
	of := map[string][]string{} // values by the last part of the name
	for _, reported := range i.Run.Status.Results {
		for _, name := range []string{"IMAGE_DIGEST", "IMAGE_URL", "CHAINS-GIT_COMMIT", compose.PlatformDigests} {
			if reported.Name == name || strings.HasSuffix(reported.Name, "-"+name) { // the one of several tasks has its task's name
				of[name] = append(of[name], strings.TrimSpace(reported.Value.StringVal))
			}
		}
	}
	if len(of["IMAGE_DIGEST"]) != 1 {
		return refuse(api.ReasonResultInvalid, wrongStep, "%d tasks gave the result IMAGE_DIGEST, and one has to", len(of["IMAGE_DIGEST"]))
	}
	if i.digest = of["IMAGE_DIGEST"][0]; !digestForm.MatchString(i.digest) {
		return refuse(api.ReasonResultInvalid, wrongStep, "the result IMAGE_DIGEST is not a digest")
	}
	if slices.ContainsFunc(of["IMAGE_URL"], func(url string) bool { return url != i.image }) {
		return refuse(api.ReasonResultInvalid, wrongStep, "the result IMAGE_URL is not %s, which spec.buildOutput names", i.image)
	}
	if err := i.checkPlatforms(of[compose.PlatformDigests]); err != nil {
		return err
	}
	if commits := of["CHAINS-GIT_COMMIT"]; len(commits) != 1 || commits[0] != i.commit {
		return refuse(api.ReasonResultInvalid, wrongStep, "the result CHAINS-GIT_COMMIT is not the commit %s", i.commit)
	}
	return i.findBills()
}
