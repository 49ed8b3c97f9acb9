package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// mcpServer offers the tools of the JSON list TOOLS, until others are put to /tools: the tools of a
// server may change without a change of its deployment.
func mcpServer() error {
	if err := need("TOOLS"); err != nil {
		return err
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "tools", Version: "v1"}, nil)
	var names []string
	offer := func(text []byte) error {
		var tools []*mcp.Tool
		if err := json.Unmarshal(text, &tools); err != nil {
			return err
		}
		server.RemoveTools(names...)
		names = nil
		for _, t := range tools {
			server.AddTool(t,
				func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					return &mcp.CallToolResult{}, nil
				})
			names = append(names, t.Name)
		}
		return nil
	}
	if err := offer([]byte(os.Getenv("TOOLS"))); err != nil {
		return err
	}
	http.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("PUT /tools", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err == nil {
			err = offer(text)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	http.Handle("/mcp",
		mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
			&mcp.StreamableHTTPOptions{Stateless: true}))
	return serve(":8000")
}
