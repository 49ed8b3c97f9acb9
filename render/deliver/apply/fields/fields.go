// Package fields reads the managers of the fields of an object in a cluster, and leaves fields to
// other managers.
package fields

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Manager is the name under which the API server records our fields.
const Manager = "armature"

// Seal returns a digest of the desired state and of the names of our fields in the live object.
// While the seal and the UID stay the same, another apply would change nothing and no request is
// needed: the API server removes our ownership of a field as soon as another manager sets another
// value or removes the field.
//
// Seal returns "" for a Secret, because its digest could be guessed.
func Seal(want Digest, live *unstructured.Unstructured) string {
	if live == nil || live.GroupVersionKind().GroupKind() == (schema.GroupKind{Kind: "Secret"}) {
		return ""
	}
	fields := Of(live, Ours)
	text, err := json.Marshal([]any{want, fields}) // with sorted keys
	if err != nil || fields == nil {
		return "" // a dry run is needed each time
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:15])
}

// Digest is the SHA-256 digest of a desired object.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a desired object.
func DigestOf(u *unstructured.Unstructured) (Digest, error) {
	text, err := json.Marshal(u.Object) // with sorted keys
	return sha256.Sum256(text), err
}

// Ours reports whether server-side apply recorded the fields of a manager as ours.
func Ours(manager, operation string) bool {
	return manager == Manager && operation == string(metav1.ManagedFieldsOperationApply)
}

// Of returns the fields of some managers as one FieldsV1 per entry, or nil if they have none.
func Of(live *unstructured.Unstructured, is func(manager, operation string) bool) (all []any) {
	value, _, _ := unstructured.NestedFieldNoCopy(live.Object, "metadata", "managedFields")
	entries, _ := value.([]any)
	for _, e := range entries {
		entry, _ := e.(map[string]any)
		str := func(key string) string { s, _ := entry[key].(string); return s }
		if fields := entry["fieldsV1"]; fields != nil && str("subresource") == "" &&
			is(str("manager"), str("operation")) {
			all = append(all, fields)
		}
	}
	return all
}

// Equal reports whether a dry run left an object as it was. It ignores the status and the
// bookkeeping of other managers, which may have changed in between.
func Equal(live, trial *unstructured.Unstructured) bool {
	return apiequality.Semantic.DeepEqual(Of(live, Ours), Of(trial, Ours)) &&
		apiequality.Semantic.DeepEqual(Bare(live).Object, Bare(trial).Object)
}

// Bare returns a copy of an object without the fields that the API server maintains.
func Bare(u *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: maps.Clone(u.Object)}
	delete(out.Object, "status")
	if m, ok := u.Object["metadata"].(map[string]any); ok {
		metadata := maps.Clone(m)
		for _, key := range Bookkeeping {
			delete(metadata, key)
		}
		out.Object["metadata"] = metadata
	}
	return out
}

// Bookkeeping are the fields of metadata that only the API server writes.
var Bookkeeping = [...]string{"managedFields", "resourceVersion", "generation", "uid",
	"creationTimestamp", "selfLink"}

// EqualButLabels compares objects without their labels and the ownership of their fields.
func EqualButLabels(live, trial *unstructured.Unstructured) bool {
	x, y := Bare(live).DeepCopy(), Bare(trial).DeepCopy()
	x.SetLabels(nil)
	y.SetLabels(nil)
	return apiequality.Semantic.DeepEqual(x.Object, y.Object)
}

// kubectlApply is the field manager of `kubectl apply` without --server-side.
const kubectlApply = "kubectl-client-side-apply"

// LastApplied is the annotation with kubectl's copy of an object, including the values of a Secret.
const LastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Update is the operation of a manager that does not use server-side apply.
const Update = string(metav1.ManagedFieldsOperationUpdate)

// ClientSide returns the field managers that applied an object from the client's side: that of
// kubectl, and every manager that wrote kubectl's copy of the object. Fields that this manager and
// we own would survive their removal from the package. Therefore they become ours, as with `kubectl
// apply --server-side` and Flux.
func ClientSide(live *unstructured.Unstructured) sets.Set[string] {
	names := sets.New[string]()
	if live == nil {
		return names
	}
	if Of(live, func(manager, operation string) bool {
		return manager == kubectlApply && operation == Update
	}) != nil {
		names.Insert(kubectlApply)
	}
	if _, copied := live.GetAnnotations()[LastApplied]; copied {
		field := fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "annotations", LastApplied))
		for _, entry := range csaupgrade.FindFieldsOwners(live.GetManagedFields(),
			metav1.ManagedFieldsOperationUpdate, field) {
			if entry.Subresource == "" {
				names.Insert(entry.Manager)
			}
		}
	}
	return names
}
