package apply

import (
	"cmp"
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/render/deliver/health"
)

// mostTroubles is the number of pods of one object that messages name.
const mostTroubles = 3

// podsOf lists the pods of an object with a selector and a pod template, the newest first.
// It returns none, without an error, if the user may not list pods.
func podsOf(ctx context.Context, c *Cluster, u liveObject) []corev1.Pod {
	if u == nil {
		return nil
	}
	_, template, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	selector, selects := health.Selector(u)
	if !template || !selects {
		return nil
	}
	pods := &corev1.PodList{}
	if err := c.client.List(ctx, pods, client.InNamespace(u.GetNamespace()),
		client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil
	}
	slices.SortFunc(pods.Items, func(x, y corev1.Pod) int {
		return cmp.Or(y.CreationTimestamp.Compare(x.CreationTimestamp.Time),
			strings.Compare(x.Name, y.Name))
	})
	return pods.Items
}

// troubles returns what keeps the pods of a workload from running.
func troubles(ctx context.Context, c *Cluster, u liveObject) (all []health.Trouble) {
	for _, pod := range podsOf(ctx, c, u) {
		if pod.DeletionTimestamp != nil || len(all) == mostTroubles {
			continue
		}
		if found := health.Troubles(&pod); len(found) > 0 {
			all = append(all, found[0])
		}
	}
	return all
}
