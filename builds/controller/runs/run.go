// Package runs reads and writes the PipelineRuns of builds: which of them are trusted, what they
// record, and what they built.
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

// PipelineRun has the fields of a Tekton PipelineRun that decisions and status need. A whole run
// has its pipeline twice, in spec and status: decoding it would cost more than the rest of a build.
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

// PipelineRunList is a list of runs from the API server.
type PipelineRunList = copies.List[PipelineRun]

// DeepCopyObject returns a copy that shares nothing with r.
func (r *PipelineRun) DeepCopyObject() runtime.Object { return copies.Of(r) }

// SpanContext is the annotation of a run that Tekton's own spans continue: headers of the W3C trace
// context, in JSON.
const SpanContext = "tekton.dev/pipelinerunSpanContext"

// Slim removes the metadata of a run that the controller does not read.
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

// Read reads the annotations of a run.
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
	// A value that the controller did not write counts as none.
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

// Condition returns the condition Succeeded of the run, or nil. Its status outranks its reason.
func (r Run) Condition() *apis.Condition { return r.Status.GetCondition(apis.ConditionSucceeded) }

// Done reports whether the run has ended.
func (r Run) Done() bool {
	c := r.Condition()
	return c != nil && !c.IsUnknown()
}

// Succeeded reports whether the run has ended well.
func (r Run) Succeeded() bool { return r.Condition().IsTrue() }

// Cancelled reports whether the run was cancelled, which is not a failure. A run that the
// controller stopped because it lost a pod has failed.
func (r Run) Cancelled() bool {
	c := r.Condition()
	return c != nil && c.IsFalse() && c.Reason == tektonv1.PipelineRunReasonCancelled.String() &&
		r.Lost == nil
}

// CancelAsked reports whether the spec of the run asks to cancel it. A pending run, which waits for
// a queue of the cluster, is not cancelled.
func (r Run) CancelAsked() bool {
	return r.Spec.Status != "" && r.Spec.Status != tektonv1.PipelineRunSpecStatusPending
}

// Outcome returns Running, Succeeded, Failed or Cancelled.
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

// Took returns how long the run took since its creation; zero while it runs.
func (r Run) Took() time.Duration {
	if !r.Done() {
		return 0
	}
	return max(0, r.Finished().Sub(r.CreationTimestamp.Time)).Round(time.Second)
}

// Held reports whether an isolated run may not begin yet.
func (r Run) Held() bool { return r.Annotations[keys.AnnotationHeld] != "" }

// Attested reports whether the run is of an attested mode, whose image counts once it is attested.
func (r Run) Attested() bool { return r.Annotations[keys.AnnotationRunDigest] != "" }

// Finished returns when the run ended.
func (r Run) Finished() time.Time {
	if r.Status.CompletionTime != nil {
		return r.Status.CompletionTime.Time
	}
	if c := r.Condition(); c != nil {
		return c.LastTransitionTime.Inner.Time
	}
	return r.CreationTimestamp.Time
}

// result returns the result of the name, or the first result whose name is that of a task followed
// by the name.
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

// Cloned returns the commit that the clone step reports, or "".
func (r Run) Cloned() string {
	for _, given := range r.Status.Results {
		if given.Name == "CHAINS-GIT_COMMIT" {
			return strings.TrimSpace(given.Value.StringVal)
		}
	}
	return ""
}

// Image returns the image by digest and its platforms from the run's results. Steps write the
// results, so the name is taken from the order. The error says why there is no image.
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

// Pick returns the wanted runs of a list, newest first.
func Pick(list *PipelineRunList, wanted func(*PipelineRun) bool) (out []Run) {
	for i := range list.Items {
		if run := &list.Items[i]; wanted(run) {
			out = append(out, Read(run))
		}
	}
	Sort(out)
	return out
}

// Sort sorts runs, newest first.
func Sort(out []Run) {
	slices.SortFunc(out, func(a, b Run) int {
		return cmp.Or(cmp.Compare(b.Number, a.Number),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
			cmp.Compare(b.Attempt, a.Attempt), strings.Compare(b.Name, a.Name))
	})
}

// OwnerIndex is the name of the index of cached runs by build. Store.IndexOf returns its values.
const OwnerIndex = "owner"

// Lost describes the lost pod that a run was stopped for.
type Lost struct {
	Task string `json:"task"`
	Pod  string `json:"pod"`
	// Reason is api.ReasonEvicted or api.ReasonFailed.
	Reason  string           `json:"reason"`
	Cause   api.FailureCause `json:"cause,omitempty"`
	Message string           `json:"message"`
}

// readLost reads the annotation of a run. It returns nil for a value that is not the controller's.
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
