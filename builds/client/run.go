package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/builds/failure"
	"github.com/armature-dev/armature/functions/api/keys"
)

// View is what pages show of a build's last run.
type View struct {
	// Tasks are in the order of the pipeline.
	Tasks []Task
	// Columns are the tasks by their column; a task is right of the tasks that it waits for.
	Columns [][]Task
	// Params are the parameters of the tasks.
	Params []Param
}

// Task is a task of a run.
type Task struct {
	api.TaskStatus
	Order `json:"-"`
	// Pod is the pod of its steps; empty before the pod exists.
	Pod   string `json:"pod,omitempty"`
	Steps []Step `json:"steps,omitempty"`
}

// Step is a step of a task.
type Step struct {
	Name      string `json:"name"`
	Container string `json:"container"`
	// State is Pending, Running, Succeeded or Failed.
	State    string `json:"state"`
	ExitCode int32  `json:"exitCode,omitempty"`
	// Start and End are zero until the step starts and ends.
	Start time.Time `json:"start,omitzero"`
	End   time.Time `json:"end,omitzero"`
}

// Took returns how long the task took; zero while it runs.
func (t Task) Took() time.Duration { return took(t.StartTime, t.CompletionTime) }

// Began returns when the task began, or the zero time.
func (t Task) Began() time.Time { return ptr.Deref(t.StartTime, metav1.Time{}).Time }

// ViewOf returns the view of a build's last run. If run is nil, the tasks are those of the status.
func ViewOf(b *api.AgentBuild, run *tektonv1.PipelineRun, tasks []tektonv1.TaskRun) View {
	v := View{}
	if spec := pipelineOf(run); spec != nil {
		drawn := PipelineOf(b.Name, spec)
		for task := range tekton.Tasks(spec) {
			t := taskOf(b, run, tasks, task.Name)
			t.Order = drawn.Tasks[len(v.Tasks)].Order
			v.Tasks = append(v.Tasks, t)
			v.Params = append(v.Params, paramsOf(b, run, task)...)
		}
	} else {
		for _, t := range b.Status.Tasks {
			v.Tasks = append(v.Tasks, Task{TaskStatus: t})
		}
	}
	v.Columns = columns(v.Tasks)
	return v
}

// pipelineOf returns the pipeline of a run, as Tekton resolved it, or nil.
func pipelineOf(run *tektonv1.PipelineRun) *tektonv1.PipelineSpec {
	if run == nil {
		return nil
	}
	return cmp.Or(run.Status.PipelineSpec, run.Spec.PipelineSpec)
}

// taskOf returns the task of a run by its name. It prefers the status of a finished build, which
// has more than the TaskRun; a skipped task has no TaskRun.
func taskOf(b *api.AgentBuild, run *tektonv1.PipelineRun, tasks []tektonv1.TaskRun, name string) Task {
	t := Task{TaskStatus: api.TaskStatus{Name: name, State: "Pending"}}
	for _, s := range run.Status.SkippedTasks {
		if s.Name == name {
			t.State = "Skipped"
		}
	}
	for i := range tasks {
		if tasks[i].Name == name {
			t = begunTask(&tasks[i])
		}
	}
	for _, s := range b.Status.Tasks {
		if s.Name == name && b.Status.PipelineRunUID == run.UID {
			t.TaskStatus = s
		}
	}
	return t
}

// begunTask returns the task of a TaskRun, whose name is that of the task.
func begunTask(run *tektonv1.TaskRun) Task {
	t := Task{TaskStatus: failure.TaskState(run.Name, run), Pod: run.Status.PodName}
	for _, s := range run.Status.Steps {
		t.Steps = append(t.Steps, stepOf(s))
	}
	return t
}

func stepOf(s tektonv1.StepState) Step {
	out := Step{Name: s.Name, Container: s.Container, State: "Pending"}
	switch {
	case s.Running != nil:
		out.State, out.Start = "Running", s.Running.StartedAt.Time
	case s.Terminated != nil:
		out.State, out.Start, out.End, out.ExitCode = "Succeeded", s.Terminated.StartedAt.Time,
			s.Terminated.FinishedAt.Time, s.Terminated.ExitCode
		if s.Terminated.ExitCode != 0 {
			out.State = "Failed"
		}
	}
	return out
}

// Param is a parameter of a task with the origin of its value.
type Param struct {
	Task, Name, Value string
	// From is "this build, for the step", "this build", a field of its spec, "an earlier spec of
	// this build", "the template", "another task" or "the step's default".
	From string
}

// paramsOf returns the parameters of a task. The run has the values, and the current spec of the
// build says which of them it sets.
func paramsOf(b *api.AgentBuild, run *tektonv1.PipelineRun,
	task *tektonv1.PipelineTask) (out []Param) {
	given := map[string]tektonv1.ParamValue{}
	for _, p := range task.Params {
		given[p.Name] = p.Value
	}
	if task.TaskSpec == nil {
		return nil
	}
	for _, declared := range task.TaskSpec.Params {
		p := Param{Task: task.Name, Name: declared.Name}
		if value, ok := given[declared.Name]; ok {
			p.Value, p.From = valueText(value), origin(b, task.Name, declared.Name, value)
			of, isOfRun := strings.CutPrefix(strings.TrimSuffix(strings.TrimSuffix(p.Value, ")"),
				"[*]"), "$(params.")
			for _, r := range run.Spec.Params {
				if isOfRun && r.Name == of {
					p.Value, p.From = valueText(r.Value), cmp.Or(templates.Field(of), "the run")
				}
			}
		} else if declared.Default != nil {
			p.Value, p.From = valueText(*declared.Default), "the step's default"
		} else {
			continue
		}
		out = append(out, p)
	}
	return out
}

