package status

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/armature-dev/armature/functions/api"
)

// podsFailing is the reason of a condition that time alone does not fix.
const podsFailing = "PodsFailing"

// agent gives the conditions of 000, "Status Conditions".
func agent(w *unstructured.Unstructured, pods []*unstructured.Unstructured) Agent {
	pods = slices.DeleteFunc(slices.Clone(pods), ended)
	a := Agent{Name: Name{w.GetNamespace(), w.GetName()}, Kind: "Agent", Workload: w.GetKind(), Desired: 1}
	if n, found, _ := unstructured.NestedInt64(w.Object, "spec", "replicas"); found {
		a.Desired = int(n)
	}
	scheduled, why := 0, ""
	for _, p := range pods {
		if condition(p, "PodScheduled") == "True" {
			scheduled++
		}
		if condition(p, "Ready") == "True" {
			a.Ready++
		}
		if f := failing(p); f != "" {
			why = f
		}
	}
	generation, _, _ := unstructured.NestedInt64(w.Object, "status", "observedGeneration")
	updated, _, _ := unstructured.NestedInt64(w.Object, "status", "updatedReplicas")
	add := func(kind string, ok bool, reason, message string) {
		status := "False"
		if ok {
			status, message = "True", ""
		}
		a.Conditions = append(a.Conditions, api.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: generation})
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
		add("Ready", false, "Updating", "the change has not been looked at yet")
	case int(updated) < a.Desired && w.GetKind() == "Deployment":
		add("Ready", false, "Updating", fmt.Sprintf("%d of %d pods are of the new kind", updated, a.Desired))
	case a.Ready < a.Desired:
		add("Ready", false, "Waiting", fmt.Sprintf("%d of %d pods are ready", a.Ready, a.Desired))
	default:
		add("Ready", true, "AllReady", "")
	}
	return a
}
