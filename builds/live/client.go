// Package live reads, applies and follows the AgentBuilds of a cluster, for commands and pages.
package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tektoncd/pipeline/pkg/apis/pipeline"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
)

// Client of a cluster. It is the dynamic one: a generated clientset, as well as
// controller-runtime, knows every kind of Kubernetes, and sets that up whenever any
// command starts.
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
	Door func() (*Door, error)
}

// Connect to a cluster. Requests are sent as fast as the API server's own fairness permits.
func Connect(config *rest.Config, namespace, group string) (*Client, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	objects, err1 := dynamic.NewForConfig(config)
	pods, err2 := restClient(config, "/api", schema.GroupVersion{Version: "v1"})
	tekton, err3 := restClient(config, "/apis", tektonv1.SchemeGroupVersion)
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

// read an object into one of its type.
func (c *Client) read(ctx context.Context, resource schema.GroupVersionResource,
	namespace, name string, into any) error {
	u, err := c.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into)
}

// List the builds of the namespace.
func (c *Client) List(ctx context.Context) (list api.AgentBuildList, err error) {
	found, err := c.builds(c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return list, c.failed("listing AgentBuilds", err)
	}
	for i := range found.Items {
		found.Items[i].SetManagedFields(nil)
	}
	return list, runtime.DefaultUnstructuredConverter.FromUnstructured(found.UnstructuredContent(), &list)
}

// Get a build of the namespace.
func (c *Client) Get(ctx context.Context, name string) (*api.AgentBuild, error) {
	b := &api.AgentBuild{}
	if err := c.read(ctx, api.GroupVersion(c.Group).WithResource("agentbuilds"), c.Namespace, name,
		b); err != nil {
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
	var patch Patch
	patch.Spec.Cancel = new(true)
	return c.Edit(ctx, b, patch)
}

// Rerun builds once more, from the revision as it is at a time.
func (c *Client) Rerun(ctx context.Context, b *api.AgentBuild, at time.Time) error {
	var patch Patch
	patch.Metadata.Annotations = map[string]string{
		api.RerunAnnotation(c.Group): at.UTC().Format(time.RFC3339Nano)}
	return c.Edit(ctx, b, patch)
}

// Patch is a JSON merge patch of an AgentBuild.
type Patch struct {
	Metadata struct {
		// ResourceVersion lets the API server reject concurrent changes of two users.
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec struct {
		// Cancel is removed if it is nil.
		Cancel *bool `json:"cancel"`
	} `json:"spec"`
}

// Edit patches a build as it was read.
func (c *Client) Edit(ctx context.Context, b *api.AgentBuild, patch Patch) error {
	patch.Metadata.ResourceVersion = b.ResourceVersion
	data, err := json.Marshal(patch)
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
		if name, err = newest(ctx, c, b); err != nil {
			return nil, nil, fmt.Errorf("looking for the run of AgentBuild %s/%s: %w", b.Namespace,
				b.Name, err)
		}
	}
	if name == "" {
		return nil, nil, nil
	}
	run := &tektonv1.PipelineRun{}
	if err := c.read(ctx, pipelineRuns, namespace, name, run); apierrors.IsNotFound(err) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading run %s: %w", name, err)
	}
	if !isOf(run, b) {
		return nil, nil, nil
	}
	found, err := c.Resource(taskRuns).Namespace(namespace).List(ctx,
		metav1.ListOptions{LabelSelector: labels.Set{pipeline.PipelineRunLabelKey: name}.String()})
	if err != nil {
		return nil, nil, fmt.Errorf("listing the tasks of run %s: %w", name, err)
	}
	var list tektonv1.TaskRunList
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.UnstructuredContent(),
		&list); err != nil {
		return nil, nil, fmt.Errorf("reading the tasks of run %s: %w", name, err)
	}
	var tasks []tektonv1.TaskRun
	for _, child := range run.Status.ChildReferences {
		at := slices.IndexFunc(list.Items,
			func(t tektonv1.TaskRun) bool { return t.Name == child.Name })
		if at >= 0 {
			task := list.Items[at]
			task.Name = child.PipelineTaskName
			tasks = append(tasks, task)
		}
	}
	return run, tasks, nil
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

// statusOf a task that may still run.
func statusOf(run *tektonv1.TaskRun) api.TaskStatus {
	t := api.TaskStatus{Name: run.Name, State: "Pending", StartTime: run.Status.StartTime,
		CompletionTime: run.Status.CompletionTime}
	if c := run.Status.GetCondition("Succeeded"); c != nil {
		t.Reason = c.Reason
		switch {
		case c.Reason == tektonv1.TaskRunReasonCancelled.String():
			t.State = "Cancelled"
		case c.IsTrue():
			t.State = "Succeeded"
		case c.IsFalse():
			t.State = "Failed"
		default:
			t.State = "Running"
		}
	}
	return t
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
		over, err := c.watch(ctx, b, func(now *api.AgentBuild) (bool, error) {
			if now.Status.ObservedGeneration < generation || now.Status.Phase == "" {
				return false, nil
			}
			show(now)
			if now.Over() && now.Status.Phase != api.PhaseSucceeded {
				return true, ErrNotBuilt
			}
			return now.Over(), nil
		})
		if over || err != nil {
			return err
		}
		// API servers end a watch after half an hour, or when they restart.
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("AgentBuild %s/%s did not finish in time\n"+
					"  hint: it continues; wait longer with --timeout, or see `armature build "+
					"describe %s -n %s`", b.Namespace, b.Name, b.Name, b.Namespace)
			}
			return fmt.Errorf("no longer waiting for AgentBuild %s/%s; it continues", b.Namespace, b.Name)
		case <-time.After(time.Second):
		}
	}
}

func deleted(b *api.AgentBuild) error {
	return fmt.Errorf("AgentBuild %s/%s was deleted", b.Namespace, b.Name)
}

// watch a build until look says that it is over, or the API server ends the watch. look sees it
// when it changes, and now and then.
func (c *Client) watch(ctx context.Context, b *api.AgentBuild,
	look func(now *api.AgentBuild) (over bool, err error)) (over bool, err error) {
	watch, err := c.builds(b.Namespace).Watch(ctx,
		metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", b.Name).String()})
	switch {
	case err != nil && denied(err):
		return false, fmt.Errorf("watching AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
	case err != nil:
		return false, nil
	}
	defer watch.Stop()
	// A watch reports only deletions that follow it.
	if _, err := c.builds(b.Namespace).Get(ctx, b.Name,
		metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return false, deleted(b)
	}
	now := &api.AgentBuild{}
	for {
		select {
		case <-time.After(2 * poll): // its tasks may have changed
		case event := <-watch.ResultChan():
			u, ok := event.Object.(*unstructured.Unstructured)
			switch {
			case !ok: // the API server ends the watch
				return false, nil
			case event.Type == apiwatch.Deleted:
				return false, deleted(b)
			}
			now = &api.AgentBuild{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, now); err != nil {
				return false, fmt.Errorf("reading AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
			}
		}
		if over, err := look(now); over || err != nil {
			return over, err
		}
	}
}

// denied reports whether the API server refused, and did not only fail to answer.
func denied(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err)
}
