package apply

import (
	"cmp"
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/apply/fields"
)

// nudge annotates the pods that mount a changed ConfigMap. A failure is only a warning, because the
// kubelet updates the volume in any case.
func nudge(ctx context.Context, c *Cluster, p *Plan) {
	versions := make(map[ID]string) // the new resource versions
	namespaces := sets.New[string]()
	for _, s := range having(p.Steps, Change) {
		if s.GroupKind == configMapKind {
			versions[s.ID] = s.now().GetResourceVersion()
			namespaces.Insert(s.Namespace)
		}
	}
	for namespace := range namespaces {
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
	versions map[ID]string) (n int, err error) {
	pods := &corev1.PodList{}
	if err := c.client.List(ctx, pods, client.InNamespace(namespace)); err != nil {
		return 0, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range pods.Items {
		pod := &pods.Items[i]
		var version string
		for _, name := range configMaps(pod) {
			id := ID{Namespace: namespace, Name: name, GroupKind: configMapKind}
			version = cmp.Or(version, versions[id])
		}
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

// configMaps returns the names of the ConfigMaps that a pod mounts.
func configMaps(pod *corev1.Pod) (names []string) {
	for _, v := range pod.Spec.Volumes {
		if v.ConfigMap != nil {
			names = append(names, v.ConfigMap.Name)
		}
		for _, source := range ptr.Deref(v.Projected, corev1.ProjectedVolumeSource{}).Sources {
			if source.ConfigMap != nil {
				names = append(names, source.ConfigMap.Name)
			}
		}
	}
	return names
}
