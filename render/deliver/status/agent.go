package status

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/armature-dev/armature/functions/api"
)

// podsFailing is the reason of a condition that time alone does not fix.
const podsFailing = "PodsFailing"

// agent gives the conditions of 000, "Status Conditions".
func agent(w *unstructured.Unstructured, pods []*corev1.Pod) Agent {
	pods = running(pods)
	a := Agent{Name: Name{w.GetNamespace(), w.GetName()}, Kind: "Agent", Workload: w.GetKind(), Desired: number(w, ".spec.replicas", 1)}
	scheduled, why := 0, ""
	for _, p := range pods {
		if has(p, corev1.PodScheduled) {
			scheduled++
		}
		if has(p, corev1.PodReady) {
			a.Ready++
		}
		if t, is := stuck(p); is {
			why = t.String()
		}
	}
	generation, updated := int64(number(w, ".status.observedGeneration", 0)), number(w, ".status.updatedReplicas", 0)
	add := func(kind string, ok bool, reason, message string) {
		a.Conditions = append(a.Conditions, api.Condition{Type: kind, Status: truth(ok), Reason: reason, Message: message, ObservedGeneration: generation})
	}
	add("DeploymentAvailable", true, "DeploymentExists", "")
	if scheduled == len(pods) && len(pods) >= a.Desired {
		add("PodsScheduled", true, "AllScheduled", "")
	} else {
		add("PodsScheduled", false, "Waiting", fmt.Sprintf("%d of %d pods have a node", scheduled, max(len(pods), a.Desired)))
	}
	switch {
	case why != "":
		add("Ready", false, podsFailing, why)
	case generation < w.GetGeneration():
		add("Ready", false, "Updating", "the change has not been reconciled yet")
	case updated < a.Desired && w.GetKind() == "Deployment":
		add("Ready", false, "Updating", fmt.Sprintf("%d of %d pods are updated", updated, a.Desired))
	case a.Ready < a.Desired:
		add("Ready", false, "Waiting", fmt.Sprintf("%d of %d pods are ready", a.Ready, a.Desired))
	default:
		add("Ready", true, "AllReady", "")
	}
	return a
}
