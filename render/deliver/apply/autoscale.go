package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

type scaler struct {
	schema.GroupKind
	version     string
	defaultKind string
}

// scalers are the kinds that own the replicas of their target.
var scalers = [...]scaler{
	{schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}, "v2", ""},
	{schema.GroupKind{Group: "keda.sh", Kind: "ScaledObject"}, "v1alpha1", "Deployment"},
}

// findScaled marks objects whose replicas an autoscaler of the package or the cluster sets. An
// autoscaler that is pruned, and every autoscaler that it created, does not count: the package owns
// the replicas again.
func findScaled(ctx context.Context, c *Cluster, p *Plan) error {
	dropped := make(map[types.UID]bool)
	var namespaces []string
	for _, s := range p.Steps {
		if s.want.author == nil {
			dropped[s.seen.live.GetUID()] = true
		} else if s.want.local == "" && (replicas(s.want.author) || replicas(s.seen.live)) &&
			!slices.Contains(namespaces, s.Namespace) {
			namespaces = append(namespaces, s.Namespace)
		}
	}
	for _, kind := range scalers {
		var found []unstructured.Unstructured
		if len(namespaces) > 0 {
			m, err := c.served(kind.WithVersion(kind.version))
			if err == nil {
				found, err = c.list(ctx, m.GroupVersionKind, namespaces)
			}
			// Their targets show as conflicts. A CRD may just have been deleted.
			if err != nil && !errors.Is(err, errNotServed) && !apierrors.IsForbidden(err) &&
				!apierrors.IsNotFound(err) {
				return fmt.Errorf("looking for autoscalers: %w", err)
			}
		}
		for id, s := range p.wanted {
			if id.GroupKind == kind.GroupKind {
				found = append(found, *s.want.author)
			}
		}
		for _, u := range found {
			deleted := dropped[u.GetUID()] || slices.ContainsFunc(u.GetOwnerReferences(),
				func(r metav1.OwnerReference) bool { return dropped[r.UID] })
			if target := p.wanted[kind.target(&u)]; target != nil {
				target.seen.scaled = target.seen.scaled || !deleted
				target.seen.unscaled = target.seen.unscaled || deleted
			}
		}
	}
	return nil
}

// target returns the object that an autoscaler scales. The API server reports an invalid reference.
func (s scaler) target(u *unstructured.Unstructured) ID {
	ref, _, _ := unstructured.NestedStringMap(u.Object, "spec", "scaleTargetRef")
	kind := schema.FromAPIVersionAndKind(cmp.Or(ref["apiVersion"], "apps/v1"),
		cmp.Or(ref["kind"], s.defaultKind))
	return ID{Namespace: u.GetNamespace(), Name: ref["name"], GroupKind: kind.GroupKind()}
}

func replicas(u *unstructured.Unstructured) bool {
	if u == nil {
		return false
	}
	spec, _ := u.Object["spec"].(map[string]any)
	return spec["replicas"] != nil
}
