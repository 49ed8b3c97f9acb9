package queue

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/functions/api/keys"
)

// Kueue admits whole runs: before a run, a Workload of the same name is created with the requests
// of its tasks, and the run follows once the Workload is admitted. Kueue does not see the pods. The
// Workload is finished when the run ends, and deleted with the run or when no run needs it.
type Kueue struct {
	// QueueName is the LocalQueue of builds without the label. An isolated run always uses the
	// LocalQueue in the build namespace that is named after the tenant's namespace.
	QueueName string
	// Runs says which Workloads belong to isolated runs.
	Runs *runs.Store
	// Cache has the Workloads.
	Cache client.Reader
	// Client writes to the API server, as FieldOwner.
	Client     client.Client
	FieldOwner string
}

// QueueLabel is the label of a build that names its LocalQueue. Kueue uses it for every kind.
const QueueLabel = "kueue.x-k8s.io/queue-name"

// Conditions of a Workload.
const (
	workloadReserved = "QuotaReserved"
	workloadAdmitted = "Admitted"
	workloadEvicted  = "Evicted"
	workloadFinished = "Finished"
)

// NewWorkload returns an empty Workload.
func NewWorkload() *unstructured.Unstructured {
	w := &unstructured.Unstructured{}
	w.SetGroupVersionKind(schema.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta2",
		Kind: "Workload"})
	return w
}

// conditionsOf returns the conditions of a Workload; nil if they cannot be read.
func conditionsOf(w *unstructured.Unstructured) []metav1.Condition {
	var read struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(w.Object, &read)
	return read.Status.Conditions
}

// Admit asks Kueue to admit a composed run. The message says what the run waits for; it is empty
// once the run may be created.
func (k *Kueue) Admit(ctx context.Context, b *api.AgentBuild,
	out *compose.Output) (message string, err error) {
	queueName := cmp.Or(b.Labels[QueueLabel], k.QueueName)
	message = fmt.Sprintf("waits for LocalQueue %s of Kueue", queueName)
	if k.Runs.IsIsolated(out.Run) {
		queueName = b.Namespace
		message = fmt.Sprintf("waits for LocalQueue %s of Kueue in namespace %s", queueName,
			out.Run.Namespace)
	}
	w := NewWorkload()
	err = k.Cache.Get(ctx, client.ObjectKeyFromObject(out.Run), w)
	conditions := conditionsOf(w)
	switch {
	case apierrors.IsNotFound(err):
		if w, err = workload(b, out, queueName); err == nil {
			err = k.Client.Create(ctx, w)
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("creating Workload %s: %w", w.GetName(), err)
		}
	case err != nil:
		return "", fmt.Errorf("reading Workload %s: %w", out.Run.Name, err)
	case !k.isOf(w, b):
		message = fmt.Sprintf(
			"waits: a Workload %s exists that is not this build's\n  hint: delete it", w.GetName())
	case meta.IsStatusConditionTrue(conditions, workloadEvicted):
		return message, k.delete(ctx, w) // The next Workload waits for its turn.
	case meta.IsStatusConditionTrue(conditions, workloadAdmitted):
		return "", nil
	}
	if c := meta.FindStatusCondition(conditions, workloadReserved); c != nil && c.Message != "" {
		message += ": " + c.Message
	}
	return message, nil
}

// isOf reports whether a Workload is of a build's run. Tenants cannot write in the build namespace.
func (k *Kueue) isOf(w *unstructured.Unstructured, b *api.AgentBuild) bool {
	if k.Runs.IsIsolated(w) {
		return w.GetAnnotations()[keys.AnnotationBuildUID] == string(b.UID)
	}
	return metav1.IsControlledBy(w, b)
}

