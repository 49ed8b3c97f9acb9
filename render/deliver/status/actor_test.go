package status_test

import (
	"testing"

	"github.com/armature-dev/armature/render/deliver/status"
)

const (
	asya = `{asya: {sidecarImage: "asya:v1", transports: {rabbitmq: {enabled: true, type: rabbitmq, config: {rabbitmqClusterReference: {name: rabbit, namespace: rabbit}, host: rabbitmq, port: 5672, username: guest, passwordSecretRef: {name: rabbitmq, key: password}, queues: {dlq: {enabled: true}}}}}}}`

	actor = `apiVersion: asya.sh/v1alpha1
kind: AsyncActor
metadata: {name: text, namespace: NS}
spec:
  transport: rabbitmq
  scaling: {enabled: true, minReplicas: 0, maxReplicas: 5}
  workload:
    kind: Deployment
    template:
      spec:
        containers:
        - name: asya-runtime
          image: "text:v1"
          env: [{name: ASYA_HANDLER, value: text.process}]
`
)

// TestActor goes through the life of one: made, running, failing, asleep.
func TestActor(t *testing.T) {
	w := newWorld(t)
	made := w.apply(asya, actor)
	deployment, scaled, queue := made["Deployment/text"], made["ScaledObject/text"], "Queue"
	if deployment == nil || scaled == nil {
		t.Fatalf("rendered %v", made)
	}
	expect := func(want string, health status.Health) {
		t.Helper()
		r := w.report()
		if len(r.Actors) != 1 || r.Actors[0].Status != want || r.Health() != health {
			t.Errorf("%+v is of health %d, want one actor that is %s, of health %d", r.Actors,
				r.Health(), want, health)
		}
	}
	expect("Creating", status.Busy)
	for name, o := range made {
		// the one of dead letters says nothing of the actor
		if o.GetKind() == queue && name != "Queue/asya-text-dlq" {
			w.status(o, "conditions: [{type: Ready, status: 'True'}]")
			queue = name
		}
	}
	w.status(scaled, "conditions: [{type: Ready, status: 'True'}]")
	w.status(deployment, "{observedGeneration: 1, replicas: 1, updatedReplicas: 1}")
	pod := w.pod(deployment, "text-1")
	w.podStatus(pod, nil)
	expect("Running", status.Well)
	row := w.report().Actors[0]
	if row.Workload != "Deployment" || row.Scaling != "KEDA" || row.Transport != "Ready" ||
		*row.Min != 0 || *row.Max != 5 || row.Running != 1 {
		t.Errorf("columns: %+v", row)
	}

	w.podStatus(pod, map[string]string{"asya-runtime": "CrashLoopBackOff"})
	expect("RuntimeError", status.Ill)
	w.podStatus(pod, map[string]string{"asya-sidecar": "CrashLoopBackOff"})
	expect("SidecarError", status.Ill)
	w.podStatus(pod, map[string]string{"asya-runtime": "ImagePullBackOff"})
	expect("ImagePullError", status.Ill)
	w.podStatus(pod, nil)
	w.status(made[queue], "conditions: [{type: Ready, status: 'False', message: no such vhost}]")
	expect("TransportError", status.Ill)
	w.status(made[queue], "conditions: [{type: Ready, status: 'True'}]")

	w.podStatus(pod, map[string]string{"asya-runtime": "ContainerCreating"})
	w.create(`apiVersion: v1
kind: Event
metadata: {name: text-1.1, namespace: NS}
type: Warning
reason: FailedMount
message: Unable to attach or mount volumes
involvedObject: {apiVersion: v1, kind: Pod, name: text-1, namespace: NS}
`)
	expect("VolumeError", status.Ill)

	w.patch(deployment, `{"spec":{"replicas":0}}`)
	w.status(deployment, "{observedGeneration: 2, replicas: 0}")
	w.delete(pod)
	expect("Napping", status.Well)
}
