package kinds

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/answers"
)

// askServer returns a function that asks an MCP server. endpoint returns where it is, and notes
// that in the entry.
func askServer(endpoint func(context.Context, *Asker, client.Object,
	*store.Entry) (ask.Endpoint, error)) func(context.Context, *Asker, client.Object, *Answer,
	*answers.Share) error {
	return func(ctx context.Context, by *Asker, o client.Object, a *Answer,
		memory *answers.Share) error {
		a.Next = by.ServerPeriod
		at, err := endpoint(ctx, by, o, &a.Entry)
		if err != nil {
			return err
		}
		found, err := ask.Discover(ctx, by.Dial, at, memory)
		if err != nil {
			return err
		}
		if a.Lock, err = by.judgeLock(ctx, o, a, found.Items, memory); err != nil {
			return err
		}
		a.Entry.ToolLock = a.Lock.State
		found.Fill(&a.Entry, at)
		a.Entry.Fetched, a.Complete, a.Next = by.Now(), true, max(a.Next, found.Fresh)
		return nil
	}
}

func readServerCondition(e *store.Entry, c *metav1.Condition) {
	if c == nil {
		return
	}
	e.Health = store.Failing
	if c.Status == metav1.ConditionTrue {
		e.Health, e.Fetched = store.Healthy, c.LastTransitionTime.UTC()
		return
	}
	e.Message = c.Message
}

// protocol returns the protocol of an MCP server, which speaks server-sent events or streams.
func protocol(sse bool) string {
	if sse {
		return "mcp+sse"
	}
	return "mcp"
}

// Limits of the tools in a status: 1000 of 512 bytes fit into an object.
const (
	maxStatusTools       = 1000
	maxStatusDescription = 512
)

func statusTools(items []store.Item) (out []kagent.MCPTool) {
	for _, i := range items {
		if i.Kind == store.Tool && len(out) < maxStatusTools {
			out = append(out, kagent.MCPTool{Name: text.Cut(i.Name, 256),
				Description: text.Cut(i.Description, maxStatusDescription)})
		}
	}
	return out
}
