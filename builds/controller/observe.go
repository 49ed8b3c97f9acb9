package controller

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/krm"
)

// seen is everything that a decision about one build looks at.
type seen struct {
	build *api.AgentBuild
	group string
	// runs of this build, newest first.
	runs []run
	// template and steps; nil if problem says why.
	template *compose.Template
	steps    map[string]*compose.StepFile
	problem  error
	// want is what a run of today's spec and template would be made from.
	// TemplateHash is empty when the template could not be read.
	want api.Inputs
	// turn is how long a run for a changed template has to wait.
	turn time.Duration
	now  time.Time
}

// observe gathers what concerns a build from the caches; only a ConfigMap that
// changed is read from the API server. It is nil when the build is gone.
func (r *Reconciler) observe(ctx context.Context, key types.NamespacedName) (*seen, error) {
	build := &api.AgentBuild{}
	if err := r.Client.Get(ctx, key, build); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading AgentBuild %s: %w", key, err)
	}
	s := &seen{build: build, group: r.Settings.Group, now: time.Now()}
	var err error
	if s.runs, err = r.cachedRuns(ctx, build); err != nil {
		return nil, err
	}
	if !build.DeletionTimestamp.IsZero() {
		return s, nil
	}
	s.want.Rerun = build.Annotations[api.RerunAnnotation(s.group)]
	if err := r.readTexts(ctx, s); err != nil {
		return s, err
	}
	if whyStart(s, knownInputs(s)) == api.TriggerTemplate {
		s.turn = r.rebuilds.turn(key, s.now)
	} else {
		r.rebuilds.leave(key)
	}
	return s, nil
}

// readTexts finds the template and the steps. What a user must fix goes to
// s.problem; the error is for faults that may pass by themselves.
func (r *Reconciler) readTexts(ctx context.Context, s *seen) error {
	b := s.build
	namespaces := r.lookup(b)
	name := compose.TemplateName(b.Spec.Mode)
	// What the platform attests is the platform's, whatever the build names.
	text, err := r.texts.get(ctx, r, []string{r.Namespace}, name, true)
	if err != nil {
		return err
	}
	if text != nil && (text.template == nil || text.template.Attest) {
		namespaces = []string{r.Namespace}
	}
	text, err = r.texts.get(ctx, r, namespaces, name, true)
	if err != nil {
		return err
	}
	if text == nil {
		s.problem = place(b).At("spec.mode").Fault(api.ReasonTemplateNotFound,
			fmt.Sprintf("template ConfigMap %q does not exist in the namespaces %v", name, namespaces),
			"create it, correct spec.mode or spec.pipeline.namespace, or install the shipped templates with `armature install`")
		s.want.SpecHash = specHash(b)
		return nil
	}
	if text.template == nil {
		s.problem = text.err
		s.want.SpecHash = specHash(b)
		return nil
	}
	s.template = text.template
	problems := []error{text.err}
	complete := true
	s.steps = map[string]*compose.StepFile{}
	faults := map[string]error{}
	for _, name := range compose.StepNames(b, s.template) {
		step, err := r.texts.get(ctx, r, namespaces, name, false)
		if err != nil {
			return err
		}
		if step != nil {
			s.steps[name], faults[name] = step.step, step.err
		}
	}
	for _, name := range compose.UsedSteps(b, s.template, s.steps) {
		if _, exists := s.steps[name]; !exists {
			complete = false // composition names it, if a run is due
		}
		problems = append(problems, faults[name])
	}
	s.problem = compose.Join(problems...)
	s.want.SpecHash, s.want.TemplateHash = compose.InputHashes(b, s.template, s.steps)
	s.want.SourceHash = compose.SourceHash(b, s.template)
	if !complete || s.problem != nil {
		// Nothing can be built from this, so it does not cause another build: a
		// finished build stays as it is while somebody edits its steps.
		s.want.TemplateHash = ""
	}
	return nil
}

// specHash when there is no template to go with it.
func specHash(b *api.AgentBuild) string {
	hash, _ := compose.InputHashes(b, compose.NoTemplate(), nil)
	return hash
}

// lookup lists where templates and steps are sought, in this order.
func (r *Reconciler) lookup(b *api.AgentBuild) []string {
	var out []string
	add := func(namespace string) {
		for _, have := range out {
			if have == namespace {
				return
			}
		}
		if namespace != "" {
			out = append(out, namespace)
		}
	}
	if b.Spec.Pipeline != nil {
		add(b.Spec.Pipeline.Namespace)
	}
	add(r.Namespace)
	add(b.Namespace)
	return out
}

func place(b *api.AgentBuild) krm.Place {
	return krm.Place{Object: krm.Ref{Kind: api.Kind, Namespace: b.Namespace, Name: b.Name}}
}
