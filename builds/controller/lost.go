package controller

import (
	"cmp"
	"context"
	"encoding/json"
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
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
)

// Tekton does not notice each pod that it loses: a pod that the kubelet evicts has
// containers without times, which the CRD of TaskRuns of Tekton 1.15 refuses, and one whose node
// does not answer is being deleted for ever. The TaskRun stays Running until its timeout.
// So the pods of a run that is under way are looked at each minute. A run that lost one
// a while ago is stopped, and the same write says in an annotation what became of the pod: the
// run failed of that, whatever becomes of the controller.

const (
	// defaultLostAfter is how long Tekton has to notice by itself, and how often pods are looked at.
	defaultLostAfter = time.Minute
	// maxLost bounds the pods of one run that are looked at, each time.
	maxLost = 16
	// Labels by which Tekton names the run and the task of a pod.
	runLabel, taskLabel = "tekton.dev/pipelineRun", "tekton.dev/pipelineTask"
)

// lostPod is what became of a pod of a run that was stopped for it.
type lostPod struct {
	Task string `json:"task"`
	Pod  string `json:"pod"`
	// Reason is api.ReasonEvicted or api.ReasonFailed.
	Reason  string           `json:"reason"`
	Cause   api.FailureCause `json:"cause,omitempty"`
	Message string           `json:"message"`
}

// readLost reads the annotation of a run; nil for what the controller does not write.
func readLost(annotation string) *lostPod {
	lost := &lostPod{}
	if annotation == "" || len(annotation) > maxMessage || json.Unmarshal([]byte(annotation), lost) != nil ||
		!slices.Contains([]string{api.ReasonEvicted, api.ReasonFailed}, lost.Reason) ||
		!slices.Contains([]api.FailureCause{"", api.CauseEvicted, api.CauseNodeLost}, lost.Cause) {
		return nil
	}
	return lost
}

// failure of a run that lost a pod.
func (l *lostPod) failure() *api.FailureDetails {
	return &api.FailureDetails{Reason: l.Reason, Cause: l.Cause, Task: l.Task, Message: clip(l.Message)}
}

// lookForLost stops a run under way that lost a pod. What cannot be read is looked at the
// next time: builds go on without it.
func (r *Reconciler) lookForLost(ctx context.Context, s *seen, v verdict) verdict {
	active := activeRun(s)
	if active == nil || v.cancel != nil || active.cancelAsked() {
		return v
	}
	v.after = sooner(v.after, r.lostAfter)
	if s.now.Sub(active.CreationTimestamp.Time) < r.lostAfter {
		return v
	}
	lost, err := r.findLost(ctx, active, s.now)
	if err != nil {
		log.FromContext(ctx).Error(err, "looking for lost pods", "run", active.Name)
	}
	if lost != nil {
		v.cancel, v.lost = active, lost
		v.message = fmt.Sprintf("stopping run %s: %s", active.Name, lost.Message)
	}
	return v
}

// findLost finds a pod that a run lost and Tekton waits for; nil for none.
func (r *Reconciler) findLost(ctx context.Context, run *run, now time.Time) (*lostPod, error) {
	list := func(selector fields.Selector) ([]metav1.PartialObjectMetadata, error) {
		pods := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		err := r.Live.List(ctx, pods, client.InNamespace(run.Namespace), client.MatchingLabels{runLabel: run.Name},
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
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(&pod), whole); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		lost, since := becameOf(whole)
		if lost == nil || now.Sub(since) < r.lostAfter {
			continue
		}
		if awaited, err := r.awaited(ctx, run, whole); awaited || err != nil {
			return lost, err
		}
	}
	others, err := list(fields.AndSelectors(not(phase, string(corev1.PodFailed)), not(phase, string(corev1.PodSucceeded))))
	if err != nil {
		return nil, err
	}
	for _, pod := range others {
		// The time of deletion has the grace of its containers in it.
		if pod.DeletionTimestamp == nil || now.Sub(pod.DeletionTimestamp.Time) < r.lostAfter {
			continue
		}
		if awaited, err := r.awaited(ctx, run, &pod); awaited || err != nil {
			return &lostPod{Task: pod.Labels[taskLabel], Pod: pod.Name, Reason: api.ReasonFailed, Cause: api.CauseNodeLost,
				Message: fmt.Sprintf("pod %s is being deleted since %s, and its node does not answer", pod.Name, pod.DeletionTimestamp.UTC().Format(time.RFC3339))}, err
		}
	}
	return nil, nil
}

// becameOf a pod that failed: nil where its containers ended by themselves, which Tekton
// notices.
func becameOf(pod *corev1.Pod) (lost *lostPod, since time.Time) {
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
	lost = &lostPod{Task: pod.Labels[taskLabel], Pod: pod.Name, Reason: api.ReasonFailed}
	message := pod.Status.Message
	switch reason := pod.Status.Reason; {
	case reason == "Evicted":
		lost.Reason, lost.Cause = api.ReasonEvicted, podCause(string(tektonv1.TaskRunReasonPodEvicted), message)
	case slices.Contains([]string{"NodeLost", "NodeShutdown", "Shutdown", "Terminated"}, reason):
		lost.Cause = api.CauseNodeLost
	case disrupted == nil:
		return nil, since
	case disrupted.Reason == "DeletionByTaintManager" || disrupted.Reason == "DeletionByPodGC":
		lost.Cause, message = api.CauseNodeLost, cmp.Or(message, disrupted.Message)
	default:
		lost.Reason, lost.Cause, message = api.ReasonEvicted, api.CauseEvicted, cmp.Or(message, disrupted.Message)
	}
	lost.Message = fmt.Sprintf("pod %s was lost: %s", pod.Name, strings.TrimSpace(cmp.Or(message, pod.Status.Reason)))
	if len(lost.Message) > 1024 {
		lost.Message = strings.ToValidUTF8(lost.Message[:1024], "")
	}
	return lost, since
}

// awaited reports whether a pod is the one that a TaskRun of the run still waits for.
func (r *Reconciler) awaited(ctx context.Context, run *run, pod metav1.Object) (bool, error) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "TaskRun" {
		return false, nil
	}
	task := &tektonv1.TaskRun{}
	if err := r.Live.Get(ctx, types.NamespacedName{Namespace: run.Namespace, Name: owner.Name}, task); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	of := metav1.GetControllerOf(task)
	return task.UID == owner.UID && of != nil && of.UID == run.UID && !task.IsDone() && task.Spec.Status == "" &&
		(task.Status.PodName == "" || task.Status.PodName == pod.GetName()), nil
}

// cancel a run the gentle way: its finally tasks still run. Where it lost a pod, it says so from
// then on.
func (r *Reconciler) cancel(ctx context.Context, run *run, lost *lostPod) error {
	patch := map[string]any{"spec": map[string]any{"status": tektonv1.PipelineRunSpecStatusCancelledRunFinally}}
	if lost != nil {
		text, err := json.Marshal(lost)
		if err != nil {
			return fmt.Errorf("cancelling run %s: %w", run.Name, err)
		}
		patch["metadata"] = map[string]any{"uid": run.UID, "annotations": map[string]string{keys.AnnotationLost: string(text)}}
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("cancelling run %s: %w", run.Name, err)
	}
	target := &PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace, Name: run.Name}}
	if err := r.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, body)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cancelling run %s: %w", run.Name, err)
	}
	return nil
}
