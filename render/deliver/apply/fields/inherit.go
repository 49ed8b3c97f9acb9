package fields

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// kubectlApply is the field manager of `kubectl apply` without --server-side.
const kubectlApply = "kubectl-client-side-apply"

// LastApplied is kubectl's copy of an object, a Secret's values included.
const LastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Update is the operation of a manager that does not use server-side apply.
const Update = string(metav1.ManagedFieldsOperationUpdate)

// ClientSide names the field managers by which an object was applied from the
// client's side: that of kubectl, and any that wrote kubectl's copy of it. What such
// a manager owns beside us would outlive its removal from the package, so that its
// fields become ours, as `kubectl apply --server-side` and Flux make them theirs.
func ClientSide(live *unstructured.Unstructured) sets.Set[string] {
	names := sets.New[string]()
	if live == nil {
		return names
	}
	if Of(live, func(manager, operation string) bool { return manager == kubectlApply && operation == Update }) != nil {
		names.Insert(kubectlApply)
	}
	if _, copied := live.GetAnnotations()[LastApplied]; copied {
		field := fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "annotations", LastApplied))
		for _, entry := range csaupgrade.FindFieldsOwners(live.GetManagedFields(), metav1.ManagedFieldsOperationUpdate, field) {
			if entry.Subresource == "" {
				names.Insert(entry.Manager)
			}
		}
	}
	return names
}
