package failure

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/process"
)

// Reader reads what became of the tasks of a run, and of their pods.
type Reader struct {
	// Live reads from the API server.
	Live client.Reader
	// Logs reads the logs of a failed step; nil leaves them out.
	Logs typedcorev1.PodsGetter
	// LogLines of a failed step that are kept.
	LogLines int64
}

// Read the tasks of a run that has ended, and why it failed; details are nil for a run that
// succeeded or was cancelled.
func (r *Reader) Read(ctx context.Context,
	run runs.Run) (tasks []api.TaskStatus, details *api.FailureDetails) {
	tasks, failed := r.tasks(ctx, run)
	if !run.Succeeded() && !run.Cancelled() {
		details = r.details(ctx, run, failed)
	}
	return tasks, details
}

// tasks reads the TaskRuns of a run that ended, from the API server, since no
// watch of them is kept. The failed one is returned too.
func (r *Reader) tasks(ctx context.Context,
	run runs.Run) (out []api.TaskStatus, failed *tektonv1.TaskRun) {
	for _, child := range run.Status.ChildReferences {
		if child.Kind != "TaskRun" {
			continue
		}
		var task tektonv1.TaskRun
		state := api.TaskStatus{Name: child.PipelineTaskName, State: "Unknown"}
		if err := r.Live.Get(ctx, client.ObjectKey{Namespace: run.Namespace, Name: child.Name},
			&task); err != nil {
			log.FromContext(ctx).V(1).Info("a task's state cannot be read", "taskRun", child.Name,
				"error", err.Error())
		} else {
			state = TaskState(child.PipelineTaskName, &task)
			if state.State == "Failed" &&
				(failed == nil || task.Status.CompletionTime.Before(failed.Status.CompletionTime)) {
				failed = task.DeepCopy()
			}
		}
		out = appendTask(out, state)
	}
	for _, skipped := range run.Status.SkippedTasks {
		out = appendTask(out,
			api.TaskStatus{Name: skipped.Name, State: "Skipped", Reason: string(skipped.Reason)})
	}
	return out, failed
}

// appendTask keeps names unique: a matrix has several TaskRuns a task, and the
// worst of them counts.
func appendTask(list []api.TaskStatus, state api.TaskStatus) []api.TaskStatus {
	i := slices.IndexFunc(list, func(t api.TaskStatus) bool { return t.Name == state.Name })
	if i < 0 {
		return append(list, state)
	}
	if list[i].State == "Succeeded" {
		list[i] = state
	}
	return list
}

// TaskState returns the state of a task, which may still run.
func TaskState(name string, task *tektonv1.TaskRun) api.TaskStatus {
	state := api.TaskStatus{Name: name, State: "Pending", StartTime: task.Status.StartTime,
		CompletionTime: task.Status.CompletionTime}
	c := task.Status.GetCondition("Succeeded")
	switch {
	case c == nil:
	case c.IsTrue():
		state.State, state.Message = "Succeeded", noDockerfile(task)
	case c.IsFalse() && c.Reason == tektonv1.TaskRunReasonCancelled.String():
		state.State, state.Reason = "Cancelled", c.Reason
	case c.IsFalse():
		state.State, state.Reason = "Failed", c.Reason
	default:
		state.State, state.Reason = "Running", c.Reason
	}
	return state
}

var repositoryPath = regexp.MustCompile(`^[A-Za-z0-9._/-]{1,200}$`)

// noDockerfile returns a note if the shipped check-dockerfile-step found no Dockerfile in the
// folder. If sourceSubfolder was forgotten, buildpacks build an image of something else.
func noDockerfile(task *tektonv1.TaskRun) string {
	has, elsewhere := "", ""
	for _, result := range task.Status.Results {
		switch result.Name {
		case "has-dockerfile":
			has = result.Value.StringVal
		case "dockerfile-elsewhere":
			elsewhere = result.Value.StringVal
		}
	}
	switch {
	case has != "false":
		return ""
	case !repositoryPath.MatchString(elsewhere):
		return "the folder has no Dockerfile, so buildpacks build it"
	}
	return fmt.Sprintf("the folder has no Dockerfile, so buildpacks build it; the repository has "+
		"%s: set spec.source.sourceSubfolder to %s", elsewhere, path.Dir(elsewhere))
}

// details are where and why a run failed, with the last lines of the step.
func (r *Reader) details(ctx context.Context, run runs.Run,
	task *tektonv1.TaskRun) *api.FailureDetails {
	if l := run.Lost; l != nil {
		return &api.FailureDetails{Reason: l.Reason, Cause: l.Cause, Task: l.Task,
			Message: api.Clip(l.Message)}
	}
	c := run.Condition()
	d := &api.FailureDetails{Reason: api.ReasonFailed, Message: api.Clip(c.Message)}
	if c.Reason == tektonv1.PipelineRunReasonTimedOut.String() {
		d.Reason = api.ReasonTimeout
	} else if c.Reason != tektonv1.PipelineRunReasonFailed.String() && c.Reason != "" {
		d.Reason = c.Reason // such as CouldntGetTask: Tekton could not run it
	}
	if task == nil {
		return d
	}
	for _, child := range run.Status.ChildReferences {
		if child.Name == task.Name {
			d.Task = child.PipelineTaskName
		}
	}
	r.ofTask(ctx, d, task)
	for _, step := range task.Status.Steps {
		if step.Terminated != nil && step.Terminated.ExitCode != 0 {
			r.ofStep(ctx, d, task, step)
			break
		}
	}
	return d
}

