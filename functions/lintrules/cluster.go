package lintrules

import (
	_ "embed"
	"path"
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

// builtIns are what every cluster has: a kind, a namespace or * for any, and the patterns of
// names. The ServiceAccounts in kube-system are of Kubernetes' own controllers (bootstrappolicy
// of Kubernetes 1.37; the cloud-* ones are those of the cloud controller manager).
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
