package controller

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
)

// texts holds the templates and steps that were read, by what the metadata watch
// says is their newest version, so that 3,000 builds of one template read it
// once.
type texts struct {
	flights flights

	mu     sync.Mutex // never held while a server is asked
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
	t.note(name)
	for _, namespace := range namespaces {
		key := types.NamespacedName{Namespace: namespace, Name: name}
		version, err := r.textVersion(ctx, key)
		if apierrors.IsNotFound(err) {
			t.keep(key, nil)
			continue
		}
		var found *text
		if err == nil {
			if have := t.kept(key); have != nil && have.version == version {
				return have, nil
			}
			found, err = fly(ctx, &t.flights, "ConfigMap "+key.String()+" "+version, func(ctx context.Context) (*text, error) {
				return r.readText(ctx, key, isTemplate)
			})
		}
		switch {
		case apierrors.IsNotFound(err):
			continue
		case apierrors.IsForbidden(err):
			return forbidden(compose.ConfigMap{Namespace: namespace, Name: name}, err), nil
		case err != nil:
			return nil, fmt.Errorf("reading ConfigMap %s: %w", key, err)
		}
		t.keep(key, found)
		return found, nil
	}
	return nil, nil
}

// textVersion of a ConfigMap, from the metadata watch; a namespace outside this
// controller's care has none, and is asked.
func (r *Reconciler) textVersion(ctx context.Context, key types.NamespacedName) (string, error) {
	if r.watches(key.Namespace) {
		meta := configMapMetadata()
		err := r.Client.Get(ctx, key, meta, client.UnsafeDisableDeepCopy)
		return meta.ResourceVersion, err
	}
	return fly(ctx, &r.texts.flights, "version of ConfigMap "+key.String(), func(ctx context.Context) (string, error) {
		meta := configMapMetadata()
		err := r.Live.Get(ctx, key, meta)
		return meta.ResourceVersion, err
	})
}

func (r *Reconciler) readText(ctx context.Context, key types.NamespacedName, isTemplate bool) (*text, error) {
	var cm corev1.ConfigMap
	if err := r.Live.Get(ctx, key, &cm); err != nil {
		return nil, err
	}
	fresh, from := &text{version: cm.ResourceVersion}, compose.ConfigMap{Namespace: key.Namespace, Name: key.Name, Data: cm.Data}
	if isTemplate {
		fresh.template, fresh.err = compose.ReadTemplate(from)
	} else {
		fresh.step, fresh.err = compose.ReadStep(from)
	}
	return fresh, nil
}

func (t *texts) kept(key types.NamespacedName) *text {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.read[key]
}

// keep what was read; nil forgets it.
func (t *texts) keep(key types.NamespacedName, fresh *text) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fresh == nil {
		delete(t.read, key)
		return
	}
	if t.read == nil {
		t.read = map[types.NamespacedName]*text{}
	}
	t.read[key] = fresh
}

// forbidden is a ConfigMap that RBAC hides.
func forbidden(from compose.ConfigMap, err error) *text {
	return &text{err: from.Place().Fault(api.ReasonTemplateForbidden, "the controller may not read it: "+err.Error(),
		"grant the controller's ServiceAccount get on configmaps there, or correct spec.pipeline.namespace; the build then continues by itself")}
}

// matters reports whether a build ever asked for a ConfigMap of that name.
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
