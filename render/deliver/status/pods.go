package status

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
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

// containers gives the statuses of a pod's containers, in their order. Sidecars are among
// the init containers.
func containers(p *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
}

// stuck are the reasons of waiting containers that time alone does not fix, with the
// status of an actor that each leads to; "" depends on the container.
var stuck = map[string]string{
	"ImagePullBackOff": ImagePullError, "ErrImagePull": ImagePullError, "InvalidImageName": ImagePullError, "ErrImageNeverPull": ImagePullError,
	"CreateContainerConfigError": ConfigError,
	"CrashLoopBackOff":           "", "RunContainerError": "", "CreateContainerError": "",
}

// failing gives the first container that keeps a pod from becoming ready, of those named
// or of all, and the reason: "" if no container does.
func failing(p *corev1.Pod, names ...string) (c corev1.ContainerStatus, why string) {
	for _, c := range containers(p) {
		waiting := c.State.Waiting
		if waiting == nil || len(names) > 0 && !slices.Contains(names, c.Name) {
			continue
		}
		if _, is := stuck[waiting.Reason]; !is {
			continue
		}
		why := "pod " + p.Name + ": " + c.Name + ": " + waiting.Reason
		if waiting.Message != "" {
			why += ": " + waiting.Message
		}
		return c, why
	}
	return c, ""
}

// mounts reports whether a pod has a volume from a ConfigMap.
func mounts(spec *corev1.PodSpec, configMap string) bool {
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == configMap })
}
