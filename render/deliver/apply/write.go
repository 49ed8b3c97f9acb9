package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	poll "k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/render/deliver/apply/fields"
)

// do carries out one step other than a prune.
func do(ctx context.Context, c *Cluster, p *Plan, s *Step) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %s: %w", s.Place(), s.Title(), brief{err})
		}
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.Action == Recreate || s.Action == Run && s.seen.live != nil {
		exists, err := remove(ctx, c, s)
		if err == nil && s.Action == Skip {
			err = errors.New("another client deleted and recreated it: apply again")
		}
		if err == nil && exists {
			err = awaitGone(ctx, c, p.opt, s)
		}
		if err != nil {
			return err
		}
		s.seen.live, s.dry.object, s.dry.force, s.seen.former = nil, nil, false, nil
		s.want.body = s.want.author // the new object has no other managers
	}
	s.seen.reads = s.want.body.GroupVersionKind()
	soon := poll.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Steps: 8}
	_ = poll.ExponentialBackoffWithContext(ctx, soon, func(ctx context.Context) (bool, error) {
		err = send(ctx, c, p, s)
		// The API server recognizes an object, a kind or a changed field of a CRD with a delay
		// after the package has written it.
		again := err != nil && s.dry.untried != "" &&
			(missing(err) || strings.Contains(err.Error(), badPatch))
		return !again, nil
	})
	if conflicts := conflictsOf(err); len(conflicts) > 0 {
		s.Action, s.Conflicts, s.Reason = Conflict, conflicts, explain(conflicts)
	}
	s.Done = err == nil
	return err
}

// send applies one object. If it takes fields from other managers, the live version has to be the
// one of the dry run, so that no field is taken that another client has set in the meantime.
func send(ctx context.Context, c *Cluster, p *Plan, s *Step) error {
	for range 10 {
		err := write(ctx, c, s)
		if !apierrors.IsConflict(err) || !s.dry.force && len(s.seen.former) == 0 {
			return err
		}
		if s.seen.live, err = c.get(ctx, s.seen.reads, s.ID); err != nil {
			return err
		}
		if s.seen.live == nil {
			return errors.New("it was deleted just now: apply again")
		}
		if try(ctx, c, p, s); s.dry.refusal != nil {
			return s.dry.refusal
		}
	}
	return errors.New("another client changes it at the same time: apply again")
}

// write sends one object. Fields that were applied from the client's side become ours first. (ssa's
// Apply takes fields from all managers, and repeats the reads and the dry runs of the plan.)
func write(ctx context.Context, c *Cluster, s *Step) error {
	body, live := s.want.body, s.seen.live
	if len(s.seen.former) > 0 {
		patch, err := csaupgrade.UpgradeManagedFieldsPatch(live, s.seen.former, fields.Manager)
		if err == nil && patch != nil {
			live = live.DeepCopy()
			err = c.client.Patch(ctx, live, client.RawPatch(types.JSONPatchType, patch))
		}
		if err != nil {
			return err
		}
	}
	if s.dry.force {
		body = body.DeepCopy()
		body.SetResourceVersion(live.GetResourceVersion())
	}
	var err error
	s.after.written, err = submit(ctx, c, body, s.dry.force)
	return err
}

// submit applies an object and returns it as the API server stores it.
func submit(
	ctx context.Context, c *Cluster, body liveObject, force bool, options ...client.ApplyOption,
) (liveObject, error) {
	u := body.DeepCopy()
	options = append(options, &client.ApplyOptions{Force: &force})
	if err := c.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...); err != nil {
		return nil, err
	}
	return u, nil
}
