package apply

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/functions/api/keys"
)

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// nudge annotates the pods that mount a changed ConfigMap. A failure is a warning,
// not an error: the kubelet updates the volume in any case.
func (a *application) nudge(ctx context.Context, p *Plan) {
	changed := make(map[string]map[string]string) // by namespace and name: the new resource version
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.GroupKind != configMapKind || s.Action != Change || s.done() == nil {
			continue
		}
		if changed[s.Namespace] == nil {
			changed[s.Namespace] = make(map[string]string)
		}
		changed[s.Namespace][s.Name] = s.done().GetResourceVersion()
	}
	for namespace, versions := range changed {
		n, err := a.cluster.nudge(ctx, namespace, versions)
		switch {
		case err != nil:
			a.tell("warning: pods in %s that mount a changed ConfigMap were not nudged and see it later: %v", namespace, err)
		case n > 0:
			a.tell("nudged %d pods in %s that mount a changed ConfigMap", n, namespace)
		}
	}
}

func (c *Cluster) nudge(ctx context.Context, namespace string, versions map[string]string) (int, error) {
	list, err := c.dynamic.Resource(pods).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	n := 0
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range list.Items {
		pod := &list.Items[i]
		version := mounted(pod, versions)
		if version == "" || pod.GetDeletionTimestamp() != nil {
			continue
		}
		n++
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, pod.GetUID(), keys.Nudged, version)
		group.Go(func() error {
			_, err := c.dynamic.Resource(pods).Namespace(namespace).Patch(ctx, pod.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager + "-nudge"})
			return err
		})
	}
	return n, group.Wait()
}

// mounted gives the version of a ConfigMap that the pod mounts; "" for none.
func mounted(pod *unstructured.Unstructured, versions map[string]string) string {
	volumes, _, _ := unstructured.NestedSlice(pod.Object, "spec", "volumes")
	for _, v := range volumes {
		volume, _ := v.(map[string]any)
		if name, _, _ := unstructured.NestedString(volume, "configMap", "name"); versions[name] != "" {
			return versions[name]
		}
		sources, _, _ := unstructured.NestedSlice(volume, "projected", "sources")
		for _, s := range sources {
			source, _ := s.(map[string]any)
			if name, _, _ := unstructured.NestedString(source, "configMap", "name"); versions[name] != "" {
				return versions[name]
			}
		}
	}
	return ""
}