// ofTask adds to the details what became of the task and its pod.
func (r *Reader) ofTask(ctx context.Context, d *api.FailureDetails, task *tektonv1.TaskRun) {
	c := task.Status.GetCondition("Succeeded")
	if d.Reason == api.ReasonFailed || d.Reason == api.ReasonTimeout {
		d.Message = api.Clip(c.Message)
	}
	if c.Reason == tektonv1.TaskRunReasonTimedOut.String() {
		d.Reason = api.ReasonTimeout
		return
	}
	d.Cause = podCause(c.Reason, c.Message)
	if d.Cause == "" && c.Reason == reasonSidecarFailed &&
		r.podIsGone(ctx, task.Namespace, task.Status.PodName) {
		d.Cause = api.CausePodFailed
	}
	// Tekton 1.9 has no reason for a pod that was evicted for the disk that it used.
	if d.Cause == api.CauseEvicted || c.Reason == tektonv1.TaskRunReasonPodEvicted.String() ||
		c.Reason == tektonv1.TaskRunReasonFailed.String() &&
			overItsLimit.MatchString(strings.ToLower(c.Message)) {
		d.Reason = api.ReasonEvicted
	}
}

// ofStep adds to the details how a step ended.
func (r *Reader) ofStep(ctx context.Context, d *api.FailureDetails, task *tektonv1.TaskRun,
	step tektonv1.StepState) {
	code := step.Terminated.ExitCode
	d.Step, d.ExitCode = step.Name, &code
	d.Location = &api.FailureLocation{Pod: task.Status.PodName, Container: step.Container}
	lines := r.logTail(ctx, task.Namespace, d.Location)
	shown := Of(Step{Name: step.Name, Ended: step.Terminated.Reason, ExitCode: code, Log: lines})
	if shown.Reason != "" && shown.Line == "" {
		d.Reason = shown.Reason
	}
	if d.Reason != api.ReasonEvicted { // which the pod's message explains
		switch {
		case d.Cause != "":
		case step.Terminated.Reason == "ContainerStatusUnknown": // it vanished with the node
			d.Cause = api.CauseNodeLost
		case shown.Server:
			d.Cause = api.CauseServerError
		}
		if d.Reason == api.ReasonFailed && shown.Reason != "" {
			d.Reason, d.Message = shown.Reason, shown.String()
		}
	}
	if lines = lines[max(0, len(lines)-int(r.LogLines)):]; len(lines) > 0 {
		d.LogTail = lines
	}
}

// podIsGone reports whether a pod is deleted, or being deleted. One that cannot be read may
// be there.
func (r *Reader) podIsGone(ctx context.Context, namespace, name string) bool {
	pod := process.MetadataOf("v1", "Pod")
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod)
	return apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil
}

// maxTail bounds what is read of a log, in bytes. Only what the status keeps of it is bounded
// more tightly.
const maxTail = 64 << 10

// logTail reads the last lines of a container's log. A log that is gone is no
// error: the failure itself is known.
func (r *Reader) logTail(ctx context.Context, namespace string, at *api.FailureLocation) []string {
	if r.Logs == nil || at.Pod == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	limit, lines := int64(maxTail), max(r.LogLines, Lines)
	data, err := r.Logs.Pods(namespace).GetLogs(at.Pod,
		&corev1.PodLogOptions{Container: at.Container, TailLines: &lines, LimitBytes: &limit}).DoRaw(ctx)
	if err != nil {
		log.FromContext(ctx).V(1).Info("the log of the failed step cannot be read", "pod", at.Pod,
			"error", err.Error())
		return nil
	}
	return linesOf(data)
}

// colour is how programs such as the lifecycle of buildpacks begin and end a colour.
var colour = regexp.MustCompile("\x1b\\[[0-9;]*m")

// linesOf a log, without its colours and what else steers a terminal; nil for none.
func linesOf(log []byte) []string {
	text := strings.TrimRight(text.Plain(string(colour.ReplaceAll(log, nil))), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// Message says where and why a run failed. message is Tekton's, which counts tasks, and note
// what becomes of the build, such as " (attempt 1 of 3)"; it comes last.
func Message(d *api.FailureDetails, message, note string) string {
	if d.Task == "" {
		return message + note
	}
	text := fmt.Sprintf("task %s", d.Task)
	if d.Step != "" {
		text += fmt.Sprintf(", step %s", d.Step)
	}
	if slices.ContainsFunc(reasons(), func(r reason) bool {
		return r.reason == d.Reason && r.last != nil
	}) {
		return text + ": " + d.Message + note
	}
	if d.ExitCode != nil {
		text += fmt.Sprintf(", exit code %d", *d.ExitCode)
	}
	return text + ": " + message + note
}
