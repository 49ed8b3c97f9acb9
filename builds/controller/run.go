package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
)

// PipelineRun is a Tekton run as far as decisions and status look at it. Each
// run embeds its pipeline, and its status repeats it: reading it whole costs more
// than all else that a build costs.
type PipelineRun struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              runSpec   `json:"spec"`
	Status            runStatus `json:"status,omitempty"`
}

type runSpec struct {
	// Status asks the run to stop.
	Status tektonv1.PipelineRunSpecStatus `json:"status,omitempty"`
}

type runStatus struct {
	duckv1.Status   `json:",inline"`
	StartTime       *metav1.Time                 `json:"startTime,omitempty"`
	CompletionTime  *metav1.Time                 `json:"completionTime,omitempty"`
	Results         []tektonv1.PipelineRunResult `json:"results,omitempty"`
	ChildReferences []childReference             `json:"childReferences,omitempty"`
	SkippedTasks    []skippedTask                `json:"skippedTasks,omitempty"`
}

type childReference struct {
	Kind             string `json:"kind,omitempty"`
	Name             string `json:"name,omitempty"`
	PipelineTaskName string `json:"pipelineTaskName,omitempty"`
}

type skippedTask struct {
	Name   string                  `json:"name"`
	Reason tektonv1.SkippingReason `json:"reason"`
}

// PipelineRunList is what the API server answers to a list.
type PipelineRunList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PipelineRun `json:"items"`
}

// DeepCopyObject makes a PipelineRun a runtime.Object.
func (r *PipelineRun) DeepCopyObject() runtime.Object {
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	r.Status.Status.DeepCopyInto(&out.Status.Status)
	out.Status.StartTime, out.Status.CompletionTime = r.Status.StartTime.DeepCopy(), r.Status.CompletionTime.DeepCopy()
	out.Status.Results = slices.Clone(r.Status.Results)
	for i := range out.Status.Results {
		out.Status.Results[i] = *r.Status.Results[i].DeepCopy()
	}
	out.Status.ChildReferences, out.Status.SkippedTasks = slices.Clone(r.Status.ChildReferences), slices.Clone(r.Status.SkippedTasks)
	return &out
}

// DeepCopyObject makes a PipelineRunList a runtime.Object.
func (l *PipelineRunList) DeepCopyObject() runtime.Object {
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]PipelineRun, len(l.Items))
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopyObject().(*PipelineRun)
	}
	return &out
}

// slimRun keeps of a run's metadata what is read.
func slimRun(in any) (any, error) {
	pr, ok := in.(*PipelineRun)
	if !ok {
		return in, nil
	}
	pr.ManagedFields = nil
	annotations := map[string]string{}
	for _, key := range append(slices.Clone(compose.RunAnnotations), chainsSigned, keys.AnnotationLost) {
		if v, ok := pr.Annotations[key]; ok {
			annotations[key] = v
		}
	}
	pr.Annotations = annotations
	pr.Labels = map[string]string{compose.LabelManagedBy: pr.Labels[compose.LabelManagedBy], keys.LabelBuild: pr.Labels[keys.LabelBuild]}
	return pr, nil
}

// run is a PipelineRun with what its annotations say.
type run struct {
	*PipelineRun
	inputs  api.Inputs
	attempt int32
	number  int32
	commit  string
	ref     string
	trigger api.Trigger
	// verified are the policies that the commit satisfies.
	verified []api.SourceVerification
	// lost is the pod that the controller stopped the run for, or nil.
	lost *lostPod
}

func readRun(pr *PipelineRun) run {
	a := pr.Annotations
	count := func(key string) int32 {
		n, err := strconv.ParseInt(a[key], 10, 32)
		if err != nil || n < 1 {
			return 1
		}
		return int32(n)
	}
	var verified []api.SourceVerification
	_ = json.Unmarshal([]byte(a[keys.AnnotationVerified]), &verified) // what is not ours does not count
	return run{
		PipelineRun: pr,
		verified:    verified,
		lost:        readLost(a[keys.AnnotationLost]),
		inputs: api.Inputs{SpecHash: a[keys.AnnotationSpec], TemplateHash: a[keys.AnnotationTemplate], Rerun: a[keys.AnnotationRerun],
			SourceHash: a[keys.AnnotationSource], Commit: a[keys.AnnotationCommit]},
		attempt: count(keys.AnnotationAttempt),
		number:  count(keys.AnnotationNumber),
		commit:  a[keys.AnnotationCommit],
		ref:     a[keys.AnnotationRef],
		trigger: api.Trigger(a[keys.AnnotationTrigger]),
	}
}

// condition of the run: its status decides, and only then its reason.
func (r run) condition() *apis.Condition { return r.Status.GetCondition(apis.ConditionSucceeded) }

func (r run) done() bool {
	c := r.condition()
	return c != nil && !c.IsUnknown()
}

func (r run) succeeded() bool { return r.condition().IsTrue() }

// cancelled reports whether somebody stopped the run, which is not a failure, as it is
// where the controller stopped it for a pod that was lost.
func (r run) cancelled() bool {
	c := r.condition()
	return c != nil && c.IsFalse() && c.Reason == tektonv1.PipelineRunReasonCancelled.String() && r.lost == nil
}

// cancelAsked reports whether somebody cancelled the run. One that waits until a queue
// of the cluster lets it begin is not.
func (r run) cancelAsked() bool {
	return r.Spec.Status != "" && r.Spec.Status != tektonv1.PipelineRunSpecStatusPending
}

func (r run) finished() time.Time {
	if r.Status.CompletionTime != nil {
		return r.Status.CompletionTime.Time
	}
	if c := r.condition(); c != nil {
		return c.LastTransitionTime.Inner.Time
	}
	return r.CreationTimestamp.Time
}

// runs that a build owns, newest first.
func runs(list *PipelineRunList, build *api.AgentBuild) []run {
	var out []run
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], build) {
			out = append(out, readRun(&list.Items[i]))
		}
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		if a.number != b.number {
			return a.number > b.number
		}
		if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
			return b.CreationTimestamp.Before(&a.CreationTimestamp)
		}
		if a.attempt != b.attempt {
			return a.attempt > b.attempt
		}
		return a.Name > b.Name
	})
	return out
}

// ownerIndex finds the cached runs of a build without looking at all others.
const ownerIndex = "owner"

func ownerOf(o client.Object) []string {
	if owner := metav1.GetControllerOf(o); owner != nil {
		return []string{string(owner.UID)}
	}
	return nil
}

// cachedRuns of a build, newest first. They are the cache's own: not to be changed.
func (r *Reconciler) cachedRuns(ctx context.Context, build *api.AgentBuild) ([]run, error) {
	var list PipelineRunList
	err := r.Client.List(ctx, &list, client.InNamespace(build.Namespace), client.MatchingFields{ownerIndex: string(build.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the runs of AgentBuild %s/%s: %w", build.Namespace, build.Name, err)
	}
	return r.ours(ctx, build, runs(&list, build))
}

// liveRuns are the runs that the API server knows and that name the build as their
// owner, whoever made them.
func (r *Reconciler) liveRuns(ctx context.Context, build *api.AgentBuild) ([]run, error) {
	var list PipelineRunList
	err := r.Live.List(ctx, &list, client.InNamespace(build.Namespace), client.MatchingLabels{
		compose.LabelManagedBy: compose.ManagedBy,
		keys.LabelBuild:        compose.LabelValue(build.Name),
	})
	if err != nil {
		return nil, fmt.Errorf("listing the runs of AgentBuild %s/%s: %w", build.Namespace, build.Name, err)
	}
	return runs(&list, build), nil
}
