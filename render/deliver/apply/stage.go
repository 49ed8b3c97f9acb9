package apply

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// stages are applied one after the other, and pruned in reverse. Objects of one stage are applied
// in parallel. Kinds that are not listed, such as custom resources, are workloads.
var stages = [...]struct {
	name  string
	kinds []string
}{
	{"namespaces and CRDs", []string{"Namespace", "CustomResourceDefinition"}},
	{"what hooks need", nil},
	{preSync + " hooks", nil},
	{"foundations", []string{
		"ClusterRole", "Role", "ServiceAccount", "ResourceQuota", "LimitRange", "RuntimeClass",
		"PriorityClass", "StorageClass", "VolumeSnapshotClass", "IngressClass", "GatewayClass",
		"ClusterClass",
	}},
	{"configuration", []string{
		"ClusterRoleBinding", "RoleBinding", "ConfigMap", "Secret", "PersistentVolume",
		"PersistentVolumeClaim", "NetworkPolicy", "Service",
	}},
	{"workloads", nil},
	// Requests fail while the server of a webhook does not run, so webhooks follow the servers.
	{"admission", []string{
		"APIService", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
		"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding",
		"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
	}},
}

// Indexes of stages. Those from pruned on have no kinds.
const (
	needed    = 1
	preHooks  = 2
	workloads = 5
	pruned    = 100 // less the stage of the kind
	postHooks = 101
	home      = 102 // the namespace of the inventory, in a delete
)

func stageOf(kind schema.GroupKind) int {
	// Kubernetes's own groups have no dot, or end in k8s.io.
	builtin := !strings.Contains(kind.Group, ".") || strings.HasSuffix(kind.Group, ".k8s.io") ||
		kind.Group == "cluster.x-k8s.io"
	for i, s := range stages {
		if builtin && slices.Contains(s.kinds, kind.Kind) {
			return i
		}
	}
	return workloads
}

// rank is the position of a step: the waves of a stage are carried out one after the other. Without
// dependencies there is one wave.
type rank struct{ stage, wave int }

func (r rank) compare(other rank) int {
	return cmp.Or(cmp.Compare(r.stage, other.stage), cmp.Compare(r.wave, other.wave))
}

// name returns the name of the stage for people.
func (r rank) name() string {
	if r.stage < len(stages) {
		return stages[r.stage].name
	}
	return postSync + " hooks"
}

var (
	crdKind       = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
	namespaceKind = schema.GroupKind{Kind: "Namespace"}
	secretKind    = schema.GroupKind{Kind: "Secret"}
	configMapKind = schema.GroupKind{Kind: "ConfigMap"}
	jobKind       = schema.GroupKind{Group: "batch", Kind: "Job"}
	leaseKind     = schema.GroupKind{Group: "coordination.k8s.io", Kind: "Lease"}
)
