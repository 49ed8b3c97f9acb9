// Package client reads, applies and follows the AgentBuilds of a cluster, for commands and pages.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tektoncd/pipeline/pkg/apis/pipeline"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/process"
)

// Client is a client of a cluster. It is dynamic, because a generated clientset and
// controller-runtime would set up every kind of Kubernetes at the start of each command.
type Client struct {
	dynamic.Interface
	pods, tekton rest.Interface
	// Namespace is the namespace of the builds; "" means all namespaces.
	Namespace string
	// Group is the API group of AgentBuild.
	Group string
	// BuildNamespace has the isolated runs, which are found by their annotations. It is empty for
	// users who read with their own rights: the status of a build then says where its run is.
	BuildNamespace string
	// Door opens the door to isolated runs that the user may not read directly; nil means no door.
	Door func() (Door, error)
}

// Connect returns a client of a cluster. Only the API server's fairness limits its requests.
func Connect(config *rest.Config, namespace, group string) (*Client, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	objects, err1 := dynamic.NewForConfig(config)
	pods, err2 := process.RESTClient(config, "/api", schema.GroupVersion{Version: "v1"})
	tekton, err3 := process.RESTClient(config, "/apis", tektonv1.SchemeGroupVersion)
	if err := multi.Errors(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return &Client{Interface: objects, pods: pods, tekton: tekton, Namespace: namespace,
		Group: group}, nil
}

var (
	pipelineRuns = tektonv1.SchemeGroupVersion.WithResource("pipelineruns")
	taskRuns     = tektonv1.SchemeGroupVersion.WithResource("taskruns")
)

func (c *Client) builds(namespace string) dynamic.ResourceInterface {
	return c.Resource(api.GroupVersion(c.Group).WithResource("agentbuilds")).Namespace(namespace)
}

// read converts an answer of the API server.
func read[T any](answer runtime.Unstructured, err error) (*T, error) {
	into := new(T)
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(
			answer.UnstructuredContent(), into)
	}
	return into, err
}

// List returns the builds of the namespace.
func (c *Client) List(ctx context.Context) (list api.AgentBuildList, err error) {
	found, err := read[api.AgentBuildList](c.builds(c.Namespace).List(ctx, metav1.ListOptions{}))
	if err != nil {
		return list, c.failed("listing AgentBuilds", err)
	}
	for i := range found.Items {
		found.Items[i].ManagedFields = nil
	}
	return *found, nil
}

// Get returns a build of the namespace.
func (c *Client) Get(ctx context.Context, name string) (*api.AgentBuild, error) {
	b, err := read[api.AgentBuild](c.builds(c.Namespace).Get(ctx, name, metav1.GetOptions{}))
	if err != nil {
		return nil, c.failed(fmt.Sprintf("reading AgentBuild %s/%s", c.Namespace, name), err)
	}
	b.ManagedFields = nil
	return b, nil
}

// Delete deletes a build with its runs.
func (c *Client) Delete(ctx context.Context, name string) error {
	if err := c.builds(c.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return c.failed(fmt.Sprintf("deleting AgentBuild %s/%s", c.Namespace, name), err)
	}
	return nil
}

// failed adds to an error what was attempted, and the remedy if AgentBuild is not installed.
func (c *Client) failed(attempt string, err error) error {
	// This cause distinguishes a missing resource from a missing object.
	if apierrors.IsNotFound(err) &&
		apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return fmt.Errorf("%s: the cluster has no AgentBuild of %s\n"+
			"  hint: `armature install --wait` installs it; --api-group names another group",
			attempt, c.Group)
	}
	return fmt.Errorf("%s: %w", attempt, err)
}

// Apply applies a build by server-side apply, and returns the generation of its new status.
func (c *Client) Apply(ctx context.Context, b *api.AgentBuild) (int64, error) {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		return 0, fmt.Errorf("converting AgentBuild %s: %w", b.Name, err)
	}
	delete(raw, "status")
	u := &unstructured.Unstructured{Object: raw}
	u.SetAPIVersion(api.GroupVersion(c.Group).String())
	u.SetKind(api.Kind)
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	applied, err := c.builds(b.Namespace).Apply(ctx, b.Name, u,
		metav1.ApplyOptions{FieldManager: "armature"})
	if err != nil {
		return 0, c.failed(fmt.Sprintf("applying AgentBuild %s/%s", b.Namespace, b.Name), err)
	}
	return applied.GetGeneration(), nil
}

// Cancel cancels a build: its run stops, and no other starts.
func (c *Client) Cancel(ctx context.Context, b *api.AgentBuild) error {
	return c.edit(ctx, b, true, map[string]string{})
}

// Rerun requests another run of a build, from the current commit of its revision.
func (c *Client) Rerun(ctx context.Context, b *api.AgentBuild, at time.Time) error {
	return c.edit(ctx, b, nil, map[string]string{
		api.RerunAnnotation(c.Group): at.UTC().Format(time.RFC3339Nano)})
}

