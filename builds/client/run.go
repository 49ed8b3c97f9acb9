package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
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

// View of a build's last run.
type View struct {
	// Tasks in the order of the pipeline.
	Tasks []Task
	// Columns are the tasks as they follow one another.
	Columns [][]Task
	// Params of its tasks.
	Params []Param
}

// Task of a run.
type Task struct {
	api.TaskStatus
	Order `json:"-"`
	// Pod that runs its steps; empty before it has one.
	Pod   string `json:"pod,omitempty"`
	Steps []Step `json:"steps,omitempty"`
}

// Step of a task.
type Step struct {
	Name      string `json:"name"`
	Container string `json:"container"`
	// State is Pending, Running, Succeeded or Failed.
	State    string `json:"state"`
	ExitCode int32  `json:"exitCode,omitempty"`
	// Start and End are zero where they are still to come.
	Start time.Time `json:"start,omitzero"`
	End   time.Time `json:"end,omitzero"`
}

// Took is how long a task took; zero while it runs.
func (t Task) Took() time.Duration { return took(t.StartTime, t.CompletionTime) }

// Began is when a task began; zero before that.
func (t Task) Began() time.Time { return ptr.Deref(t.StartTime, metav1.Time{}).Time }

// ViewOf returns the view of a build's last run. The run is nil where it is gone: the build's
// status then has the tasks.
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

// pipelineOf a run, as Tekton resolved it; nil where it has not, or there is no run.
func pipelineOf(run *tektonv1.PipelineRun) *tektonv1.PipelineSpec {
	if run == nil {
		return nil
	}
	return cmp.Or(run.Status.PipelineSpec, run.Spec.PipelineSpec)
}

// taskOf a run by its name: the status of a finished build has more than its TaskRun, and a
// task that was skipped has none.
func taskOf(b *api.AgentBuild, run *tektonv1.PipelineRun, tasks []tektonv1.TaskRun, name string) Task {
	t := Task{TaskStatus: api.TaskStatus{Name: name, State: "Pending"}}
	for _, s := range run.Status.SkippedTasks {
		if s.Name == name {
			t.State = "Skipped"
		}
	}
	for i := range tasks {
		if tasks[i].Name == name {
			t = begun(&tasks[i])
		}
	}
	for _, s := range b.Status.Tasks {
		if s.Name == name && b.Status.PipelineRunUID == run.UID {
			t.TaskStatus = s
		}
	}
	return t
}

// begun is a task that has a TaskRun.
func begun(run *tektonv1.TaskRun) Task {
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

// Param of a task, and where its value comes from.
type Param struct {
	Task, Name, Value string
	// From is "this build, for the step", "this build", a field of its spec, "an earlier spec of
	// this build", "the template", "another task" or "the step's default".
	From string
}

// paramsOf returns those of a task. The run has the values, and the build as it is now says which
// of them it gave.
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

// origin returns where a run has the value of a task's parameter from.
func origin(b *api.AgentBuild, task, name string, value tektonv1.ParamValue) string {
	text := valueText(value)
	if strings.Contains(text, "$(tasks.") {
		return "another task"
	}
	differs := false
	look := func(params []api.Parameter) bool {
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
			if step.Name == task && look(step.Parameters) {
				return "this build, for the step"
			}
		}
		if look(pipeline.Parameters) {
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
		for key, value := range v.ObjectVal {
			lines = append(lines, key+": "+value)
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	return v.StringVal
}

// Bounds of a history: the runs of a build that are read, those that are asked for at once, and
// the bytes of these.
const (
	maxRuns      = 50
	runsPage     = 5
	maxRunsBytes = 16 << 20
)

// Runs of a build that there still are where its last run is, newest first.
func (c *Client) Runs(ctx context.Context, b *api.AgentBuild) ([]runs.Run, error) {
	var all runs.PipelineRunList
	for more := true; more && len(all.Items) < maxRuns; {
		page, err := c.listRuns(ctx, b, func(r *rest.Request) {
			r.Param("limit", fmt.Sprint(runsPage)) // one may have more than a megabyte
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

// newest is the name of a build's last run, by what all of them say about themselves; "" for none.
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

// ofBuild returns those of the runs where a build's last run is that are the build's, newest first.
func (c *Client) ofBuild(b *api.AgentBuild, all *runs.PipelineRunList) []runs.Run {
	return runs.Pick(all, func(run *runs.PipelineRun) bool {
		if c.Place(b) == b.Namespace {
			return metav1.IsControlledBy(run, b)
		}
		return isOf(run, b)
	})
}

// selector of a build's runs in a namespace and of their tasks. In the platform's there may be
// many builds of a name.
func selector(b *api.AgentBuild, namespace string) string {
	of := labels.Set{compose.LabelManagedBy: compose.ManagedBy,
		keys.LabelBuild: compose.LabelValue(b.Name)}
	if namespace != b.Namespace {
		of[keys.AnnotationBuildUID] = string(b.UID)
	}
	return of.String()
}

// listRuns sends a request for runs of a build.
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

// StepLog reads the log of a container, with the options that the API has for that.
func (c *Client) StepLog(ctx context.Context, namespace, pod, container string,
	options url.Values) (io.ReadCloser, error) {
	request := c.pods.Get().Namespace(namespace).Resource("pods").Name(pod).SubResource("log").
		Param("container", container)
	for name := range options {
		request.Param(name, options.Get(name))
	}
	return request.Stream(ctx)
}

// Record an event about a build: who did what with it by which program.
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

// With returns the client of a namespace.
func (c *Client) With(namespace string) *Client {
	out := *c
	out.Namespace = namespace
	return &out
}
