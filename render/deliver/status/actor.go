package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/duration"

	kstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/asyncactor"
	"github.com/armature-dev/armature/render/deliver/health"
)

// Status values of 004, "Status Values".
const (
	Running          = "Running"
	Napping          = "Napping"
	Degraded         = "Degraded"
	Creating         = "Creating"
	ScalingUp        = "ScalingUp"
	ScalingDown      = "ScalingDown"
	Updating         = "Updating"
	Terminating      = "Terminating"
	TransportError   = "TransportError"
	ScalingError     = "ScalingError"
	WorkloadError    = "WorkloadError"
	PendingResources = "PendingResources"
	ImagePullError   = "ImagePullError"
	RuntimeError     = "RuntimeError"
	SidecarError     = "SidecarError"
	VolumeError      = "VolumeError"
	ConfigError      = "ConfigError"
)

// Actor is the state of an AsyncActor's workload, with the columns of 004, "AsyncActor Status".
type Actor struct {
	Name `json:",inline"`
	// Status is one of the constants. Message is the reason unless the actor is running.
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
	// Running counts ready pods, Failing pods that cannot become ready, Total pods that have not
	// ended, and Desired the desired pods.
	Running int `json:"running"`
	Failing int `json:"failing"`
	Total   int `json:"total"`
	Desired int `json:"desired"`
	// Min and Max are KEDA's bounds; nil if KEDA does not scale the actor.
	Min *int `json:"min,omitempty"`
	Max *int `json:"max,omitempty"`
	// LastScale is for example "5m ago (up)"; "" if no event and no HPA records it.
	LastScale string `json:"lastScale,omitempty"`
	// Workload is the kind; Transport is Ready or NotReady; Scaling is KEDA or Manual.
	Workload   string          `json:"workload"`
	Transport  string          `json:"transport"`
	Scaling    string          `json:"scaling"`
	Conditions []api.Condition `json:"conditions"`
}

// columns returns the headings of an actor's row.
func columns(wide bool) []string {
	columns := []string{"STATUS", "RUNNING", "FAILING", "TOTAL", "DESIRED", "MIN", "MAX", "LAST-SCALE"}
	if wide {
		columns = append(columns, "WORKLOAD", "TRANSPORT", "SCALING", "QUEUED", "PROCESSING")
	}
	return columns
}

// cells returns the row of an actor. Unknown values are "-", for example the number of messages,
// which only the broker knows.
func (a *Actor) cells(wide bool) []string {
	bound := func(n *int) string {
		if n == nil {
			return "-"
		}
		return fmt.Sprint(*n)
	}
	row := []string{a.Status, fmt.Sprint(a.Running), fmt.Sprint(a.Failing), fmt.Sprint(a.Total),
		fmt.Sprint(a.Desired), bound(a.Min), bound(a.Max), cmp.Or(a.LastScale, "-")}
	if wide {
		row = append(row, a.Workload, a.Transport, a.Scaling, "-", "-")
	}
	return row
}

// actorLive contains the objects of one actor in the cluster; nil for an object that does not
// exist.
type actorLive struct {
	workload *unstructured.Unstructured
	// scaledObject is KEDA's, and hpa the one that KEDA created for it (keda-hpa-<actor>).
	scaledObject, hpa *unstructured.Unstructured
	// queue is the declared queue; nil if the package does not declare one.
	queue *unstructured.Unstructured
	// pods are the pods that the workload's selector matches.
	pods []*corev1.Pod
	// events of the workload, its HPA, its ScaledObject and its pods, in any order. Without them,
	// failed mounts and the direction of scaling are unknown.
	events []*corev1.Event
	now    time.Time
}

