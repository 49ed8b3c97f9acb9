package attester

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	foreign := func(format string, args ...any) error {
		return compose.Place(build).Fault(api.ReasonRunForeign, fmt.Sprintf(format, args...), "start again with `armature build rerun`")
	}
	run, err := a.runs.Whole(ctx, runKey)
	if apierrors.IsNotFound(err) {
		return nil, foreign("run %s was deleted before it was attested", runKey.Name)
	} else if err != nil {
		return nil, err
	}
	if run.UID != runUID || !a.runs.IsOf(run, build) {
		return nil, foreign("run %s is not the isolated run of UID %s that was made for this build", run.Name, runUID)
	}
	o := &attest.Observed{Build: build, Run: run, TaskRuns: map[string]*tektonv1.TaskRun{}}
	if ref := run.Spec.PipelineRef; ref != nil && run.Spec.PipelineSpec == nil {
		if o.Pipeline, err = a.runs.Pipeline(ctx, types.NamespacedName{Namespace: run.Namespace, Name: ref.Name}); err != nil {
			return nil, err
		}
	}
	for _, child := range run.Status.ChildReferences {
		task := &tektonv1.TaskRun{}
		err := a.live.Get(ctx, types.NamespacedName{Namespace: run.Namespace, Name: child.Name}, task)
		switch {
		case err != nil && !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("reading TaskRun %s: %w", child.Name, err)
		case err != nil || !metav1.IsControlledBy(task, run):
			return nil, foreign("TaskRun %s of run %s was deleted before it was attested", child.Name, run.Name)
		}
		o.TaskRuns[child.PipelineTaskName] = task
	}
	return o, nil
}
