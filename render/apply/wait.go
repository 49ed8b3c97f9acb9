package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/hashicorp/go-multierror"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Health is how an object fares, in the words of kstatus: Current, InProgress,
// Failed, Terminating, NotFound, Unknown.
type Health struct {
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
}

func healthOf(u liveObject) Health {
	if u == nil {
		return Health{Status: string(status.NotFoundStatus)}
	}
	r, err := status.Compute(u)
	if err != nil {
		return Health{Status: string(status.UnknownStatus), Message: err.Error()}
	}
	return Health{Status: string(r.Status), Message: r.Message}
}

func (h Health) good() bool { return h.Status == string(status.CurrentStatus) }
func (h Health) bad() bool  { return h.Status == string(status.FailedStatus) }

// target is an object to wait for.
type target struct {
	id      ID
	mapping *meta.RESTMapping
	latest  liveObject
	checks  HealthChecks

	expires  bool // a Job that deletes itself when it is done
	finishes bool // a Job counts when it is complete, not when it has begun
}

// health of a target. kstatus calls a Job current as soon as it has begun.
func (t *target) health() Health {
	h := t.checks.healthOf(t.latest)
	switch {
	case !t.finishes || t.id.GroupKind != jobKind:
	case t.latest == nil && t.expires:
		return Health{Status: string(status.FailedStatus), Message: "it was gone before it was seen to be complete: raise its ttlSecondsAfterFinished"}
	case h.good() && !hasCondition(t.latest, "Complete"):
		h.Status = string(status.InProgressStatus)
	}
	return h
}

func hasCondition(u liveObject, kind string) bool {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, ok := c.(map[string]any)
		return ok && condition["type"] == kind && condition["status"] == "True"
	})
}

func (a *application) targetOf(s *Step) *target {
	t := &target{id: s.ID, mapping: s.want.mapping, latest: s.live, checks: a.HealthChecks}
	if w := s.done(); w != nil {
		t.latest = w
	}
	_, t.expires, _ = unstructured.NestedFieldNoCopy(s.want.body.Object, "spec", "ttlSecondsAfterFinished")
	t.expires = t.expires && s.GroupKind == jobKind
	return t
}

// healthTargets are the objects that the plan applied or found as they should be.
func (a *application) healthTargets(p *Plan) []*target {
	var out []*target
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.want == nil || s.want.hook != nil || s.Action == Skip {
			continue
		}
		out = append(out, a.targetOf(s))
	}
	return out
}

// Waiting is an object that is not healthy yet.
type Waiting struct {
	ID
	Health
	// Pods of a workload that do not run, three at most.
	Pods []PodTrouble
}

// Title names the object for people.
func (w Waiting) Title() string { return title(w.ID) }

func (w Waiting) String() string {
	text := fmt.Sprintf("%s: %s", title(w.ID), strings.TrimSuffix(w.Status+", "+w.Message, ", "))
	for _, p := range w.Pods {
		text += "; " + p.String()
	}
	return text
}

// mostWaiting is how many objects an error names.
const mostWaiting = 20

// wait until all targets are healthy. One that has failed ends it at once. A pod in
// trouble does not: an image may still be pushed, and a node may still come.
func (c *Cluster) wait(ctx context.Context, p Package, targets []*target, opt Options) error {
	total, began := len(targets), time.Now()
	for pause := 250 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		targets = slices.DeleteFunc(targets, func(t *target) bool { return t.health().good() || t.latest == nil && t.expires && !t.finishes })
		if len(targets) == 0 {
			return nil
		}
		var waiting, failed []Waiting
		pods := c.troubles(ctx, targets)
		for _, t := range targets {
			w := Waiting{ID: t.id, Health: t.health(), Pods: pods[t.id]}
			waiting = append(waiting, w)
			if w.bad() {
				failed = append(failed, w)
			}
		}
		if len(failed) > 0 {
			return each("applied, but failed: ", failed)
		}
		first := waiting[0]
		opt.tell("waiting: %d of %d healthy; %s: %s", total-len(targets), total, first.Title(), first.Message)
		if opt.Waiting != nil {
			opt.Waiting(waiting)
		}
		if time.Since(began) > opt.timeout() {
			return each(fmt.Sprintf("applied, but not healthy after %s: ", opt.timeout()), waiting)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		if err := c.refresh(ctx, p, targets); err != nil {
			return err
		}
	}
}

// each is an error of one line for each object.
func each(what string, waiting []Waiting) error {
	var all *multierror.Error
	for i, w := range waiting {
		if i == mostWaiting {
			all = multierror.Append(all, fmt.Errorf("%sand %d more", what, len(waiting)-i))
			break
		}
		all = multierror.Append(all, errors.New(what+w.String()))
	}
	return all
}

// refresh reads the targets again: one by one, or those of a kind together where
// they are many.
func (c *Cluster) refresh(ctx context.Context, p Package, targets []*target) error {
	byKind := make(map[schema.GroupVersionResource][]*target)
	for _, t := range targets {
		byKind[t.mapping.Resource] = append(byKind[t.mapping.Resource], t)
	}
	for _, same := range byKind {
		k := &kindOf{mapping: same[0].mapping, ids: make(map[ID]bool)}
		for _, t := range same {
			k.ids[t.id] = true
		}
		found, err := c.look(ctx, p, []*kindOf{k})
		if err != nil {
			return err
		}
		for _, t := range same {
			t.latest = found[t.id]
		}
	}
	return nil
}

// established waits until the CRDs of the package are served.
func (c *Cluster) established(ctx context.Context, p *Plan, opt Options) error {
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.GroupKind != crdKind || s.want == nil || s.done() == nil {
			continue
		}
		opt.tell("waiting until %s is established", title(s.ID))
		last := healthOf(s.done())
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, opt.timeout(), true, func(ctx context.Context) (bool, error) {
			u, err := c.live(ctx, s.want.mapping, s.ID)
			if err != nil {
				return false, err
			}
			last = healthOf(u)
			if last.bad() {
				return false, errors.New(last.Message)
			}
			return last.good(), nil
		})
		if err != nil {
			return fmt.Errorf("waiting until %s is established (%s): %w", title(s.ID), last.Message, err)
		}
	}
	return nil
}

// served waits until a kind of an established CRD is served.
func (c *Cluster) served(ctx context.Context, gvk schema.GroupVersionKind, patience time.Duration) (*meta.RESTMapping, error) {
	var m *meta.RESTMapping
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if m, last = c.kinds.find(gvk); last != nil {
			return false, nil
		}
		_, last = c.dynamic.Resource(m.Resource).List(ctx, metav1.ListOptions{Limit: 1})
		return last == nil || !apierrors.IsNotFound(last), nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting until it is served: %w: %w", err, last)
	}
	return m, nil
}
