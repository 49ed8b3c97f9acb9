package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A package of the tool lock.
const (
	pinAgents  = 200
	pinServers = 50
	pinTools   = 20 // of each server
)

// BenchmarkCatalogPin prints what `armature tools pin` costs where nothing has changed: it
// asks each server once and writes nothing.
func BenchmarkCatalogPin(b *testing.B) {
	program := filepath.Join(b.TempDir(), "armature")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/armature").
		CombinedOutput(); err != nil {
		b.Fatalf("building armature: %v\n%s", err, out)
	}
	for b.Loop() {
		pinned(b, program)
	}
}

func pinned(b *testing.B, program string) {
	var requests atomic.Int64
	mux := http.NewServeMux()
	for i := range pinServers {
		server := mcp.NewServer(&mcp.Implementation{Name: fmt.Sprintf("server%d", i), Version: "v1"}, nil)
		for n := range pinTools {
			server.AddTool(&mcp.Tool{
				Name:        fmt.Sprintf("tool_%d_%d", i, n),
				Description: strings.Repeat("It does something with what it is given. ", 10),
				InputSchema: json.RawMessage(
					`{"type":"object","properties":{"q":{"type":"string","description":"what to look for"},"n":{"type":"integer"}},"required":["q"]}`),
			}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{}, nil
			})
		}
		handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
			&mcp.StreamableHTTPOptions{DisableLocalhostProtection: true, Stateless: true})
		mux.Handle(fmt.Sprintf("/%d", i),
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				handler.ServeHTTP(w, r)
			}))
	}
	serve(b, "127.0.0.1:8083", mux)
	folder := b.TempDir()
	var manifests strings.Builder
	for i := range pinServers {
		fmt.Fprintf(&manifests,
			"apiVersion: api.kagent.dev/v1alpha3\nkind: RemoteMCPServer\n"+
				"metadata: {name: server%d, namespace: team1}\n"+
				"spec: {url: \"http://127.0.0.1:8083/%d\"}\n---\n", i, i)
	}
	for i := range pinAgents {
		fmt.Fprintf(&manifests,
			"apiVersion: api.kagent.dev/v1alpha3\nkind: AgentTemplate\n"+
				"metadata: {name: agent%d, namespace: team1}\nspec:\n  tools:\n"+
				"  - mcp: {server: {kind: RemoteMCPServer, name: server%d}, tools: [tool_%d_0]}\n"+
				"---\n", i, i%pinServers, i%pinServers)
	}
	must(b, os.WriteFile(filepath.Join(folder, "agents.yaml"), []byte(manifests.String()), 0o644))
	pin := func() time.Duration {
		began := time.Now()
		if out, err := exec.Command(program, "tools", "pin", folder).CombinedOutput(); err != nil {
			b.Fatalf("armature pin: %v\n%s", err, out)
		}
		return time.Since(began)
	}
	first := pin()
	written := func() (files string) {
		entries, err := os.ReadDir(folder)
		must(b, err)
		for _, e := range entries {
			info, err := e.Info()
			must(b, err)
			files += fmt.Sprintln(e.Name(), info.Size(), info.ModTime())
		}
		return files
	}
	before := written()
	requests.Store(0)
	again := pin()
	fmt.Printf("\n%-66s %16s   %s\n", "tools pin, 200 agents, 50 MCP servers, 1,000 tools",
		"measured", "target")
	report("the first time", first.Round(time.Millisecond).String(), "")
	report("again, without a change", again.Round(time.Millisecond).String(), "< 2 s")
	report("requests of that", strconv.FormatInt(requests.Load(), 10), "50")
	if after := written(); after != before || strings.Count(after, "\n") != 3 {
		b.Errorf("something was written:\n%s%s", before, after)
	}
	if n := requests.Load(); n != pinServers {
		b.Errorf("%d requests", n)
	}
}
