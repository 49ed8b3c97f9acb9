package actor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/render/status/internal/actor"
)

// object reads an object as a client gives it.
func object(t *testing.T, text string) (o map[string]any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err, text)
	}
	return o
}

const (
	healthy      = `{kind: Deployment, metadata: {generation: 2}, spec: {replicas: 2}, status: {observedGeneration: 2, replicas: 2, updatedReplicas: 2}}`
	scaledObject = `{spec: {minReplicaCount: 0, maxReplicaCount: 50}, status: {conditions: [{type: Ready, status: "True"}]}}`
	readyQueue   = `{status: {conditions: [{type: Ready, status: "True"}]}}`
	readyPod     = `{metadata: {name: a-1}, status: {phase: Running, conditions: [{type: Ready, status: "True"}]}}`
	slowPod      = `{metadata: {name: a-2}, status: {phase: Pending, conditions: [{type: PodScheduled, status: "True"}]}}`
)

func waiting(container, reason string) string {
	return `{metadata: {name: a-3}, status: {phase: Running, containerStatuses: [{name: ` + container + `, state: {waiting: {reason: ` + reason + `, message: why}}}]}}`
}

// TestStatusValues has one case at least for each of 004's "Status Values".
func TestStatusValues(t *testing.T) {
	cases := []struct {
		name, want, message          string
		workload, scaled, hpa, queue string
		pods, events                 []string
	}{
		{name: "all ready", want: "Running", workload: healthy, queue: readyQueue, pods: []string{readyPod, readyPod}},
		{name: "AWS has the queue", want: "Running", workload: healthy, queue: `{status: {conditions: [{type: ACK.ResourceSynced, status: "True"}]}}`, pods: []string{readyPod, readyPod}},
		{name: "scaled to zero", want: "Napping", workload: strings.Replace(healthy, "replicas: 2", "replicas: 0", 1), scaled: scaledObject, hpa: `{status: {desiredReplicas: 1}}`},
		{name: "some fail", want: "Degraded", message: "RuntimeError: pod a-3: asya-runtime: CrashLoopBackOff: why", workload: healthy, pods: []string{readyPod, waiting("asya-runtime", "CrashLoopBackOff")}},
		{name: "no workload", want: "Creating", message: "there is no workload yet"},
		{name: "not looked at", want: "Creating", message: "the workload has not been looked at yet", workload: `{kind: Deployment, metadata: {generation: 1}, status: {}}`},
		{name: "no queue yet", want: "Creating", message: "the queue has not been made yet", workload: healthy, queue: `{status: {}}`},
		{name: "more wanted", want: "ScalingUp", workload: healthy, scaled: scaledObject, hpa: `{status: {desiredReplicas: 3}}`, pods: []string{readyPod, readyPod}},
		{name: "not ready yet", want: "ScalingUp", workload: healthy, pods: []string{readyPod, slowPod}},
		{name: "fewer wanted", want: "ScalingDown", workload: healthy, pods: []string{readyPod, readyPod, readyPod}},
		{name: "new revision", want: "Updating", workload: strings.Replace(healthy, "updatedReplicas: 2", "updatedReplicas: 1", 1), pods: []string{readyPod, readyPod, readyPod}},
		{name: "new generation", want: "Updating", workload: strings.Replace(healthy, "generation: 2", "generation: 3", 1), pods: []string{readyPod, readyPod}},
		{name: "revision of a StatefulSet", want: "Updating", workload: `{kind: StatefulSet, metadata: {generation: 1}, spec: {}, status: {observedGeneration: 1, currentRevision: a, updateRevision: b}}`, pods: []string{readyPod}},
		{name: "deleted", want: "Terminating", workload: `{kind: Deployment, metadata: {deletionTimestamp: "2026-01-01T00:00:00Z"}}`},
		{name: "RabbitMQ refuses", want: "TransportError", message: "no such vhost", workload: healthy, queue: `{status: {conditions: [{type: Ready, status: "False", message: no such vhost}]}}`, pods: []string{readyPod, readyPod}},
		{name: "AWS refuses", want: "TransportError", message: "AWS does not make the queue", workload: healthy, queue: `{status: {conditions: [{type: ACK.Terminal, status: "True"}]}}`},
		{name: "KEDA refuses", want: "ScalingError", message: "no such trigger", workload: healthy, scaled: `{status: {conditions: [{type: Ready, status: "False", message: no such trigger}]}}`, pods: []string{readyPod, readyPod}},
		{name: "another container crashes", want: "WorkloadError", message: "pod a-3: helper: CrashLoopBackOff: why", workload: healthy, pods: []string{waiting("helper", "CrashLoopBackOff")}},
		{name: "quota", want: "WorkloadError", message: "exceeded quota", workload: `{kind: Deployment, metadata: {generation: 1}, status: {observedGeneration: 1, conditions: [{type: ReplicaFailure, status: "True", message: exceeded quota}]}}`},
		{name: "no room", want: "PendingResources", message: "pod a-4: 0/3 nodes are available: 3 Insufficient cpu.", workload: healthy,
			pods: []string{waiting("asya-runtime", "ImagePullBackOff"), `{metadata: {name: a-4}, status: {phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, message: "0/3 nodes are available: 3 Insufficient cpu."}]}}`}},
		{name: "no image", want: "ImagePullError", message: "pod a-3: asya-runtime: ImagePullBackOff: why", workload: healthy, pods: []string{waiting("asya-runtime", "ImagePullBackOff")}},
		{name: "image of the sidecar", want: "ImagePullError", message: "pod a-3: asya-sidecar: ErrImagePull: why", workload: healthy, pods: []string{waiting("asya-sidecar", "ErrImagePull")}},
		{name: "runtime crashes", want: "RuntimeError", message: "pod a-3: asya-runtime: CrashLoopBackOff: why", workload: healthy, pods: []string{waiting("asya-sidecar", "CrashLoopBackOff"), waiting("asya-runtime", "CrashLoopBackOff")}},
		{name: "sidecar crashes", want: "SidecarError", message: "pod a-3: asya-sidecar: CrashLoopBackOff: why", workload: healthy, pods: []string{waiting("asya-sidecar", "CrashLoopBackOff")}},
		{name: "unbound claim", want: "VolumeError", message: "pod a-5: pod has unbound immediate PersistentVolumeClaims", workload: healthy,
			pods: []string{`{metadata: {name: a-5}, status: {phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, message: pod has unbound immediate PersistentVolumeClaims}]}}`}},
		{name: "mount fails", want: "VolumeError", message: "pod a-2: MountVolume.SetUp failed: timeout", workload: healthy, pods: []string{slowPod},
			events: []string{`{reason: FailedMount, message: "MountVolume.SetUp failed: timeout", involvedObject: {kind: Pod, name: a-2}}`}},
		{name: "no ConfigMap to mount", want: "ConfigError", message: `pod a-2: MountVolume.SetUp failed: configmap "asya-runtime" not found`, workload: healthy, pods: []string{slowPod},
			events: []string{`{reason: FailedMount, message: 'MountVolume.SetUp failed: configmap "asya-runtime" not found', involvedObject: {kind: Pod, name: a-2}}`}},
		{name: "no Secret", want: "ConfigError", message: "pod a-3: asya-sidecar: CreateContainerConfigError: why", workload: healthy, pods: []string{waiting("asya-sidecar", "CreateContainerConfigError")}},
	}
	seen := make(map[string]bool)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := actor.Live{Workload: object(t, c.workload), ScaledObject: object(t, c.scaled), HPA: object(t, c.hpa), Queue: object(t, c.queue)}
			for _, p := range c.pods {
				l.Pods = append(l.Pods, object(t, p))
			}
			for _, e := range c.events {
				l.Events = append(l.Events, object(t, e))
			}
			s := actor.Status(l)
			seen[s.Status] = true
			if s.Status != c.want || s.Message != c.message {
				t.Errorf("%s (%s), want %s (%s)", s.Status, s.Message, c.want, c.message)
			}
		})
	}
	for _, value := range strings.Fields(`Running Napping Degraded Creating ScalingUp ScalingDown Updating Terminating TransportError ScalingError
		WorkloadError PendingResources ImagePullError RuntimeError SidecarError VolumeError ConfigError`) {
		if !seen[value] {
			t.Errorf("no case for %s", value)
		}
	}
}

