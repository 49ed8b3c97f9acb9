package status

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// object reads an object as a client returns it; "" is nil.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	if text == "" {
		return nil
	}
	data, err := yaml.YAMLToJSON([]byte(strings.Replace(text, "{", "{apiVersion: v1, kind: Any, ", 1)))
	if strings.HasPrefix(text, "{kind:") {
		data, err = yaml.YAMLToJSON([]byte(strings.Replace(text, "{", "{apiVersion: v1, ", 1)))
	}
	o := new(unstructured.Unstructured)
	if err == nil {
		err = o.UnmarshalJSON(data)
	}
	if err != nil {
		t.Fatal(err, text)
	}
	return o
}

// objects are those of a type.
func objects[T any](t *testing.T, texts ...string) (made []*T) {
	t.Helper()
	var all []*unstructured.Unstructured
	for _, text := range texts {
		all = append(all, object(t, text))
	}
	if err := typed(all, &made); err != nil {
		t.Fatal(err)
	}
	return made
}

const (
	healthy      = `{kind: Deployment, metadata: {generation: 2}, spec: {replicas: 2}, status: {observedGeneration: 2, replicas: 2, updatedReplicas: 2}}`
	scaledObject = `{spec: {minReplicaCount: 0, maxReplicaCount: 50}, status: {conditions: [{type: Ready, status: "True"}]}}`
	readyQueue   = `{status: {conditions: [{type: Ready, status: "True"}]}}`
	readyPod     = `{metadata: {name: a-1}, status: {phase: Running, conditions: [{type: Ready, status: "True"}]}}`
	slowPod      = `{metadata: {name: a-2}, status: {phase: Pending, conditions: [{type: PodScheduled, status: "True"}]}}`
)

func waitingPod(container, reason string) string {
	return `{metadata: {name: a-3}, status: {phase: Running, containerStatuses: [{name: ` +
		container + `, state: {waiting: {reason: ` + reason + `, message: why}}}]}}`
}

