// Package actor judges an AsyncActor as it runs, in the words of 004, "AsyncActor
// Status".
package actor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/asyncactor"
)

// The values of 004, "Status Values".
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

// Live is what a cluster has of one actor. Objects are as JSON decodes them, such
// as unstructured.Unstructured's; nil is one that is not there.
type Live struct {
	// Workload is the Deployment or StatefulSet.
	Workload map[string]any
	// ScaledObject is KEDA's, and HPA the one that KEDA made for it
	// (keda-hpa-<actor>).
	ScaledObject, HPA map[string]any
	// Queue is the declared queue. Without one, somebody else looks after it.
	Queue map[string]any
	// Pods are those that the workload's selector picks.
	Pods []map[string]any
	// Events are of the workload, its HPA and ScaledObject, and its pods, in any
	// order. Without them, failed mounts and the direction of scaling are not seen.
	Events []map[string]any
	// Queued and Processing count messages, where the caller has asked the broker.
	Queued, Processing *int
	// Now is when the cluster was asked.
	Now time.Time
}

// ActorStatus is an actor in the words and columns of 004, "AsyncActor Status".
type ActorStatus struct {
	// Status is one of the constants, and Message says why where all is not well.
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
	// Running counts ready pods, Failing those that do not get on, Total all that
	// have not ended, and Desired is how many there should be.
	Running int `json:"running"`
	Failing int `json:"failing"`
	Total   int `json:"total"`
	Desired int `json:"desired"`
	// Min and Max are KEDA's bounds, nil where it does not scale.
	Min *int `json:"min,omitempty"`
	Max *int `json:"max,omitempty"`
	// LastScale is "5m ago (up)", "" where nobody remembers.
	LastScale string `json:"lastScale,omitempty"`
	// Workload is the kind; Transport is Ready or NotReady; Scaling is KEDA or Manual.
	Workload   string          `json:"workload"`
	Transport  string          `json:"transport"`
	Scaling    string          `json:"scaling"`
	Queued     *int            `json:"queued,omitempty"`
	Processing *int            `json:"processing,omitempty"`
	Conditions []api.Condition `json:"conditions"`
}

// Columns are the headings of Row.
func Columns(wide bool) []string {
	columns := []string{"STATUS", "RUNNING", "FAILING", "TOTAL", "DESIRED", "MIN", "MAX", "LAST-SCALE"}
	if wide {
		columns = append(columns, "WORKLOAD", "TRANSPORT", "SCALING", "QUEUED", "PROCESSING")
	}
	return columns
}

// Row is the status as a line of a table. Unknown values are "-".
func (s *ActorStatus) Row(wide bool) []string {
	number := func(p *int) string {
		if p == nil {
			return "-"
		}
		return fmt.Sprint(*p)
	}
	last := s.LastScale
	if last == "" {
		last = "-"
	}
	row := []string{s.Status, fmt.Sprint(s.Running), fmt.Sprint(s.Failing), fmt.Sprint(s.Total), fmt.Sprint(s.Desired), number(s.Min), number(s.Max), last}
	if wide {
		row = append(row, s.Workload, s.Transport, s.Scaling, number(s.Queued), number(s.Processing))
	}
	return row
}

// Status is the state of an actor. An earlier one in this list wins:
// Terminating, Creating, TransportError, the errors of pods where none is ready,
// ScalingError, Degraded, Napping, Updating, ScalingUp, ScalingDown, Running.
func Status(l Live) ActorStatus {
	w := live{l.Workload}
	s := ActorStatus{
		Workload: w.text("kind"), Transport: "Ready", Scaling: "Manual",
		Queued: l.Queued, Processing: l.Processing, Conditions: []api.Condition{}, LastScale: lastScale(l),
	}
	scaled := live{l.ScaledObject}
	if l.ScaledObject != nil {
		s.Scaling = "KEDA"
		s.Min, s.Max = number(scaled.number("spec", "minReplicaCount")), number(scaled.number("spec", "maxReplicaCount"))
	}
	s.Desired = desired(w, live{l.HPA})
	causes := s.countPods(l)
	queueError, queueReady := transportState(live{l.Queue})
	if !queueReady {
		s.Transport = "NotReady"
	}
	scalingError := ""
	if status, message := scaled.condition("Ready"); status == "False" {
		scalingError = orElse(message, "KEDA does not accept the ScaledObject")
	}
	workloadError := s.workloadError(w, causes)
	s.conditions(l, queueError, queueReady, workloadError, scalingError)

	set := func(status, message string) ActorStatus {
		s.Status, s.Message = status, message
		return s
	}
	switch {
	case l.Workload != nil && w.text("metadata", "deletionTimestamp") != "":
		return set(Terminating, "")
	case l.Workload == nil:
		return set(Creating, "there is no workload yet")
	case w.number("status", "observedGeneration") == 0:
		return set(Creating, "the workload has not been looked at yet")
	case queueError != "":
		return set(TransportError, queueError)
	case !queueReady:
		return set(Creating, "the queue has not been made yet")
	case workloadError.status != "" && s.Running == 0:
		return set(workloadError.status, workloadError.message)
	case scalingError != "":
		return set(ScalingError, scalingError)
	case workloadError.status != "":
		return set(Degraded, workloadError.status+": "+workloadError.message)
	case l.ScaledObject != nil && s.Desired == 0 && s.Total == 0:
		return set(Napping, "")
	case updating(w):
		return set(Updating, "")
	case s.Total > s.Desired:
		return set(ScalingDown, "")
	case s.Running < s.Desired:
		return set(ScalingUp, "")
	}
	return set(Running, "")
}

