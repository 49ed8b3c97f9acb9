// Package library reads the templates and steps of builds from ConfigMaps, and caches them.
package library

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/process"
)

// Library caches templates and steps by the newest version that the metadata watch reports, so that
// 3,000 builds of one template read it once. For an invalid ConfigMap it caches the problem alone.
type Library struct {
	// Cache has the metadata of ConfigMaps, and Live reads from the API server.
	Cache, Live client.Reader
	// Namespace is the platform's namespace, whose ConfigMaps every build may use.
	Namespace string
	// Watched reports whether the cache has a namespace.
	Watched func(namespace string) bool

	requests group
	mu       sync.Mutex // never held during a request
	read     map[textKey]*textOf
	// sought has the names of the ConfigMaps that the last reconcile of each build looked for.
	sought map[types.NamespacedName]map[string]bool
}

// Definitions are the template and the steps of a build.
type Definitions struct {
	// Template is nil if Problem says why.
	Template *templates.Template
	// Steps has the steps that were found, by the name of their ConfigMap.
	Steps map[string]*templates.Step
	// Complete reports whether every used step was found.
	Complete bool
	// Problem is what a user must fix, or nil.
	Problem error
}

// Find returns the template and the steps of a build. It returns an error if a retry may help.
func (l *Library) Find(ctx context.Context, b *api.AgentBuild) (Definitions, error) {
	namespaces := l.namespaces(b)
	name := templates.TemplateName(b.Spec.Mode)
	// The template and the steps of a mode that the platform isolates are always the platform's.
	found, err := l.get(ctx, b, []string{l.Namespace}, name, true)
	if err != nil {
		return Definitions{}, err
	}
	if found != nil && (found.template == nil || found.template.Isolates()) {
		namespaces = []string{l.Namespace}
	}
	found, err = l.get(ctx, b, namespaces, name, true)
	if err != nil {
		return Definitions{}, err
	}
	if found == nil {
		return Definitions{
			Problem: compose.Place(b).At("spec.mode").Fault(api.ReasonTemplateNotFound,
				fmt.Sprintf(
					"template ConfigMap %q with the key %s does not exist in the namespaces %v",
					name, templates.TemplateKeyYAML, namespaces),
				l.otherModes(ctx, b)+templates.ShareHint(b))}, nil
	}
	if found.template == nil {
		return Definitions{Problem: found.err}, nil
	}
	out := Definitions{Template: found.template, Steps: map[string]*templates.Step{}, Complete: true}
	problems, faults := []error{found.err}, map[string]error{}
	for _, name := range compose.StepNames(b, out.Template) {
		step, err := l.get(ctx, b, namespaces, name, false)
		if err != nil {
			return Definitions{}, err
		}
		if step != nil {
			out.Steps[name], faults[name] = step.step, step.err
		}
	}
	for _, name := range compose.UsedSteps(b, out.Template, out.Steps) {
		if _, exists := out.Steps[name]; !exists {
			out.Complete = false // If a run is due, compose reports the missing step.
		}
		problems = append(problems, faults[name])
	}
	out.Problem = findings.Join(problems...)
	return out, nil
}

// maxModes is how many modes the remedy for an unknown mode lists.
const maxModes = 20

// otherModes returns the remedy for a mode without a template, with the modes of the platform and
// of the build's own namespace.
func (l *Library) otherModes(ctx context.Context, b *api.AgentBuild) string {
	var modes []string
	for _, namespace := range []string{l.Namespace, b.Namespace} {
		list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1",
			Kind: "ConfigMapList"}}
		if !l.Watched(namespace) ||
			l.Cache.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy) != nil {
			continue
		}
		for i := range list.Items {
			if mode, ok := strings.CutPrefix(list.Items[i].Name, templates.TemplatePrefix); ok {
				modes = append(modes, mode)
			}
		}
	}
	modes = slices.Compact(slices.Sorted(slices.Values(modes)))
	if len(modes) == 0 {
		return "install the shipped templates with `armature install`, or correct " +
			"spec.pipeline.namespace"
	}
	hint := "use one of " + strings.Join(modes[:min(len(modes), maxModes)], ", ")
	if near := text.Nearest(b.Spec.Mode, modes); near != "" {
		hint = "did you mean " + near + "? Or " + hint
	}
	return hint + ", or create the ConfigMap"
}