// TestStatusValues has one case at least for each of 004's "Status Values".
func TestStatusValues(t *testing.T) {
	cases := []struct {
		name, want, message          string
		workload, scaled, hpa, queue string
		pods, events                 []string
	}{
		{name: "all ready", want: "Running", workload: healthy, queue: readyQueue,
			pods: []string{readyPod, readyPod}},
		{name: "AWS has the queue", want: "Running", workload: healthy,
			queue: `{status: {conditions: [{type: ACK.ResourceSynced, status: "True"}]}}`,
			pods:  []string{readyPod, readyPod}},
		{name: "scaled to zero", want: "Napping",
			workload: strings.Replace(healthy, "replicas: 2", "replicas: 0", 1),
			scaled:   scaledObject, hpa: `{status: {desiredReplicas: 1}}`},
		{name: "some fail", want: "Degraded",
			message:  "RuntimeError: pod a-3: CrashLoopBackOff: container asya-runtime: why",
			workload: healthy,
			pods:     []string{readyPod, waitingPod("asya-runtime", "CrashLoopBackOff")}},
		{name: "not looked at", want: "Creating",
			message:  "the workload has not been reconciled yet",
			workload: `{kind: Deployment, metadata: {generation: 1}, status: {}}`},
		{name: "no queue yet", want: "Creating", message: "the queue has not been made yet",
			workload: healthy, queue: `{status: {}}`},
		{name: "more wanted", want: "ScalingUp", workload: healthy, scaled: scaledObject,
			hpa: `{status: {desiredReplicas: 3}}`, pods: []string{readyPod, readyPod}},
		{name: "not ready yet", want: "ScalingUp", workload: healthy,
			pods: []string{readyPod, slowPod}},
		{name: "fewer wanted", want: "ScalingDown", workload: healthy,
			pods: []string{readyPod, readyPod, readyPod}},
		{name: "new revision", want: "Updating",
			workload: strings.Replace(healthy, "updatedReplicas: 2", "updatedReplicas: 1", 1),
			pods:     []string{readyPod, readyPod, readyPod}},
		{name: "new generation", want: "Updating",
			workload: strings.Replace(healthy, "generation: 2", "generation: 3", 1),
			pods:     []string{readyPod, readyPod}},
		{name: "revision of a StatefulSet", want: "Updating",
			workload: `{kind: StatefulSet, metadata: {generation: 1}, spec: {}, status: {observedGeneration: 1, currentRevision: a, updateRevision: b}}`, pods: []string{readyPod}},
		{name: "deleted", want: "Terminating",
			workload: `{kind: Deployment, metadata: {deletionTimestamp: "2026-01-01T00:00:00Z"}}`},
		{name: "RabbitMQ refuses", want: "TransportError", message: "no such vhost",
			workload: healthy,
			queue:    `{status: {conditions: [{type: Ready, status: "False", message: no such vhost}]}}`,
			pods:     []string{readyPod, readyPod}},
		{name: "AWS refuses", want: "TransportError", message: "AWS does not make the queue",
			workload: healthy,
			queue:    `{status: {conditions: [{type: ACK.Terminal, status: "True"}]}}`},
		{name: "KEDA refuses", want: "ScalingError", message: "no such trigger", workload: healthy,
			scaled: `{status: {conditions: [{type: Ready, status: "False", message: no such trigger}]}}`,
			pods:   []string{readyPod, readyPod}},
		{name: "another container crashes", want: "WorkloadError",
			message: "pod a-3: CrashLoopBackOff: container helper: why", workload: healthy,
			pods: []string{waitingPod("helper", "CrashLoopBackOff")}},
		{name: "quota", want: "WorkloadError", message: "exceeded quota",
			workload: `{kind: Deployment, metadata: {generation: 1}, status: {observedGeneration: 1, conditions: [{type: ReplicaFailure, status: "True", message: exceeded quota}]}}`},
		{name: "no room", want: "PendingResources",
			message:  "pod a-4: Unschedulable: 0/3 nodes are available: 3 Insufficient cpu.",
			workload: healthy,
			pods: []string{waitingPod("asya-runtime", "ImagePullBackOff"),
				`{metadata: {name: a-4}, status: {phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, message: "0/3 nodes are available: 3 Insufficient cpu."}]}}`}},
		{name: "no image", want: "ImagePullError",
			message: "pod a-3: ImagePullBackOff: container asya-runtime: why", workload: healthy,
			pods: []string{waitingPod("asya-runtime", "ImagePullBackOff")}},
		{name: "image of the sidecar", want: "ImagePullError",
			message: "pod a-3: ErrImagePull: container asya-sidecar: why", workload: healthy,
			pods: []string{waitingPod("asya-sidecar", "ErrImagePull")}},
		{name: "runtime crashes", want: "RuntimeError",
			message: "pod a-3: CrashLoopBackOff: container asya-runtime: why", workload: healthy,
			pods: []string{waitingPod("asya-sidecar", "CrashLoopBackOff"),
				waitingPod("asya-runtime", "CrashLoopBackOff")}},
		{name: "sidecar crashes", want: "SidecarError",
			message: "pod a-3: CrashLoopBackOff: container asya-sidecar: why", workload: healthy,
			pods: []string{waitingPod("asya-sidecar", "CrashLoopBackOff")}},
		{name: "unbound claim", want: "VolumeError",
			message:  "pod a-5: Unschedulable: pod has unbound immediate PersistentVolumeClaims",
			workload: healthy,
			pods: []string{
				`{metadata: {name: a-5}, status: {phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, message: pod has unbound immediate PersistentVolumeClaims}]}}`}},
		{name: "mount fails", want: "VolumeError",
			message: "pod a-2: MountVolume.SetUp failed: timeout", workload: healthy,
			pods: []string{slowPod},
			events: []string{
				`{reason: FailedMount, message: "MountVolume.SetUp failed: timeout", involvedObject: {kind: Pod, name: a-2}}`}},
		{name: "no ConfigMap to mount", want: "ConfigError",
			message:  `pod a-2: MountVolume.SetUp failed: configmap "asya-runtime" not found`,
			workload: healthy, pods: []string{slowPod},
			events: []string{
				`{reason: FailedMount, message: 'MountVolume.SetUp failed: configmap "asya-runtime" not found', involvedObject: {kind: Pod, name: a-2}}`}},
		{name: "no Secret", want: "ConfigError",
			message:  "pod a-3: CreateContainerConfigError: container asya-sidecar: why",
			workload: healthy,
			pods:     []string{waitingPod("asya-sidecar", "CreateContainerConfigError")}},
	}
	seen := make(map[string]bool)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := actorLive{workload: object(t, c.workload), scaledObject: object(t, c.scaled),
				hpa: object(t, c.hpa), queue: object(t, c.queue),
				pods:   objects[corev1.Pod](t, c.pods...),
				events: objects[corev1.Event](t, c.events...)}
			s := l.actor()
			seen[s.Status] = true
			if s.Status != c.want || s.Message != c.message {
				t.Errorf("%s (%s), want %s (%s)", s.Status, s.Message, c.want, c.message)
			}
		})
	}
	for _, value := range strings.Fields(
		`Running Napping Degraded Creating ScalingUp ScalingDown Updating Terminating TransportError ScalingError
		WorkloadError PendingResources ImagePullError RuntimeError SidecarError VolumeError ConfigError`) {
		if !seen[value] {
			t.Errorf("no case for %s", value)
		}
	}
}

