package kinds

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/api/keys"
)

// server returns kagent's MCPServer, a server of tools that runs in the cluster.
func server() Kind {
	return Kind{
		Resource: "mcpservers." + keys.Kagent, GVK: kagent.V1alpha1.WithKind("MCPServer"),
		New: func() client.Object { return &kagent.MCPServer{} },
		read: func(e *store.Entry, object client.Object) {
			o := object.(*kagent.MCPServer)
			e.Type, e.URL, e.Protocol = store.Server, o.URL(), protocol(false)
			readServerCondition(e,
				meta.FindStatusCondition(o.Status.Conditions, api.ConditionDiscovered))
		},
		ask: askServer(func(ctx context.Context, by *Asker, o client.Object,
			e *store.Entry) (ask.Endpoint, error) {
			e.URL = o.(*kagent.MCPServer).URL()
			at := ask.Endpoint{URL: e.URL, Timeout: 30 * time.Second, Terminate: true}
			return at, by.noteImages(ctx, e)
		}),
		report: func(object client.Object, a *Answer, now time.Time) {
			o := object.(*kagent.MCPServer)
			a.conditions(&o.Status.Conditions, api.ConditionDiscovered, o, now)
		},
		rights: []Right{
			{"apps", "deployments", []string{"get"},
				"the Deployment that kagent creates for an MCPServer"},
			{"", "pods", []string{"get", "list", "watch"}, ""},
		},
	}
}

// noteImages notes in the entry of a server the images of the Deployment that kagent creates for
// an MCPServer, and the builds that made them.
func (by *Asker) noteImages(ctx context.Context, e *store.Entry) error {
	before := e.Images
	deployment := &api.TargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: e.Name}
	pods, err := by.readyPods(ctx, e.Namespace, &api.AgentCardSpec{TargetRef: deployment})
	if errors.As(err, new(*ask.Failure)) {
		return nil // kagent has not created it yet
	}
	if err != nil {
		return err
	}
	if e.Images = images(pods); !slices.Equal(e.Images, before) {
		e.Builds, err = buildsOf(ctx, by.Live, *e)
	}
	return err
}
