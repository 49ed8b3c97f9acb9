// Package runs knows the PipelineRuns of builds: what is read of them, which of them
// count, and what they built.
package runs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process/copies"
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
	StartTime       *metav1.Time                    `json:"startTime,omitempty"`
	CompletionTime  *metav1.Time                    `json:"completionTime,omitempty"`
	Results         []tektonv1.PipelineRunResult    `json:"results,omitempty"`
	ChildReferences []tektonv1.ChildStatusReference `json:"childReferences,omitempty"`
	SkippedTasks    []tektonv1.SkippedTask          `json:"skippedTasks,omitempty"`
}

// PipelineRunList is what the API server answers to a list.
type PipelineRunList = copies.List[PipelineRun]

// DeepCopyObject returns a copy that shares nothing with r.
func (r *PipelineRun) DeepCopyObject() runtime.Object { return copies.Of(r) }

// SpanContext is the annotation of a run from which Tekton's own spans go on: headers of W3C's
// trace context, in JSON.
const SpanContext = "tekton.dev/pipelinerunSpanContext"

// Slim keeps of a run's metadata what is read.
func Slim(in any) (any, error) {
	pr, ok := in.(*PipelineRun)
	if !ok {
		return in, nil
	}
	pr.ManagedFields = nil
	annotations := map[string]string{}
	for _, key := range append(slices.Clone(compose.RunAnnotations), compose.ChainsSigned,
		SpanContext, keys.AnnotationLost, keys.AnnotationHeld, keys.AnnotationRequests) {
		if v, ok := pr.Annotations[key]; ok {
			annotations[key] = v
		}
	}
	pr.Annotations = annotations
	pr.Labels = map[string]string{compose.LabelManagedBy: pr.Labels[compose.LabelManagedBy],
		keys.LabelBuild:    pr.Labels[keys.LabelBuild],
		keys.LabelInstance: pr.Labels[keys.LabelInstance]}
	return pr, nil
}

// Run is a PipelineRun with what its annotations record.
type Run struct {
	*PipelineRun
	Inputs  api.Inputs
	Attempt int32
	Number  int32
	Commit  string
	Ref     string
	Trigger api.Trigger
	// Verified are the policies that the commit satisfies.
	Verified []api.SourceVerification
	// Lost is the pod that the controller stopped the run for, or nil.
	Lost *Lost
}

// Read the annotations of a run.
func Read(pr *PipelineRun) Run {
	a := pr.Annotations
	count := func(key string) int32 {
		n, err := strconv.ParseInt(a[key], 10, 32)
		if err != nil || n < 1 {
			return 1
		}
		return int32(n)
	}
	var verified []api.SourceVerification
	// what is not ours does not count
	_ = json.Unmarshal([]byte(a[keys.AnnotationVerified]), &verified)
	return Run{
		PipelineRun: pr,
		Verified:    verified,
		Lost:        readLost(a[keys.AnnotationLost]),
		Inputs: api.Inputs{SpecHash: a[keys.AnnotationSpec],
			TemplateHash: a[keys.AnnotationTemplate], Rerun: a[keys.AnnotationRerun],
			SourceHash: a[keys.AnnotationSource], Commit: a[keys.AnnotationCommit]},
		Attempt: count(keys.AnnotationAttempt),
		Number:  count(keys.AnnotationNumber),
		Commit:  a[keys.AnnotationCommit],
		Ref:     a[keys.AnnotationRef],
		Trigger: api.Trigger(a[keys.AnnotationTrigger]),
	}
}

// Condition of the run: its status decides, and only then its reason.
func (r Run) Condition() *apis.Condition { return r.Status.GetCondition(apis.ConditionSucceeded) }

// Done reports whether the run has ended.
func (r Run) Done() bool {
	c := r.Condition()
	return c != nil && !c.IsUnknown()
}

// Succeeded reports whether the run has ended well.
func (r Run) Succeeded() bool { return r.Condition().IsTrue() }

// Cancelled reports whether somebody stopped the run, which is not a failure. A run that
// the controller stopped because it lost a pod has failed.
func (r Run) Cancelled() bool {
	c := r.Condition()
	return c != nil && c.IsFalse() && c.Reason == tektonv1.PipelineRunReasonCancelled.String() &&
		r.Lost == nil
}

// CancelAsked reports whether somebody cancelled the run. A run that waits until a queue
// of the cluster lets it begin was not cancelled.
func (r Run) CancelAsked() bool {
	return r.Spec.Status != "" && r.Spec.Status != tektonv1.PipelineRunSpecStatusPending
}

// Outcome in a word: Running, Succeeded, Failed or Cancelled.
func (r Run) Outcome() string {
	switch {
	case !r.Done():
		return "Running"
	case r.Succeeded():
		return "Succeeded"
	case r.Cancelled():
		return "Cancelled"
	}
	return "Failed"
}

