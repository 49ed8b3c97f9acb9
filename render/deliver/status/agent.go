package status

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/render/deliver/health"
)

// podsFailing is the reason of a condition that does not resolve itself.
const podsFailing = "PodsFailing"

// agent returns the conditions of 000, "Status Conditions".
func agent(w *unstructured.Unstructured, pods []*corev1.Pod) Agent {
	pods = running(pods)
	a := Agent{Name: Name{w.GetNamespace(), w.GetName()}, Kind: "Agent", Workload: w.GetKind(),
		Desired: number(w, ".spec.replicas", 1), Ready: with(pods, corev1.PodReady)}
	scheduled, why := with(pods, corev1.PodScheduled), trouble(pods)
	generation := int64(number(w, ".status.observedGeneration", 0))
	updated := number(w, ".status.updatedReplicas", 0)
	add := func(kind string, ok bool, reason, message string) {
		a.Conditions = append(a.Conditions, api.Condition{Type: kind, Status: truth(ok),
			Reason: reason, Message: message, ObservedGeneration: generation})
	}
	add("DeploymentAvailable", true, "DeploymentExists", "")
	if scheduled == len(pods) && len(pods) >= a.Desired {
		add("PodsScheduled", true, "AllScheduled", "")
	} else {
		add("PodsScheduled", false, "Waiting",
			fmt.Sprintf("%d of %d pods have a node", scheduled, max(len(pods), a.Desired)))
	}
	switch {
	case why != "":
		add("Ready", false, podsFailing, why)
	case generation < w.GetGeneration():
		add("Ready", false, "Updating", "the change has not been reconciled yet")
	case updated < a.Desired && w.GetKind() == "Deployment":
		add("Ready", false, "Updating",
			fmt.Sprintf("%d of %d pods are updated", updated, a.Desired))
	case a.Ready < a.Desired:
		add("Ready", false, "Waiting", fmt.Sprintf("%d of %d pods are ready", a.Ready, a.Desired))
	default:
		add("Ready", true, "AllReady", "")
	}
	return a
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed ||
		p.DeletionTimestamp != nil
}

// running returns the pods that have not ended.
func running(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), ended)
}

// has reports whether a condition of a pod is true.
func has(p *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

// with counts the pods whose condition is true.
func with(pods []*corev1.Pod, kind corev1.PodConditionType) (n int) {
	for _, p := range pods {
		if has(p, kind) {
			n++
		}
	}
	return n
}

// trouble describes the first container that keeps a pod from becoming ready until its cause is
// fixed. names selects containers; without names it considers all. It returns "" if there is none.
func trouble(pods []*corev1.Pod, names ...string) string {
	for _, p := range pods {
		for _, t := range health.Troubles(p) {
			if t.Stuck() && (len(names) == 0 || slices.Contains(names, t.Container)) {
				return t.String()
			}
		}
	}
	return ""
}

// mounts reports whether a pod has a volume from a ConfigMap.
func mounts(spec *corev1.PodSpec, configMap string) bool {
	return slices.ContainsFunc(spec.Volumes,
		func(v corev1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == configMap })
}
