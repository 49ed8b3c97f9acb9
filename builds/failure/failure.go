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

// Reader reads the states of a run's tasks and pods.
type Reader struct {
	// Live reads from the API server.
	Live client.Reader
	// Logs reads the logs of a failed step; nil omits them.
	Logs typedcorev1.PodsGetter
	// LogLines is the number of log lines of a failed step that are kept.
	LogLines int64
}

// Read returns the tasks of a run that ended and the reason why it failed. The details are nil for
// a run that succeeded or was cancelled.
func (r *Reader) Read(ctx context.Context,
	run runs.Run) (tasks []api.TaskStatus, details *api.FailureDetails) {
	tasks, failed := r.tasks(ctx, run)
	if !run.Succeeded() && !run.Cancelled() {
		details = r.details(ctx, run, failed)
	}
	return tasks, details
}

// maxTasks bounds the TaskRuns of a run that are read, and the skipped tasks. A tenant that may write
// the status of its runs decides how many there are.
const maxTasks = 500

// tasks returns the tasks of a run that ended, and the TaskRun that failed first. It reads from the
// API server, since TaskRuns are not watched.
func (r *Reader) tasks(ctx context.Context,
	run runs.Run) (out []api.TaskStatus, failed *tektonv1.TaskRun) {
	children, skipped := run.Status.ChildReferences, run.Status.SkippedTasks
	if more := max(len(children), len(skipped)) - maxTasks; more > 0 {
		log.FromContext(ctx).Info("not all tasks of a run are read", "run", run.Name, "more", more)
		children = children[:min(len(children), maxTasks)]
		skipped = skipped[:min(len(skipped), maxTasks)]
	}
	for _, child := range children {
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
				failed = &task
			}
		}
		out = appendTask(out, state)
	}
	for _, task := range skipped {
		out = appendTask(out, api.TaskStatus{Name: task.Name, State: "Skipped",
			Reason: api.Clip(string(task.Reason))})
	}
	return out, failed
}

// appendTask appends a task's state or merges it with the state of the same task: a matrix has
// several TaskRuns for one task, and a TaskRun that did not succeed takes precedence.
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
		state.State, state.Reason = "Cancelled", api.Clip(c.Reason)
	case c.IsFalse():
		state.State, state.Reason = "Failed", api.Clip(c.Reason)
	default:
		state.State, state.Reason = "Running", api.Clip(c.Reason)
	}
	return state
}

var repositoryPath = regexp.MustCompile(`^[A-Za-z0-9._/-]{1,200}$`)

// noDockerfile returns a note if the shipped check-dockerfile-step found no Dockerfile in the
// folder. Without it, a missing sourceSubfolder could go unnoticed, because buildpacks build
// another folder.
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

// details returns where and why a run failed, with the last lines of the step's log.
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
		d.Reason = c.Reason // such as CouldntGetTask: Tekton could not start the run
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

// ofTask sets the details about the task and its pod.
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
		r.podIsDeleted(ctx, task.Namespace, task.Status.PodName) {
		d.Cause = api.CausePodFailed
	}
	// Tekton 1.9 has no reason of its own for a pod that was evicted for its use of the disk.
	if d.Cause == api.CauseEvicted || c.Reason == tektonv1.TaskRunReasonPodEvicted.String() ||
		c.Reason == tektonv1.TaskRunReasonFailed.String() &&
			overItsLimit.MatchString(strings.ToLower(c.Message)) {
		d.Reason = api.ReasonEvicted
	}
}

// ofStep sets the details about the failed step.
func (r *Reader) ofStep(ctx context.Context, d *api.FailureDetails, task *tektonv1.TaskRun,
	step tektonv1.StepState) {
	code := step.Terminated.ExitCode
	d.Step, d.ExitCode = step.Name, &code
	d.Location = &api.FailureLocation{Pod: task.Status.PodName, Container: step.Container}
	lines := r.logTail(ctx, task.Namespace, d.Location)
	found := Of(Step{Name: step.Name, Ended: step.Terminated.Reason, ExitCode: code, Log: lines})
	if found.Reason != "" && found.Line == "" {
		d.Reason = found.Reason
	}
	if d.Reason != api.ReasonEvicted { // the pod's message explains an eviction
		switch {
		case d.Cause != "":
		case step.Terminated.Reason == "ContainerStatusUnknown": // the node is lost
			d.Cause = api.CauseNodeLost
		case found.Server:
			d.Cause = api.CauseServerError
		}
		if d.Reason == api.ReasonFailed && found.Reason != "" {
			d.Reason, d.Message = found.Reason, found.String()
		}
	}
	if lines = lines[max(0, len(lines)-int(r.LogLines)):]; len(lines) > 0 {
		d.LogTail = lines
	}
}

// podIsDeleted reports whether a pod is deleted or being deleted. It reports false for a pod that
// cannot be read.
func (r *Reader) podIsDeleted(ctx context.Context, namespace, name string) bool {
	pod := process.MetadataOf("v1", "Pod")
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod)
	return apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil
}

// maxTail limits the bytes that are read of a log. The status keeps less of it.
const maxTail = 64 << 10

// logTail returns the last lines of a container's log. A log that cannot be read is not an error:
// the failure itself is known.
func (r *Reader) logTail(ctx context.Context, namespace string, at *api.FailureLocation) []string {
	if r.Logs == nil || at.Pod == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// The kubelet cuts the end of lines that exceed the limit, so fewer lines are read then.
	limit := int64(maxTail)
	for lines := max(r.LogLines, Lines); ; lines = max(1, lines/2) {
		data, err := r.Logs.Pods(namespace).GetLogs(at.Pod, &corev1.PodLogOptions{
			Container: at.Container, TailLines: &lines, LimitBytes: &limit}).DoRaw(ctx)
		if err != nil {
			log.FromContext(ctx).V(1).Info("the log of the failed step cannot be read", "pod",
				at.Pod, "error", err.Error())
			return nil
		}
		if len(data) < maxTail || lines == 1 {
			return linesOf(data)
		}
	}
}

// colour matches the escape sequences of colours, which the lifecycle of buildpacks prints.
var colour = regexp.MustCompile("\x1b\\[[0-9;]*m")

// linesOf returns the lines of a log without colours and terminal control characters, or nil.
func linesOf(log []byte) []string {
	text := strings.TrimRight(text.Plain(string(colour.ReplaceAll(log, nil))), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// Message returns where and why a run failed. message is Tekton's, which counts tasks. note
// describes the progress of the build, such as " (attempt 1 of 3)", and comes last.
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
