package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
)

// Run creates the objects that Tekton and a kubelet leave for a build: its run, in which the tasks
// before last succeeded and last is in its first step, Running or Failed, with a pod for each. If
// last is "", all tasks succeeded. The build's status then names the run.
func (f *Fleet) Run(ctx context.Context, b *api.AgentBuild, last, state string) error {
	library, err := manifest.Shipped()
	if err != nil {
		return err
	}
	out, err := library.Compose(manifest.Build{AgentBuild: b}, compose.Settings{})
	if err != nil {
		return err
	}
	run := out.Run.DeepCopy()
	if name := b.Status.PipelineRunName; name != "" {
		run.Name = name
	}
	run.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: api.GroupVersion(api.DefaultGroup).String(), Kind: api.Kind, Name: b.Name,
			UID: b.UID, Controller: new(true)}}
	if err := f.Client.Create(ctx, run); err != nil {
		return err
	}
	spec := run.Spec.PipelineSpec.DeepCopy()
	run.Status.PipelineSpec = spec
	if !slices.ContainsFunc(spec.Tasks,
		func(t tektonv1.PipelineTask) bool { return t.Name == last }) && last != "" {
		return fmt.Errorf("the pipeline of %s has no task %s", b.Name, last)
	}
	at := time.Now().Add(-time.Minute)
	if began := b.Status.StartTime; began != nil {
		at = began.Time
	}
	var tasks []api.TaskStatus
	over := false
	for i := range spec.Tasks {
		t := &spec.Tasks[i]
		// the source has a Dockerfile
		if over ||
			t.Name == "buildpack-build" &&
				slices.ContainsFunc(spec.Tasks, func(other tektonv1.PipelineTask) bool {
					return strings.HasSuffix(other.Name, "kit-build")
				}) {
			run.Status.SkippedTasks = append(run.Status.SkippedTasks,
				tektonv1.SkippedTask{Name: t.Name})
			tasks = append(tasks, api.TaskStatus{Name: t.Name, State: "Skipped"})
			continue
		}
		now := "Succeeded"
		if t.Name == last {
			now = state
		}
		task, err := f.task(ctx, run, t, now, &at)
		if err != nil {
			return err
		}
		run.Status.ChildReferences = append(run.Status.ChildReferences,
			tektonv1.ChildStatusReference{Name: task.Name, PipelineTaskName: t.Name})
		tasks = append(tasks, api.TaskStatus{Name: t.Name, State: now,
			StartTime: task.Status.StartTime, CompletionTime: task.Status.CompletionTime})
		if t.Name == last && state == "Running" {
			break
		}
		over = over || t.Name == last
	}
	if err := f.Client.Status().Update(ctx, run); err != nil {
		return err
	}
	s := &b.Status
	s.PipelineRunName, s.PipelineRunUID, s.Tasks = run.Name, run.UID, nil
	if s.CompletionTime != nil {
		s.Tasks = tasks
	}
	return f.Client.Status().Update(ctx, b)
}

// task creates a task of a run in a state, with its pod. at is when it begins, and then when it
// ended.
func (f *Fleet) task(ctx context.Context, run *tektonv1.PipelineRun, t *tektonv1.PipelineTask,
	state string, at *time.Time) (*tektonv1.TaskRun, error) {
	task := &tektonv1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace,
		Name:   run.Name + "-" + t.Name,
		Labels: map[string]string{"tekton.dev/pipelineRun": run.Name}},
		Spec: tektonv1.TaskRunSpec{TaskSpec: t.TaskSpec.TaskSpec.DeepCopy()}}
	if err := f.Client.Create(ctx, task); err != nil {
		return nil, err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace,
		Name: task.Name + "-pod"}, Spec: corev1.PodSpec{NodeName: node}}
	began := metav1.NewTime(at.Truncate(time.Second))
	task.Status.StartTime, task.Status.PodName = &began, pod.Name
	for i, s := range t.TaskSpec.Steps {
		step := tektonv1.StepState{Name: s.Name, Container: "step-" + s.Name}
		pod.Spec.Containers = append(pod.Spec.Containers,
			corev1.Container{Name: step.Container, Image: s.Image})
		start := metav1.NewTime(*at)
		switch {
		case i > 0 && state != "Succeeded": // it waits for the first
		case state == "Running":
			step.Running = &corev1.ContainerStateRunning{StartedAt: start}
		default:
			f.Kubelet.Log(pod.Name, step.Container, s.Name+": done\n")
			*at = at.Add(time.Duration(7+len(s.Name)) * time.Second)
			step.Terminated = &corev1.ContainerStateTerminated{StartedAt: start,
				FinishedAt: metav1.NewTime(*at)}
			if state == "Failed" {
				step.Terminated.ExitCode = 1
			}
		}
		task.Status.Steps = append(task.Status.Steps, step)
	}
	status := corev1.ConditionTrue
	switch state {
	case "Running":
		status = corev1.ConditionUnknown
	case "Failed":
		status = corev1.ConditionFalse
	}
	if state != "Running" {
		task.Status.CompletionTime = new(metav1.NewTime(at.Truncate(time.Second)))
	}
	task.Status.Conditions = append(task.Status.Conditions,
		apis.Condition{Type: apis.ConditionSucceeded, Status: status, Reason: state})
	if err := f.Client.Create(ctx, pod); err != nil {
		return nil, err
	}
	return task, f.Client.Status().Update(ctx, task)
}

// history has the task that the run of each build of the fleet reached, its state, and the output
// of steps.
var history = map[string]struct {
	last, state string
	logs        map[string]string // by task/step
}{
	"weather": {},
	"planner": {"buildkit-build", "Running",
		map[string]string{
			"buildkit-build/build": "#1 [internal] load build definition from Dockerfile\n" +
				"#1 DONE 0.1s\n#5 [1/4] FROM docker.io/library/python:3.13-slim\n#5 CACHED\n" +
				"#6 [2/4] COPY requirements.txt .\n#6 DONE 0.1s\n" +
				"#7 [3/4] RUN pip install -r requirements.txt\n"}},
	"concierge": {"buildkit-build", "Failed",
		map[string]string{"buildkit-build/build": `#8 [3/5] COPY . .
#8 DONE 0.2s
#9 [4/5] RUN go build -o /concierge .
#9 0.412 panic: loading the module cache
#9 0.412
#9 0.412 goroutine 1 [running]:
#9 0.412 main.(*loader).sum(0xc0000b6000, {0x51a3c0, 0x18})
#9 0.412 	/src/tools/load.go:41 +0x1f4
#9 0.412 main.(*loader).verify(...)
#9 0.412 	/src/tools/load.go:77
#9 0.412 main.main()
#9 0.412 	/src/tools/main.go:19 +0x5b
#9 1.006 verifying example.com/maps@v1.4.0: checksum mismatch
#9 1.006 SECURITY ERROR
#9 ERROR: exit status 1
`}},
}