// namespaces returns the namespaces in which to look for the ConfigMaps of a build, in order.
func (l *Library) namespaces(b *api.AgentBuild) (out []string) {
	candidates := []string{l.Namespace, b.Namespace}
	if b.Spec.Pipeline != nil {
		candidates = append([]string{b.Spec.Pipeline.Namespace}, candidates...)
	}
	for _, namespace := range candidates {
		if namespace != "" && !slices.Contains(out, namespace) {
			out = append(out, namespace)
		}
	}
	return out
}

// textKey is the key of a cached text. A ConfigMap may be read both as a template and as a step.
type textKey struct {
	types.NamespacedName
	template bool
}

// textOf is the template or the step of a ConfigMap, or the problem that it has.
type textOf struct {
	version  string
	labels   map[string]string // the labels that share the ConfigMap
	template *templates.Template
	step     *templates.Step
	err      error
	// absent reports whether the ConfigMap lacks the key of a template or step.
	absent bool
	memory int
	used   time.Time
}

const (
	// maxTexts bounds the memory of cached texts in bytes, as estimated by compose.
	maxTexts = 64 << 20
	// textKeeps is how long an unused text is kept.
	textKeeps = time.Hour
	// memoryOfText is the memory of a text without its content, in bytes.
	memoryOfText = 4 << 10
)

// get returns the first ConfigMap of that name that the build may use, or nil. A ConfigMap that the
// controller may not read ends the search with a problem: a ConfigMap of the same name in a later
// namespace is not the intended one.
func (l *Library) get(ctx context.Context, b *api.AgentBuild, namespaces []string, name string,
	isTemplate bool) (*textOf, error) {
	l.Note(client.ObjectKeyFromObject(b), name)
	for _, namespace := range namespaces {
		key := textKey{types.NamespacedName{Namespace: namespace, Name: name}, isTemplate}
		found, err := l.text(ctx, b, key)
		switch {
		case apierrors.IsNotFound(err):
			l.forget(key)
		case apierrors.IsForbidden(err):
			from := templates.ConfigMap{Namespace: namespace, Name: name}
			return &textOf{err: from.Place().Fault(api.ReasonTemplateForbidden,
				"the controller may not read it: "+err.Error(),
				"grant the controller's ServiceAccount get on configmaps there, or correct "+
					"spec.pipeline.namespace; the build then continues by itself")}, nil
		case err != nil:
			return nil, fmt.Errorf("reading ConfigMap %s: %w", key, err)
		case l.mayUse(b, namespace, found.labels) && (!found.absent || namespace == b.Namespace):
			return found, nil
		}
	}
	return nil, nil
}

// mayUse reports whether a build may use a ConfigMap with the given labels in a namespace: its own,
// the platform's, or another namespace if the labels share the ConfigMap. No message reveals
// whether other ConfigMaps exist.
func (l *Library) mayUse(b *api.AgentBuild, namespace string, labels map[string]string) bool {
	return namespace == b.Namespace || namespace == l.Namespace ||
		templates.ConfigMap{Labels: labels}.SharedWith(b.Namespace)
}

// text returns the current text of a ConfigMap. It does not read one that the build may not use.
func (l *Library) text(ctx context.Context, b *api.AgentBuild, key textKey) (*textOf, error) {
	version, labels, err := l.textVersion(ctx, key.NamespacedName)
	if err != nil || !l.mayUse(b, key.Namespace, labels) {
		return &textOf{labels: labels}, err
	}
	if have := l.kept(key); have != nil && have.version == version {
		return have, nil
	}
	return do(ctx, &l.requests, fmt.Sprintf("ConfigMap %s %s %v", key, version, key.template),
		func(ctx context.Context) (*textOf, error) {
			found, err := l.readText(ctx, key)
			if err == nil { // The next reconcile needs it, even if this one has stopped waiting.
				l.keep(key, found, time.Now())
			}
			return found, err
		})
}

