package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

type scaler struct {
	kind        schema.GroupKind
	version     string
	defaultKind string
}

// scalers are the kinds that own the replicas of what they point to.
var scalers = [...]scaler{
	{schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}, "v2", ""},
	{schema.GroupKind{Group: "keda.sh", Kind: "ScaledObject"}, "v1alpha1", "Deployment"},
}

// autoscalers notes whose replicas belong to an autoscaler of the package, or to
// one in the cluster. One that is about to be pruned, and what it made for itself,
// does not count: the replicas are the package's again.
func (a *application) autoscalers(ctx context.Context, want []*object) error {
	pruned := a.prunedScalers()
	namespaces := make(map[string]bool)
	for _, o := range want {
		_, wanted := replicas(o.body)
		if live := a.seen[o.id]; wanted || live != nil && dropsReplicas(live) {
			namespaces[o.id.Namespace] = true
		}
	}
	for _, s := range scalers {
		for _, o := range a.wanted {
			if o.id.GroupKind == s.kind {
				a.noteScaler(a.scaled, o.body, s.defaultKind)
			}
		}
		for _, o := range a.later {
			if o.GroupVersionKind().GroupKind() == s.kind {
				a.noteScaler(a.scaled, o.Unstructured, s.defaultKind)
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
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			continue // what they scaled shows as a conflict; a CRD may just have gone
		}
		if err != nil {
			return fmt.Errorf("looking for autoscalers: %w", err)
		}
		for i := range live {
			whose := a.scaled
			if pruned[live[i].GetUID()] || slices.ContainsFunc(live[i].GetOwnerReferences(), func(r metav1.OwnerReference) bool { return pruned[r.UID] }) {
				whose = a.unscaled
			}
			a.noteScaler(whose, &live[i], s.defaultKind)
		}
	}
	return nil
}

// dropsReplicas reports whether an object would lose its replicas where the package
// has none: they are recorded as ours, or as kubectl's, which come to us.
func dropsReplicas(live liveObject) bool {
	if _, ok := replicas(live); !ok {
		return false
	}
	fields, _ := owned(live)
	return has(fields, "spec", "replicas") || len(clientSide(live)) > 0
}

// prunedScalers are the autoscalers that the plan is going to prune.
func (a *application) prunedScalers() map[types.UID]bool {
	pruned := make(map[types.UID]bool)
	for id, e := range a.old.Entries {
		if !slices.ContainsFunc(scalers[:], func(s scaler) bool { return s.kind == id.GroupKind }) || a.placeOf(id) != "" {
			continue
		}
		if s, exists := a.decidePrune(e); exists && s.Action == Prune {
			pruned[s.live.GetUID()] = true
		}
	}
	return pruned
}

// takesReplicas reports whether a field is the replicas of a workload whose
// autoscaler is about to be pruned.
func (a *application) takesReplicas(o *object, field string) bool {
	return field == "spec.replicas" && a.unscaled[o.id] != "" && a.scaled[o.id] == ""
}

// settleReplicas sends workloads again whose autoscaler is gone now: it may have
// scaled them between our write and its end.
func (a *application) settleReplicas(ctx context.Context, p *Plan) error {
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.want == nil || s.Action == Skip || !a.takesReplicas(s.want, "spec.replicas") {
			continue
		}
		if _, ok := replicas(s.want.body); !ok {
			continue
		}
		now, err := a.cluster.live(ctx, s.want.mapping, s.ID)
		if err != nil || now == nil {
			return err
		}
		s.live, s.want.force = now, true
		if s.want.written, err = a.send(ctx, s); err != nil {
			return fmt.Errorf("%s: %s: %w", s.Place(), title(s.ID), brief{err})
		}
	}
	return nil
}

// noteScaler notes in scaled what an autoscaler scales.
func (a *application) noteScaler(scaled map[ID]string, u *unstructured.Unstructured, defaultKind string) {
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
	scaled[target] = u.GetKind() + " " + u.GetName()
}

func replicas(u *unstructured.Unstructured) (any, bool) {
	spec, _ := u.Object["spec"].(map[string]any)
	n, ok := spec["replicas"]
	return n, ok
}

// leaveReplicas takes the replicas out of what is sent, where an autoscaler owns
// them. As long as they are recorded as ours nobody has scaled yet, and to drop
// them would set them to 1: then the live number is sent, and the API server
// answers with a conflict if it changes before. What was recorded for kubectl is
// going to be ours.
func leaveReplicas(body, live liveObject, clientSide map[string]any) {
	spec, ok := body.Object["spec"].(map[string]any)
	if !ok || live == nil {
		return
	}
	fields, _ := owned(live)
	now, found := replicas(live)
	if found && (has(fields, "spec", "replicas") || has(clientSide, "spec", "replicas")) {
		spec["replicas"] = now
		return
	}
	delete(spec, "replicas")
}