// actor returns the state of an actor. The first applicable status of this list wins: Terminating,
// Creating, TransportError, the errors of pods if none is ready, ScalingError, Degraded, Napping,
// Updating, ScalingUp, ScalingDown, Running.
func (l *actorLive) actor() (a Actor) {
	a.Workload, a.Transport, a.Scaling, a.LastScale =
		l.workload.GetKind(), "Ready", "Manual", l.lastScale()
	scalingError := ""
	if l.scaledObject != nil {
		a.Scaling = "KEDA"
		a.Min, a.Max = new(number(l.scaledObject, ".spec.minReplicaCount", 0)),
			new(number(l.scaledObject, ".spec.maxReplicaCount", 0))
		if c := health.Condition(l.scaledObject, "Ready"); c.Status == corev1.ConditionFalse {
			scalingError = cmp.Or(c.Message, "KEDA does not accept the ScaledObject")
		}
	}
	// The HPA's number counts unless KEDA has scaled to zero.
	if a.Desired = number(l.workload, ".spec.replicas", 1); a.Desired > 0 && l.hpa != nil {
		a.Desired = cmp.Or(number(l.hpa, ".status.desiredReplicas", 0), a.Desired)
	}
	queue, queueMessage := l.transport()
	if queue != "QueueReady" {
		a.Transport = "NotReady"
	}
	workloadError := l.workloadError(a.count(l))

	a.condition("TransportReady", queue == "QueueReady", queue, queueMessage)
	a.condition("WorkloadReady", workloadError.status == "",
		cmp.Or(workloadError.status, "PodsHealthy"), workloadError.message)
	switch {
	case scalingError != "":
		a.condition("ScalingReady", false, "ScaledObjectFailed", scalingError)
	case l.scaledObject != nil:
		a.condition("ScalingReady", true, "ScaledObjectReady", "")
	}

	switch {
	case l.workload.GetDeletionTimestamp() != nil:
		a.Status = Terminating
	case number(l.workload, ".status.observedGeneration", 0) == 0:
		a.Status, a.Message = Creating, "the workload has not been reconciled yet"
	case queue == "QueueFailed":
		a.Status, a.Message = TransportError, queueMessage
	case queue == "QueuePending":
		a.Status, a.Message = Creating, queueMessage
	case workloadError.status != "" && a.Running == 0:
		a.Status, a.Message = workloadError.status, workloadError.message
	case scalingError != "":
		a.Status, a.Message = ScalingError, scalingError
	case workloadError.status != "":
		a.Status, a.Message = Degraded, workloadError.status+": "+workloadError.message
	case l.scaledObject != nil && a.Desired == 0 && a.Total == 0:
		a.Status = Napping
	case updating(l.workload):
		a.Status = Updating
	case a.Total > a.Desired:
		a.Status = ScalingDown
	case a.Running < a.Desired:
		a.Status = ScalingUp
	default:
		a.Status = Running
	}
	return a
}

// condition adds one of the three conditions of the operator.
func (a *Actor) condition(kind string, ok bool, reason, message string) {
	a.Conditions = append(a.Conditions, api.Condition{Type: kind, Status: truth(ok), Reason: reason,
		Message: message})
}

func truth(ok bool) string {
	if ok {
		return "True"
	}
	return "False"
}

// updating reports whether pods of an older revision are being replaced.
func updating(w *unstructured.Unstructured) bool {
	if w.GetGeneration() > int64(number(w, ".status.observedGeneration", 0)) {
		return true
	}
	current := kstatus.GetStringField(w.Object, ".status.currentRevision", "")
	update := kstatus.GetStringField(w.Object, ".status.updateRevision", "")
	return update != "" && current != update || w.GetKind() == "Deployment" &&
		number(w, ".status.updatedReplicas", 0) < number(w, ".status.replicas", 0)
}

// transport returns a reason of the condition TransportReady, from the conditions of RabbitMQ's
// topology operator (Ready) and of AWS' controllers (ACK.…). A queue that the package does not
// declare counts as ready.
func (l *actorLive) transport() (reason, message string) {
	if l.queue == nil {
		return "QueueReady", ""
	}
	for _, kind := range []string{"ACK.Terminal", "ACK.Recoverable"} {
		if c := health.Condition(l.queue, kind); c.Status == corev1.ConditionTrue {
			return "QueueFailed", cmp.Or(c.Message, "AWS does not make the queue")
		}
	}
	rabbit, aws := health.Condition(l.queue, "Ready"), health.Condition(l.queue, "ACK.ResourceSynced")
	switch {
	case rabbit.Status == corev1.ConditionFalse:
		return "QueueFailed", cmp.Or(rabbit.Message, "RabbitMQ does not make the queue")
	case rabbit.Status == corev1.ConditionTrue, aws.Status == corev1.ConditionTrue:
		return "QueueReady", ""
	}
	return "QueuePending", "the queue has not been made yet"
}

// cause is the reason why pods cannot become ready.
type cause struct{ status, message string }

// reasons maps the reasons of waiting containers that lead to the same status in all containers.
var reasons = map[string]string{
	"ImagePullBackOff": ImagePullError, "ErrImagePull": ImagePullError,
	"InvalidImageName": ImagePullError, "ErrImageNeverPull": ImagePullError,
	"CreateContainerConfigError": ConfigError,
}

