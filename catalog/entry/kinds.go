// Package entry is what the objects of the catalog's kinds say by themselves: their
// spec, and the last good answer in their status. It asks nobody and needs no
// cluster, so that commands read manifests with it.
package entry

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/catalog/api"
	kagent1 "github.com/armature-dev/armature/catalog/api/kagent/v1alpha1"
	kagent2 "github.com/armature-dev/armature/catalog/api/kagent/v1alpha2"
	publishedapi "github.com/armature-dev/armature/catalog/api/published"
	"github.com/armature-dev/armature/catalog/store"
)

// Object of the catalog: a type of catalog/api, or *unstructured.Unstructured.
type Object interface {
	metav1.Object
	runtime.Object
}

// Kind is a kind of objects that the catalog looks after.
type Kind struct {
	// Resource is its name in the API, such as agentcards.kagenti.io.
	Resource string
	GVK      schema.GroupVersionKind
	// New makes an object of the kind.
	New func() Object
	// read notes what an object says by itself.
	read func(*store.Entry, Object)
}

// The kinds of the catalog.
var (
	AgentCard = Kind{
		Resource: "agentcards.kagenti.io", GVK: api.GroupVersion.WithKind("AgentCard"),
		New: func() Object { return &api.AgentCard{} }, read: fromCard,
	}
	PublishedAgentCard = Kind{
		Resource: "agentcards.agent.kagenti.dev", GVK: publishedapi.GroupVersion.WithKind("AgentCard"),
		New: func() Object { return &publishedapi.AgentCard{} }, read: fromCard,
	}
	RemoteMCPServer = Kind{
		Resource: "remotemcpservers.kagent.dev", GVK: kagent2.GroupVersion.WithKind("RemoteMCPServer"),
		New: func() Object { return &kagent2.RemoteMCPServer{} }, read: fromRemoteServer,
	}
	MCPServer = Kind{
		Resource: "mcpservers.kagent.dev", GVK: kagent1.GroupVersion.WithKind("MCPServer"),
		New: func() Object { return &kagent1.MCPServer{} }, read: fromServer,
	}
	// Agent is kagent's, whose type is kagent's own.
	Agent = Kind{
		Resource: "agents.kagent.dev", GVK: agentKind,
		New: func() Object {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(agentKind)
			return u
		}, read: fromAgent,
	}
)

var agentKind = schema.GroupVersionKind{Group: "kagent.dev", Version: "v1alpha2", Kind: "Agent"}

// Kinds are all of them.
func Kinds() []Kind {
	return []Kind{AgentCard, PublishedAgentCard, RemoteMCPServer, MCPServer, Agent}
}

// kindOf gives the row of a kind.
func kindOf(gk schema.GroupKind) (Kind, bool) {
	kinds := Kinds()
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.GVK.GroupKind() == gk })
	if i < 0 {
		return Kind{}, false
	}
	return kinds[i], true
}

// AddToScheme adds the kinds of the catalog, but for kagent's Agent.
func AddToScheme(scheme *runtime.Scheme) error {
	err := errors.Join(api.AddToScheme(scheme), publishedapi.AddToScheme(scheme), kagent1.AddToScheme(scheme), kagent2.AddToScheme(scheme))
	if err != nil {
		return fmt.Errorf("building the scheme: %w", err)
	}
	return nil
}

// buildScheme builds the scheme of these kinds once. It is shared: do not add to it.
var buildScheme = sync.OnceValues(func() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, AddToScheme(scheme)
})
