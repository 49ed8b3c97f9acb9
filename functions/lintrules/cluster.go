package lintrules

import (
	_ "embed"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
)

// clusterWide are the kinds that others name without a namespace; one that their
// author wrote does not count.
var clusterWide = map[string]bool{"ClusterRole": true}

// key is the id under which an object is kept and asked for.
func key(kind, namespace, name string) id {
	if clusterWide[kind] {
		namespace = ""
	}
	return id{kind, finding.Home(namespace), name}
}

// clusterRoles are those of every cluster beside system:*.
var clusterRoles = []string{"admin", "cluster-admin", "edit", "view"}

// clusterAccounts are the ServiceAccounts of Kubernetes' own controllers, which
// every cluster has in kube-system (bootstrappolicy of Kubernetes 1.37; the
// cloud-* ones are those of the cloud controller manager).
//
//go:embed accounts.txt
var clusterAccounts string

// builtIn reports whether every cluster has an object.
func builtIn(kind, namespace, name string) bool {
	switch kind {
	case "ClusterRole":
		return strings.HasPrefix(name, "system:") || slices.Contains(clusterRoles, name)
	case "Role":
		system := strings.HasPrefix(name, "system:controller:") ||
			name == "system::leader-locking-kube-controller-manager" ||
			name == "system::leader-locking-kube-scheduler"
		return namespace == "kube-system" &&
			(system || name == "extension-apiserver-authentication-reader") ||
			namespace == "kube-public" && name == "system:controller:bootstrap-signer"
	case "ServiceAccount":
		return name == "default" ||
			namespace == "kube-system" && slices.Contains(strings.Fields(clusterAccounts), name)
	case "ConfigMap":
		return name == "kube-root-ca.crt" || name == "istio-ca-root-cert" ||
			namespace == "kube-system" &&
				name == "extension-apiserver-authentication"
	}
	return false
}

// builtInPods reports whether every cluster has pods that a selector selects:
// those of its DNS.
func builtInPods(namespace string, want map[string]string) bool {
	return namespace == "kube-system" && len(want) == 1 && want["k8s-app"] == "kube-dns"
}
