// Package compose turns an AgentBuild, its template and its steps into a Tekton
// Pipeline and PipelineRun. It is pure: equal input produces equal output, and
// it knows no clock, network, environment or cluster.
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

// Settings are what the operator of a controller decides for all builds.
type Settings struct {
	// Group of AgentBuild; empty means api.DefaultGroup.
	Group string
	// ServiceAccountName for builds that name none; empty leaves it to Tekton.
	ServiceAccountName string
	// Timeout for builds and templates that name none; zero leaves it to Tekton.
	Timeout time.Duration
	// ImageMirror is the registry that serves all step images, such as
	// mirror.local/hub: gcr.io/a/b:1 becomes mirror.local/hub/gcr.io/a/b:1.
	ImageMirror string
	// ControllerImage runs the steps whose image is $(controller.image), unchanged by
	// ImageMirror and ImagePins; empty is the latest of ControllerRepository.
	ControllerImage string
	// ImagePins maps step images as written to the digest they are pinned to.
	ImagePins map[string]string
	// PipelineObjects makes a Pipeline object that the run refers to, for
	// clusters that forbid embedded specs (disable-inline-spec).
	PipelineObjects bool
	// PlainHTTPHosts are those, with or without a port, that a Git login is sent to
	// over http as well; all others get it over https and ssh alone.
	PlainHTTPHosts []string
	// BuildNamespace of the platform is where the runs of templates that isolate are created;
	// empty means that there are none in a cluster.
	BuildNamespace string
	// RuntimeClass of the pods of isolated runs; empty leaves it to the cluster.
	RuntimeClass string
	// ShardLabel is the label of a build that its runs have, too; empty for none.
	ShardLabel string
	// CreateServiceAccount makes ServiceAccountName, without any rights, for
	// builds that name none.
	CreateServiceAccount bool
}

func (s Settings) group() string { return cmp.Or(s.Group, api.DefaultGroup) }

// Input is all that composition looks at.
type Input struct {
	Build *api.AgentBuild
	// Place of the build, such as its file and line. The zero Place means its kind
	// and name.
	Place    finding.Place
	Template *templates.Template
	// Steps by ConfigMap name; StepNames says which are needed.
	Steps    map[string]*templates.Step
	Settings Settings

	// Platform is the namespace of the platform's templates and steps; empty where
	// no cluster is, and then all are the platform's.
	Platform string
	// Resolves says that Output.Resolve follows, so that steps take the commit of the revision.
	Resolves bool
	Resolved
	// Attempt from 1; zero means 1.
	Attempt int32
	// Number distinguishes this run from the others of its build, and is a part of its name;
	// zero where no cluster is.
	Number int32
	// Verdicts spares the validation of what was found right before. It may be
	// nil.
	Verdicts *Verdicts
}

// Resolved holds the answers of servers about a build whose spec is valid and whose needs exist.
type Resolved struct {
	// Commit that the revision was resolved to; empty where no network is, and
	// then the revision is passed on as written.
	Commit string
	// Ref is the full name of the branch that Commit was the head of; empty where that
	// is not known.
	Ref string
	// Verified are the policies that Commit was found to satisfy; nil where there is none.
	Verified []api.SourceVerification
	// Trigger is the reason to start; it is noted on the run.
	Trigger api.Trigger
	// SecretKeys of the Secrets that the build names, where they are known.
	SecretKeys map[string][]string
}

// Output is one composed build, to be read alone: its objects share parts with
// each other and with the Input, which spares each build of a burst the copies.
// Changed, it would not be what was judged, and what its names are hashes of.
type Output struct {
	// Pipeline by content; Run.Spec.PipelineSpec is its spec, the same object,
	// unless Settings.PipelineObjects.
	Pipeline *tektonv1.Pipeline
	Run      *tektonv1.PipelineRun
	// Apply holds what is applied before the run, in this order: the
	// ServiceAccount, the kept volume, the Pipeline. Mostly it is empty.
	Apply []Object
	// Needs are the objects that must exist before the run.
	Needs []Need
	// Copies are the Secrets that the run reads under another name in its own namespace.
	Copies []Copy
	// Warnings are worth a look, but are not errors.
	Warnings []string
	// BuilderBecause says why another builder than the template's builds, where the
	// build does not name it; else it is empty.
	BuilderBecause string

	by *composer
}

// Held reports whether the run is created pending, because objects that it needs follow.
func (o *Output) Held() bool {
	return len(o.Copies) > 0 || o.Run.Spec.PipelineRef != nil && len(o.Run.OwnerReferences) == 0
}

