package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/store"
)

// SearchInput is the input of the tool search_catalog.
type SearchInput struct {
	Text      string `json:"text" jsonschema:"words to search for in names, descriptions, skills, tags and tools"`
	Kind      string `json:"kind,omitempty" jsonschema:"agent, server, skill, tool, resource or prompt; empty is any"`
	Namespace string `json:"namespace,omitempty" jsonschema:"Kubernetes namespace; empty is all that you may see"`
	Limit     int    `json:"limit,omitempty" jsonschema:"how many results at most, 1 to 100; empty is 20"`
}

// ListInput is the input of list_agents and list_tool_servers.
type ListInput struct {
	Namespace string `json:"namespace,omitempty" jsonschema:"Kubernetes namespace; empty is all that you may see"`
	Health    string `json:"health,omitempty" jsonschema:"Healthy, Degraded, Failing or Unknown; empty is any"`
	After     string `json:"after,omitempty" jsonschema:"the next value of the previous page; empty is the first page"`
}

// GetInput is the input of get_entry.
type GetInput struct {
	Resource  string `json:"resource" jsonschema:"as returned by a list or a search, such as agentcards.kagenti.io"`
	Namespace string `json:"namespace" jsonschema:"Kubernetes namespace"`
	Name      string `json:"name" jsonschema:"name of the entry"`
}

// EntryOutput is one entry with all that it offers.
type EntryOutput struct {
	Notice string `json:"notice"`
	Entry  any    `json:"entry"`
}

// ListOutput is a list of entries or hits.
type ListOutput struct {
	Notice string `json:"notice"`
	Items  []any  `json:"items"`
	Next   string `json:"next,omitempty" jsonschema:"there is more: list again with this as after"`
}

// mcp returns the catalog as an MCP server, so that an agent can look for agents and tools with
// the client that it has. No session is kept: each request carries its caller's token.
func (s *Server) mcp() http.Handler {
	server := mcp.NewServer(&mcp.Implementation{Name: "armature-catalog", Version: "v1"},
		&mcp.ServerOptions{
			Instructions: "Find agents and tools that run in this cluster, with their skills and " +
				"addresses. " + notice,
			Logger: slog.New(slog.DiscardHandler),
		})
	server.AddReceivingMiddleware(s.survive)
	addTool(s, server, "search_catalog",
		"Search agents, tool servers, skills, tools, resources and prompts by words",
		func(ctx context.Context, in SearchInput) (out ListOutput, err error) {
			q := store.Query{Scope: scopeOf(ctx), Text: in.Text, Kind: in.Kind,
				Namespace: in.Namespace, Limit: in.Limit}
			if q.Limit < 1 || q.Limit > 100 {
				q.Limit = 20
			}
			if err := check(q); err != nil {
				return out, err
			}
			hits, err := within(ctx, s.Store.Search, q)
			if err != nil {
				return out, err
			}
			items, err := each(hits, markHit)
			return ListOutput{Notice: notice, Items: items}, err
		})
	list := func(kind store.Type) func(context.Context, ListInput) (ListOutput, error) {
		return func(ctx context.Context, in ListInput) (out ListOutput, err error) {
			q := store.Query{Scope: scopeOf(ctx), Type: kind, Namespace: in.Namespace,
				Health: store.Health(in.Health), Limit: 1000}
			if q.After, err = parseCursor(in.After); err != nil {
				return out, err
			}
			if err := check(q); err != nil {
				return out, err
			}
			entries, err := within(ctx, s.Store.List, q)
			if err != nil {
				return out, err
			}
			for i := range entries {
				entries[i].Document, entries[i].Instances = nil, nil
			}
			items, err := each(entries, markEntry)
			return ListOutput{notice, items, nextPage(entries, q)}, err
		}
	}
	addTool(s, server, "list_agents",
		"List the agents that run here, with their health and addresses", list(store.Agent))
	addTool(s, server, "list_tool_servers",
		"List the MCP servers that run here, with their health and addresses", list(store.Server))
	addTool(s, server, "get_entry",
		"Get one agent or tool server with its card, skills, tools and their schemas",
		func(ctx context.Context, in GetInput) (out EntryOutput, err error) {
			e, err := visibleEntry(ctx, s.Store,
				store.Key{Resource: in.Resource, Namespace: in.Namespace, Name: in.Name})
			if err != nil {
				return out, err
			}
			marked, err := markEntry(e)
			return EntryOutput{notice, marked}, err
		})
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{
			// each caller has a token
			Stateless: true, JSONResponse: true, Logger: slog.New(slog.DiscardHandler),
			DisableLocalhostProtection: true,
		})
}

// addTool adds a tool. A caller gets only the part of an error that the caller may see.
func addTool[In, Out any](s *Server, server *mcp.Server, name, what string,
	answer func(context.Context, In) (Out, error)) {
	mcp.AddTool(server, &mcp.Tool{Name: name, Description: what + ". " + warning},
		func(ctx context.Context, _ *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
			out, err := answer(ctx, in)
			if err != nil {
				err = access.ProblemOf(ctx, s.Log, "/mcp", err)
			}
			return nil, out, err
		})
}

// survive answers a request whose handler panics with an error. The SDK calls handlers from
// goroutines of its own, where a panic would end the process, and the controllers in it.
func (s *Server) survive(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string,
		request mcp.Request) (result mcp.Result, err error) {
		defer func() {
			if cause := recover(); cause != nil {
				s.Log.Error(fmt.Errorf("panic: %v", cause), "answering a request", "path", "/mcp",
					"method", method, "stack", string(debug.Stack()))
				result, err = nil, access.Refuse(http.StatusInternalServerError,
					"the catalog cannot answer now", "")
			}
		}()
		return next(ctx, method, request)
	}
}
