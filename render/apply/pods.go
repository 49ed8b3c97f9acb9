package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// PodTrouble is what keeps a pod from running.
type PodTrouble struct {
	// Pod is its name; the namespace is that of the object that it belongs to.
	Pod string `json:"pod"`
	// Reason in the API server's words, such as ImagePullBackOff or Unschedulable.
	Reason string `json:"reason"`
	// Message that comes with it, on one line; "" where there is none.
	Message string `json:"message,omitempty"`
}

func (t PodTrouble) String() string {
	return strings.TrimSuffix(fmt.Sprintf("pod %s: %s: %s", t.Pod, t.Reason, t.Message), ": ")
}

// mostTroubles is how many pods of one object are named.
const mostTroubles = 3

var podKind = schema.GroupKind{Kind: "Pod"}

// troubles finds out what keeps the pods of workloads from running. Where pods may
// not be listed there are no reasons, which is not a failure.
func (c *Cluster) troubles(ctx context.Context, targets []*target) map[ID][]PodTrouble {
	selectors := make(map[string]map[ID]labels.Selector) // by namespace
	found := make(map[ID][]PodTrouble)
	for _, t := range targets {
		if t.id.GroupKind == podKind && t.latest != nil {
			found[t.id] = troublesOf([]unstructured.Unstructured{*t.latest})
			continue
		}
		if s := podsOf(t.latest); s != nil {
			if selectors[t.id.Namespace] == nil {
				selectors[t.id.Namespace] = make(map[ID]labels.Selector)
			}
			selectors[t.id.Namespace][t.id] = s
		}
	}
	for namespace, wanted := range selectors {
		if len(wanted) <= few {
			for id, selector := range wanted {
				list, err := c.dynamic.Resource(pods).Namespace(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
				if err == nil {
					found[id] = troublesOf(list.Items)
				}
			}
			continue
		}
		list, err := c.dynamic.Resource(pods).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for id, selector := range wanted {
			found[id] = troublesOf(slices.DeleteFunc(slices.Clone(list.Items), func(p unstructured.Unstructured) bool { return !selector.Matches(labels.Set(p.GetLabels())) }))
		}
	}
	return found
}

// podsOf selects the pods of whatever has a template for them; nil for all else.
func podsOf(u liveObject) labels.Selector {
	if u == nil {
		return nil
	}
	if _, found, err := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers"); err != nil || !found {
		return nil
	}
	raw, found, err := unstructured.NestedMap(u.Object, "spec", "selector")
	if err != nil || !found {
		return nil
	}
	var selector metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw, &selector); err != nil {
		return nil
	}
	s, err := metav1.LabelSelectorAsSelector(&selector)
	if err != nil || s.Empty() {
		return nil
	}
	return s
}

// troublesOf names the pods in trouble, the newest first.
func troublesOf(items []unstructured.Unstructured) (all []PodTrouble) {
	slices.SortFunc(items, func(a, b unstructured.Unstructured) int {
		newer := b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time)
		if newer == 0 {
			return strings.Compare(a.GetName(), b.GetName())
		}
		return newer
	})
	for i := range items {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(items[i].Object, &pod); err != nil || pod.DeletionTimestamp != nil {
			continue
		}
		if t := troubleOf(&pod); t.Reason != "" && len(all) < mostTroubles {
			all = append(all, t)
		}
	}
	return all
}

func troubleOf(pod *corev1.Pod) PodTrouble {
	is := func(reason, message string) PodTrouble {
		return PodTrouble{Pod: pod.Name, Reason: reason, Message: oneLine(message)}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return is(c.Reason, c.Message)
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
			return is(w.Reason, message)
		case now != nil && now.ExitCode != 0:
			return is(now.Reason, message+", "+ended(now))
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		reason := pod.Status.Reason
		if reason == "" {
			reason = "Failed"
		}
		return is(reason, pod.Status.Message)
	}
	return PodTrouble{}
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