// RunJSON is Run as JSON. It takes the text of the pipeline, which is most of it,
// as composition made it.
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

// Object of the Kubernetes API.
type Object interface {
	metav1.Object
	runtime.Object
}

// The label of a run that says who made it. Its other labels and annotations are
// in functions/api/keys.
const (
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "armature"
)

// RunAnnotations are all annotations that a run gets from us, beside its build's.
var RunAnnotations = []string{keys.AnnotationBuild, keys.AnnotationSpec, keys.AnnotationTemplate,
	keys.AnnotationCommit, keys.AnnotationAttempt, keys.AnnotationRerun, keys.AnnotationTrigger,
	keys.AnnotationNumber, keys.AnnotationImage, keys.AnnotationSource, keys.AnnotationMaterials,
	keys.AnnotationRunDigest, keys.AnnotationPipelineDigest, keys.AnnotationRef,
	keys.AnnotationVerified, keys.AnnotationBuildNamespace, keys.AnnotationBuildUID}

// composer makes the run of one build, and collects all that is wrong with it, so that a user
// sees all of it at once.
type composer struct {
	Input
	builder string
	spec    derived
	steps   []step
	// broken says that a step could not be read, which its reader reported.
	broken   bool
	pipeline tektonv1.PipelineSpec
	text     string // pipeline as JSON
	size     int    // of what shapes the run: its spec, its pipeline, its annotations and labels
	// podOf is the task that a step is a part of, if that is another one's.
	podOf    map[string]string
	found    []*finding.Finding
	faulty   map[string]bool // tasks that something was found in
	warnings []string
}

// fault notes what is wrong at a place, and the task that it is about; empty for none.
func (c *composer) fault(task string, at finding.Place, reason, hint, format string, args ...any) {
	c.found = append(c.found, at.Fault(reason, fmt.Sprintf(format, args...), hint))
	c.faulty[task] = true
}

// bad notes a problem of the AgentBuild itself.
func (c *composer) bad(reason, field, hint, format string, args ...any) {
	c.fault("", c.Place.At(field), reason, hint, format, args...)
}

// invalid notes a field of the AgentBuild that is not valid.
func (c *composer) invalid(field, hint, format string, args ...any) {
	c.bad(api.ReasonInvalidBuild, field, hint, format, args...)
}

func (c *composer) warn(format string, args ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf(format, args...))
}

// whole reports whether nothing was found.
func (c *composer) whole() bool { return len(c.found) == 0 && !c.broken }

// Pipeline composes a build. The error lists all that is wrong at once, as
// findings.Of has it. There is no output for a step that templates.ReadStep refused, either.
func Pipeline(in Input) (*Output, error) {
	c := &composer{Input: in, faulty: map[string]bool{}}
	c.Attempt, c.Place = cmp.Or(in.Attempt, 1), cmp.Or(in.Place, Place(in.Build))

	// The template, with the steps of one builder, and what the spec says.
	checkBuilder(c)
	builder, because := c.Template.BuilderOf(c.Build, c.Steps)
	if c.builder = builder; because != "" {
		because = fmt.Sprintf("%s: the builder is %s: %s", c.Place, builder, because)
	}
	c.Template = c.Template.ForBuild(c.Build, c.Steps)
	c.spec = derive(c)
	checkBuild(c)

	// The steps that the template and the build ask for, each as a task.
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

	// What a build may not decide, before a step becomes the tasks of several platforms.
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

	// The pipeline of these tasks. Only a whole one is changed further.
	assemble(c)
	bindWorkspaces(c)
	if c.whole() {
		sharePods(c)
		takeOwnSources(c)
	}
	for task := range tekton.Tasks(&c.pipeline) {
		*task = tekton.InlineScripts(*task)
	}

	// The run, and what has to exist before it.
	c.text = tekton.JSON(c.pipeline) // which is most of a run, so it is made once
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

// Resolve completes a build that was composed before servers were asked, without composing it
// again.
func (o *Output) Resolve(r Resolved) error {
	c := o.by
	c.Resolved, c.found = r, nil
	c.spec = derive(c)
	makeRun(c, o)
	return findings.Error(c.found)
}

// Place of a build, where the fields of its spec are found.
func Place(b *api.AgentBuild) finding.Place {
	return finding.Place{Object: finding.Ref{Kind: api.Kind, Namespace: b.Namespace, Name: b.Name}}
}