// workload returns the Workload of a composed run.
func workload(b *api.AgentBuild, out *compose.Output,
	queueName string) (*unstructured.Unstructured, error) {
	var template corev1.PodTemplateSpec
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	template.Spec.Containers = []corev1.Container{{Name: "tasks", Image: "tasks",
		Resources: corev1.ResourceRequirements{Requests: requests(out)}}}
	pods, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&template)
	if err != nil {
		return nil, fmt.Errorf("converting the requests of run %s: %w", out.Run.Name, err)
	}
	w := NewWorkload()
	w.SetNamespace(out.Run.Namespace)
	w.SetName(out.Run.Name)
	w.SetOwnerReferences(out.Run.OwnerReferences)
	if out.Run.Namespace != b.Namespace {
		w.SetLabels(map[string]string{compose.LabelManagedBy: compose.ManagedBy,
			keys.LabelInstance: out.Run.Labels[keys.LabelInstance]})
		w.SetAnnotations(map[string]string{keys.AnnotationBuildNamespace: b.Namespace,
			keys.AnnotationBuild: b.Name, keys.AnnotationBuildUID: string(b.UID)})
	}
	w.Object["spec"] = map[string]any{
		"queueName": queueName,
		"priority":  int64(b.Spec.Priority),
		"podSets":   []any{map[string]any{"name": "run", "count": int64(1), "template": pods}},
	}
	return w, nil
}

// requests returns the most that the pods of a run request at the same time. The requests of tasks
// at the same depth of the pipeline add up. Tasks that follow each other do not add up, nor do
// alternatives, whose conditions compare an input with different values, for example the builders
// of mode dev.
func requests(out *compose.Output) corev1.ResourceList {
	overrides := map[string]tektonv1.PipelineTaskRunSpec{}
	for _, row := range out.Run.Spec.TaskRunSpecs {
		overrides[row.PipelineTaskName] = row
	}
	type choice struct {
		depth int
		input string
	}
	choices := map[choice]sums[string]{} // the sums by the value of the input
	choose := func(task tektonv1.PipelineTask, depth int) {
		c, value := choice{depth: depth}, ""
		if len(task.When) > 0 {
			when := task.When[0]
			c.input, value = when.CEL+when.Input, fmt.Sprint(when.Operator, when.Values)
		}
		if choices[c] == nil {
			choices[c] = sums[string]{}
		}
		choices[c].add(ofTask(task, overrides[task.Name]), value)
	}
	tasks, depths := out.Pipeline.Spec.Tasks, map[string]int{}
	for range tasks {
		for _, task := range tasks {
			for _, before := range task.Deps() {
				depths[task.Name] = max(depths[task.Name], depths[before]+1)
			}
		}
	}
	for _, task := range tasks {
		choose(task, depths[task.Name])
	}
	for _, task := range out.Pipeline.Spec.Finally {
		choose(task, len(tasks))
	}
	together := sums[int]{}
	for c, values := range choices {
		together.add(most(maps.Values(values)), c.depth)
	}
	return most(maps.Values(together))
}

// most returns the largest amount of each resource.
func most(lists iter.Seq[corev1.ResourceList]) corev1.ResourceList {
	out := corev1.ResourceList{}
	for list := range lists {
		for name, amount := range list {
			if have := out[name]; have.Cmp(amount) < 0 {
				out[name] = amount
			}
		}
	}
	return out
}

// ofTask returns the requests of the containers of a task's pod.
func ofTask(task tektonv1.PipelineTask, row tektonv1.PipelineTaskRunSpec) corev1.ResourceList {
	if task.TaskSpec == nil {
		return nil
	}
	sum := sums[string]{}
	count := func(of corev1.ResourceRequirements) {
		requested := corev1.ResourceList{}
		maps.Copy(requested, of.Limits) // As in Kubernetes, a limit alone is a request.
		maps.Copy(requested, of.Requests)
		sum.add(requested, "")
	}
	if row.ComputeResources != nil { // These are for all steps together.
		count(*row.ComputeResources)
	} else {
		for _, step := range task.TaskSpec.Steps {
			count(step.ComputeResources)
		}
	}
	for _, sidecar := range task.TaskSpec.Sidecars {
		resources := sidecar.ComputeResources
		for _, own := range row.SidecarSpecs {
			if own.Name == sidecar.Name {
				resources = own.ComputeResources
			}
		}
		count(resources)
	}
	return sum[""]
}

