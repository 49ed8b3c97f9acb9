package status

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/pager"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/workload"
)

// Read lists the objects for a report in a namespace, or in all namespaces if it is "". It never
// reads Secrets. It reads events only if there are actors, whose status needs them.
func Read(ctx context.Context, c dynamic.Interface, namespace string) (Live, error) {
	l := Live{Now: time.Now()}
	var pods, configMaps, events []*unstructured.Unstructured
	type resources struct {
		group, version, resource string
		into                     *[]*unstructured.Unstructured
		labels                   string
		optional                 bool // the cluster may lack the kind
	}
	var all []resources
	for _, k := range workload.Kinds() {
		if group, version := k.GroupVersion(); k.Reported {
			all = append(all, resources{group, version, k.Resource, &l.Workloads, "", false})
		}
	}
	for _, w := range append(all, []resources{
		{"", "v1", "pods", &pods, "", false},
		{"", "v1", "configmaps", &configMaps, identity.ManagedBy + "=armature", false},
		{"autoscaling", "v2", "horizontalpodautoscalers", &l.Scalers, "", false},
		{"keda.sh", "v1alpha1", "scaledobjects", &l.Scalers, "", true},
		{"rabbitmq.com", "v1beta1", "queues", &l.Queues, "", true},
		{"sqs.services.k8s.aws", "v1alpha1", "queues", &l.Queues, "", true},
		{"", "v1", "events", &events, "", false},
	}...) {
		if w.into == &events && !slices.ContainsFunc(l.Workloads, isActor) {
			continue
		}
		resource := schema.GroupVersionResource{Group: w.group, Version: w.version, Resource: w.resource}
		list, _, err := pager.New(
			pager.SimplePageFunc(func(opt metav1.ListOptions) (runtime.Object, error) {
				return c.Resource(resource).Namespace(namespace).List(ctx, opt)
			})).List(ctx, metav1.ListOptions{LabelSelector: w.labels})
		if w.optional && (apierrors.IsNotFound(err) || meta.IsNoMatchError(err)) {
			continue
		}
		if err == nil {
			err = meta.EachListItem(list, func(o runtime.Object) error {
				*w.into = append(*w.into, o.(*unstructured.Unstructured))
				return nil
			})
		}
		if err != nil {
			return Live{}, fmt.Errorf("listing %s: %w", resource.GroupResource(), err)
		}
	}
	err := multi.Errors(typed(pods, &l.Pods), typed(configMaps, &l.ConfigMaps),
		typed(events, &l.Events))
	return l, err
}

// typed converts objects to their type.
func typed[T any](objects []*unstructured.Unstructured, into *[]*T) error {
	for _, o := range objects {
		x := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, x); err != nil {
			return fmt.Errorf("reading %s %s/%s: %w", o.GetKind(), o.GetNamespace(), o.GetName(), err)
		}
		*into = append(*into, x)
	}
	return nil
}

// isActor reports whether a workload was rendered for an AsyncActor.
func isActor(w *unstructured.Unstructured) bool {
	return strings.HasPrefix(w.GetAnnotations()[keys.RenderedFor], "AsyncActor/")
}
