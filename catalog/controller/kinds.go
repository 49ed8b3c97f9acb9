package controller

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	publishedapi "github.com/armature-dev/armature/catalog/api/published"
	"github.com/armature-dev/armature/catalog/entry"
)

// Kind is a kind of objects that the catalog looks after, and how its agents and
// servers are asked.
type Kind struct {
	entry.Kind
	// ask asks the agent or server that an object names.
	ask ask
	// cards visits the AgentCards of a namespace, in the cache; nil for other kinds.
	// The pods that a card selects wake it.
	cards func(ctx context.Context, c client.Client, namespace string, visit func(client.Object)) error
}

// Kinds of the catalog, all served by one reconciler.
func Kinds() []Kind {
	return []Kind{
		{Kind: entry.AgentCard, ask: (*Reconciler).askAgent, cards: cards},
		{Kind: entry.PublishedAgentCard, ask: (*Reconciler).askAgent, cards: publishedCards},
		{Kind: entry.RemoteMCPServer, ask: askServer(remoteServer)},
		{Kind: entry.MCPServer, ask: askServer(server)},
		{Kind: entry.Agent, ask: (*Reconciler).askAgentObject},
	}
}

// list of a kind's objects.
func (k Kind) list() client.ObjectList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(k.GVK.GroupVersion().WithKind(k.GVK.Kind + "List"))
	return l
}

func cards(ctx context.Context, c client.Client, namespace string, visit func(client.Object)) error {
	var l api.AgentCardList
	err := c.List(ctx, &l, client.InNamespace(namespace), client.UnsafeDisableDeepCopy)
	for i := range l.Items {
		visit(&l.Items[i])
	}
	return err
}

func publishedCards(ctx context.Context, c client.Client, namespace string, visit func(client.Object)) error {
	var l publishedapi.AgentCardList
	err := c.List(ctx, &l, client.InNamespace(namespace), client.UnsafeDisableDeepCopy)
	for i := range l.Items {
		visit(&l.Items[i])
	}
	return err
}