// sums adds quantities by resource.
type sums[K comparable] map[K]corev1.ResourceList

func (s sums[K]) add(list corev1.ResourceList, to ...K) {
	for _, key := range to {
		if s[key] == nil {
			s[key] = corev1.ResourceList{}
		}
		for name, amount := range list {
			total := s[key][name]
			total.Add(amount)
			s[key][name] = total
		}
	}
}

// Settle finishes the Workload of a run that has ended. It deletes Workloads without a run, except
// that of the run named waits, and those of an earlier build of the same name.
func (k *Kueue) Settle(ctx context.Context, build *api.AgentBuild, known []runs.Run, waits string) error {
	if k == nil {
		return nil
	}
	places := map[string]string{build.Namespace: string(build.UID)}
	if k.Runs.BuildNamespace != "" {
		places[k.Runs.BuildNamespace] = client.ObjectKeyFromObject(build).String()
	}
	var all []unstructured.Unstructured
	for namespace, index := range places {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(NewWorkload().GroupVersionKind())
		if err := k.Cache.List(ctx, list, client.InNamespace(namespace),
			client.MatchingFields{runs.OwnerIndex: index}); err != nil {
			return fmt.Errorf("listing the Workloads of AgentBuild %s/%s: %w", build.Namespace,
				build.Name, err)
		}
		all = append(all, list.Items...)
	}
	for i := range all {
		w := &all[i]
		at := slices.IndexFunc(known, func(r runs.Run) bool { return r.Name == w.GetName() })
		var err error
		switch {
		case at < 0 && w.GetName() != waits, !k.isOf(w, build):
			err = k.delete(ctx, w)
		case at >= 0 && known[at].Done() &&
			!meta.IsStatusConditionTrue(conditionsOf(w), workloadFinished):
			err = k.finish(ctx, w, known[at])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// finish finishes the Workload of a run that has ended, which frees its quota.
func (k *Kueue) finish(ctx context.Context, w *unstructured.Unstructured, run runs.Run) error {
	reason := "Failed"
	if run.Succeeded() {
		reason = "Succeeded"
	}
	ended := NewWorkload()
	ended.SetNamespace(w.GetNamespace())
	ended.SetName(w.GetName())
	ended.SetUID(w.GetUID())
	ended.Object["status"] = map[string]any{"conditions": []any{map[string]any{
		"type": workloadFinished, "status": "True", "reason": reason,
		"message":            fmt.Sprintf("run %s has ended", run.Name),
		"lastTransitionTime": run.Finished().UTC().Format(time.RFC3339),
	}}}
	err := k.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(ended),
		client.FieldOwner(k.FieldOwner), client.ForceOwnership)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("finishing Workload %s: %w", w.GetName(), err)
	}
	return nil
}

func (k *Kueue) delete(ctx context.Context, w *unstructured.Unstructured) error {
	uid := w.GetUID()
	if err := k.Client.Delete(ctx, w,
		client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Workload %s: %w", w.GetName(), err)
	}
	return nil
}

// Evicted returns why Kueue takes back the quota of a build's run under way, or nil if it does not.
// The run is stopped, and spec.retries decides as after any other eviction.
func (k *Kueue) Evicted(ctx context.Context, b *api.AgentBuild, run *runs.Run) (*runs.Lost, error) {
	if k == nil {
		return nil, nil
	}
	w := NewWorkload()
	if err := k.Cache.Get(ctx, client.ObjectKeyFromObject(run), w); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	c := meta.FindStatusCondition(conditionsOf(w), workloadEvicted)
	if c == nil || c.Status != metav1.ConditionTrue || !k.isOf(w, b) {
		return nil, nil
	}
	return &runs.Lost{Reason: api.ReasonEvicted, Cause: api.CauseEvicted,
		Message: "evicted by Kueue: " + c.Message}, nil
}