// Took is how long the run took since it was created; zero while it runs.
func (r Run) Took() time.Duration {
	if !r.Done() {
		return 0
	}
	return max(0, r.Finished().Sub(r.CreationTimestamp.Time)).Round(time.Second)
}

// Held reports whether an isolated run may not begin yet.
func (r Run) Held() bool { return r.Annotations[keys.AnnotationHeld] != "" }

// Attested reports whether a run is of an attested mode: its image does not count before
// it is attested.
func (r Run) Attested() bool { return r.Annotations[keys.AnnotationRunDigest] != "" }

// Finished is when the run ended.
func (r Run) Finished() time.Time {
	if r.Status.CompletionTime != nil {
		return r.Status.CompletionTime.Time
	}
	if c := r.Condition(); c != nil {
		return c.LastTransitionTime.Inner.Time
	}
	return r.CreationTimestamp.Time
}

// result of a run by name, or by the first name that ends in it after the task's.
func (r Run) result(name string) (value string) {
	for _, given := range r.Status.Results {
		text := strings.TrimSpace(given.Value.StringVal)
		if given.Name == name && text != "" {
			return text
		}
		if strings.HasSuffix(given.Name, "-"+name) {
			value = cmp.Or(value, text)
		}
	}
	return value
}

// Cloned is the commit that the clone step reports, or "".
func (r Run) Cloned() string {
	for _, given := range r.Status.Results {
		if given.Name == "CHAINS-GIT_COMMIT" {
			return strings.TrimSpace(given.Value.StringVal)
		}
	}
	return ""
}

// Image by digest, and its platforms, from the run's results. Steps write those,
// so the name is the one that was ordered. The error says why there is no image.
func (r Run) Image() (string, []api.PlatformStatus, error) {
	digest := r.result("IMAGE_DIGEST")
	image := cmp.Or(r.result("IMAGE_URL"), r.Annotations[keys.AnnotationImage])
	if image == "" || digest == "" {
		return "", nil, errors.New("no step gave the result IMAGE_DIGEST")
	}
	image, _, _ = strings.Cut(image, "@")
	at, err := name.ParseReference(image)
	if err != nil {
		return "", nil, errors.New("the result IMAGE_URL is not an image reference")
	}
	if !api.IsDigest(digest) {
		return "", nil, errors.New("the result IMAGE_DIGEST is not a digest")
	}
	if ordered := r.Annotations[keys.AnnotationImage]; ordered != "" {
		if want, err := name.ParseReference(ordered); err != nil ||
			want.Context().Name() != at.Context().Name() {
			return "", nil, errors.New(
				"the result IMAGE_URL names another repository than spec.buildOutput")
		}
		image = ordered
	}
	var platforms []api.PlatformStatus
	if text := r.result(compose.PlatformDigests); text != "" {
		if platforms, err = api.ReadPlatforms(text); err != nil {
			return "", nil, fmt.Errorf("the result %s is wrong: %w", compose.PlatformDigests, err)
		}
		if len(platforms) == 1 && platforms[0].Digest != digest {
			return "", nil, fmt.Errorf("the result %s names another image than IMAGE_DIGEST",
				compose.PlatformDigests)
		}
	}
	return image + "@" + digest, platforms, nil
}

// Pick reads the runs of a list that are wanted, newest first.
func Pick(list *PipelineRunList, wanted func(*PipelineRun) bool) (out []Run) {
	for i := range list.Items {
		if run := &list.Items[i]; wanted(run) {
			out = append(out, Read(run))
		}
	}
	Sort(out)
	return out
}

// Sort runs, the newest first.
func Sort(out []Run) {
	slices.SortFunc(out, func(a, b Run) int {
		return cmp.Or(cmp.Compare(b.Number, a.Number),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
			cmp.Compare(b.Attempt, a.Attempt), strings.Compare(b.Name, a.Name))
	})
}

// OwnerIndex finds the cached runs of a build without looking at all others. It is made
// with Store.IndexOf.
const OwnerIndex = "owner"

// Lost is what became of a pod of a run that was stopped because the pod is lost.
type Lost struct {
	Task string `json:"task"`
	Pod  string `json:"pod"`
	// Reason is api.ReasonEvicted or api.ReasonFailed.
	Reason  string           `json:"reason"`
	Cause   api.FailureCause `json:"cause,omitempty"`
	Message string           `json:"message"`
}

// readLost reads the annotation of a run; nil for what the controller does not write.
func readLost(annotation string) *Lost {
	lost := &Lost{}
	if annotation == "" || len(annotation) > api.MaxMessage ||
		json.Unmarshal([]byte(annotation), lost) != nil ||
		!slices.Contains([]string{api.ReasonEvicted, api.ReasonFailed}, lost.Reason) ||
		!slices.Contains([]api.FailureCause{"", api.CauseEvicted, api.CauseNodeLost}, lost.Cause) {
		return nil
	}
	return lost
}
