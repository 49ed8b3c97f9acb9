package apply

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/go-multierror"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/armature-dev/armature/functions/api/keys"
)

// Argo CD's annotations of hooks ("Sync Phases and Waves"), and that of Helm's.
const (
	argoHook   = "argocd.argoproj.io/hook"
	argoDelete = "argocd.argoproj.io/hook-delete-policy"
	argoWave   = "argocd.argoproj.io/sync-wave"
	helmHook   = "helm.sh/hook"

	preSync  = "PreSync"
	postSync = "PostSync"
)

// hook is a Job that runs in each apply that changes something.
type hook struct {
	phase   string // preSync or postSync
	deleted bool   // its Job goes once it has succeeded
}

// rank of a hook: behind namespaces and CRDs, or behind everything.
func (h *hook) rank() rank {
	if h.phase == preSync {
		return rank{stage: 1, wave: -1}
	}
	return rank{stage: len(stages)}
}

// hookOf reads the annotations; nil where an object is not a hook. What a hook needs
// may have them too, such as a ConfigMap: it comes with a phase, and is not run.
func hookOf(u *unstructured.Unstructured) (*hook, error) {
	annotations := u.GetAnnotations()
	if value, ok := annotations[helmHook]; ok && value != "crd-install" {
		return nil, fmt.Errorf("annotation %s: %q is run by Helm only\n  hint: leave hooks out with `helm template --no-hooks`, or annotate Jobs with %s: %s or %s instead", helmHook, value, argoHook, preSync, postSync)
	}
	phase, ok := annotations[argoHook]
	if !ok {
		return nil, nil
	}
	h := &hook{phase: phase}
	kind := u.GroupVersionKind().GroupKind()
	switch stage := stageOf(kind); {
	case phase != preSync && phase != postSync:
		return nil, fmt.Errorf("annotation %s: %q is not supported\n  hint: use %s or %s", argoHook, phase, preSync, postSync)
	case kind != jobKind && (stage == 0 || stage >= workloads):
		return nil, fmt.Errorf("annotation %s: %s cannot be a hook\n  hint: use a Job; what it needs, such as a ServiceAccount or ConfigMap, may have the annotation too", argoHook, kind.Kind)
	case annotations[dependsOn] != "":
		return nil, fmt.Errorf("annotations %s and %s exclude each other\n  hint: remove one: without the first it is applied once, in that order", argoHook, dependsOn)
	case hasOrdering(u):
		return nil, fmt.Errorf("annotations %s and %s or %s exclude each other\n  hint: remove the first, and it is applied once, in that order; or remove the others", argoHook, changeGroup, changeRule)
	case annotations[keys.IgnoreFields] != "" && kind == jobKind:
		return nil, fmt.Errorf("annotation %s: a hook's Job is created each time\n  hint: remove it", keys.IgnoreFields)
	case annotations[argoWave] != "" && annotations[argoWave] != "0":
		return nil, fmt.Errorf("annotation %s: hooks of a phase run at once\n  hint: remove it, and make one Job of what has an order", argoWave)
	}
	for _, policy := range strings.Split(annotations[argoDelete], ",") {
		switch strings.TrimSpace(policy) {
		case "", "BeforeHookCreation": // always, since a Job cannot run twice
		case "HookSucceeded":
			h.deleted = true
		default:
			return nil, fmt.Errorf("annotation %s: %q is not supported\n  hint: use BeforeHookCreation, which is the default, or HookSucceeded", argoDelete, policy)
		}
	}
	return h, nil
}

// observeHooks looks at the Jobs of hooks, and asks the API server whether they could
// be created.
func (a *application) observeHooks(ctx context.Context) error {
	all := slices.Collect(maps.Values(a.hooks))
	if err := a.namespaces(ctx, all); err != nil {
		return err
	}
	for _, o := range all {
		live, err := a.cluster.live(ctx, o.mapping, o.id)
		if err != nil {
			return err
		}
		if live != nil {
			a.seen[o.id] = live
		}
		o.policy, o.bad = policyOf(o.body)
		if o.digest, err = digestOf(o.body); err != nil {
			return err
		}
		if a.isNew(o) {
			o.refusal = a.cluster.tryElsewhere(ctx, o, a.elsewhere())
		} else {
			o.refusal = a.cluster.tryUnder(ctx, o, o.id.Namespace)
		}
		if o.refusal != nil && !answered(o.refusal) {
			return fmt.Errorf("asking about %s: %w", title(o.id), brief{o.refusal})
		}
		if o.refusal != nil {
			if o.untried = a.needs(o); o.untried != "" {
				o.refusal = nil
			}
		}
	}
	return nil
}

// decideHook is pure: whether a hook runs. It does where something changes, where the
// last apply did not end, and where what it is has not run to its end before.
func (a *application) decideHook(o *object, changes bool) Step {
	live := a.seen[o.id]
	s := Step{ID: o.id, Version: o.mapping.GroupVersionKind.Version, File: o.file, Line: o.line, want: o, rank: o.hook.rank(), live: live}
	is := func(action Action, reason string, args ...any) Step {
		s.Action, s.Reason = action, fmt.Sprintf(reason, args...)
		return s
	}
	livePolicy, err := policyOf(live)
	switch {
	case o.bad != nil:
		return is(Refused, "%v", o.bad)
	case live != nil && err == nil && livePolicy.ignore || o.policy.ignore:
		return is(Skip, "its annotations say that it is to be left alone")
	case live != nil && a.foreign(live):
		return is(Conflict, "it belongs to the package %s; `armature apply --adopt %s` takes it over", owner(live), owner(live))
	case live != nil && owner(live) == Package{}:
		return is(Refused, "somebody else made a Job of this name, which the hook would delete: delete it, or rename the hook")
	case o.refusal != nil:
		return is(Refused, "%s", refusal(o.refusal))
	case !changes && a.old.Complete && a.old.Hooks[o.id].Seal == o.record():
		return is(Unchanged, "")
	case o.hook.phase == preSync:
		return is(Run, "before the other objects")
	}
	return is(Run, "after the other objects")
}

