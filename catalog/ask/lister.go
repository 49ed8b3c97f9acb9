package ask

import (
	"context"
	"errors"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render/answers"
)

// Lister queries tool servers for commands, with the limits of the catalog. It reads no Secret: a
// server that needs one is an error.
type Lister struct {
	dial   Dial
	memory *answers.Budget
}

// NewLister returns a lister. dial opens connections.
func NewLister(dial Dial) *Lister { return &Lister{dial: dial, memory: NewBudget()} }

// List returns the tools of a server, and the version of MCP that it spoke. stateless is a
// version without sessions that it is known to speak, which saves a request; "" for none.
func (l *Lister) List(ctx context.Context, o client.Object,
	stateless string) (found []tools.Definition, protocol string, err error) {
	at := Endpoint{Timeout: 30 * time.Second, Terminate: true}
	switch o := o.(type) {
	case *kagent.RemoteMCPServer:
		if at, err = RemoteEndpoint(ctx, nil, o); err != nil {
			return nil, "", err
		}
	case *kagent.MCPServer:
		at.URL = o.URL()
	}
	at.ToolsAlone, at.Stateless = true, stateless
	ask := func() (*Discovery, error) {
		memory := l.memory.Share(o.GetNamespace() + "/" + o.GetName())
		defer memory.Release()
		return Discover(ctx, l.dial, at, memory)
	}
	d, err := ask()
	if failure := (*Failure)(nil); stateless != "" && errors.As(err, &failure) && failure.err == nil {
		at.Stateless = "" // it answered, and may speak another version by now
		d, err = ask()
	}
	if err != nil {
		return nil, "", err
	}
	found, err = definitions(d.Items)
	return found, d.Info.ProtocolVersion, err
}

// definitions reads the tools among items.
func definitions(items []store.Item) (found []tools.Definition, err error) {
	for _, i := range items {
		if i.Kind != store.Tool {
			continue
		}
		d, err := tools.Read(i.Document)
		if err != nil {
			return nil, err
		}
		found = append(found, d)
	}
	return found, nil
}
