// Package peer has the real peers of the catalog's tests, demo and benchmark: agents that run A2A's
// own server, and tool servers that run MCP's own SDK.
package peer

import (
	"context"
	"fmt"
	"net/http"

	"github.com/a2aproject/a2a-go/a2a"
	"github.com/a2aproject/a2a-go/a2asrv"
	"github.com/a2aproject/a2a-go/a2asrv/eventqueue"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Card returns the card of an agent with skills, each named after what it does.
func Card(name, description, version string, skills ...string) *a2a.AgentCard {
	card := &a2a.AgentCard{
		Name: name, Description: description, Version: version, ProtocolVersion: "0.3.0",
		URL: "http://" + name + ".example/", PreferredTransport: a2a.TransportProtocolJSONRPC,
		DefaultInputModes: []string{"text"}, DefaultOutputModes: []string{"text"},
		Capabilities: a2a.AgentCapabilities{Streaming: true},
	}
	for _, s := range skills {
		card.Skills = append(card.Skills, a2a.AgentSkill{ID: s, Name: s, Description: "It can " + s,
			Tags: []string{name}})
	}
	return card
}

// Agent returns the handler of a complete A2A agent: its card, and a JSON-RPC endpoint that
// answers.
func Agent(card *a2a.AgentCard) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewStaticAgentCardHandler(card))
	mux.Handle("/", a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(echo{card.Name})))
	return mux
}

type echo struct{ name string }

func (e echo) Execute(ctx context.Context, _ *a2asrv.RequestContext, q eventqueue.Queue) error {
	return q.Write(ctx,
		a2a.NewMessage(a2a.MessageRoleAgent, a2a.TextPart{Text: e.name + " is here"}))
}

func (echo) Cancel(context.Context, *a2asrv.RequestContext, eventqueue.Queue) error { return nil }

// Tool is a tool of a server.
type Tool struct{ Name, Description string }

// Input of every tool.
type Input struct {
	Text string `json:"text" jsonschema:"what to work on"`
}

// Output of every tool.
type Output struct {
	Text string `json:"text"`
}

// Server returns an MCP server with tools. Lists have pages of pageSize; zero is the SDK's.
func Server(name string, pageSize int, tools ...Tool) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: name, Version: "v1.0.0"},
		&mcp.ServerOptions{PageSize: pageSize, Instructions: "Tools of " + name})
	Add(server, tools...)
	return server
}

// Add adds tools to a server, also while it runs.
func Add(server *mcp.Server, tools ...Tool) {
	for _, t := range tools {
		mcp.AddTool(server, &mcp.Tool{Name: t.Name, Description: t.Description},
			func(_ context.Context, _ *mcp.CallToolRequest,
				in Input) (*mcp.CallToolResult, Output, error) {
				return nil, Output(in), nil
			})
	}
}

// Many returns tools with different names.
func Many(prefix string, n int) []Tool {
	subjects := []string{"invoice", "weather", "hotel", "flight", "calendar", "ticket", "database",
		"cluster", "mail", "document"}
	verbs := []string{"create", "list", "delete", "describe", "update", "export", "summarise"}
	tools := make([]Tool, n)
	for i := range tools {
		subject, verb := subjects[i%len(subjects)], verbs[i%len(verbs)]
		tools[i] = Tool{fmt.Sprintf("%s_%s_%s_%d", verb, subject, prefix, i),
			fmt.Sprintf("It can %s a %s for %s number %d", verb, subject, prefix, i)}
	}
	return tools
}

// Streamable serves an MCP server over streamable HTTP.
func Streamable(server *mcp.Server) http.Handler {
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{DisableLocalhostProtection: true})
}

// SSE serves an MCP server over server-sent events.
func SSE(server *mcp.Server) http.Handler {
	return mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.SSEOptions{DisableLocalhostProtection: true})
}
