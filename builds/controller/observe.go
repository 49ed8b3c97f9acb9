package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
)

// seen is everything that a decision about one build looks at.
type seen struct {
	build *api.AgentBuild
	group string
	// runs of this build, newest first.
	runs []run
	// template and steps; nil when problem tells why.
	template *compose.Template
	steps    map[string]*compose.StepFile
	problem  error
	// want is what a run of today's spec and template would be made from.
	// TemplateHash is empty when the template could not be read.
	want api.Inputs
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
	s := &seen{build: build, group: r.Settings.Group, now: r.now()}
	var err error
	if s.runs, err = r.cachedRuns(ctx, build); err != nil {
		return nil, err
	}
	if !build.DeletionTimestamp.IsZero() {
		return s, nil
	}
	s.want.Rerun = build.Annotations[api.RerunAnnotation(s.group)]
	return s, r.readTexts(ctx, s)
}

// readTexts finds the template and the steps. What a user must mend goes to
// s.problem; the error is for what may pass by itself.
func (r *Reconciler) readTexts(ctx context.Context, s *seen) error {
	b := s.build
	namespaces := r.lookup(b)
	name := compose.TemplateName(b.Spec.Mode)
	text, err := r.texts.get(ctx, r, namespaces, name, true)
	if err != nil {
		return err
	}
	if text == nil {
		s.problem = &compose.Problem{Reason: api.ReasonTemplateNotFound, Place: place(b), Field: "spec.mode",
			Message: fmt.Sprintf("there is no template ConfigMap %q in the namespaces %v", name, namespaces),
			Hint:    "create it, correct spec.mode or spec.pipeline.namespace, or install the shipped templates with `armature install`"}
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
	for _, name := range compose.StepNames(b, s.template) {
		step, err := r.texts.get(ctx, r, namespaces, name, false)
		if err != nil {
			return err
		}
		if step == nil {
			complete = false // composition names it, if a run is wanted
			continue
		}
		s.steps[name] = step.step
		problems = append(problems, step.err)
	}
	s.problem = compose.Join(problems...)
	s.want.SpecHash, s.want.TemplateHash = compose.InputHashes(b, s.template, s.steps)
	if !complete || s.problem != nil {
		// Nothing can be built from this, so it is no reason to build again: a
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

func place(b *api.AgentBuild) string { return fmt.Sprintf("AgentBuild %s/%s", b.Namespace, b.Name) }

// texts holds the templates and steps that were read, by what the metadata watch
// says is their newest version, so that 3,000 builds of one template read it
// once.
type texts struct {
	mu     sync.Mutex
	read   map[types.NamespacedName]*text
	sought map[string]bool
}

type text struct {
	version  string
	template *compose.Template
	step     *compose.StepFile
	err      error
}

// get the first ConfigMap of that name, or nil when there is none. One that may
// not be read ends the search with a problem: another of the name further on is
// not the one that was meant.
func (t *texts) get(ctx context.Context, r *Reconciler, namespaces []string, name string, isTemplate bool) (*text, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.read == nil {
		t.read, t.sought = map[types.NamespacedName]*text{}, map[string]bool{}
	}
	t.sought[name] = true
	for _, namespace := range namespaces {
		key := types.NamespacedName{Namespace: namespace, Name: name}
		from := compose.ConfigMap{Namespace: namespace, Name: name}
		meta := configMapMetadata()
		if !r.watches(namespace) {
			// A namespace outside this controller's care has no watch: ask.
			if err := r.Live.Get(ctx, key, meta); err != nil {
				if apierrors.IsNotFound(err) {
					continue
				}
				if apierrors.IsForbidden(err) {
					return forbidden(from, err), nil
				}
				return nil, fmt.Errorf("looking for ConfigMap %s: %w", key, err)
			}
		} else if err := r.Client.Get(ctx, key, meta, client.UnsafeDisableDeepCopy); err != nil {
			if apierrors.IsNotFound(err) {
				delete(t.read, key)
				continue
			}
			return nil, fmt.Errorf("looking for ConfigMap %s: %w", key, err)
		}
		if have := t.read[key]; have != nil && have.version == meta.ResourceVersion {
			return have, nil
		}
		var cm corev1.ConfigMap
		if err := r.Live.Get(ctx, key, &cm); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			if apierrors.IsForbidden(err) {
				return forbidden(from, err), nil
			}
			return nil, fmt.Errorf("reading ConfigMap %s: %w", key, err)
		}
		from.Data = cm.Data
		fresh := &text{version: cm.ResourceVersion}
		if isTemplate {
			fresh.template, fresh.err = compose.ReadTemplate(from)
		} else {
			fresh.step, fresh.err = compose.ReadStep(from)
		}
		t.read[key] = fresh
		return fresh, nil
	}
	return nil, nil
}

// forbidden is a ConfigMap that RBAC hides.
func forbidden(from compose.ConfigMap, err error) *text {
	return &text{err: &compose.Problem{Reason: api.ReasonTemplateForbidden, Place: from.String(), Message: "the controller may not read it: " + err.Error(),
		Hint: "grant the controller's ServiceAccount get on configmaps there, or correct spec.pipeline.namespace; the build goes on by itself"}}
}

// matters tells whether a build ever asked for a ConfigMap of that name.
func (t *texts) matters(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sought[name]
}

// note that a build needs the ConfigMap.
func (t *texts) note(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sought == nil {
		t.sought = map[string]bool{}
	}
	t.sought[name] = true
}
