package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Trouble is a reason why a pod does not run. The zero value is none.
type Trouble struct {
	Pod string
	// Container that waits or has failed; "" for the pod itself.
	Container string
	// Reason and Message of Kubernetes.
	Reason, Message string

	ended string // how the container last ended
}

func (t Trouble) String() string {
	words := "pod " + t.Pod + ": " + t.Reason
	if t.Container != "" {
		words += ": container " + t.Container
	}
	if t.ended != "" {
		words += ", " + t.ended
	}
	return strings.TrimSuffix(words+": "+OneLine(t.Message), ": ")
}

// Stuck reports whether a container waits for something that time alone does not resolve.
func (t Trouble) Stuck() bool {
	switch t.Reason {
	case "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull",
		"CreateContainerConfigError", "CrashLoopBackOff", "RunContainerError", "CreateContainerError":
		return t.Container != ""
	}
	return false
}

// Troubles returns all reasons why a pod does not run: that no node accepts it, then its containers
// in order, then that it has failed as a whole.
func Troubles(pod *corev1.Pod) (all []Trouble) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			all = append(all, Trouble{Pod: pod.Name, Reason: c.Reason, Message: c.Message})
		}
	}
	for _, s := range Containers(pod) {
		t := Trouble{Pod: pod.Name, Container: s.Name}
		switch waiting, now := s.State.Waiting, s.State.Terminated; {
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "ContainerCreating" &&
			waiting.Reason != "PodInitializing":
			t.Reason, t.Message, t.ended =
				waiting.Reason, waiting.Message, end(s.LastTerminationState.Terminated)
		case now != nil && now.ExitCode != 0:
			t.Reason, t.ended = now.Reason, end(now)
		default:
			continue
		}
		all = append(all, t)
	}
	if pod.Status.Phase == corev1.PodFailed {
		all = append(all, Trouble{Pod: pod.Name, Reason: cmp.Or(pod.Status.Reason, "Failed"),
			Message: pod.Status.Message})
	}
	return all
}

// Containers returns the statuses of the containers of a pod in order. Sidecars are among the init
// containers.
func Containers(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// Selector returns the selector for the pods of an object. It returns false if the selector is
// missing, empty or invalid.
func Selector(u *unstructured.Unstructured) (labels.Selector, bool) {
	raw, found, _ := unstructured.NestedMap(u.Object, "spec", "selector")
	var set metav1.LabelSelector
	if !found || runtime.DefaultUnstructuredConverter.FromUnstructured(raw, &set) != nil {
		return nil, false
	}
	selector, err := metav1.LabelSelectorAsSelector(&set)
	return selector, err == nil && !selector.Empty()
}

// end describes the end of a container, which may be nil.
func end(t *corev1.ContainerStateTerminated) string {
	if t == nil {
		return ""
	}
	text := fmt.Sprintf("exit code %d", t.ExitCode)
	if t.Reason != "" && t.Reason != "Error" {
		text += " (" + t.Reason + ")"
	}
	if t.Message != "" {
		text += ": " + t.Message
	}
	return text
}
