package apply

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// podTrouble is what keeps a pod from running, in the API server's words.
type podTrouble struct{ pod, reason, message string }

func (t podTrouble) String() string {
	return strings.TrimSuffix(fmt.Sprintf("pod %s: %s: %s", t.pod, t.reason, t.message), ": ")
}

// mostTroubles is how many pods of one object are named.
const mostTroubles = 3

// podsOf lists the pods of whatever has a selector and a template for them, the newest
// first. Where they may not be listed there are none, which is not a failure.
func podsOf(ctx context.Context, c *Cluster, u liveObject) []corev1.Pod {
	if u == nil {
		return nil
	}
	_, template, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	raw, found, _ := unstructured.NestedMap(u.Object, "spec", "selector")
	var set metav1.LabelSelector
	if !template || !found || runtime.DefaultUnstructuredConverter.FromUnstructured(raw, &set) != nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(&set)
	if err != nil || selector.Empty() {
		return nil
	}
	pods := &corev1.PodList{}
	if err := c.client.List(ctx, pods, client.InNamespace(u.GetNamespace()), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil
	}
	slices.SortFunc(pods.Items, func(x, y corev1.Pod) int {
		return cmp.Or(y.CreationTimestamp.Compare(x.CreationTimestamp.Time), strings.Compare(x.Name, y.Name))
	})
	return pods.Items
}

// troubles finds out what keeps the pods of a workload from running.
func troubles(ctx context.Context, c *Cluster, u liveObject) (all []podTrouble) {
	for _, pod := range podsOf(ctx, c, u) {
		if pod.DeletionTimestamp != nil || len(all) == mostTroubles {
			continue
		}
		if reason, message := troubleOf(&pod); reason != "" {
			all = append(all, podTrouble{pod.Name, reason, oneLine(message)})
		}
	}
	return all
}

// troubleOf gives reason and message; "" where nothing is wrong with a pod.
func troubleOf(pod *corev1.Pod) (reason, message string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Reason, c.Message
		}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		message := "container " + s.Name
		switch w, now, last := s.State.Waiting, s.State.Terminated, s.LastTerminationState.Terminated; {
		case w != nil && w.Reason != "" && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing":
			if last != nil {
				message += ", " + ended(last)
			}
			if w.Message != "" {
				message += ": " + w.Message
			}
			return w.Reason, message
		case now != nil && now.ExitCode != 0:
			return now.Reason, message + ", " + ended(now)
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		return cmp.Or(pod.Status.Reason, "Failed"), pod.Status.Message
	}
	return "", ""
}

// ended says how a container came to its end.
func ended(t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("exit code %d", t.ExitCode)
	if t.Reason != "" && t.Reason != "Error" {
		text += " (" + t.Reason + ")"
	}
	if t.Message != "" {
		text += ": " + t.Message
	}
	return text
}