// severity is the order of causes. The first one is reported.
var severity = []string{PendingResources, ImagePullError, RuntimeError, SidecarError, VolumeError,
	ConfigError, WorkloadError}

// count counts the pods and returns the causes of those that fail.
func (a *Actor) count(l *actorLive) (causes []cause) {
	for _, pod := range running(l.pods) {
		a.Total++
		if has(pod, corev1.PodReady) {
			a.Running++
		} else if c := podCause(pod, l.events); c.status != "" {
			a.Failing++
			causes = append(causes, c)
		}
	}
	return causes
}

// workloadError returns the gravest cause, or that the workload has failed.
func (l *actorLive) workloadError(causes []cause) cause {
	if len(causes) > 0 {
		return slices.MinFunc(causes, func(a, b cause) int {
			return slices.Index(severity, a.status) - slices.Index(severity, b.status)
		})
	}
	if c := health.Condition(l.workload, "Progressing"); c.Status == corev1.ConditionFalse {
		return cause{WorkloadError, c.Message}
	}
	if c := health.Condition(l.workload, "ReplicaFailure"); c.Status == corev1.ConditionTrue {
		return cause{WorkloadError, c.Message}
	}
	return cause{}
}

// podCause returns what keeps a pod from becoming ready. The status is "" if it only needs time.
func podCause(pod *corev1.Pod, events []*corev1.Event) cause {
	at := func(status, message string) cause {
		return cause{status, "pod " + pod.Name + ": " + message}
	}
	for _, t := range health.Troubles(pod) {
		switch {
		case t.Reason == corev1.PodReasonUnschedulable &&
			strings.Contains(strings.ToLower(t.Message), "persistentvolumeclaim"):
			return cause{VolumeError, t.String()}
		case t.Reason == corev1.PodReasonUnschedulable:
			return cause{PendingResources, t.String()}
		case t.Stuck():
			byContainer := map[string]string{asyncactor.Runtime: RuntimeError,
				asyncactor.Sidecar: SidecarError}[t.Container]
			return cause{cmp.Or(reasons[t.Reason], byContainer, WorkloadError), t.String()}
		}
	}
	for _, e := range events {
		if e.InvolvedObject.Kind == "Pod" && e.InvolvedObject.Name == pod.Name &&
			(e.Reason == "FailedMount" || e.Reason == "FailedAttachVolume") {
			return at(mountCause(e.Message), e.Message)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "MountVolume") {
			return at(mountCause(c.Message), c.Message)
		}
	}
	return cause{}
}

// mountCause distinguishes a missing ConfigMap or Secret from a volume that cannot be mounted.
func mountCause(message string) string {
	lower := strings.ToLower(message)
	if strings.Contains(lower, "not found") &&
		(strings.Contains(lower, "configmap") || strings.Contains(lower, "secret")) {
		return ConfigError
	}
	return VolumeError
}

// lastScale returns when the workload was last scaled, and in which direction.
func (l *actorLive) lastScale() string {
	var last time.Time
	direction := ""
	for _, e := range l.events {
		when := e.LastTimestamp.Time
		for _, other := range []time.Time{e.EventTime.Time, e.FirstTimestamp.Time} {
			if when.IsZero() {
				when = other
			}
		}
		if way := scaleDirection(e.Reason, e.Message); way != "" && when.After(last) {
			last, direction = when, " ("+way+")"
		}
	}
	if l.hpa != nil {
		scaled, _ := time.Parse(time.RFC3339,
			kstatus.GetStringField(l.hpa.Object, ".status.lastScaleTime", ""))
		if scaled.After(last.Add(time.Minute)) {
			last, direction = scaled, "" // its event has expired
		}
	}
	if last.IsZero() || l.now.Before(last) {
		return ""
	}
	return duration.ShortHumanDuration(l.now.Sub(last)) + " ago" + direction
}

func scaleDirection(reason, message string) string {
	switch {
	case reason == "KEDAScaleTargetActivated",
		reason == "ScalingReplicaSet" && strings.HasPrefix(message, "Scaled up"):
		return "up"
	case reason == "KEDAScaleTargetDeactivated",
		reason == "ScalingReplicaSet" && strings.HasPrefix(message, "Scaled down"):
		return "down"
	}
	return ""
}

// number reads a field by its path, such as ".spec.replicas".
func number(o *unstructured.Unstructured, field string, missing int) int {
	return kstatus.GetIntField(o.Object, field, missing)
}