func TestStatusColumns(t *testing.T) {
	queued, processing := 7, 2
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	l := actor.Live{
		Workload: object(t, healthy), ScaledObject: object(t, scaledObject), Queue: object(t, readyQueue), Now: now, Queued: &queued, Processing: &processing,
		HPA: object(t, `{status: {desiredReplicas: 2, lastScaleTime: "2026-01-01T11:55:00Z"}}`),
		Pods: []map[string]any{object(t, readyPod), object(t, waiting("asya-runtime", "CrashLoopBackOff")),
			object(t, `{metadata: {name: done}, status: {phase: Succeeded}}`), object(t, `{metadata: {name: gone, deletionTimestamp: x}, status: {phase: Running}}`)},
		Events: []map[string]any{
			object(t, `{reason: ScalingReplicaSet, message: Scaled down replica set a to 1, lastTimestamp: "2026-01-01T09:00:00Z"}`),
			object(t, `{reason: ScalingReplicaSet, message: Scaled up replica set a from 1 to 2, lastTimestamp: "2026-01-01T11:55:00Z"}`),
		},
	}
	s := actor.Status(l)
	if diff := cmp.Diff([]string{"Degraded", "1", "1", "2", "2", "0", "50", "5m ago (up)", "Deployment", "Ready", "KEDA", "7", "2"}, s.Row(true)); diff != "" {
		t.Errorf("wide: -want +have\n%s", diff)
	}
	if len(actor.Columns(true)) != len(s.Row(true)) || len(actor.Columns(false)) != len(s.Row(false)) {
		t.Error("columns and row differ")
	}
	var conditions []string
	for _, c := range s.Conditions {
		conditions = append(conditions, c.Type+"="+c.Status)
	}
	if diff := cmp.Diff([]string{"TransportReady=True", "WorkloadReady=False", "ScalingReady=True"}, conditions); diff != "" {
		t.Errorf("conditions: -want +have\n%s", diff)
	}
	manual := actor.Status(actor.Live{Workload: object(t, healthy), Pods: []map[string]any{object(t, readyPod), object(t, readyPod)}})
	if diff := cmp.Diff([]string{"Running", "2", "0", "2", "2", "-", "-", "-", "Deployment", "Ready", "Manual", "-", "-"}, manual.Row(true)); diff != "" {
		t.Errorf("manual: -want +have\n%s", diff)
	}
}
