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

// Client is that of a cluster. It is the dynamic one: a generated clientset, as well as
// controller-runtime, knows every kind of Kubernetes, and sets that up whenever any command starts.
type Client struct {
	dynamic.Interface
	pods, tekton rest.Interface
	// Namespace of the builds, "" for all.
	Namespace string
	// Group of AgentBuild.
	Group string
	// BuildNamespace has the isolated runs, which are found by their annotations. If it is empty,
	// the status of a build says where its run is: for whoever reads with rights of their own.
	BuildNamespace string
	// Door leads to isolated runs that may not be read where they are; nil for none.
	Door func() (Door, error)
}

// Connect to a cluster. Requests are sent as fast as the API server's own fairness permits.
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

// List the builds of the namespace.
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

// Get a build of the namespace.
func (c *Client) Get(ctx context.Context, name string) (*api.AgentBuild, error) {
	b, err := read[api.AgentBuild](c.builds(c.Namespace).Get(ctx, name, metav1.GetOptions{}))
	if err != nil {
		return nil, c.failed(fmt.Sprintf("reading AgentBuild %s/%s", c.Namespace, name), err)
	}
	b.ManagedFields = nil
	return b, nil
}

// Delete a build, with its runs.
func (c *Client) Delete(ctx context.Context, name string) error {
	if err := c.builds(c.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return c.failed(fmt.Sprintf("deleting AgentBuild %s/%s", c.Namespace, name), err)
	}
	return nil
}

// failed says what was attempted, and what to do where AgentBuild is not installed.
func (c *Client) failed(attempt string, err error) error {
	// An API server that has no such resource answers otherwise than one without such an object.
	if apierrors.IsNotFound(err) &&
		apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return fmt.Errorf("%s: the cluster has no AgentBuild of %s\n"+
			"  hint: `armature install --wait` installs it; --api-group names another group",
			attempt, c.Group)
	}
	return fmt.Errorf("%s: %w", attempt, err)
}

// Apply a build by server-side apply; the generation says which status is new.
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

// Cancel a build: its run stops, and no other starts.
func (c *Client) Cancel(ctx context.Context, b *api.AgentBuild) error {
	return c.edit(ctx, b, true, map[string]string{})
}

// Rerun builds once more, from the revision as it is at a time.
func (c *Client) Rerun(ctx context.Context, b *api.AgentBuild, at time.Time) error {
	return c.edit(ctx, b, nil, map[string]string{
		api.RerunAnnotation(c.Group): at.UTC().Format(time.RFC3339Nano)})
}

// edit patches a build as it was read, so that the API server rejects concurrent changes of two
// users. It removes spec.cancel if cancel is nil.
func (c *Client) edit(ctx context.Context, b *api.AgentBuild, cancel any,
	annotations map[string]string) error {
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"cancel": cancel},
		"metadata": map[string]any{"resourceVersion": b.ResourceVersion,
			"annotations": annotations}})
	if err == nil {
		_, err = c.builds(b.Namespace).Patch(ctx, b.Name, types.MergePatchType, data,
			metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("changing AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
	}
	return nil
}

// LastRun of a build and its tasks, by the name of their task in the order in which the run
// lists them. It is nil where it was cleaned up: status still has the tasks.
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

// taskRuns of a build where its last run is.
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

// Place is the namespace of the build's last run.
func (c *Client) Place(b *api.AgentBuild) string {
	if c.BuildNamespace != "" && b.Status.PipelineRunNamespace != "" {
		return c.BuildNamespace
	}
	return b.RunKey().Namespace
}

// isOf reports whether an object in another namespace than a build says that it is of a run of the
// build. Who may write a build's status could name any run.
func isOf(o metav1.Object, b *api.AgentBuild) bool {
	a := o.GetAnnotations()
	return o.GetNamespace() == b.Namespace || a[keys.AnnotationBuildUID] == string(b.UID) &&
		a[keys.AnnotationBuildNamespace] == b.Namespace && a[keys.AnnotationBuild] == b.Name
}

// Tasks of the build's last run. The status of a finished run has all of them, including
// skipped ones.
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

// Await waits for the end of a build whose spec has a generation, and shows it whenever it may
// have changed. A run that is tried again is not an end.
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
