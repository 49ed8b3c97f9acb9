package failure

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/functions/text"
)

// Tekton does not notice every lost pod: a pod that the kubelet evicts has containers without
// times, which the CRD of TaskRuns of Tekton 1.15 refuses, and the deletion of a pod on a node that
// does not answer never ends. The TaskRun stays Running until its timeout. So the controller checks
// the pods of a running run each minute. It stops a run that lost a pod some time ago, and records
// the loss in an annotation with the same write, so that a restart of the controller does not lose
// the reason.

const (
	// maxLost limits the pods of one run that each check reads.
	maxLost = 16
	// Labels of a pod in which Tekton names the run and the task.
	runLabel, taskLabel = "tekton.dev/pipelineRun", "tekton.dev/pipelineTask"
)

// Lost returns a lost pod for which Tekton still waits in a running run, or nil. It ignores a loss
// for the duration patience, in which Tekton may notice it.
func (r *Reader) Lost(ctx context.Context, run *runs.Run, now time.Time,
	patience time.Duration) (*runs.Lost, error) {
	list := func(selector fields.Selector) ([]metav1.PartialObjectMetadata, error) {
		pods := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1",
			Kind: "PodList"}}
		err := r.Live.List(ctx, pods, client.InNamespace(run.Namespace),
			client.MatchingLabels{runLabel: run.Name},
			client.MatchingFieldsSelector{Selector: selector}, client.Limit(maxLost))
		return pods.Items, err
	}
	is, not := fields.OneTermEqualSelector, fields.OneTermNotEqualSelector
	const phase = "status.phase"
	failed, err := list(is(phase, string(corev1.PodFailed)))
	if err != nil {
		return nil, err
	}
	for _, pod := range failed {
		whole := &corev1.Pod{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(&pod),
			whole); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		lost, since := becameOf(whole)
		if lost == nil || now.Sub(since) < patience {
			continue
		}
		if awaited, err := r.awaited(ctx, run, whole); awaited || err != nil {
			return lost, err
		}
	}
	others, err := list(fields.AndSelectors(not(phase, string(corev1.PodFailed)),
		not(phase, string(corev1.PodSucceeded))))
	if err != nil {
		return nil, err
	}
	for _, pod := range others {
		// The deletion timestamp includes the grace period of the containers.
		if pod.DeletionTimestamp == nil || now.Sub(pod.DeletionTimestamp.Time) < patience {
			continue
		}
		if awaited, err := r.awaited(ctx, run, &pod); awaited || err != nil {
			return &runs.Lost{Task: pod.Labels[taskLabel], Pod: pod.Name, Reason: api.ReasonFailed,
				Cause: api.CauseNodeLost,
				Message: fmt.Sprintf(
					"pod %s is being deleted since %s, and its node does not answer", pod.Name,
					pod.DeletionTimestamp.UTC().Format(time.RFC3339))}, err
		}
	}
	return nil, nil
}

// becameOf returns how and when a failed pod was lost. lost is nil if the containers ended by
// themselves, which Tekton notices.
func becameOf(pod *corev1.Pod) (lost *runs.Lost, since time.Time) {
	since = pod.CreationTimestamp.Time
	var disrupted *corev1.PodCondition
	for i, c := range pod.Status.Conditions {
		if c.LastTransitionTime.After(since) {
			since = c.LastTransitionTime.Time
		}
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			disrupted = &pod.Status.Conditions[i]
		}
	}
	lost = &runs.Lost{Task: pod.Labels[taskLabel], Pod: pod.Name, Reason: api.ReasonFailed}
	message := pod.Status.Message
	switch reason := pod.Status.Reason; {
	case reason == "Evicted":
		lost.Reason, lost.Cause =
			api.ReasonEvicted, podCause(string(tektonv1.TaskRunReasonPodEvicted), message)
	case slices.Contains([]string{"NodeLost", "NodeShutdown", "Shutdown", "Terminated"}, reason):
		lost.Cause = api.CauseNodeLost
	case disrupted == nil:
		return nil, since
	case disrupted.Reason == "DeletionByTaintManager" || disrupted.Reason == "DeletionByPodGC":
		lost.Cause, message = api.CauseNodeLost, cmp.Or(message, disrupted.Message)
	default:
		lost.Reason, lost.Cause, message =
			api.ReasonEvicted, api.CauseEvicted, cmp.Or(message, disrupted.Message)
	}
	lost.Message = text.Cut(fmt.Sprintf("pod %s was lost: %s", pod.Name,
		strings.TrimSpace(cmp.Or(message, pod.Status.Reason))), 1024)
	return lost, since
}

// awaited reports whether a TaskRun of the run still waits for a pod.
func (r *Reader) awaited(ctx context.Context, run *runs.Run, pod metav1.Object) (bool, error) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "TaskRun" {
		return false, nil
	}
	task := &tektonv1.TaskRun{}
	if err := r.Live.Get(ctx, types.NamespacedName{Namespace: run.Namespace, Name: owner.Name},
		task); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	of := metav1.GetControllerOf(task)
	return task.UID == owner.UID && of != nil && of.UID == run.UID && !task.IsDone() &&
		task.Spec.Status == "" &&
		(task.Status.PodName == "" || task.Status.PodName == pod.GetName()), nil
}