// origin returns where the value of a task's parameter comes from.
func origin(b *api.AgentBuild, task, name string, value tektonv1.ParamValue) string {
	text := valueText(value)
	if strings.Contains(text, "$(tasks.") {
		return "another task"
	}
	differs := false
	sets := func(params []api.Parameter) bool {
		p := templates.Find(params, name)
		if p == nil {
			return false
		}
		same := text == valueText(compose.ValueOf(*p))
		differs = differs || !same
		return same
	}
	if pipeline := b.Spec.Pipeline; pipeline != nil {
		for _, step := range pipeline.Steps {
			if step.Name == task && sets(step.Parameters) {
				return "this build, for the step"
			}
		}
		if sets(pipeline.Parameters) {
			return "this build"
		}
	}
	if differs {
		return "an earlier spec of this build"
	}
	return "the template"
}

func valueText(v tektonv1.ParamValue) string {
	switch v.Type {
	case tektonv1.ParamTypeArray:
		return strings.Join(v.ArrayVal, "\n")
	case tektonv1.ParamTypeObject:
		var lines []string
		for _, key := range slices.Sorted(maps.Keys(v.ObjectVal)) {
			lines = append(lines, key+": "+v.ObjectVal[key])
		}
		return strings.Join(lines, "\n")
	}
	return v.StringVal
}

// maxRuns bounds the runs of a build that are read, runsPage the runs of one request, and
// maxRunsBytes the bytes of its answer.
const (
	maxRuns      = 50
	runsPage     = 5
	maxRunsBytes = 16 << 20
)

// Runs returns the existing runs of a build in the namespace of its last run, newest first.
func (c *Client) Runs(ctx context.Context, b *api.AgentBuild) ([]runs.Run, error) {
	var all runs.PipelineRunList
	for more := true; more && len(all.Items) < maxRuns; {
		page, err := c.listRuns(ctx, b, func(r *rest.Request) {
			r.Param("limit", fmt.Sprint(runsPage)) // A run may have more than a megabyte.
			if all.Continue != "" {
				r.Param("continue", all.Continue)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("reading the runs of AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
		}
		all.Items, all.Continue, more =
			append(all.Items, page.Items...), page.Continue, page.Continue != ""
	}
	return c.ofBuild(b, &all), nil
}

// newest returns the name of a build's last run by the annotations of its runs, or "".
func (c *Client) newest(ctx context.Context, b *api.AgentBuild) (string, error) {
	list, err := c.listRuns(ctx, b, func(r *rest.Request) {
		r.SetHeader("Accept",
			"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json")
	})
	if all := c.ofBuild(b, &list); len(all) > 0 {
		return all[0].Name, err
	}
	return "", err
}

// ofBuild returns the runs of a build from a list of the namespace of its last run, newest first.
func (c *Client) ofBuild(b *api.AgentBuild, all *runs.PipelineRunList) []runs.Run {
	return runs.Pick(all, func(run *runs.PipelineRun) bool {
		if c.Place(b) == b.Namespace {
			return metav1.IsControlledBy(run, b)
		}
		return isOf(run, b)
	})
}

// selector returns the label selector of a build's runs and TaskRuns in a namespace. The platform's
// namespace may have the runs of several builds of the same name.
func selector(b *api.AgentBuild, namespace string) string {
	of := labels.Set{compose.LabelManagedBy: compose.ManagedBy,
		keys.LabelBuild: compose.LabelValue(b.Name)}
	if namespace != b.Namespace {
		of[keys.AnnotationBuildUID] = string(b.UID)
	}
	return of.String()
}

// listRuns lists runs of a build. set adds parameters to the request.
func (c *Client) listRuns(ctx context.Context, b *api.AgentBuild,
	set func(*rest.Request)) (page runs.PipelineRunList, err error) {
	request := c.tekton.Get().Namespace(c.Place(b)).Resource("pipelineruns").
		Param("labelSelector", selector(b, c.Place(b)))
	set(request)
	raw, err := request.Stream(ctx)
	if err != nil {
		return page, err
	}
	defer raw.Close()
	return page, json.NewDecoder(io.LimitReader(raw, maxRunsBytes)).Decode(&page)
}

// StepLog opens the log of a container, with the log options of the Kubernetes API.
func (c *Client) StepLog(ctx context.Context, namespace, pod, container string,
	options url.Values) (io.ReadCloser, error) {
	request := c.pods.Get().Namespace(namespace).Resource("pods").Name(pod).SubResource("log").
		Param("container", container)
	for name := range options {
		request.Param(name, options.Get(name))
	}
	return request.Stream(ctx)
}

// Record creates an event about a build, which says who did what with which program.
func (c *Client) Record(ctx context.Context, b *api.AgentBuild,
	program, reason, action, note string, at time.Time) error {
	event := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": b.Namespace,
			"name": fmt.Sprintf("%.200s.%x", b.Name, at.UnixNano())},
		"eventTime": at.UTC().Format(metav1.RFC3339Micro), "type": "Normal", "reason": reason,
		"action": action, "note": note, "reportingController": program,
		"reportingInstance": program,
		"regarding": map[string]any{"apiVersion": api.GroupVersion(c.Group).String(),
			"kind": api.Kind, "namespace": b.Namespace, "name": b.Name, "uid": string(b.UID)},
	}}
	event.SetAPIVersion("events.k8s.io/v1")
	event.SetKind("Event")
	events := schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}
	if _, err := c.Resource(events).Namespace(b.Namespace).Create(ctx, event,
		metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("recording an event about AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
	}
	return nil
}

// With returns a copy of the client for a namespace.
func (c *Client) With(namespace string) *Client {
	out := *c
	out.Namespace = namespace
	return &out
}
