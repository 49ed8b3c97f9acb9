// Package compose turns an AgentBuild, its template and its steps into a Tekton Pipeline and
// PipelineRun. It is pure: equal input produces equal output, and it reads no clock, network,
// environment or cluster.
package compose

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
)

// Settings holds the decisions of a controller's operator for all builds.
type Settings struct {
	// Group of AgentBuild; empty means api.DefaultGroup.
	Group string
	// ServiceAccountName for builds that name none; empty leaves it to Tekton.
	ServiceAccountName string
	// Timeout for builds and templates that name none; zero leaves it to Tekton.
	Timeout time.Duration
	// ImageMirror is the registry that serves all step images. With mirror.local/hub, gcr.io/a/b:1
	// becomes mirror.local/hub/gcr.io/a/b:1.
	ImageMirror string
	// ControllerImage runs the steps whose image is $(controller.image). ImageMirror and
	// ImagePins do not change it. Empty means the latest image of ControllerRepository.
	ControllerImage string
	// ImagePins maps step images, as the steps write them, to digests.
	ImagePins map[string]string
	// PipelineObjects creates a Pipeline object that the run refers to, for clusters that forbid
	// embedded specs (disable-inline-spec).
	PipelineObjects bool
	// PlainHTTPHosts lists hosts, with or without a port, that receive a Git login over http as
	// well; all other hosts receive it over https and ssh only.
	PlainHTTPHosts []string
	// BuildNamespace is the platform's namespace for the runs of isolating templates. If it is
	// empty, a cluster refuses these builds.
	BuildNamespace string
	// RuntimeClass of the pods of isolated runs; empty leaves it to the cluster.
	RuntimeClass string
	// ShardLabel is the label of a build that is copied to its runs; empty for none.
	ShardLabel string
	// CreateServiceAccount creates ServiceAccountName, without any rights, for builds that name
	// no ServiceAccount.
	CreateServiceAccount bool
}

func (s Settings) group() string { return cmp.Or(s.Group, api.DefaultGroup) }

// Input holds everything that composition reads.
type Input struct {
	Build *api.AgentBuild
	// Place is the file and line of the build. The zero Place means its kind and name.
	Place    finding.Place
	Template *templates.Template
	// Steps by ConfigMap name; StepNames returns the names that are needed.
	Steps    map[string]*templates.Step
	Settings Settings

	// Platform is the namespace of the platform's templates and steps. It is empty without a
	// cluster; then all templates and steps are the platform's.
	Platform string
	// Resolves announces a call of Output.Resolve, so that steps take the commit of the revision.
	Resolves bool
	Resolved
	// Attempt from 1; zero means 1.
	Attempt int32
	// Number distinguishes this run from other runs of its build, and is a part of its name. It
	// is zero without a cluster.
	Number int32
	// Verdicts caches pipelines that were found valid. It may be nil.
	Verdicts *Verdicts
}

// Resolved holds the answers of servers about a build whose spec is valid and whose needs exist.
type Resolved struct {
	// Commit is the commit of the revision. It is empty without a network; then the steps get
	// the revision as written.
	Commit string
	// Ref is the full name of the branch whose head was Commit; empty if it is not known.
	Ref string
	// Verified are the policies that Commit satisfies; nil if there are none.
	Verified []api.SourceVerification
	// Trigger is the reason to start; it is recorded on the run.
	Trigger api.Trigger
	// SecretKeys has the keys of the build's Secrets by name, as far as they are known.
	SecretKeys map[string][]string
}

// Output is one composed build. It is read-only: its objects share memory with each other and with
// the Input, which avoids copies in a burst of builds, and the names of its objects are hashes of
// the content that was validated.
type Output struct {
	// Pipeline is named by its content. Run.Spec.PipelineSpec points to its spec unless
	// Settings.PipelineObjects is set.
	Pipeline *tektonv1.Pipeline
	Run      *tektonv1.PipelineRun
	// Apply holds the objects to apply before the run, in this order: the ServiceAccount, the
	// kept volume, the Pipeline. Mostly it is empty.
	Apply []Object
	// Needs are the objects that must exist before the run.
	Needs []Need
	// Copies are the Secrets that the run reads under another name in its own namespace.
	Copies []Copy
	// Warnings are messages about the build that are not errors.
	Warnings []string
	// BuilderBecause explains the choice of another builder than the template's default if the
	// build does not name one; otherwise it is empty.
	BuilderBecause string

	by *composer
}

// Held reports whether the run is created pending, because objects that it needs are created later.
func (o *Output) Held() bool {
	return len(o.Copies) > 0 || o.Run.Spec.PipelineRef != nil && len(o.Run.OwnerReferences) == 0
}

// RunJSON returns Run as JSON. It reuses the JSON of the pipeline, which is most of the text.
func (o *Output) RunJSON() ([]byte, error) {
	run := struct {
		metav1.TypeMeta
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			tektonv1.PipelineRunSpec
			PipelineSpec json.RawMessage `json:"pipelineSpec,omitempty"`
		} `json:"spec"`
	}{TypeMeta: o.Run.TypeMeta, ObjectMeta: o.Run.ObjectMeta}
	run.Spec.PipelineRunSpec = o.Run.Spec
	if o.Run.Spec.PipelineSpec != nil {
		run.Spec.PipelineSpec = json.RawMessage(o.by.text)
	}
	return json.Marshal(run)
}

