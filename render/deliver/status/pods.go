package status

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/render/deliver/health"
)

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil
}

// running leaves out the pods that have ended.
func running(pods []*corev1.Pod) []*corev1.Pod { return slices.DeleteFunc(slices.Clone(pods), ended) }

// has reports whether a condition of a pod is true.
func has(p *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

// stuck gives the first container, of those named or of all, that keeps a pod from becoming
// ready until somebody changes something.
func stuck(p *corev1.Pod, names ...string) (health.Trouble, bool) {
	for _, t := range health.Troubles(p) {
		if t.Stuck() && (len(names) == 0 || slices.Contains(names, t.Container)) {
			return t, true
		}
	}
	return health.Trouble{}, false
}

// mounts reports whether a pod has a volume from a ConfigMap.
func mounts(spec *corev1.PodSpec, configMap string) bool {
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == configMap })
}
