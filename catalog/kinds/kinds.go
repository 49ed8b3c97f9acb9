// Package entry is what the objects of the catalog's kinds say by themselves: their
// spec, and the last good answer in their status. It makes no
// request and needs no cluster, so that commands read manifests with it.
package kinds

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/api/kagent"
	publishedapi "github.com/armature-dev/armature/catalog/api/published"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/multi"
)

// Object of the catalog: a type of catalog/api, or *unstructured.Unstructured.
type Object interface {
	metav1.Object
	runtime.Object
}

// Kind is a kind of objects that the catalog follows.
type Kind struct {
	// Resource is its name in the API, such as agentcards.kagenti.io.
	Resource string
	GVK      schema.GroupVersionKind
	// New makes an object of the kind.
	New func() Object
	// read notes what an object says by itself.
	read func(*store.Entry, Object)
}

// GVR is its resource with the version that is read.
func (k Kind) GVR() schema.GroupVersionResource {
	name, _, _ := strings.Cut(k.Resource, ".")
	return k.GVK.GroupVersion().WithResource(name)
}

// successor is the version of kagent 1.0, whose types the catalog does not know.
var successor = schema.GroupVersion{Group: "api.kagent.dev", Version: "v1alpha3"}

// Kinds of the catalog. This is their only list: Kinds of catalog/controller says how
// their agents and servers are asked.
func Kinds() []Kind {
	return []Kind{
		{"agentcards.kagenti.io", api.GroupVersion.WithKind("AgentCard"), func() Object { return &api.AgentCard{} }, fromCard},
		{"agentcards.agent.kagenti.dev", publishedapi.GroupVersion.WithKind("AgentCard"), func() Object { return &publishedapi.AgentCard{} }, fromCard},
		{"remotemcpservers.kagent.dev", kagent.V1alpha2.WithKind("RemoteMCPServer"), func() Object { return &kagent.RemoteMCPServer{} }, fromRemoteServer},
		{"mcpservers.kagent.dev", kagent.V1alpha1.WithKind("MCPServer"), func() Object { return &kagent.MCPServer{} }, fromServer},
		untyped("agents.kagent.dev", kagent.V1alpha2.WithKind("Agent"), fromAgent),
		untyped("agents.api.kagent.dev", successor.WithKind("Agent"), fromSuccessor),
		untyped("remotemcpservers.api.kagent.dev", successor.WithKind("RemoteMCPServer"), fromSuccessorServer),
	}
}

// untyped is a kind whose type is kagent's own.
func untyped(resource string, gvk schema.GroupVersionKind, read func(*store.Entry, Object)) Kind {
	return Kind{resource, gvk, func() Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(gvk)
		return u
	}, read}
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

// AddToScheme adds the kinds of the catalog, but for those whose types are kagent's own.
func AddToScheme(scheme *runtime.Scheme) error {
	err := multi.Errors(api.AddToScheme(scheme), publishedapi.AddToScheme(scheme), kagent.AddToScheme(scheme))
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
