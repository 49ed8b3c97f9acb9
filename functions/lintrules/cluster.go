package lintrules

import (
	_ "embed"
	"path"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
)

// clusterWide are the kinds that references name without a namespace. A namespace that their author
// wrote is ignored.
var clusterWide = map[string]bool{"ClusterRole": true}

// key returns the id of an object in the collected objects.
func key(kind, namespace, name string) id {
	if clusterWide[kind] {
		namespace = ""
	}
	return id{kind, finding.Home(namespace), name}
}

// builtIns are objects of every cluster: a kind, a namespace or * for any, and the patterns of
// names. The ServiceAccounts in kube-system belong to Kubernetes' own controllers (bootstrappolicy
// of Kubernetes 1.37; the cloud-* ones are those of the cloud controller manager). The second line
// is OpenShift's ClusterRoles.
//
//go:embed builtin.txt
var builtIns string

// builtIn reports whether every cluster has an object.
func builtIn(kind, namespace, name string) bool {
	for line := range strings.Lines(builtIns) {
		words := strings.Fields(line)
		if words[0] != kind || words[1] != "*" && words[1] != namespace {
			continue
		}
		for _, pattern := range words[2:] {
			if same, err := path.Match(pattern, name); same && err == nil {
				return true
			}
		}
	}
	return false
}
