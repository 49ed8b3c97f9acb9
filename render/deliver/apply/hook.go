package apply

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/health"
)

// Argo CD's annotations for hooks ("Sync Phases and Waves"), and Helm's.
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
	deleted bool   // its Job is deleted after it succeeds
}

// hookOf parses the annotations of an object. It returns nil if the object is not a hook. early is
// true for an object that hooks need, for example a ConfigMap with the same annotation: it is
// applied before the hooks.
func hookOf(u *unstructured.Unstructured) (h *hook, early bool, err error) {
	annotations := u.GetAnnotations()
	bad := func(key, format string, args ...any) (*hook, bool, error) {
		return nil, false, fmt.Errorf("annotation "+key+": "+format, args...)
	}
	if value, ok := annotations[helmHook]; ok && value != "crd-install" {
		return bad(helmHook,
			"%q is run by Helm only\n  hint: leave hooks out with `helm template --no-hooks`, or "+
				"annotate Jobs with %s: %s or %s instead", value, argoHook, preSync, postSync)
	}
	phase, ok := annotations[argoHook]
	if !ok {
		return nil, false, nil
	}
	h = &hook{phase: phase}
	kind := u.GroupVersionKind().GroupKind()
	switch stage := stageOf(kind); {
	case phase != preSync && phase != postSync:
		return bad(argoHook, "%q is not supported\n  hint: use %s or %s", phase, preSync, postSync)
	case kind != jobKind && (stage == 0 || stage >= workloads):
		return bad(argoHook,
			"%s cannot be a hook\n  hint: use a Job; what it needs, such as a ServiceAccount or "+
				"ConfigMap, may have the annotation too", kind.Kind)
	case annotations[dependsOn] != "":
		return nil, false, fmt.Errorf("annotations %s and %s exclude each other\n"+
			"  hint: remove one: without the first it is applied once, in that order", argoHook,
			dependsOn)
	case annotations[keys.IgnoreFields] != "" && kind == jobKind:
		return bad(keys.IgnoreFields, "a hook's Job is created each time\n  hint: remove it")
	case annotations[argoWave] != "" && annotations[argoWave] != "0":
		return bad(argoWave,
			"hooks of a phase run in parallel\n  hint: remove it, and combine ordered "+
				"steps in one Job")
	}
	for _, policy := range strings.Split(annotations[argoDelete], ",") {
		switch strings.TrimSpace(policy) {
		case "", "BeforeHookCreation": // always, since a Job cannot run twice
		case "HookSucceeded":
			h.deleted = true
		default:
			return bad(argoDelete,
				"%q is not supported\n  hint: use BeforeHookCreation, which is the default, or "+
					"HookSucceeded", policy)
		}
	}
	if kind != jobKind {
		return nil, phase == preSync, nil
	}
	return h, false, nil
}

// record returns the digest by which the inventory remembers a hook that has run.
func (s *Step) record() string { return base64.RawURLEncoding.EncodeToString(s.want.digest[:15]) }

// hooksDone returns the hooks that completed while a plan was carried out, and earlier completed
// ones.
func (p *Plan) hooksDone() map[ID]Entry {
	done := make(map[ID]Entry)
	for id, s := range p.wanted {
		if e, ok := p.old.Hooks[id]; ok && s.want.hook != nil {
			done[id] = e
		}
		if s.after.ended {
			done[id] = Entry{ID: id, Version: s.Version, Seal: s.record()}
		}
	}
	return done
}

// complete waits until the Jobs of applied hooks are complete, and deletes those that are to be
// deleted after they succeed.
func complete(ctx context.Context, c *Cluster, p *Plan, hooks []*Step) error {
	if err := wait(ctx, c, p.Package, hooks, true, p.opt); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return explainHooks(ctx, c, err, hooks, p.opt.HealthChecks)
	}
	for _, s := range hooks {
		s.after.ended = true
		if s.want.hook.deleted {
			s.after.deleted = true
			succeeded := Step{Action: Prune, ID: s.ID, seen: observed{live: s.after.written}}
			if _, err := remove(ctx, c, &succeeded); err != nil {
				return fmt.Errorf("deleting %s: %w", s.Title(), brief{err})
			}
		}
	}
	return nil
}

// explainHooks adds to the error of a wait why Jobs failed and the last lines of their pods.
func explainHooks(ctx context.Context, c *Cluster, err error, hooks []*Step,
	checks health.Checks) error {
	all := []error{err}
	for _, s := range hooks {
		if s.health(true, checks).Good() {
			continue
		}
		failed := health.Condition(s.after.latest, "Failed")
		if failed.Status == corev1.ConditionTrue {
			all = append(all,
				fmt.Errorf("%s: %s: %s", s.Title(), failed.Reason, health.OneLine(failed.Message)))
		}
		if pod, lines := lastLines(ctx, c, s.after.latest); lines != "" {
			all = append(all, fmt.Errorf("%s: the last lines of pod %s:%s", s.Title(), pod, lines))
		}
	}
	phase, what := hooks[0].want.hook.phase, "nothing else was applied"
	if phase == postSync {
		what = "the other objects are applied"
	}
	all = append(all, fmt.Errorf("a %s hook did not succeed, %s; the next apply deletes its Job "+
		"and runs it again", phase, what))
	return multi.Errors(all...)
}

// Limits of the last lines of a pod that an error shows.
const (
	mostLines = 10
	mostBytes = 4 << 10
	logWait   = 10 * time.Second
)

// lastLines returns the last lines that the newest pod of a Job wrote, from the container that
// failed or else from the first one. Control characters are replaced, because they could affect a
// terminal. It returns "" if the log cannot be read.
func lastLines(ctx context.Context, c *Cluster, job liveObject) (name, lines string) {
	ctx, cancel := context.WithTimeout(ctx, logWait)
	defer cancel()
	pods := podsOf(ctx, c, job)
	if len(pods) == 0 {
		return "", ""
	}
	pod := pods[0]
	container := pod.Spec.Containers[0].Name
	for _, s := range slices.Backward(health.Containers(&pod)) {
		if now := s.State.Terminated; now != nil && now.ExitCode != 0 {
			container = s.Name
		}
	}
	data, err := c.discovery.RESTClient().Get().
		AbsPath("/api/v1/namespaces", pod.Namespace, "pods", pod.Name, "log").
		Param("container", container).Param("tailLines", fmt.Sprint(mostLines)).
		Param("limitBytes", fmt.Sprint(mostBytes)).DoRaw(ctx)
	if err != nil {
		return "", ""
	}
	data = bytes.ToValidUTF8(data[:min(len(data), mostBytes)], []byte("\uFFFD"))
	for line := range strings.Lines(string(data)) {
		lines += "\n    " + strings.Map(func(r rune) rune {
			if !unicode.IsPrint(r) {
				return unicode.ReplacementChar
			}
			return r
		}, strings.TrimRight(strings.ReplaceAll(line, "\t", " "), " \r\n"))
	}
	return pod.Name, lines
}
