package controller

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	kagent1 "github.com/armature-dev/armature/catalog/api/kagent/v1alpha1"
	kagent2 "github.com/armature-dev/armature/catalog/api/kagent/v1alpha2"
	publishedapi "github.com/armature-dev/armature/catalog/api/published"
	"github.com/armature-dev/armature/catalog/store"
)

// Kind is a kind of objects that the catalog looks after.
type Kind struct {
	// Resource is its name in the API, such as agentcards.kagenti.io.
	Resource string
	gvk      schema.GroupVersionKind
	object   func() client.Object
	// read notes what an object says by itself.
	read func(*store.Entry, client.Object)
	// ask asks the agent or server that an object names.
	ask ask
	// cards visits the AgentCards of a namespace, in the cache; nil for other kinds.
	// The pods that a card selects wake it.
	cards func(ctx context.Context, c client.Client, namespace string, visit func(client.Object)) error
}

// Kinds of the catalog, all served by one reconciler.
func Kinds() []Kind {
	return []Kind{
		{
			Resource: "agentcards.kagenti.io", gvk: api.GroupVersion.WithKind("AgentCard"),
			object: func() client.Object { return &api.AgentCard{} },
			read:   fromCard, ask: (*Reconciler).askAgent, cards: cards,
		},
		{
			Resource: "agentcards.agent.kagenti.dev", gvk: publishedapi.GroupVersion.WithKind("AgentCard"),
			object: func() client.Object { return &publishedapi.AgentCard{} },
			read:   fromCard, ask: (*Reconciler).askAgent, cards: publishedCards,
		},
		{
			Resource: "remotemcpservers.kagent.dev", gvk: kagent2.GroupVersion.WithKind("RemoteMCPServer"),
			object: func() client.Object { return &kagent2.RemoteMCPServer{} },
			read:   fromRemoteServer, ask: askServer(remoteServer),
		},
		{
			Resource: "mcpservers.kagent.dev", gvk: kagent1.GroupVersion.WithKind("MCPServer"),
			object: func() client.Object { return &kagent1.MCPServer{} },
			read:   fromServer, ask: askServer(server),
		},
		{
			Resource: "agents.kagent.dev", gvk: agentKind,
			object: newAgent,
			read:   fromAgent, ask: (*Reconciler).askAgentObject,
		},
	}
}

// kindOf gives the row of a kind.
func kindOf(gk schema.GroupKind) (Kind, bool) {
	kinds := Kinds()
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.gvk.GroupKind() == gk })
	if i < 0 {
		return Kind{}, false
	}
	return kinds[i], true
}

// list of a kind's objects.
func (k Kind) list() client.ObjectList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(k.gvk.GroupVersion().WithKind(k.gvk.Kind + "List"))
	return l
}

// agentKind is kagent's Agent, whose type is kagent's own.
var agentKind = schema.GroupVersionKind{Group: "kagent.dev", Version: "v1alpha2", Kind: "Agent"}

func newAgent() client.Object {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(agentKind)
	return u
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
