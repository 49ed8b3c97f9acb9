package ask

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/functions/tools"
)

func list(t *testing.T, handler http.Handler) ([]tools.Definition, string, error) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	s := &kagent.RemoteMCPServer{}
	s.Spec.URL = server.URL + "/mcp"
	return NewLister((&net.Dialer{}).DialContext).List(t.Context(), s, "")
}

// exchange is a request to a server, and its answer.
type exchange struct{ request, response []byte }

// recorder keeps what passes to a server and back.
type recorder struct {
	next      http.Handler
	exchanges []exchange
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	answer := httptest.NewRecorder()
	r.next.ServeHTTP(answer, request)
	r.exchanges = append(r.exchanges, exchange{body, answer.Body.Bytes()})
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// What is asked of servers of each version of MCP, and what the SDK's server answers, is as
// the schema of that version says; the schema's own examples of tools can be locked. The
// schemas are not part of this repository.
func TestPublishedSchemas(t *testing.T) {
	folder := os.Getenv("ARMATURE_MCP_SCHEMAS")
	if folder == "" {
		t.Skip("ARMATURE_MCP_SCHEMAS does not name the folder schema of " +
			"github.com/modelcontextprotocol/modelcontextprotocol: requests are NOT " +
			"compared with it")
	}
	for _, version := range mcp.SupportedProtocolVersions() {
		t.Run(version, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(folder, version, "schema.json"))
			if err != nil {
				t.Fatal(err)
			}
			document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			definitions := "$defs"
			if _, ok := document.(map[string]any)["definitions"]; ok {
				definitions = "definitions"
			}
			c := jsonschema.NewCompiler()
			if err := c.AddResource("https://mcp.test/schema.json", document); err != nil {
				t.Fatal(err)
			}
			valid := func(name string, data []byte) {
				t.Helper()
				schema, err := c.Compile("https://mcp.test/schema.json#/" + definitions + "/" + name)
				if err != nil {
					t.Fatal(err)
				}
				value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
				if err == nil {
					err = schema.Validate(value)
				}
				if err != nil {
					t.Errorf("%s: %v\n%s", name, err, data)
				}
			}
			server := mcp.NewServer(&mcp.Implementation{Name: "office", Version: "v1"},
				&mcp.ServerOptions{SupportedProtocolVersions: []string{version}, PageSize: 1})
			for _, name := range []string{"a", "b"} {
				server.AddTool(&mcp.Tool{Name: name, Description: "Tool " + name,
					InputSchema: json.RawMessage(
						`{"type":"object","properties":{"q":{"type":"string"}}}`)},
					func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
						return nil, nil
					})
			}
			r := &recorder{next: mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server {
				return server
			}, &mcp.StreamableHTTPOptions{
				DisableLocalhostProtection: true, JSONResponse: true,
				Stateless: version >= "2026-07-28"})}
			found, protocol, err := list(t, r)
			if err != nil || protocol != version || len(found) != 2 {
				t.Fatalf("%v by %s: %v", found, protocol, err)
			}
			var methods []string
			for _, e := range r.exchanges {
				var request struct{ Method string }
				var response struct {
					Result json.RawMessage
					Error  any
				}
				if len(e.request) == 0 {
					continue // the end of a session
				}
				if err := json.Unmarshal(e.request, &request); err != nil {
					t.Fatalf("%v\n%s", err, e.request)
				}
				_ = json.Unmarshal(e.response, &response) // a notification has none
				name := map[string]string{"initialize": "Initialize", "server/discover": "Discover",
					"tools/list": "ListTools"}[request.Method]
				switch {
				case request.Method == "notifications/initialized":
					valid("InitializedNotification", e.request)
				case name == "Discover" && response.Error != nil: // the version is not known yet
				case name == "":
					t.Errorf("%s is asked", request.Method)
				default:
					methods = append(methods, request.Method)
					valid(name+"Request", e.request)
					valid(name+"Result", response.Result)
				}
			}
			if !slices.Contains(methods, "tools/list") || !slices.Contains(methods, "initialize") &&
				!slices.Contains(methods, "server/discover") {
				t.Errorf("only %v were compared", methods)
			}
			examples, err := filepath.Glob(filepath.Join(folder, version, "examples", "Tool", "*.json"))
			if err != nil || version >= "2026-07-28" && len(examples) == 0 {
				t.Errorf("%d examples: %v", len(examples), err)
			}
			for _, file := range examples {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				d, err := tools.Read(text)
				if problems := tools.Check([]tools.Definition{d}); err != nil || len(problems) > 0 {
					t.Errorf("%s: %v, %+v", file, err, problems)
				}
			}
		})
	}
}

// raw is a server of MCP 2026-07-28 whose one tool is a text.
func raw(tool string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			ID     json.RawMessage
			Method string
		}
		if json.NewDecoder(r.Body).Decode(&request) != nil {
			return
		}
		result := `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"public"}`
		if request.Method == "tools/list" {
			result = `{"resultType":"complete","tools":[` + tool +
				`],"ttlMs":0,"cacheScope":"public"}`
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, request.ID, result)
	})
}

// A field in another case is another field: programs that read names as they are give models
// the one and not the other.
func TestFieldsInAnotherCase(t *testing.T) {
	found, _, err := list(t,
		raw(
			`{"name":"a","description":"what models read","inputSchema":{"type":"object"},"Description":"what was approved","INPUTSCHEMA":{"type":"string"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0].Description != "what models read" ||
		!strings.Contains(fmt.Sprint(found[0].InputSchema), "object") {
		t.Errorf("%+v", found)
	}
}