// textVersion returns the version of a ConfigMap and its labels from the metadata watch, or from
// the API server if the namespace is not watched.
func (l *Library) textVersion(ctx context.Context,
	key types.NamespacedName) (string, map[string]string, error) {
	if l.Watched(key.Namespace) {
		meta := process.MetadataOf("v1", "ConfigMap")
		err := l.Cache.Get(ctx, key, meta, client.UnsafeDisableDeepCopy)
		return meta.ResourceVersion, meta.Labels, err
	}
	meta, err := do(ctx, &l.requests, "version of ConfigMap "+key.String(),
		func(ctx context.Context) (*metav1.PartialObjectMetadata, error) {
			meta := process.MetadataOf("v1", "ConfigMap")
			return meta, l.Live.Get(ctx, key, meta)
		})
	if err != nil {
		return "", nil, err
	}
	return meta.ResourceVersion, meta.Labels, nil
}

func (l *Library) readText(ctx context.Context, key textKey) (*textOf, error) {
	var cm corev1.ConfigMap
	if err := l.Live.Get(ctx, key.NamespacedName, &cm); err != nil {
		return nil, err
	}
	maps.DeleteFunc(cm.Labels, NotShared)
	fresh := &textOf{version: cm.ResourceVersion, labels: cm.Labels}
	from := templates.ConfigMap{Namespace: key.Namespace, Name: key.Name, Data: cm.Data}
	if key.template {
		fresh.absent = cm.Data[templates.TemplateKeyYAML] == "" &&
			cm.Data[templates.TemplateKeyJSON] == ""
		if fresh.template, fresh.err = templates.ReadTemplate(from); fresh.err != nil {
			fresh.template = nil
		} else {
			fresh.memory = fresh.template.Memory()
		}
		return fresh, nil
	}
	fresh.absent = cm.Data[templates.StepKey] == ""
	if fresh.step, fresh.err = templates.ReadStep(from); fresh.err == nil {
		fresh.memory = fresh.step.Memory()
	}
	return fresh, nil
}

// NotShared reports whether a label does not share a ConfigMap.
func NotShared(label, _ string) bool { return !strings.HasPrefix(label, keys.SharePrefix) }

func (l *Library) kept(key textKey) *textOf {
	l.mu.Lock()
	defer l.mu.Unlock()
	have := l.read[key]
	if have != nil {
		have.used = time.Now()
	}
	return have
}

func (l *Library) forget(key textKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.read, key)
}

// keep caches a text. If the cache is full, it evicts the least recently used text of the namespace
// with the largest share, so that a tenant does not evict the texts of other tenants.
func (l *Library) keep(key textKey, fresh *textOf, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.read == nil {
		l.read = map[textKey]*textOf{}
	}
	fresh.used = now
	l.read[key] = fresh
	total, perNamespace := 0, map[string]int{}
	for key, have := range l.read {
		if now.Sub(have.used) > textKeeps {
			delete(l.read, key)
			continue
		}
		total += have.memory + memoryOfText
		perNamespace[key.Namespace] += have.memory + memoryOfText
	}
	for total > maxTexts {
		var oldest textKey
		for key, have := range l.read {
			before := l.read[oldest]
			if before == nil ||
				cmp.Or(cmp.Compare(perNamespace[oldest.Namespace], perNamespace[key.Namespace]),
					have.used.Compare(before.used)) < 0 {
				oldest = key
			}
		}
		freed := l.read[oldest].memory + memoryOfText
		total -= freed
		perNamespace[oldest.Namespace] -= freed
		delete(l.read, oldest)
	}
}

// Seekers returns the builds whose last reconcile looked for a ConfigMap of this name. Most
// ConfigMaps of a cluster concern no build.
func (l *Library) Seekers(_ context.Context, o client.Object) (out []reconcile.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for build, names := range l.sought {
		if names[o.GetName()] {
			out = append(out, reconcile.Request{NamespacedName: build})
		}
	}
	return out
}

// Note records that a build looks for a ConfigMap.
func (l *Library) Note(build types.NamespacedName, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sought[build] == nil {
		if l.sought == nil {
			l.sought = map[types.NamespacedName]map[string]bool{}
		}
		l.sought[build] = map[string]bool{}
	}
	l.sought[build][name] = true
}

// Begin clears the record of a build at the start of its reconcile. A deleted build has no record.
func (l *Library) Begin(build types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sought, build)
}
