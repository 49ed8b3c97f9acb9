package apply

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/functions/api/keys"
)

// others notes which namespaces and CRDs that the package has no more hold objects
// of other packages, by their inventories and by the labels of a CRD's instances.
func (a *application) others(ctx context.Context) error {
	a.held = make(map[ID]string)
	var all []*Inventory
	asked := false
	for id := range a.old.Entries {
		live := a.seen[id]
		if id.GroupKind != namespaceKind && id.GroupKind != crdKind || live == nil || a.placeOf(id) != "" || a.PruneShared {
			continue
		}
		if !asked {
			asked = true
			var err error
			if all, err = a.cluster.inventories(ctx, ""); err != nil && !apierrors.IsForbidden(err) {
				return err
			}
		}
		holds, err := a.cluster.holds(ctx, a.Package, live, all)
		if err != nil {
			return err
		}
		if len(holds) > 0 {
			a.held[id] = "objects of other packages: " + summarize(slices.Sorted(maps.Keys(holds)))
		}
	}
	return nil
}

func summarize(names []string) string {
	if len(names) > 3 {
		names = append(names[:3:3], fmt.Sprintf("and %d more", len(names)-3))
	}
	return strings.Join(names, ", ")
}

// holds gives the objects of other packages than p that go with a namespace or CRD.
func (c *Cluster) holds(ctx context.Context, p Package, live liveObject, all []*Inventory) (map[string]bool, error) {
	names := make(map[string]bool)
	if live.GetKind() == namespaceKind.Kind {
		if all == nil { // only those in the namespace itself may be listed
			var err error
			if all, err = c.inventories(ctx, live.GetName()); err != nil && !apierrors.IsForbidden(err) {
				return nil, err
			}
		}
		for _, v := range all {
			if v.Package != p && v.Namespace == live.GetName() {
				names["the inventory of "+v.Package.String()] = true
			}
			for id := range v.Entries {
				if v.Package != p && id.Namespace == live.GetName() {
					names[title(id)+" of "+v.Package.String()] = true
				}
			}
		}
		return names, nil
	}
	group, _, _ := unstructured.NestedString(live.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(live.Object, "spec", "names", "kind")
	defined := schema.GroupKind{Group: group, Kind: kind}
	for _, v := range all {
		for id := range v.Entries {
			if v.Package != p && id.GroupKind == defined {
				names[title(id)+" of "+v.Package.String()] = true
			}
		}
	}
	list, err := c.metadata.Resource(storedAs(live)).List(ctx, metav1.ListOptions{LabelSelector: keys.LabelName})
	if apierrors.IsNotFound(err) {
		return names, nil // it is served no more
	}
	if err != nil {
		return nil, fmt.Errorf("looking for what goes with %s %s: %w", live.GetKind(), live.GetName(), err)
	}
	for i := range list.Items {
		labels := list.Items[i].GetLabels()
		if of := (Package{Namespace: labels[keys.LabelNamespace], Name: labels[keys.LabelName]}); of != p && of.Namespace != "" {
			names[title(ID{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name, GroupKind: defined})+" of "+of.String()] = true
		}
	}
	return names, nil
}

// storedAs is the resource of a CRD, in a version that is served.
func storedAs(crd liveObject) schema.GroupVersionResource {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		if version, ok := v.(map[string]any); ok && version["served"] == true {
			name, _ := version["name"].(string)
			return schema.GroupVersionResource{Group: group, Version: name, Resource: plural}
		}
	}
	return schema.GroupVersionResource{Group: group, Resource: plural}
}
