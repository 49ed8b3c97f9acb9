package kagentagent

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"text/template"
)

// TestPrompt compares the expansion of system messages with Go's templates, of which prompts
// support a part.
func TestPrompt(t *testing.T) {
	texts := map[string]string{"p/a": "one {{.AgentName}}\n", "own/b": "two"}
	data := struct {
		AgentName, AgentNamespace, Description string
		ToolNames, SkillNames                  []string
	}{"a", "team", "d", []string{"x", "y"}, []string{"skill"}}
	include := func(name string) (string, error) {
		if text, found := texts[name]; found {
			return text, nil
		}
		return "", fmt.Errorf("no %s", name)
	}
	for message, refused := range map[string]string{
		`{{include "p/a"}}x {{ include "own/b" -}}   y`:                                   "",
		`{{.AgentName}} {{$.AgentNamespace}} {{.Description}}`:                            "",
		`{{range .ToolNames}}{{.}} of {{$.AgentName}}, {{else}}none{{end}}`:               "",
		`{{with .SkillNames}}{{range .}}{{.}}{{end}}{{end}}`:                              "",
		`{{if .ToolNames}}tools{{else}}none{{end}}{{/* c */}}{{if .Description}}d{{end}}`: "",
		`{{.ToolNames}}`:             "",
		`{{include "p/none"}}`:       `no text "p/none"`,
		`{{.Other}}`:                 `no field "Other"`,
		`{{printf "%s" .AgentName}}`: `"printf" not defined`,
		`{{range .ToolNames}}{{range $.ToolNames}}x{{end}}{{end}}`:                "not inside another",
		`{{range 1000000000}}{{end}}`:                                             "not expanded",
		`{{define "x"}}{{template "x"}}{{end}}{{template "x"}}`:                   "not expanded",
		`{{$x := .AgentName}}{{$x}}`:                                              "not expanded",
		`{{include .AgentName}}`:                                                  "not expanded",
		`{{include`:                                                               "unclosed action",
		`{{range .ToolNames}}{{break}}{{end}}`:                                    "not expanded",
		strings.Repeat(`{{range .ToolNames}}{{include "own/b"}}{{end}}`, 200_000): "bytes",
		`{{range .ToolNames}}` + strings.Repeat(`{{if $.AgentName}}{{end}}`, 210_000) + `{{end}}`: "steps",
	} {
		spec, err := json.Marshal(map[string]any{"description": "d",
			"skills": map[string]any{"refs": []string{"example/skill:v1"}},
			"declarative": map[string]any{
				"systemMessage": message,
				"promptTemplate": map[string]any{"dataSources": []any{map[string]any{"name": "p"},
					map[string]any{"kind": "ConfigMap", "name": "q", "alias": "own"}}},
				"tools": []any{map[string]any{"type": "McpServer",
					"mcpServer": map[string]any{"kind": "Service", "name": "s",
						"toolNames": data.ToolNames}}},
			}})
		if err != nil {
			t.Fatal(err)
		}
		core := func(kind, name, rest string) string {
			return fmt.Sprintf(
				"apiVersion: v1\nkind: %s\nmetadata: {name: %s, namespace: team}\n%s\n", kind, name, rest)
		}
		objects, findings := made(t, "", manifest("ModelConfig", "default-model-config",
			openAIModel), manifest("Agent", "a", string(spec)),
			core("ConfigMap", "p", `data: {a: "one {{.AgentName}}\n"}`),
			core("ConfigMap", "q", `data: {b: two}`),
			core("Service", "s", `spec: {ports: [{port: 80}]}`))
		shown := message[:min(len(message), 60)]
		if refused != "" {
			if len(findings) != 1 || !strings.Contains(findings[0].Message, refused) {
				t.Errorf("%s: %.300v", shown, findings)
			}
			continue
		}
		if len(findings) > 0 {
			t.Errorf("%s: %v", shown, findings)
			continue
		}
		var want strings.Builder
		if err := template.Must(template.New("").Funcs(template.FuncMap{"include": include}).Parse(
			message)).Execute(&want, data); err != nil {
			t.Fatal(err)
		}
		var config struct{ Instruction string }
		if err := json.Unmarshal(
			[]byte(objects["ConfigMap/a"]["data"].(map[string]any)["config.json"].(string)),
			&config); err != nil {
			t.Fatal(err)
		}
		if config.Instruction != want.String() {
			t.Errorf("%s: have %q, want %q", shown, config.Instruction, want.String())
		}
	}
}

// TestService finds the port, path and protocol of a Service as its annotations
// say, or from its ports.
func TestService(t *testing.T) {
	for service, want := range map[string]string{
		`spec: {ports: [{port: 80}]}`: "http_tools http://s.team:80/mcp",
		`spec: {ports: [{port: 80}, {port: 81, appProtocol: MCP}, {port: 82, appProtocol: mcp}]}`: "http_tools http://s.team:81/mcp",
		`spec: {ports: [{port: 80}, {port: 81}]}`:                                                 "port",
		`spec: {}`: "port",
	} {
		for annotations, changed := range map[string]string{
			"": want,
			`annotations: {kagent.dev/mcp-service-port: "90", kagent.dev/mcp-service-path: /x, kagent.dev/mcp-service-protocol: SSE}`: "sse_tools http://s.team:90/x",
			`annotations: {kagent.dev/mcp-service-port: "x"}`:                                                                         "port",
		} {
			objects, findings := made(t, "",
				manifest("ModelConfig", "default-model-config", openAIModel),
				manifest("Agent", "a",
					"{declarative: {systemMessage: s, tools: [{type: McpServer, mcpServer: "+
						"{kind: Service, name: s}}]}}"),
				fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: s\n"+
					"  namespace: team\n  %s\n%s\n", annotations, service))
			if len(findings) > 0 {
				if findings[0].Rule != "kagent-agent/"+changed {
					t.Errorf("%s %s: %v", service, annotations, findings)
				}
				continue
			}
			var config map[string]json.RawMessage
			if err := json.Unmarshal(
				[]byte(objects["ConfigMap/a"]["data"].(map[string]any)["config.json"].(string)),
				&config); err != nil {
				t.Fatal(err)
			}
			list, address, _ := strings.Cut(changed, " ")
			if !strings.Contains(string(config[list]), fmt.Sprintf(`"url":%q`, address)) {
				t.Errorf("%s %s: have %s, want %s", service, annotations, config[list], changed)
			}
		}
	}
}
