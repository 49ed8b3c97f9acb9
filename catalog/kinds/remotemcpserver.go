package kinds

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/api/keys"
)

// remoteServer returns kagent's RemoteMCPServer, which names a server of tools by its URL.
func remoteServer() Kind {
	return Kind{
		Resource: "remotemcpservers." + keys.Kagent,
		GVK:      kagent.V1alpha2.WithKind("RemoteMCPServer"),
		New:      func() client.Object { return &kagent.RemoteMCPServer{} },
		read:     readRemoteServer,
		ask:      askServer(remoteEndpoint),
		report:   reportRemoteServer,
		rights: []Right{
			{"", "secrets", []string{"get"},
				"headers and authorities that a RemoteMCPServer names; no Secret is listed"},
			{"", "configmaps", []string{"get"}, ""},
		},
	}
}

func readRemoteServer(e *store.Entry, object client.Object) {
	o := object.(*kagent.RemoteMCPServer)
	e.Type, e.Description, e.URL = store.Server, o.Spec.Description, o.Spec.URL
	e.Protocol = protocol(o.Spec.Protocol == kagent.SSE)
	for _, t := range o.Status.DiscoveredTools {
		e.Items = append(e.Items,
			store.Item{Kind: store.Tool, Name: t.Name, Description: t.Description})
	}
	readServerCondition(e, meta.FindStatusCondition(o.Status.Conditions, kagent.ConditionAccepted))
}

func remoteEndpoint(ctx context.Context, by *Asker, object client.Object,
	e *store.Entry) (ask.Endpoint, error) {
	o := object.(*kagent.RemoteMCPServer)
	e.URL, e.Protocol = o.Spec.URL, protocol(o.Spec.Protocol == kagent.SSE)
	at, err := ask.RemoteEndpoint(ctx, by.Live, o)
	at.Description = o.Spec.Description
	return at, err
}

func reportRemoteServer(object client.Object, a *Answer, now time.Time) {
	o := object.(*kagent.RemoteMCPServer)
	o.Status.ObservedGeneration = o.Generation
	if a.Complete {
		o.Status.DiscoveredTools = statusTools(a.Entry.Items)
	}
	a.conditions(&o.Status.Conditions, kagent.ConditionAccepted, o, now)
}

// remoteServerOfKagent1 returns the RemoteMCPServer of kagent 1.0, which kagent asks for its tools.
func remoteServerOfKagent1() Kind {
	gvk := kagent1.WithKind("RemoteMCPServer")
	return Kind{Resource: "remotemcpservers." + keys.Kagent1, GVK: gvk, New: untyped(gvk),
		read: func(e *store.Entry, o client.Object) {
			u := o.(*unstructured.Unstructured)
			speaks, _, _ := unstructured.NestedString(u.Object, "spec", "protocol")
			e.Type, e.Protocol = store.Server, protocol(speaks == string(kagent.SSE))
			e.Description, _, _ = unstructured.NestedString(u.Object, "spec", "description")
			e.URL, _, _ = unstructured.NestedString(u.Object, "spec", "url")
			readCondition(e, u, kagent.ConditionAccepted)
		}}
}
