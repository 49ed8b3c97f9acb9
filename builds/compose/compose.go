// Package compose turns an AgentBuild, its template and its steps into a Tekton
// Pipeline and PipelineRun. It is pure: the same input gives the same bytes, and
// it knows no clock, network, environment or cluster.
package compose

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
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
	// QueueName labels runs with the LocalQueue of Kueue that decides when they begin;
	// empty labels none.
	QueueName string
	// PlainHTTPHosts are those, with or without a port, that a Git login is sent to
	// over http as well; all others get it over https and ssh alone.
	PlainHTTPHosts []string
	// CreateServiceAccount makes ServiceAccountName, without any rights, for
	// builds that name none.
	CreateServiceAccount bool
}

// Input is all that composition looks at.
type Input struct {
	Build *api.AgentBuild
	// Place of the build, such as its file and line. The zero Place means its kind
	// and name.
	Place    krm.Place
	Template *Template
	// Steps by ConfigMap name; StepNames says which are needed.
	Steps    map[string]*StepFile
	Settings Settings

	// Platform is the namespace of the platform's templates and steps; empty where
	// no cluster is, and then all are the platform's.
	Platform string
	// Commit that the revision was resolved to; empty where no network is, and
	// then the revision is passed on as written.
	Commit string
	// Ref is the full name of the branch that Commit was the head of; empty where that
	// is not known.
	Ref string
	// Verified are the policies that Commit was found to satisfy; nil where there is none.
	Verified []api.SourceVerification
	// Attempt from 1; zero means 1.
	Attempt int32
	// Trigger is the reason to start; it is noted on the run. Number distinguishes
	// this run from the others of its build, and is a part of its name; zero where no
	// cluster is.
	Trigger api.Trigger
	Number  int32
	// SecretKeys of the Secrets that the build names, where they are known.
	SecretKeys map[string][]string
	// Verdicts spares the validation of what was found right before. It may be
	// nil.
	Verdicts *Verdicts
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
	// Warnings are worth a look, but are not errors.
	Warnings []string
	// BuilderBecause says why another builder than the template's builds, where the
	// build does not name it; else it is empty.
	BuilderBecause string

	pipelineText string // Pipeline.Spec as JSON
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
		run.Spec.PipelineSpec = json.RawMessage(o.pipelineText)
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

// labelQueue of Kueue names the LocalQueue of an object. Tekton copies it to the pods.
const labelQueue = "kueue.x-k8s.io/queue-name"

// RunAnnotations are all annotations that a run gets from us, beside its build's.
var RunAnnotations = []string{keys.AnnotationBuild, keys.AnnotationSpec, keys.AnnotationTemplate, keys.AnnotationCommit, keys.AnnotationAttempt, keys.AnnotationRerun, keys.AnnotationTrigger,
	keys.AnnotationNumber, keys.AnnotationImage, keys.AnnotationSource, keys.AnnotationMaterials, keys.AnnotationRunDigest,
	keys.AnnotationPipelineDigest, keys.AnnotationRef, keys.AnnotationVerified, keys.AnnotationProof}

// composition is the state while one build is composed.
type composition struct {
	in       Input
	problems *findings
	steps    []*plannedStep
	spec     derived
	used     map[string]bool // pipeline parameters that a task refers to
	taken    map[string]bool // user parameters that a step declares
	faulty   map[string]bool // pipeline tasks that a finding is about
	warnings []string
	taskIn   map[string]*plannedStep
	podOf    map[string]string // a step that is a part of another one's task, and that task
	broken   bool              // a step could not be read, which its reader reported

	texts []string // what shapes the run: its spec, its pipeline, its annotations and labels
}

// plannedStep is one enabled step on its way to a pipeline task.
type plannedStep struct {
	row      TemplateStep
	rowIndex int // in the template, or -1
	user     *api.Step
	userAt   int
	file     *StepFile
	task     tektonv1.PipelineTask
	// platform that the task makes the image of, empty for none in particular
	platform string
	// known values of the task's parameters, for checks before the run
	known map[string]tektonv1.ParamValue
}

// Pipeline composes a build. The error lists all that is wrong at once, as
// Findings. There is no output for a step that ReadStep refused, either.
func Pipeline(in Input) (*Output, error) {
	if in.Attempt == 0 {
		in.Attempt = 1
	}
	c := &composition{in: in, problems: &findings{}, used: map[string]bool{}, taken: map[string]bool{}, faulty: map[string]bool{}, taskIn: map[string]*plannedStep{}}
	c.checkBuilder(in.Template)
	builder, because := builderOf(in.Build, in.Template, in.Steps)
	if because != "" {
		because = fmt.Sprintf("%s: the builder is %s: %s", c.buildPlace(), builder, because)
	}
	c.in.Template = in.Template.forBuild(in.Build, in.Steps)
	c.spec = derive(c.in)
	c.checkBuild()
	c.plan()
	for _, s := range c.steps {
		c.compose(s)
	}
	c.order()
	c.checkUserParameters()
	c.checkRoles()
	c.checkLogin()
	c.checkPlatforms()
	c.fanOut()
	pipeline := c.pipeline()
	c.bindWorkspaces(pipeline)
	c.sharePods(pipeline)
	c.ownSources(pipeline)
	scriptsAsCommands(pipeline.Spec.Tasks)
	scriptsAsCommands(pipeline.Spec.Finally)
	run, claim := c.run(pipeline)
	apply := c.apply(pipeline, claim)
	c.check(pipeline, run)
	needs := c.needs()
	if err := c.problems.err(); err != nil || c.broken {
		return nil, err
	}
	return &Output{Pipeline: pipeline, Run: run, Apply: apply, Needs: needs, Warnings: c.warnings, BuilderBecause: because, pipelineText: c.texts[1]}, nil
}

// buildPlace is where the AgentBuild is.
func (c *composition) buildPlace() krm.Place {
	if c.in.Place != (krm.Place{}) {
		return c.in.Place
	}
	return krm.Place{Object: krm.Ref{Kind: api.Kind, Namespace: c.in.Build.Namespace, Name: c.in.Build.Name}}
}

// fault notes a problem of a pipeline task; task is empty where none is at fault.
func (c *composition) fault(task string, found *krm.Finding) {
	if task != "" {
		c.faulty[task] = true
	}
	c.problems.add(found)
}

// bad notes a problem of the AgentBuild itself.
func (c *composition) bad(reason, field, message, hint string) {
	c.problems.add(c.buildPlace().At(field).Fault(reason, message, hint))
}

// rows merges the template's steps with the build's and drops the disabled.
func (c *composition) rows() []*plannedStep {
	template := c.in.Template
	var user []api.Step
	if c.in.Build.Spec.Pipeline != nil {
		user = c.in.Build.Spec.Pipeline.Steps
	}
	inTemplate := map[string]int{}
	for i, s := range template.Steps {
		inTemplate[s.Name] = i
	}
	complete := listsAll(c.in.Build)
	var all []*plannedStep
	if complete {
		for i := range user {
			s := &plannedStep{rowIndex: -1, user: &user[i], userAt: i, row: TemplateStep{Name: user[i].Name}}
			if at, ok := inTemplate[user[i].Name]; ok {
				s.row, s.rowIndex = template.Steps[at], template.Steps[at].index
			}
			all = append(all, s)
		}
	} else {
		byName := map[string]int{}
		for i, u := range user {
			byName[u.Name] = i
			if _, ok := inTemplate[u.Name]; !ok {
				c.bad(api.ReasonStepNotFound, fmt.Sprintf("spec.pipeline.steps[%d].name", i),
					fmt.Sprintf("the template %s has no step %q", template.doc.from, u.Name),
					"use one of "+strings.Join(stepNames(template), ", ")+", or name the step's configMap")
			}
		}
		for _, row := range template.Steps {
			s := &plannedStep{row: row, rowIndex: row.index}
			if at, ok := byName[row.Name]; ok {
				s.user, s.userAt = &user[at], at
			}
			all = append(all, s)
		}
	}
	var enabled []*plannedStep
	for _, s := range all {
		on := s.row.Enabled == nil || *s.row.Enabled
		if u := s.user; u != nil {
			if u.ConfigMap != "" {
				s.row.ConfigMap = u.ConfigMap
			}
			if u.Enabled != nil {
				on = *u.Enabled
			} else if complete {
				on = true
			}
			if u.RequiredParameters != nil {
				s.row.RequiredParameters = u.RequiredParameters
			}
			if u.WhenExpressions != nil {
				s.row.WhenExpressions = u.WhenExpressions
			}
		}
		if on {
			enabled = append(enabled, s)
		}
	}
	return enabled
}

// listsAll reports whether the build's steps are the whole pipeline.
func listsAll(b *api.AgentBuild) bool {
	return b.Spec.Pipeline != nil && slices.ContainsFunc(b.Spec.Pipeline.Steps, func(s api.Step) bool { return s.ConfigMap != "" })
}

func stepNames(t *Template) []string {
	names := make([]string, len(t.Steps))
	for i, s := range t.Steps {
		names[i] = s.Name
	}
	return names
}

// rowPlace is where a step is asked for: in the template or in the build.
func (c *composition) rowPlace(s *plannedStep) krm.Place {
	if s.rowIndex >= 0 {
		return c.in.Template.doc.place(fmt.Sprintf("steps[%d]", s.rowIndex))
	}
	return c.buildPlace().At(fmt.Sprintf("spec.pipeline.steps[%d]", s.userAt))
}

// plan finds the file of each step.
func (c *composition) plan() {
	rows := c.rows()
	c.dropReferences(rows)
	for _, s := range rows {
		place := c.rowPlace(s)
		if s.row.ConfigMap == "" && c.in.Template.broken {
			c.broken = true
			continue
		}
		if s.row.ConfigMap == "" {
			c.problems.add(place.Fault(api.ReasonStepNotFound,
				fmt.Sprintf("step %q names no configMap, and the template has no step of that name", s.row.Name),
				"name the ConfigMap that holds the step's task-spec.yaml"))
			continue
		}
		s.file = c.in.Steps[s.row.ConfigMap]
		if s.file == nil {
			c.problems.add(place.At(place.Field+".configMap").Fault(api.ReasonStepNotFound,
				fmt.Sprintf("step ConfigMap %q does not exist", s.row.ConfigMap),
				"create it in the build's or the controller's namespace, correct the name, or disable the step"))
			continue
		}
		if s.file.broken {
			c.broken = true
			continue
		}
		c.steps = append(c.steps, s)
		c.taskIn[s.row.Name] = s
	}
	if len(c.steps) == 0 && len(c.problems.found) == 0 && !c.broken {
		c.problems.add(c.in.Template.doc.place("steps").Fault(api.ReasonInvalidTemplate,
			"no step is enabled, so there is nothing to run", "enable a step, or list steps in spec.pipeline.steps"))
	}
}

// compose makes the pipeline task of one step.
func (c *composition) compose(s *plannedStep) {
	spec := *s.file.Task.DeepCopy()
	s.task = tektonv1.PipelineTask{
		Name:     s.row.Name,
		TaskSpec: &tektonv1.EmbeddedTask{TaskSpec: spec},
		Retries:  s.row.Retries,
		OnError:  s.row.OnError,
		Timeout:  s.row.Timeout,
	}
	for _, w := range s.row.WhenExpressions {
		s.task.When = append(s.task.When, tektonv1.WhenExpression{Input: w.Input, Operator: operators[w.Operator], Values: w.Values})
	}
	c.parameters(s)
	// A value or a when-expression may use what the spec says, too.
	for _, m := range paramReference().FindAllStringSubmatch(mustJSON(s.task.Params)+mustJSON(s.task.When), -1) {
		if name := m[1] + m[2]; c.spec.values[name].Type != "" {
			c.used[name] = true
		}
	}
	c.mapImages(s)
	c.mountSecrets(s)
}

// order sets what each task waits for: the step before it, or what its row says.
func (c *composition) order() {
	before := map[string][]string{} // replacements of a step that is left out
	rows := c.in.Template.Steps
	enabled := map[string]bool{}
	for _, s := range c.steps {
		enabled[s.row.Name] = true
	}
	var expand func(name string, seen map[string]bool) []string
	expand = func(name string, seen map[string]bool) []string {
		if enabled[name] || seen[name] {
			return []string{name}
		}
		seen[name] = true
		for i, row := range rows {
			if row.Name != name {
				continue
			}
			after := before[name]
			switch {
			case row.RunAfter != nil:
				after = *row.RunAfter
			case i > 0:
				after = []string{rows[i-1].Name}
			}
			var out []string
			for _, a := range after {
				out = append(out, expand(a, seen)...)
			}
			return out
		}
		return []string{name}
	}
	last := ""
	for _, s := range c.steps {
		if s.row.Finally {
			continue
		}
		switch {
		case s.row.RunAfter != nil:
			added := map[string]bool{}
			for _, name := range *s.row.RunAfter {
				for _, real := range expand(name, map[string]bool{}) {
					if !added[real] {
						added[real] = true
						s.task.RunAfter = append(s.task.RunAfter, real)
					}
				}
			}
		case last != "":
			s.task.RunAfter = []string{last}
		}
		last = s.row.Name
	}
}

// NoTemplate takes the place of a template that could not be read.
func NoTemplate() *Template { return &Template{doc: &document{}} }
