package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/armature-dev/armature/catalog/store"
)

// SearchInput is what the tool search_catalog takes.
type SearchInput struct {
	Text      string `json:"text" jsonschema:"words to search for in names, descriptions, skills, tags and tools"`
	Kind      string `json:"kind,omitempty" jsonschema:"agent, server, skill, tool, resource or prompt; empty is any"`
	Namespace string `json:"namespace,omitempty" jsonschema:"Kubernetes namespace; empty is all that you may see"`
	Limit     int    `json:"limit,omitempty" jsonschema:"how many results at most, 1 to 100; empty is 20"`
}

// ListInput is what list_agents and list_tool_servers take.
type ListInput struct {
	Namespace string `json:"namespace,omitempty" jsonschema:"Kubernetes namespace; empty is all that you may see"`
	Health    string `json:"health,omitempty" jsonschema:"Healthy, Degraded, Failing or Unknown; empty is any"`
	After     string `json:"after,omitempty" jsonschema:"the next value of the previous page; empty is the first page"`
}

// GetInput is what get_entry takes.
type GetInput struct {
	Resource  string `json:"resource" jsonschema:"as a list or a search gave it, such as agentcards.kagenti.io"`
	Namespace string `json:"namespace" jsonschema:"Kubernetes namespace"`
	Name      string `json:"name" jsonschema:"name of the entry"`
}

// EntryOutput is one entry with all that it offers.
type EntryOutput struct {
	Notice string `json:"notice"`
	Stale  string `json:"stale,omitempty" jsonschema:"the catalog's store does not answer: how old this is"`
	Entry  any    `json:"entry"`
}

// ListOutput is a list of entries or hits.
type ListOutput struct {
	Notice string `json:"notice"`
	Stale  string `json:"stale,omitempty" jsonschema:"the catalog's store does not answer: how old this is"`
	Items  []any  `json:"items"`
	Next   string `json:"next,omitempty" jsonschema:"there is more: list again with this as after"`
}

// mcp is the catalog as an MCP server, so that an agent can look for agents and
// tools with the client that it has. No session is kept: each request carries
// its caller's token.
func (s *Server) mcp() http.Handler {
	server := mcp.NewServer(&mcp.Implementation{Name: "armature-catalog", Version: "v1"}, &mcp.ServerOptions{
		Instructions: "Find agents and tools that run in this cluster, what they can do and how to reach them. " + notice,
		Logger:       slog.New(slog.DiscardHandler),
	})
	server.AddReceivingMiddleware(s.survive)
	mcp.AddTool(server, &mcp.Tool{Name: "search_catalog", Description: "Search agents, tool servers, skills, tools, resources and prompts by words. " + warning},
		func(ctx context.Context, _ *mcp.CallToolRequest, in SearchInput) (*mcp.CallToolResult, ListOutput, error) {
			limit := in.Limit
			if limit < 1 || limit > 100 {
				limit = 20
			}
			q := store.Query{Scope: scopeOf(ctx), Text: in.Text, Kind: in.Kind, Namespace: in.Namespace, Limit: limit}
			if err := check(q); err != nil {
				return nil, ListOutput{}, err
			}
			hits, copied, err := s.hits(ctx, q)
			if err != nil {
				return nil, ListOutput{}, s.mcpError(ctx, err)
			}
			items, err := each(hits, markHit)
			return nil, ListOutput{Notice: notice, Stale: stale(copied), Items: items}, s.mcpError(ctx, err)
		})
	for name, one := range map[string]struct {
		kind store.Type
		what string
	}{
		"list_agents":       {store.Agent, "List the agents that run here, how they are and how to reach them"},
		"list_tool_servers": {store.Server, "List the MCP servers that run here, how they are and how to reach them"},
	} {
		mcp.AddTool(server, &mcp.Tool{Name: name, Description: one.what + ". " + warning},
			func(ctx context.Context, _ *mcp.CallToolRequest, in ListInput) (*mcp.CallToolResult, ListOutput, error) {
				q := store.Query{Scope: scopeOf(ctx), Type: one.kind, Namespace: in.Namespace, Health: store.Health(in.Health), Limit: 1000}
				var err error
				if q.After, err = parseCursor(in.After); err != nil {
					return nil, ListOutput{}, err
				}
				if err := check(q); err != nil {
					return nil, ListOutput{}, err
				}
				entries, copied, err := s.entries(ctx, q)
				if err != nil {
					return nil, ListOutput{}, s.mcpError(ctx, err)
				}
				for i := range entries {
					entries[i].Document, entries[i].Instances = nil, nil
				}
				items, err := each(entries, markEntry)
				return nil, ListOutput{notice, stale(copied), items, nextPage(entries, q)}, s.mcpError(ctx, err)
			})
	}
	mcp.AddTool(server, &mcp.Tool{Name: "get_entry", Description: "Get one agent or tool server with its card, skills, tools and their schemas. " + warning},
		func(ctx context.Context, _ *mcp.CallToolRequest, in GetInput) (*mcp.CallToolResult, EntryOutput, error) {
			e, copied, err := s.entry(ctx, store.Key{Resource: in.Resource, Namespace: in.Namespace, Name: in.Name})
			if err != nil {
				return nil, EntryOutput{}, s.mcpError(ctx, err)
			}
			marked, err := markEntry(e)
			return nil, EntryOutput{notice, stale(copied), marked}, s.mcpError(ctx, err)
		})
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{
		Stateless: true, JSONResponse: true, Logger: slog.New(slog.DiscardHandler), DisableLocalhostProtection: true, // each caller has a token
	})
}

// mcpError is the part of an error that a caller may see.
func (s *Server) mcpError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return s.problem(ctx, "/mcp", err)
}

// survive answers a request whose handler panics with an error. The SDK calls
// handlers from goroutines of its own, where a panic would end the process, and
// the controllers in it.
func (s *Server) survive(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (result mcp.Result, err error) {
		defer func() {
			if cause := recover(); cause != nil {
				s.Log.Error(fmt.Errorf("panic: %v", cause), "answering a request", "path", "/mcp", "method", method, "stack", string(debug.Stack()))
				result, err = nil, &problem{http.StatusInternalServerError, "the catalog cannot answer now"}
			}
		}()
		return next(ctx, method, request)
	}
}