// record is how the inventory remembers the hook that has run.
func (o *object) record() string { return base64.RawURLEncoding.EncodeToString(o.digest[:15]) }

// hooksDone are the hooks that have run to their end when a plan was carried out.
func (a *application) hooksDone() map[ID]Entry {
	done := make(map[ID]Entry)
	for id, o := range a.hooks {
		if e, ok := a.old.Hooks[id]; ok {
			done[id] = e
		}
		if o.ended {
			done[id] = Entry{ID: id, Version: o.mapping.GroupVersionKind.Version, Seal: o.record()}
		}
	}
	return done
}

// runHooks runs those of a phase at once, and waits until all are complete. Those that
// run after the others wait for the health of these.
func (a *application) runHooks(ctx context.Context, p *Plan, phase string) error {
	var work []*Step
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Action == Run && s.want.hook.phase == phase {
			work = append(work, s)
		}
	}
	if len(work) == 0 {
		return nil
	}
	if phase == postSync {
		if err := a.cluster.wait(ctx, a.Package, a.healthTargets(p), a.Options); err != nil {
			return err
		}
	}
	if err := a.wave(ctx, work, phase+" hooks"); err != nil {
		return err
	}
	var targets []*target
	for _, s := range work {
		t := a.targetOf(s)
		t.finishes = true
		targets = append(targets, t)
	}
	if err := a.cluster.wait(ctx, a.Package, slices.Clone(targets), a.Options); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return a.explainHooks(ctx, err, phase, targets)
	}
	for _, s := range work {
		s.want.ended = true
		if !s.want.hook.deleted {
			continue
		}
		uid, policy := s.done().GetUID(), metav1.DeletePropagationBackground
		err := a.cluster.at(s.want.mapping, s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &policy})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting %s: %w", title(s.ID), brief{err})
		}
	}
	return nil
}

// explainHooks adds to the error of a wait why Jobs failed, and what their pods wrote
// last.
func (a *application) explainHooks(ctx context.Context, err error, phase string, targets []*target) error {
	all := multierror.Append(nil, err)
	for _, t := range targets {
		if t.health().good() {
			continue
		}
		if why := failure(t.latest); why != "" {
			all = multierror.Append(all, fmt.Errorf("%s: %s", title(t.id), why))
		}
		if pod, lines := a.cluster.lastLines(ctx, t); len(lines) > 0 {
			all = multierror.Append(all, fmt.Errorf("%s: the last lines of pod %s:\n    %s", title(t.id), pod, strings.Join(lines, "\n    ")))
		}
	}
	what := "nothing else was applied"
	if phase == postSync {
		what = "the other objects are applied"
	}
	return multierror.Append(all, fmt.Errorf("a %s hook did not succeed, %s; the next apply deletes its Job and runs it again", phase, what))
}

// failure is the reason of a Job's condition; "" where it has not failed.
func failure(job liveObject) string {
	if job == nil {
		return ""
	}
	conditions, _, _ := unstructured.NestedSlice(job.Object, "status", "conditions")
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if condition["type"] == "Failed" && condition["status"] == "True" {
			return oneLine(fmt.Sprintf("%v: %v", condition["reason"], condition["message"]))
		}
	}
	return ""
}

// The last lines of a pod that an error shows.
const (
	mostLines = 10
	mostBytes = 4 << 10
	logWait   = 10 * time.Second
)

// lastLines reads what the newest pod of a Job wrote last, in the container that
// failed, else in its first. Where that cannot be read there is nothing.
func (c *Cluster) lastLines(ctx context.Context, t *target) (pod string, lines []string) {
	ctx, cancel := context.WithTimeout(ctx, logWait)
	defer cancel()
	selector := podsOf(t.latest)
	if selector == nil {
		return "", nil
	}
	list, err := c.dynamic.Resource(pods).Namespace(t.id.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil || len(list.Items) == 0 {
		return "", nil
	}
	newest := slices.MaxFunc(list.Items, func(x, y unstructured.Unstructured) int {
		return x.GetCreationTimestamp().Compare(y.GetCreationTimestamp().Time)
	})
	var p corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(newest.Object, &p); err != nil || len(p.Spec.Containers) == 0 {
		return "", nil
	}
	container := p.Spec.Containers[0].Name
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if now := s.State.Terminated; now != nil && now.ExitCode != 0 {
			container = s.Name
			break
		}
	}
	text, err := c.kinds.client.Get().AbsPath("/api/v1/namespaces", p.Namespace, "pods", p.Name, "log").
		Param("container", container).Param("tailLines", fmt.Sprint(mostLines)).Param("limitBytes", fmt.Sprint(mostBytes)).DoRaw(ctx)
	if err != nil {
		return "", nil
	}
	for line := range strings.Lines(string(text[:min(len(text), mostBytes)])) {
		if line = printable(line); line != "" {
			lines = append(lines, line)
		}
	}
	return p.Name, lines[max(0, len(lines)-mostLines):]
}

// printable is a line that does nothing to a terminal.
func printable(line string) string {
	return strings.TrimRight(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsControl(r), unicode.In(r, unicode.Cf, unicode.Co):
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(line, string(unicode.ReplacementChar))), " ")
}