// edit patches a build as it was read, so that the API server rejects concurrent changes of two
// users. It removes spec.cancel if cancel is nil, and sets the resourceVersion of b to the new one,
// which is the old one if the build is already as requested.
func (c *Client) edit(ctx context.Context, b *api.AgentBuild, cancel any,
	annotations map[string]string) error {
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"cancel": cancel},
		"metadata": map[string]any{"resourceVersion": b.ResourceVersion,
			"annotations": annotations}})
	var changed *unstructured.Unstructured
	if err == nil {
		changed, err = c.builds(b.Namespace).Patch(ctx, b.Name, types.MergePatchType, data,
			metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("changing AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
	}
	b.ResourceVersion = changed.GetResourceVersion()
	return nil
}

// LastRun returns the last run of a build and its TaskRuns in the order of the run, each with the
// name of its task. The run is nil if it was cleaned up; status still has the tasks.
func (c *Client) LastRun(ctx context.Context,
	b *api.AgentBuild) (*tektonv1.PipelineRun, []tektonv1.TaskRun, error) {
	namespace, name := c.Place(b), b.Status.PipelineRunName
	if namespace == c.BuildNamespace {
		var err error
		if name, err = c.newest(ctx, b); err != nil {
			return nil, nil, fmt.Errorf("looking for the run of AgentBuild %s/%s: %w", b.Namespace,
				b.Name, err)
		}
	}
	if name == "" {
		return nil, nil, nil
	}
	run, err := read[tektonv1.PipelineRun](
		c.Resource(pipelineRuns).Namespace(namespace).Get(ctx, name, metav1.GetOptions{}))
	if apierrors.IsNotFound(err) || err == nil && !isOf(run, b) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading run %s: %w", name, err)
	}
	found, err := c.taskRuns(ctx, b, labels.Set{pipeline.PipelineRunLabelKey: name}.String())
	if err != nil {
		return nil, nil, err
	}
	var tasks []tektonv1.TaskRun
	for _, child := range run.Status.ChildReferences {
		for _, task := range found {
			if task.Name == child.Name {
				task.Name = child.PipelineTaskName
				tasks = append(tasks, task)
			}
		}
	}
	return run, tasks, nil
}

// taskRuns returns the TaskRuns that match a selector in the namespace of the build's last run.
func (c *Client) taskRuns(ctx context.Context, b *api.AgentBuild,
	selector string) ([]tektonv1.TaskRun, error) {
	list, err := read[tektonv1.TaskRunList](c.Resource(taskRuns).Namespace(c.Place(b)).
		List(ctx, metav1.ListOptions{LabelSelector: selector}))
	if err != nil {
		return nil, fmt.Errorf("listing the tasks of AgentBuild %s/%s: %w", b.Namespace, b.Name,
			err)
	}
	return list.Items, nil
}

// Place returns the namespace of the build's last run.
func (c *Client) Place(b *api.AgentBuild) string {
	if c.BuildNamespace != "" && b.Status.PipelineRunNamespace != "" {
		return c.BuildNamespace
	}
	return b.RunKey().Namespace
}

// isOf reports whether an object is in the namespace of a build or its annotations name the build.
// A user who may write the status of a build could name any run in it.
func isOf(o metav1.Object, b *api.AgentBuild) bool {
	a := o.GetAnnotations()
	return o.GetNamespace() == b.Namespace || a[keys.AnnotationBuildUID] == string(b.UID) &&
		a[keys.AnnotationBuildNamespace] == b.Namespace && a[keys.AnnotationBuild] == b.Name
}

// Tasks returns the tasks of the build's last run. The status of a finished run has all tasks,
// including skipped ones.
func (c *Client) Tasks(ctx context.Context, b *api.AgentBuild) (tasks []api.TaskStatus, err error) {
	if len(b.Status.Tasks) > 0 {
		return b.Status.Tasks, nil
	}
	run, err := c.Run(ctx, b)
	for _, t := range run.Tasks {
		tasks = append(tasks, t.TaskStatus)
	}
	return tasks, err
}

// ErrNotBuilt ends the wait for a build that failed or was cancelled.
var ErrNotBuilt = errors.New("the build did not succeed")

// poll is how often the state of a followed build is read.
const poll = time.Second

// Await waits for the end of a build of at least the generation, and calls show whenever the build
// may have changed. It continues to wait while a failed run is retried.
func (c *Client) Await(ctx context.Context, b *api.AgentBuild, generation int64,
	show func(now *api.AgentBuild)) error {
	for {
		now, err := c.With(b.Namespace).Get(ctx, b.Name)
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("AgentBuild %s/%s was deleted", b.Namespace, b.Name)
		case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
			return err
		case err == nil && now.Status.ObservedGeneration >= generation && now.Status.Phase != "":
			if show(now); now.Over() && now.Status.Phase != api.PhaseSucceeded {
				return ErrNotBuilt
			} else if now.Over() {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("AgentBuild %s/%s did not finish in time\n"+
					"  hint: it continues; wait longer with --timeout, or see `armature build "+
					"describe %s -n %s`", b.Namespace, b.Name, b.Name, b.Namespace)
			}
			return fmt.Errorf("no longer waiting for AgentBuild %s/%s; it continues", b.Namespace, b.Name)
		case <-time.After(poll):
		}
	}
}