// conditions are the three that the operator kept.
func (s *ActorStatus) conditions(l Live, queueError string, queueReady bool, workload cause, scalingError string) {
	add := func(kind string, ok bool, reason, message string) {
		status := "True"
		if !ok {
			status = "False"
		}
		s.Conditions = append(s.Conditions, api.Condition{Type: kind, Status: status, Reason: reason, Message: message})
	}
	switch {
	case queueError != "":
		add("TransportReady", false, "QueueFailed", queueError)
	case !queueReady:
		add("TransportReady", false, "QueuePending", "the queue has not been made yet")
	default:
		add("TransportReady", true, "QueueReady", "")
	}
	switch {
	case l.Workload == nil:
		add("WorkloadReady", false, "NoWorkload", "there is no workload yet")
	case workload.status != "":
		add("WorkloadReady", false, workload.status, workload.message)
	default:
		add("WorkloadReady", true, "PodsHealthy", "")
	}
	if l.ScaledObject != nil {
		if scalingError != "" {
			add("ScalingReady", false, "ScaledObjectFailed", scalingError)
		} else {
			add("ScalingReady", true, "ScaledObjectReady", "")
		}
	}
}

// desired is the HPA's number while KEDA has not scaled to zero.
func desired(w, hpa live) int {
	replicas, ok := w.find("spec", "replicas")
	if !ok {
		replicas = 1.0
	}
	n := toInt(replicas)
	if m := hpa.number("status", "desiredReplicas"); n > 0 && m > 0 {
		return m
	}
	return n
}

// updating reports whether pods of an older revision are being replaced.
func updating(w live) bool {
	if w.number("metadata", "generation") > w.number("status", "observedGeneration") {
		return true
	}
	if current, update := w.text("status", "currentRevision"), w.text("status", "updateRevision"); update != "" && current != update {
		return true
	}
	return w.text("kind") == "Deployment" && w.number("status", "updatedReplicas") < w.number("status", "replicas")
}

// transportState reads the conditions of RabbitMQ's topology operator (Ready) and
// of AWS' controllers (ACK.…). No queue is ready: it is somebody else's.
func transportState(q live) (problem string, ready bool) {
	if q.object == nil {
		return "", true
	}
	for _, kind := range []string{"ACK.Terminal", "ACK.Recoverable"} {
		if status, message := q.condition(kind); status == "True" {
			return orElse(message, "AWS does not make the queue"), false
		}
	}
	for _, kind := range []string{"Ready", "ACK.ResourceSynced"} {
		switch status, message := q.condition(kind); {
		case status == "True":
			return "", true
		case status == "False" && kind == "Ready":
			return orElse(message, "RabbitMQ does not make the queue"), false
		}
	}
	return "", false
}

// cause is why pods do not get on.
type cause struct{ status, message string }

// severity is the order of causes; the first one is reported for all.
var severity = []string{PendingResources, ImagePullError, RuntimeError, SidecarError, VolumeError, ConfigError, WorkloadError}

// countPods counts the pods and gives what keeps the failing ones.
func (s *ActorStatus) countPods(l Live) (causes []cause) {
	for _, object := range l.Pods {
		pod := live{object}
		phase := pod.text("status", "phase")
		if pod.text("metadata", "deletionTimestamp") != "" || phase == "Succeeded" || phase == "Failed" {
			continue
		}
		s.Total++
		if ready, _ := pod.condition("Ready"); ready == "True" {
			s.Running++
			continue
		}
		if c := podCause(pod, l.Events); c.status != "" {
			s.Failing++
			causes = append(causes, c)
		}
	}
	return causes
}

// workloadError is the gravest cause, or that the workload has given up.
func (s *ActorStatus) workloadError(w live, causes []cause) cause {
	for _, status := range severity {
		if i := slices.IndexFunc(causes, func(c cause) bool { return c.status == status }); i >= 0 {
			return causes[i]
		}
	}
	for _, kind := range []string{"Progressing", "ReplicaFailure"} {
		status, message := w.condition(kind)
		if kind == "Progressing" && status == "False" || kind == "ReplicaFailure" && status == "True" {
			return cause{WorkloadError, message}
		}
	}
	return cause{}
}

