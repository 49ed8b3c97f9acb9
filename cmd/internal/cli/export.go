package cli

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/foreign"
)

// platformGroups are the API groups of the resources that armature migrate converts.
var platformGroups = []string{keys.Kagenti, keys.Rossoctl, keys.LabelPrefix, keys.Kagent, keys.Asya}

// exported are the resources that Export reads: the platforms' own, and those that their
// controllers and webhooks create. Secrets are never read.
var exported = []schema.GroupVersionResource{
	{Group: keys.Kagenti, Version: "v1alpha1", Resource: "agents"},
	{Group: keys.Rossoctl, Version: "v1alpha1", Resource: "agents"},
	{Group: keys.LabelPrefix, Version: "v1alpha1", Resource: "agents"},
	{Group: keys.Kagent, Version: "v1alpha2", Resource: "agents"},
	{Group: keys.Kagent, Version: "v1alpha2", Resource: "modelconfigs"},
	{Group: keys.Kagent, Version: "v1alpha2", Resource: "remotemcpservers"},
	{Group: keys.Kagent, Version: "v1alpha1", Resource: "mcpservers"},
	{Group: keys.Asya, Version: "v1alpha1", Resource: "asyncactors"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "statefulsets"}, {Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "services"}, {Version: "v1", Resource: "serviceaccounts"},
	{Version: "v1", Resource: "configmaps"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	{Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"},
	{Group: "keda.sh", Version: "v1alpha1", Resource: "triggerauthentications"},
}

// Export returns the objects of a namespace that armature migrate can convert, as a List, or nil if
// there are none.
func Export(ctx context.Context, c dynamic.Interface, namespace string) ([]byte, error) {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("v1")
	list.SetKind("List")
	for _, resource := range exported {
		found, err := c.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue // the cluster does not have the platform
		}
		if err != nil {
			return nil, fmt.Errorf("listing %s in %s: %w", resource.Resource, namespace, err)
		}
		for _, o := range found.Items {
			if slices.Contains(platformGroups, resource.Group) || ownedByPlatform(o) || mutated(o) {
				list.Items = append(list.Items, o)
			}
		}
	}
	if len(list.Items) == 0 {
		return nil, nil
	}
	return yaml.Marshal(list.UnstructuredContent())
}

// ownedByPlatform reports whether a platform's controller created an object.
func ownedByPlatform(o unstructured.Unstructured) bool {
	for _, owner := range o.GetOwnerReferences() {
		group, err := schema.ParseGroupVersion(owner.APIVersion)
		if err == nil && slices.Contains(platformGroups, group.Group) {
			return true
		}
	}
	return false
}

// mutated reports whether a platform's webhook changed a workload, or a Pod without an owner.
func mutated(o unstructured.Unstructured) bool {
	if _, rendered := o.GetAnnotations()[keys.Injected]; rendered {
		return false
	}
	spec := []string{"spec", "template", "spec"}
	if o.GetKind() == "Pod" {
		if len(o.GetOwnerReferences()) > 0 {
			return false
		}
		if _, computed := o.GetAnnotations()[foreign.OvercommitApplied]; computed {
			return true
		}
		spec = spec[:1]
	}
	for _, list := range []string{"initContainers", "containers"} {
		// Without this list, a webhook has added nothing.
		containers, _, _ := unstructured.NestedSlice(o.Object, append(slices.Clone(spec), list)...)
		for _, item := range containers {
			container, _ := item.(map[string]any)
			name, _ := container["name"].(string)
			image, _ := container["image"].(string)
			if foreign.Injected(name, image) {
				return true
			}
		}
	}
	return false
}
