package controller

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/api/kagent"
	publishedapi "github.com/armature-dev/armature/catalog/api/published"
	"github.com/armature-dev/armature/catalog/kinds"
)

// Kind is a kind of objects that the catalog follows, and how its agents and servers
// are asked.
type Kind struct {
	kinds.Kind
	// ask asks the agent or server that an object names.
	ask asking
	// selectsPods is set for AgentCards: a pod wakes those that select it.
	selectsPods bool
}

// Kinds are those of kinds.Kinds, all served by one reconciler. Of a kind that is not
// named here, the catalog has what its objects say by themselves.
func Kinds() (out []Kind) {
	for _, of := range kinds.Kinds() {
		k := Kind{Kind: of, ask: (*Reconciler).askNobody}
		switch of.New().(type) {
		case *api.AgentCard, *publishedapi.AgentCard:
			k.ask, k.selectsPods = (*Reconciler).askAgent, true
		case *kagent.RemoteMCPServer:
			k.ask = askServer(remoteServer)
		case *kagent.MCPServer:
			k.ask = askServer(server)
		}
		out = append(out, k)
	}
	return out
}

func (k Kind) listKind() schema.GroupVersionKind {
	return k.GVK.GroupVersion().WithKind(k.GVK.Kind + "List")
}

// list of a kind's objects.
func (k Kind) list() client.ObjectList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(k.listKind())
	return l
}
