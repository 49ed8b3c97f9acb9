package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// scalers are the kinds that own the replicas of what they point to.
var scalers = [...]struct {
	kind        schema.GroupKind
	version     string
	defaultKind string
}{
	{schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}, "v2", ""},
	{schema.GroupKind{Group: "keda.sh", Kind: "ScaledObject"}, "v1alpha1", "Deployment"},
}

// autoscalers notes whose replicas belong to an autoscaler of the package, or to
// one in the cluster.
func (a *application) autoscalers(ctx context.Context, want []*object) error {
	namespaces := make(map[string]bool)
	for _, o := range want {
		if _, ok := replicas(o.body); ok {
			namespaces[o.id.Namespace] = true
		}
	}
	for _, s := range scalers {
		for _, o := range a.wanted {
			if o.id.GroupKind == s.kind {
				a.noteScaler(o.body, s.defaultKind)
			}
		}
		for _, o := range a.later {
			if o.GroupVersionKind().GroupKind() == s.kind {
				a.noteScaler(o.Unstructured, s.defaultKind)
			}
		}
		if len(namespaces) == 0 {
			continue
		}
		m, err := a.cluster.anyVersion(s.kind, s.version)
		if errors.Is(err, errNotServed) {
			continue
		}
		if err != nil {
			return fmt.Errorf("looking for autoscalers: %w", err)
		}
		live, err := a.cluster.list(ctx, m, slices.Sorted(maps.Keys(namespaces)), "")
		if apierrors.IsForbidden(err) {
			continue // what they scaled shows as a conflict
		}
		if err != nil {
			return fmt.Errorf("looking for autoscalers: %w", err)
		}
		for i := range live {
			a.noteScaler(&live[i], s.defaultKind)
		}
	}
	return nil
}

func (a *application) noteScaler(u *unstructured.Unstructured, defaultKind string) {
	ref, found, err := unstructured.NestedMap(u.Object, "spec", "scaleTargetRef")
	if err != nil || !found {
		return // the API server will say so
	}
	word := func(key string) string { s, _ := ref[key].(string); return s }
	kind, group := word("kind"), "apps"
	if kind == "" {
		kind = defaultKind
	}
	if v := word("apiVersion"); v != "" {
		gv, err := schema.ParseGroupVersion(v)
		if err != nil {
			return
		}
		group = gv.Group
	}
	namespace := u.GetNamespace()
	if namespace == "" {
		namespace = a.Namespace
	}
	target := ID{Namespace: namespace, Name: word("name"), GroupKind: schema.GroupKind{Group: group, Kind: kind}}
	a.scaled[target] = u.GetKind() + " " + u.GetName()
}

func replicas(u *unstructured.Unstructured) (any, bool) {
	spec, _ := u.Object["spec"].(map[string]any)
	n, ok := spec["replicas"]
	return n, ok
}

// leaveReplicas takes the replicas out of what is sent, where an autoscaler owns
// them. As long as they are recorded as ours nobody has scaled yet, and to drop
// them would set them to 1: then the live number is sent, and the API server
// answers with a conflict if it changes before.
func leaveReplicas(body, live liveObject) {
	spec, ok := body.Object["spec"].(map[string]any)
	if !ok || live == nil {
		return
	}
	fields, _ := owned(live)
	now, found := replicas(live)
	if found && has(fields, "spec", "replicas") {
		spec["replicas"] = now
		return
	}
	delete(spec, "replicas")
}