// Object is an object of the Kubernetes API.
type Object interface {
	metav1.Object
	runtime.Object
}

// The label that identifies the creator of a run. The other labels and annotations of runs are in
// functions/api/keys.
const (
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "armature"
)

// RunAnnotations lists the annotations that Armature sets on runs.
var RunAnnotations = []string{keys.AnnotationBuild, keys.AnnotationSpec, keys.AnnotationTemplate,
	keys.AnnotationCommit, keys.AnnotationAttempt, keys.AnnotationRerun, keys.AnnotationTrigger,
	keys.AnnotationNumber, keys.AnnotationImage, keys.AnnotationSource, keys.AnnotationMaterials,
	keys.AnnotationRunDigest, keys.AnnotationPipelineDigest, keys.AnnotationRef,
	keys.AnnotationVerified, keys.AnnotationBuildNamespace, keys.AnnotationBuildUID}

// composer composes the run of one build and collects all problems, so that a user sees them
// together.
type composer struct {
	Input
	builder string
	spec    derived
	steps   []step
	// broken is set if a step could not be read; templates.ReadStep reports the problem.
	broken   bool
	pipeline tektonv1.PipelineSpec
	text     string // pipeline as JSON
	size     int    // bytes of the run's spec, pipeline, annotations and labels
	// podOf maps a step to the task of another step that it is a part of.
	podOf    map[string]string
	found    []*finding.Finding
	faulty   map[string]bool // tasks with findings
	warnings []string
}

// fault adds a finding at a place and marks its task as faulty. The task may be empty.
func (c *composer) fault(task string, at finding.Place, reason, hint, format string, args ...any) {
	c.found = append(c.found, at.Fault(reason, fmt.Sprintf(format, args...), hint))
	c.faulty[task] = true
}

// bad adds a finding about a field of the AgentBuild.
func (c *composer) bad(reason, field, hint, format string, args ...any) {
	c.fault("", c.Place.At(field), reason, hint, format, args...)
}

// invalid adds a finding about an invalid field of the AgentBuild.
func (c *composer) invalid(field, hint, format string, args ...any) {
	c.bad(api.ReasonInvalidBuild, field, hint, format, args...)
}

func (c *composer) warn(format string, args ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf(format, args...))
}

// whole reports whether there are no findings.
func (c *composer) whole() bool { return len(c.found) == 0 && !c.broken }

// Pipeline composes a build. The error lists all findings together; findings.Of returns them. The
// output is nil, too, if templates.ReadStep refused a step.
func Pipeline(in Input) (*Output, error) {
	c := &composer{Input: in, faulty: map[string]bool{}}
	c.Attempt, c.Place = cmp.Or(in.Attempt, 1), cmp.Or(in.Place, Place(in.Build))

	// Reduce the template to the steps of one builder, and derive parameters from the spec.
	checkBuilder(c)
	builder, because := c.Template.BuilderOf(c.Build, c.Steps)
	if c.builder = builder; because != "" {
		because = fmt.Sprintf("%s: the builder is %s: %s", c.Place, builder, because)
	}
	c.Template = c.Template.ForBuild(c.Build, c.Steps)
	c.spec = derive(c)
	checkBuild(c)

	// Make a task of each step that the template and the build ask for.
	listRows(c)
	dropLeftOut(c)
	readFiles(c)
	if len(c.steps) == 0 && c.whole() {
		c.fault("", c.Template.Doc.At("steps"), api.ReasonInvalidTemplate,
			"enable a step, or list steps in spec.pipeline.steps",
			"no step is enabled, so there is nothing to run")
	}
	for i := range c.steps {
		makeTask(c, &c.steps[i])
	}
	order(c)

	// Check the rules for builds before a step becomes the tasks of several platforms.
	checkUserParameters(c)
	checkAttestingSteps(c)
	checkHanded(c)
	if c.Template.Isolates() {
		checkFromPlatform(c)
		checkLocked(c)
	}
	checkLogin(c)
	checkPlatforms(c)
	fanOut(c)

	// Assemble the pipeline from these tasks. Only a pipeline without findings is changed further.
	assemble(c)
	bindWorkspaces(c)
	if c.whole() {
		sharePods(c)
		takeOwnSources(c)
	}
	for task := range tekton.Tasks(&c.pipeline) {
		*task = tekton.InlineScripts(*task)
	}

	// Make the run, and list the objects that have to exist before it.
	c.text = tekton.JSON(c.pipeline) // most of a run, so it is marshalled once
	out := &Output{BuilderBecause: because, by: c}
	makeRun(c, out)
	warnOfClaims(c, out)
	checkFork(c, out)
	checkIsolated(c, out)
	check(c, out)
	if !c.whole() {
		return nil, findings.Error(c.found)
	}
	out.Needs, out.Warnings = needs(c), c.warnings
	out.Copies = copies(c, out.Needs)
	return out, nil
}

// Resolve completes a build with the answers of servers, without composing it again.
func (o *Output) Resolve(r Resolved) error {
	c := o.by
	c.Resolved, c.found = r, nil
	c.spec = derive(c)
	makeRun(c, o)
	return findings.Error(c.found)
}

// Place returns the place of a build, from which the places of its fields follow.
func Place(b *api.AgentBuild) finding.Place {
	return finding.Place{Object: finding.Ref{Kind: api.Kind, Namespace: b.Namespace, Name: b.Name}}
}
