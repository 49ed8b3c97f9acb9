package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fluxcd/pkg/ssa"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	poll "k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/apply/fields"
)

// planned is the client that ssa writes one object through. It answers reads from the plan.
// An apply takes over fields of others only if the plan does, and only in the version that
// the plan saw. A delete names the UID that the plan saw.
type planned struct {
	client.Client
	live    liveObject // nil where there is none
	force   bool
	written liveObject
}

func (c *planned) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	if c.live == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	c.live.DeepCopyInto(into.(liveObject))
	return nil
}

func (c *planned) Patch(ctx context.Context, u client.Object, patch client.Patch, options ...client.PatchOption) error {
	o, body := (&client.PatchOptions{}).ApplyOptions(options), u.(liveObject)
	switch {
	case patch.Type() != types.ApplyPatchType: // the managers of kubectl become ours
		operations, err := patch.Data(u)
		if err != nil {
			return err
		}
		same := fmt.Appendf(operations[:len(operations)-1], `,{"op":"replace","path":"/metadata/resourceVersion","value":%q}]`, body.GetResourceVersion())
		if err := c.Client.Patch(ctx, u, client.RawPatch(patch.Type(), same), options...); err != nil {
			return err
		}
		c.live = body.DeepCopy()
		return nil
	case len(o.DryRun) > 0:
		return nil // ssa takes an answer without a version for one that differs
	case c.force:
		body.SetResourceVersion(c.live.GetResourceVersion())
	}
	o.Force = &c.force
	if err := c.Client.Patch(ctx, u, patch, o); err != nil {
		return err
	}
	c.written = body
	return nil
}

func (c *planned) Delete(ctx context.Context, u client.Object, options ...client.DeleteOption) error {
	uid := c.live.GetUID()
	return c.Client.Delete(ctx, u, append(options, client.Preconditions{UID: &uid})...)
}

// manager is ssa's, for one object.
func (c *planned) manager() *ssa.ResourceManager {
	return ssa.NewResourceManager(c, nil, ssa.Owner{Field: fields.Manager, Group: strings.TrimSuffix(keys.Own, "/")})
}

// do carries out one step that is not a prune.
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
		left, err := remove(ctx, c, s)
		if err == nil && s.Action == Skip {
			err = errors.New("another client deleted and recreated it: apply again")
		}
		if err == nil && left {
			err = awaitGone(ctx, c, p.opt, s)
		}
		if err != nil {
			return err
		}
		s.seen.live, s.dry.object, s.dry.force, s.seen.former = nil, nil, false, nil
		s.want.body = s.want.author // nobody has a field of the new one
	}
	s.seen.reads = s.want.body.GroupVersionKind()
	soon := poll.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Steps: 8}
	_ = poll.ExponentialBackoffWithContext(ctx, soon, func(ctx context.Context) (bool, error) {
		err = send(ctx, c, p, s)
		// The API server sees what the package has just brought a little later: an object
		// that is needed, a kind, or a field of a changed CRD.
		again := err != nil && s.dry.untried != "" && (missing(err) || strings.Contains(err.Error(), badPatch))
		return !again, nil
	})
	if conflicts := conflictsOf(err); len(conflicts) > 0 {
		s.Action, s.Conflicts, s.Reason = Conflict, conflicts, explain(conflicts)
	}
	s.Done = err == nil
	return err
}

// send applies one object by ssa. Where fields are taken from others, the version that
// the dry run saw has to be the live one: nothing is taken from somebody who came in
// between.
func send(ctx context.Context, c *Cluster, p *Plan, s *Step) error {
	options := ssa.DefaultApplyOptions()
	for manager := range s.seen.former {
		options.Cleanup.FieldManagers = append(options.Cleanup.FieldManagers,
			ssa.FieldManager{Name: manager, ExactMatch: true, OperationType: metav1.ManagedFieldsOperationUpdate})
	}
	for range 10 {
		through := &planned{Client: c.client, live: s.seen.live, force: s.dry.force}
		_, err := through.manager().Apply(ctx, s.want.body, options)
		s.after.written = through.written
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
