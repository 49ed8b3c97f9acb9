package attester

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/compose"
)

// observe reads from the API server what concerns a run.
func (a *Attester) observe(ctx context.Context, key types.NamespacedName, uid types.UID, runKey types.NamespacedName, runUID types.UID) (*attest.Observed, error) {
	build := &api.AgentBuild{}
	if err := a.live.Get(ctx, key, build); err != nil || build.UID != uid {
		return nil, fmt.Errorf("reading AgentBuild %s: %w", key, cmp.Or(err, errors.New("it is another one now")))
	}
	foreign := func(message string) error {
		return compose.Place(build).Fault(api.ReasonRunForeign, message, "start again with `armature build rerun`")
	}
	run, err := a.runs.Whole(ctx, runKey)
	if apierrors.IsNotFound(err) {
		return nil, foreign(fmt.Sprintf("run %s was deleted before it was attested", runKey.Name))
	} else if err != nil {
		return nil, err
	}
	if run.UID != runUID || !a.runs.IsOurs(run, build) {
		return nil, foreign(fmt.Sprintf("somebody else changed run %s, so its result does not count", run.Name))
	}
	o := &attest.Observed{Build: build, RunUID: runUID, Run: run, Pods: map[types.UID]*corev1.Pod{}}
	if ref := run.Spec.PipelineRef; ref != nil && run.Spec.PipelineSpec == nil {
		if o.Pipeline, err = a.runs.Pipeline(ctx, types.NamespacedName{Namespace: run.Namespace, Name: ref.Name}); err != nil {
			return nil, err
		}
	}
	if len(run.Status.ChildReferences) > maxChildren {
		return nil, foreign(fmt.Sprintf("run %s has %d children, and at most %d are looked at", run.Name, len(run.Status.ChildReferences), maxChildren))
	}
	for _, child := range run.Status.ChildReferences {
		if child.Kind != "TaskRun" {
			return nil, foreign(fmt.Sprintf("run %s has a child of kind %s", run.Name, child.Kind))
		}
		task := &tektonv1.TaskRun{}
		err := a.live.Get(ctx, types.NamespacedName{Namespace: run.Namespace, Name: child.Name}, task)
		if apierrors.IsNotFound(err) {
			return nil, foreign(fmt.Sprintf("TaskRun %s of run %s was deleted before it was attested", child.Name, run.Name))
		} else if err != nil {
			return nil, fmt.Errorf("reading TaskRun %s: %w", child.Name, err)
		}
		o.TaskRuns = append(o.TaskRuns, task)
		if task.Status.PodName == "" {
			continue // which the check refuses
		}
		pod := &corev1.Pod{}
		err = a.live.Get(ctx, types.NamespacedName{Namespace: run.Namespace, Name: task.Status.PodName}, pod)
		if err == nil {
			o.Pods[task.UID] = pod
		} else if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("reading pod %s: %w", task.Status.PodName, err)
		}
	}
	return o, nil
}