// podCause says what keeps a pod that is not ready, with no status where it only
// needs time.
func podCause(pod live, events []map[string]any) cause {
	name := pod.text("metadata", "name")
	at := func(status, message string) cause { return cause{status, "pod " + name + ": " + message} }
	for _, c := range pod.list("status", "conditions") {
		if c.text("type") == "PodScheduled" && c.text("status") == "False" && c.text("reason") == "Unschedulable" {
			if message := c.text("message"); strings.Contains(strings.ToLower(message), "persistentvolumeclaim") {
				return at(VolumeError, message)
			}
			return at(PendingResources, c.text("message"))
		}
	}
	for _, list := range []string{"initContainerStatuses", "containerStatuses"} {
		for _, c := range pod.list("status", list) {
			if found := containerCause(c); found.status != "" {
				return at(found.status, found.message)
			}
		}
	}
	for _, object := range events {
		e := live{object}
		if e.text("involvedObject", "kind") != "Pod" || e.text("involvedObject", "name") != name {
			continue
		}
		if reason := e.text("reason"); reason == "FailedMount" || reason == "FailedAttachVolume" {
			return at(mountCause(e.text("message")), e.text("message"))
		}
	}
	for _, c := range pod.list("status", "conditions") {
		if message := c.text("message"); c.text("status") == "False" && strings.Contains(message, "MountVolume") {
			return at(mountCause(message), message)
		}
	}
	return cause{}
}

// mountCause distinguishes a missing ConfigMap or Secret from a volume that cannot be
// mounted.
func mountCause(message string) string {
	lower := strings.ToLower(message)
	if strings.Contains(lower, "not found") && (strings.Contains(lower, "configmap") || strings.Contains(lower, "secret")) {
		return ConfigError
	}
	return VolumeError
}

// containerCause reads why a container waits.
func containerCause(c live) cause {
	name, reason := c.text("name"), c.text("state", "waiting", "reason")
	message := name + ": " + reason
	if more := c.text("state", "waiting", "message"); more != "" {
		message += ": " + more
	}
	switch reason {
	case "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull":
		return cause{ImagePullError, message}
	case "CreateContainerConfigError":
		return cause{ConfigError, message}
	case "CrashLoopBackOff", "RunContainerError", "CreateContainerError":
		switch name {
		case asyncactor.Runtime:
			return cause{RuntimeError, message}
		case asyncactor.Sidecar:
			return cause{SidecarError, message}
		}
		return cause{WorkloadError, message}
	}
	return cause{}
}

// lastScale is when the workload was last scaled, and which way.
func lastScale(l Live) string {
	var last time.Time
	direction := ""
	for _, object := range l.Events {
		e := live{object}
		way := scaleDirection(e.text("reason"), e.text("message"))
		if when := e.time("lastTimestamp", "eventTime", "firstTimestamp"); way != "" && when.After(last) {
			last, direction = when, " ("+way+")"
		}
	}
	if when := (live{l.HPA}).time("status.lastScaleTime"); when.After(last.Add(time.Minute)) {
		last, direction = when, "" // its event is gone
	}
	if last.IsZero() || l.Now.Before(last) {
		return ""
	}
	return age(l.Now.Sub(last)) + " ago" + direction
}

func scaleDirection(reason, message string) string {
	switch {
	case reason == "KEDAScaleTargetActivated", reason == "ScalingReplicaSet" && strings.HasPrefix(message, "Scaled up"):
		return "up"
	case reason == "KEDAScaleTargetDeactivated", reason == "ScalingReplicaSet" && strings.HasPrefix(message, "Scaled down"):
		return "down"
	}
	return ""
}

// age writes a time span in its largest unit.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

func orElse(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}

func number(n int) *int { return &n }

// live reads fields of an object; one that is not there is zero.
type live struct{ object map[string]any }

func (l live) find(keys ...string) (value any, found bool) {
	value = l.object
	for _, key := range keys {
		fields, _ := value.(map[string]any)
		if value, found = fields[key]; !found {
			return nil, false
		}
	}
	return value, found
}

func (l live) text(keys ...string) string {
	value, _ := l.find(keys...)
	text, _ := value.(string)
	return text
}

func (l live) number(keys ...string) int {
	value, _ := l.find(keys...)
	return toInt(value)
}

func toInt(value any) int {
	switch n := value.(type) {
	case int64:
		return int(n)
	case float64:
		return int(n)
	case int:
		return n
	}
	return 0
}

func (l live) list(keys ...string) (items []live) {
	value, _ := l.find(keys...)
	list, _ := value.([]any)
	for _, item := range list {
		fields, _ := item.(map[string]any)
		items = append(items, live{fields})
	}
	return items
}

func (l live) condition(kind string) (status, message string) {
	for _, c := range l.list("status", "conditions") {
		if c.text("type") == kind {
			return c.text("status"), c.text("message")
		}
	}
	return "", ""
}

// time reads the first of the fields, each a path with dots, that holds a time.
func (l live) time(fields ...string) (t time.Time) {
	for _, field := range fields {
		if t, err := time.Parse(time.RFC3339Nano, l.text(strings.Split(field, ".")...)); err == nil {
			return t
		}
	}
	return t
}
