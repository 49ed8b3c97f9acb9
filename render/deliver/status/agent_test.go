package status_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/status"
)

// TestAgent: the conditions of 000 as its pods come, fail and serve.
func TestAgent(t *testing.T) {
	w := newWorld(t)
	made := w.apply(kagenti, `apiVersion: agent.kagenti.dev/v1alpha1
kind: Agent
metadata: {name: weather, namespace: NS}
spec:
  imageSource: {image: "weather:v1"}
  podTemplateSpec:
    spec:
      containers:
      - name: agent
`)
	deployment := made["Deployment/weather"]
	expect := func(want string, health status.Health) {
		t.Helper()
		r := w.report()
		if len(r.Agents) != 1 {
			t.Fatalf("agents: %+v", r.Agents)
		}
		var got []string
		for _, c := range r.Agents[0].Conditions {
			got = append(got, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
		}
		if text := strings.Join(got, ", "); text != want || r.Health() != health {
			t.Errorf("%s of health %d, want %s of health %d", text, r.Health(), want, health)
		}
	}
	expect("DeploymentAvailable=True DeploymentExists, PodsScheduled=False Waiting, "+
		"Ready=False Updating", status.Busy)
	w.status(deployment, "{observedGeneration: 1, replicas: 1, updatedReplicas: 1}")
	pod := w.pod(deployment, "weather-1")
	expect("DeploymentAvailable=True DeploymentExists, PodsScheduled=False Waiting, "+
		"Ready=False Waiting", status.Busy)
	w.status(pod, "conditions: [{type: PodScheduled, status: 'True'}]")
	expect("DeploymentAvailable=True DeploymentExists, PodsScheduled=True AllScheduled, "+
		"Ready=False Waiting", status.Busy)
	w.podStatus(pod, map[string]string{"agent": "ErrImagePull"})
	expect("DeploymentAvailable=True DeploymentExists, PodsScheduled=True AllScheduled, "+
		"Ready=False PodsFailing", status.Ill)
	w.podStatus(pod, nil)
	expect("DeploymentAvailable=True DeploymentExists, PodsScheduled=True AllScheduled, "+
		"Ready=True AllReady", status.Well)
	w.patch(deployment, `{"spec":{"replicas":2}}`)
	expect("DeploymentAvailable=True DeploymentExists, PodsScheduled=False Waiting, "+
		"Ready=False Updating", status.Busy)
}
