package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/health"
)

// health returns the health of the object of a step. kstatus calls a Job current when it begins;
// with finish it is current when it is complete.
func (s *Step) health(finish bool, checks health.Checks) health.Health {
	h := checks.Of(s.after.latest)
	if finish && s.after.latest == nil && s.expires() {
		return health.Health{Status: string(status.FailedStatus),
			Message: "it was deleted before it was seen to be complete: increase its " +
				"ttlSecondsAfterFinished"}
	}
	if finish && s.GroupKind == jobKind && h.Good() &&
		health.Condition(s.after.latest, "Complete").Status != corev1.ConditionTrue {
		h.Status = string(status.InProgressStatus)
	}
	return h
}

// expires reports whether the object is a Job that deletes itself after it completes.
func (s *Step) expires() bool {
	_, ttl, _ := unstructured.NestedFieldNoCopy(s.want.body.Object, "spec", "ttlSecondsAfterFinished")
	return ttl && s.GroupKind == jobKind
}

// mostWaiting is the number of objects that an error names.
const mostWaiting = 20

// wait waits until all objects are healthy and, with finish, until all Jobs are complete. It
// returns as soon as an object has failed. A pod in trouble is only reported: its image may still
// be pushed, and a node may still join.
func wait(ctx context.Context, c *Cluster, p Package, steps []*Step, finish bool, opt Options) error {
	total, began, reported := len(steps), time.Now(), make(map[string]bool)
	for _, s := range steps {
		s.after.latest = s.now()
	}
	steps = slices.Clone(steps)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		var waiting, failed []string
		var first string
		steps = slices.DeleteFunc(steps, func(s *Step) bool {
			h := s.health(finish, opt.HealthChecks)
			if h.Good() || s.after.latest == nil && s.expires() && !finish {
				return true
			}
			line := s.Title() + ": " + strings.TrimSuffix(h.Status+", "+h.Message, ", ")
			first = cmp.Or(first, s.Title()+": "+cmp.Or(h.Message, h.Status))
			for _, trouble := range troubles(ctx, c, s.after.latest) {
				line += "; " + trouble.String()
				if key := s.Title() + " " + trouble.Pod + " " + trouble.Reason; !reported[key] {
					reported[key] = true
					opt.tell("warning: %s: %s", s.Title(), trouble)
				}
			}
			waiting = append(waiting, line)
			if h.Bad() {
				failed = append(failed, line)
			}
			return false
		})
		if len(steps) == 0 {
			return nil
		}
		if len(failed) > 0 {
			return each("applied, but failed: ", failed)
		}
		opt.tell("waiting: %d of %d healthy; %s", total-len(steps), total, first)
		if time.Since(began) > opt.timeout() {
			return each(fmt.Sprintf("applied, but not healthy after %s: ", opt.timeout()), waiting)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		found, err := findLive(ctx, c, p, steps)
		if err != nil {
			return err
		}
		for _, s := range steps {
			s.after.latest = found[s.ID]
		}
	}
}

// each returns an error with one line per object.
func each(what string, objects []string) error {
	var all []error
	for _, o := range objects[:min(len(objects), mostWaiting)] {
		all = append(all, errors.New(what+o))
	}
	if more := len(objects) - len(all); more > 0 {
		all = append(all, fmt.Errorf("%sand %d more", what, more))
	}
	return multi.Errors(all...)
}
