package apply

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/apply/fields"
)

// nudge annotates the pods that mount a changed ConfigMap. A failure is a warning,
// not an error: the kubelet updates the volume in any case.
func nudge(ctx context.Context, c *Cluster, p *Plan) {
	changed := make(map[string]map[string]string) // by namespace and name: the new resource version
	for _, s := range having(p.Steps, Change) {
		if s.GroupKind != configMapKind {
			continue
		}
		if changed[s.Namespace] == nil {
			changed[s.Namespace] = make(map[string]string)
		}
		changed[s.Namespace][s.Name] = s.now().GetResourceVersion()
	}
	for namespace, versions := range changed {
		n, err := nudgePods(ctx, c, namespace, versions)
		switch {
		case err != nil:
			p.opt.tell("warning: pods in %s that mount a changed ConfigMap were not nudged and "+
				"see it later: %v", namespace, err)
		case n > 0:
			p.opt.tell("nudged %s in %s that mount a changed ConfigMap", text.Count(n, "pod"), namespace)
		}
	}
}

func nudgePods(ctx context.Context, c *Cluster, namespace string,
	versions map[string]string) (int, error) {
	pods := &corev1.PodList{}
	if err := c.client.List(ctx, pods, client.InNamespace(namespace)); err != nil {
		return 0, err
	}
	n := 0
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range pods.Items {
		pod := &pods.Items[i]
		version := mounted(pod, versions)
		if version == "" || pod.GetDeletionTimestamp() != nil {
			continue
		}
		n++
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, pod.GetUID(),
			keys.Nudged, version)
		group.Go(func() error {
			return c.client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch),
				client.FieldOwner(fields.Manager+"-nudge"))
		})
	}
	return n, group.Wait()
}

// mounted returns the version of a ConfigMap that the pod mounts, or "".
func mounted(pod *corev1.Pod, versions map[string]string) string {
	for _, v := range pod.Spec.Volumes {
		if v.ConfigMap != nil && versions[v.ConfigMap.Name] != "" {
			return versions[v.ConfigMap.Name]
		}
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			if source.ConfigMap != nil && versions[source.ConfigMap.Name] != "" {
				return versions[source.ConfigMap.Name]
			}
		}
	}
	return ""
}