func TestStatusColumns(t *testing.T) {
	l := actorLive{
		workload: object(t, healthy), scaledObject: object(t, scaledObject),
		queue: object(t, readyQueue), now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
		hpa: object(t, `{status: {desiredReplicas: 2, lastScaleTime: "2026-01-01T11:55:00Z"}}`),
		pods: objects[corev1.Pod](t, readyPod, waitingPod("asya-runtime", "CrashLoopBackOff"),
			`{metadata: {name: done}, status: {phase: Succeeded}}`,
			`{metadata: {name: gone, deletionTimestamp: "2026-01-01T11:00:00Z"}, status: {phase: Running}}`),
		events: objects[corev1.Event](t,
			`{reason: ScalingReplicaSet, message: Scaled down replica set a to 1, lastTimestamp: "2026-01-01T09:00:00Z"}`,
			`{reason: ScalingReplicaSet, message: Scaled up replica set a from 1 to 2, eventTime: "2026-01-01T11:55:00.000000Z"}`),
	}
	s := l.actor()
	if diff := cmp.Diff([]string{"Degraded", "1", "1", "2", "2", "0", "50", "5m ago (up)",
		"Deployment", "Ready", "KEDA", "-", "-"}, s.cells(true)); diff != "" {
		t.Errorf("wide: -want +have\n%s", diff)
	}
	if len(columns(true)) != len(s.cells(true)) || len(columns(false)) != len(s.cells(false)) {
		t.Error("columns and row differ")
	}
	var conditions []string
	for _, c := range s.Conditions {
		conditions = append(conditions, c.Type+"="+c.Status)
	}
	if diff := cmp.Diff([]string{"TransportReady=True", "WorkloadReady=False", "ScalingReady=True"},
		conditions); diff != "" {
		t.Errorf("conditions: -want +have\n%s", diff)
	}
	l = actorLive{workload: object(t, healthy), pods: objects[corev1.Pod](t, readyPod, readyPod)}
	manual := l.actor()
	if diff := cmp.Diff([]string{"Running", "2", "0", "2", "2", "-", "-", "-", "Deployment",
		"Ready", "Manual", "-", "-"}, manual.cells(true)); diff != "" {
		t.Errorf("manual: -want +have\n%s", diff)
	}
}
