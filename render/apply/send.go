package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-multierror"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// wave carries out steps, all at once. All that fails is reported, but nothing more
// is sent to an API server that does not answer.
func (a *application) wave(ctx context.Context, work []*Step, name string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var failed *multierror.Error
	var lock sync.Mutex
	var done atomic.Int32
	var group errgroup.Group
	group.SetLimit(parallel)
	for _, s := range work {
		group.Go(func() error {
			if err := a.do(ctx, s); err != nil {
				lock.Lock()
				defer lock.Unlock()
				if ctx.Err() == nil || failed == nil {
					failed = multierror.Append(failed, err)
				}
				if !answered(err) {
					stop() // the others would fare no better
				}
				return nil
			}
			a.tell("applying %s: %d of %d", name, done.Add(1), len(work))
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return failed.ErrorOrNil()
}

// done is the object as a write left it; nil where none was made.
func (s *Step) done() liveObject { return s.want.written }

// do carries out one step.
func (a *application) do(ctx context.Context, s *Step) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.Action == Recreate || s.Action == Run && s.live != nil {
		if err := a.remove(ctx, s); err != nil {
			return err
		}
		if s.Action == Skip {
			return fmt.Errorf("%s: %s: somebody else deleted it and made it again: apply again", s.Place(), title(s.ID))
		}
		s.want.force = false
		if s.want.author != nil {
			s.want.body = s.want.author // nobody has a field of the new one
		}
	}
	u, err := a.send(ctx, s)
	for wait := 50 * time.Millisecond; err != nil && s.want.untried != "" && early(err) && wait < 4*time.Second; wait *= 2 {
		select { // the API server sees what the package has just brought a little later
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		u, err = a.send(ctx, s)
	}
	if conflicts := conflictsOf(err); len(conflicts) > 0 {
		s.Action, s.Conflicts, s.Reason = Conflict, conflicts, explain(conflicts)
		return fmt.Errorf("%s: %s: %s", s.Place(), title(s.ID), s.Reason)
	}
	if err != nil {
		if !answered(err) {
			a.uncertain.Store(true)
		}
		return fmt.Errorf("%s: %s: %w", s.Place(), title(s.ID), brief{err})
	}
	s.want.written, s.Done = u, true
	return nil
}

// send is one server-side apply. Where fields are taken from others, the version
// that the dry run saw has to be the live one: nothing is taken from somebody
// who came in between.
func (a *application) send(ctx context.Context, s *Step) (liveObject, error) {
	o := s.want
	if len(o.former) > 0 && s.live != nil && s.Action == Change {
		var err error
		if s.live, err = a.cluster.inherit(ctx, o); err != nil {
			return nil, err
		}
	}
	if !o.force {
		return a.cluster.patch(ctx, o, false)
	}
	var err error
	for range 10 {
		o.body.SetResourceVersion(s.live.GetResourceVersion())
		var u liveObject
		if u, err = a.cluster.patch(ctx, o, false); !apierrors.IsConflict(err) {
			return u, err
		}
		o.body.SetResourceVersion("")
		if s.live, err = a.cluster.live(ctx, o.mapping, o.id); err != nil {
			return nil, err
		}
		if s.live == nil {
			return nil, errors.New("it was deleted just now: apply again")
		}
		o.force = false
		_, o.refusal = a.cluster.patch(ctx, o, true)
		if o.refusal != nil && !a.mayForce(o) {
			return nil, o.refusal
		}
		o.force = true
	}
	return nil, err
}

// patch sends an object. A dry run changes nothing.
func (c *Cluster) patch(ctx context.Context, o *object, dryRun bool) (liveObject, error) {
	text, err := json.Marshal(o.body.Object)
	if err != nil {
		return nil, err
	}
	options := metav1.PatchOptions{FieldManager: FieldManager, Force: &o.force, FieldValidation: metav1.FieldValidationStrict}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return c.at(o.mapping, o.id.Namespace).Patch(ctx, o.id.Name, types.ApplyPatchType, text, options)
}
