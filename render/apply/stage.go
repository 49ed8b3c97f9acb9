package apply

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// stages are applied one after the other, and pruned the other way round. What
// is in the same stage goes at once. Kinds that are named nowhere, custom
// resources among them, belong to the workloads.
var stages = [...]struct {
	name  string
	kinds []string
}{
	{"namespaces and CRDs", []string{"Namespace", "CustomResourceDefinition"}},
	{"foundations", []string{
		"ClusterRole", "Role", "ServiceAccount", "ResourceQuota", "LimitRange", "RuntimeClass", "PriorityClass",
		"StorageClass", "VolumeSnapshotClass", "IngressClass", "GatewayClass", "ClusterClass",
	}},
	{"configuration", []string{
		"ClusterRoleBinding", "RoleBinding", "ConfigMap", "Secret", "PersistentVolume", "PersistentVolumeClaim",
		"NetworkPolicy", "Service",
	}},
	{"workloads", nil},
	// A webhook refuses what nobody serves yet, so that it comes after its server.
	{"admission", []string{
		"APIService", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
		"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding",
		"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
	}},
}

const workloads = 3

func stageOf(kind schema.GroupKind) int {
	for i, s := range stages {
		if slices.Contains(s.kinds, kind.Kind) && builtin(kind.Group) {
			return i
		}
	}
	return workloads
}

// builtin reports whether a group is Kubernetes's own: those have no dot, or end
// in k8s.io.
func builtin(group string) bool {
	return !slices.Contains([]byte(group), '.') || len(group) > 7 && group[len(group)-7:] == ".k8s.io" || group == "cluster.x-k8s.io"
}

var (
	crdKind       = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
	namespaceKind = schema.GroupKind{Kind: "Namespace"}
	secretKind    = schema.GroupKind{Kind: "Secret"}
	configMapKind = schema.GroupKind{Kind: "ConfigMap"}
	jobKind       = schema.GroupKind{Group: "batch", Kind: "Job"}
)
