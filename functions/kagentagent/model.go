package kagentagent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/krm"
)

const group = "kagent.dev"

// provider is how a model's provider becomes configuration and environment.
type provider struct {
	typ    string // in config.json
	block  func(*modelSpec) map[string]any
	apiKey string // the variable for the key, "" where there is none
	// config and env name the fields of the block that go there: field to name.
	config, env map[string]string
}

var providers = map[string]provider{
	"OpenAI": {"openai", func(m *modelSpec) map[string]any { return m.OpenAI }, "OPENAI_API_KEY", map[string]string{
		"baseUrl": "base_url", "temperature": "temperature", "maxTokens": "max_tokens", "topP": "top_p", "frequencyPenalty": "frequency_penalty",
		"presencePenalty": "presence_penalty", "seed": "seed", "n": "n", "timeout": "timeout", "reasoningEffort": "reasoning_effort",
	}, map[string]string{"organization": "OPENAI_ORGANIZATION"}},
	"Anthropic": {"anthropic", func(m *modelSpec) map[string]any { return m.Anthropic }, "ANTHROPIC_API_KEY", map[string]string{
		"baseUrl": "base_url", "maxTokens": "max_tokens", "temperature": "temperature", "topP": "top_p", "topK": "top_k",
	}, nil},
	"AzureOpenAI": {"azure_openai", func(m *modelSpec) map[string]any { return m.AzureOpenAI }, "AZURE_OPENAI_API_KEY", map[string]string{
		"azureDeployment": "model", "temperature": "temperature", "maxTokens": "max_tokens", "topP": "top_p",
	}, map[string]string{"azureEndpoint": "AZURE_OPENAI_ENDPOINT", "apiVersion": "OPENAI_API_VERSION"}},
	"Ollama": {"ollama", func(m *modelSpec) map[string]any { return m.Ollama }, "",
		map[string]string{"options": "options"}, map[string]string{"host": "OLLAMA_API_BASE"}},
	"Gemini": {"gemini", func(m *modelSpec) map[string]any { return m.Gemini }, "GOOGLE_API_KEY", nil, nil},
	"Bedrock": {"bedrock", func(m *modelSpec) map[string]any { return m.Bedrock }, "",
		map[string]string{"region": "region"}, map[string]string{"region": "AWS_REGION"}},
}

// model gives the model's part of config.json, and the environment for it. The
// key of the model stays in its Secret.
func (e *expander) model(name string) ordered {
	if name == "" {
		name = defaultModel
	}
	at := "spec.declarative.modelConfig"
	namespace := e.Namespace
	if ns, rest, found := strings.Cut(name, "/"); found {
		namespace, name = ns, rest
	}
	o := e.Find(group, "ModelConfig", namespace, name)
	if o == nil {
		e.error("no-model", at, fmt.Sprintf("the package has no ModelConfig %s", name), "add it to the package: the agent's configuration is made from it")
		return nil
	}
	var m modelConfig
	if krm.Failed(o.Decode("kagent-agent/field", &m)) {
		return nil // ModelConfig reports it
	}
	p, known := providerOf(&m.Spec)
	if !known {
		return nil
	}
	config := ordered{{"type", p.typ}, {"model", m.Spec.Model}}
	block := p.block(&m.Spec)
	if _, has := p.config["baseUrl"]; has && block["baseUrl"] == nil {
		config = append(config, pair{"base_url", ""})
	}
	for _, field := range slices.Sorted(maps.Keys(block)) {
		value := block[field]
		if text, ok := value.(string); ok && field == "host" && !strings.Contains(text, "://") {
			value = "http://" + text
		}
		if name, ok := p.config[field]; ok && name == "model" {
			config[1].value = value
		} else if ok {
			config = append(config, pair{name, value})
		}
		if name, ok := p.env[field]; ok {
			e.env = append(e.env, object{"name": name, "value": fmt.Sprint(value)})
		}
	}
	if len(m.Spec.DefaultHeaders) > 0 {
		config = append(config, pair{"headers", m.Spec.DefaultHeaders})
	}
	if m.Spec.APIKeyPassthrough {
		config = append(config, pair{"api_key_passthrough", true})
	}
	if m.Spec.APIKeySecret != "" && p.apiKey != "" {
		e.env = append(e.env, object{"name": p.apiKey, "valueFrom": object{"secretKeyRef": object{"name": m.Spec.APIKeySecret, "key": m.Spec.APIKeySecretKey}}})
	} else if m.Spec.APIKeySecret != "" { // Bedrock: its keys are variables
		e.env = append(e.env, awsKey(m.Spec.APIKeySecret, "AWS_ACCESS_KEY_ID"), awsKey(m.Spec.APIKeySecret, "AWS_SECRET_ACCESS_KEY"))
	}
	return config
}

func awsKey(secret, name string) object {
	return object{"name": name, "valueFrom": object{"secretKeyRef": object{"name": secret, "key": name, "optional": true}}}
}

func providerOf(m *modelSpec) (provider, bool) {
	name := m.Provider
	if name == "" {
		name = "OpenAI"
	}
	p, known := providers[name]
	return p, known
}

// ModelConfig checks a ModelConfig. It generates nothing by itself: the agents
// that name it take their configuration from it.
func ModelConfig(r *expand.Resource) {
	var m modelConfig
	if !r.Decode("kagent-agent/field", &m) {
		return
	}
	fail := func(rule, field, message, hint string) {
		r.Report(krm.Error, "kagent-agent/"+rule, field, message, hint)
	}
	p, known := providerOf(&m.Spec)
	if !known {
		fail("unsupported", "spec.provider", fmt.Sprintf("the provider %q is not expanded", m.Spec.Provider),
			"choose from "+strings.Join(slices.Sorted(maps.Keys(providers)), ", ")+", or use a BYO agent")
		return
	}
	if m.Spec.Model == "" {
		fail("no-model", "spec.model", "a ModelConfig names its model", "say spec.model")
	}
	if m.Spec.APIKeySecret != "" && m.Spec.APIKeySecretKey == "" && p.apiKey != "" {
		fail("api-key", "spec.apiKeySecretKey", "apiKeySecret without apiKeySecretKey", "say which key of the Secret it is")
	}
	if m.Spec.APIKeySecret == "" && m.Spec.APIKeySecretKey != "" {
		fail("api-key", "spec.apiKeySecret", "apiKeySecretKey without apiKeySecret", "say which Secret it is")
	}
	if m.Spec.APIKeySecret != "" && m.Spec.APIKeyPassthrough {
		fail("api-key", "spec.apiKeyPassthrough", "both apiKeySecret and apiKeyPassthrough", "keep one of them")
	}
	for _, name := range slices.Sorted(maps.Keys(providers)) {
		other := providers[name]
		block := other.block(&m.Spec)
		if block != nil && other.typ != p.typ {
			fail("provider", "spec", fmt.Sprintf("settings of %s, but the provider is another", name), "correct spec.provider")
			continue
		}
		at := "spec." + strings.ToLower(name[:1]) + name[1:]
		for _, field := range slices.Sorted(maps.Keys(block)) {
			if other.config[field] == "" && other.env[field] == "" {
				fail("field", at+"."+field, fmt.Sprintf("%s cannot be expanded", field), "remove it, or use a BYO agent")
			}
		}
	}
	if m.Spec.GeminiVertexAI != nil || m.Spec.AnthropicVertexAI != nil {
		fail("unsupported", "spec", "Vertex AI is not expanded", "use a BYO agent")
	}
}

// tools gives the servers and agents that the agent may call.
func (e *expander) tools(tools []tool) (http, sse, remote []ordered) {
	for i, t := range tools {
		at := fmt.Sprintf("spec.declarative.tools[%d]", i)
		switch {
		case t.McpServer != nil && (t.Type == "McpServer" || t.Type == ""):
			params, streaming := e.server(t, at)
			entry := ordered{{"params", params}, {"tools", t.McpServer.ToolNames}}
			if len(t.McpServer.AllowedHeaders) > 0 {
				entry = append(entry, pair{"allowed_headers", t.McpServer.AllowedHeaders})
			}
			if streaming {
				http = append(http, entry)
			} else {
				sse = append(sse, entry)
			}
		case t.Agent != nil && t.Type == "Agent":
			remote = append(remote, e.remoteAgent(t, at))
		default:
			e.error("tool", at, "neither an MCP server nor an agent", "say type and mcpServer, or type: Agent and agent")
		}
	}
	return http, sse, remote
}

// server gives how to reach an MCP server.
func (e *expander) server(t tool, at string) (params ordered, streaming bool) {
	ref := t.McpServer
	namespace := ref.Namespace
	if namespace == "" {
		namespace = e.Namespace
	}
	kind := ref.Kind
	if kind == "" {
		kind = "MCPServer"
	}
	if kind == "Service" {
		e.error("unsupported", at+".mcpServer.kind", "a Service says nothing of its protocol", "describe it with a RemoteMCPServer")
		return nil, true
	}
	o := e.Find(group, kind, namespace, ref.Name)
	if o == nil {
		e.error("no-tool", at+".mcpServer", fmt.Sprintf("the package has no %s %s", kind, ref.Name), "correct the name, or add it to the package")
		return nil, true
	}
	var headers []header
	url, protocol, timeout, read := "", "STREAMABLE_HTTP", "30s", "300s"
	switch kind {
	case "MCPServer":
		var m mcpServer
		o.Decode("kagent-agent/field", &m) // its own expansion reports what is wrong
		url = address(o.Name, o.Namespace, m.Spec.Deployment.Port) + "/mcp"
	case "RemoteMCPServer":
		var m remoteServer
		if findings := o.Decode("kagent-agent/field", &m); krm.Failed(findings) {
			e.Findings = append(e.Findings, findings...)
			return nil, true
		}
		url, headers = m.Spec.URL, m.Spec.HeadersFrom
		for to, value := range map[*string]string{&protocol: m.Spec.Protocol, &timeout: m.Spec.Timeout, &read: m.Spec.SSEReadTimeout} {
			if value != "" {
				*to = value
			}
		}
	}
	params = ordered{{"url", url}, {"headers", e.headers(at+".headersFrom", headers, t.HeadersFrom)},
		{"timeout", e.seconds(timeout, at)}, {"sse_read_timeout", e.seconds(read, at)}}
	if protocol != "SSE" && protocol != "STREAMABLE_HTTP" {
		e.error("protocol", at+".mcpServer", fmt.Sprintf("%s %s has the protocol %q", kind, ref.Name, protocol), "use SSE or STREAMABLE_HTTP")
	}
	return params, protocol != "SSE"
}

func (e *expander) seconds(duration, at string) float64 {
	d, err := time.ParseDuration(duration)
	if err != nil {
		e.error("timeout", at, fmt.Sprintf("%q is not a duration", duration), "write it as 30s or 5m")
	}
	return d.Seconds()
}

// remoteAgent gives how to reach another agent.
func (e *expander) remoteAgent(t tool, at string) ordered {
	namespace := t.Agent.Namespace
	if namespace == "" {
		namespace = e.Namespace
	}
	if namespace == e.Namespace && t.Agent.Name == e.Name {
		e.error("tool", at+".agent", "an agent cannot be a tool of itself", "remove it")
		return nil
	}
	o := e.Find(group, "Agent", namespace, t.Agent.Name)
	if o == nil {
		e.error("no-tool", at+".agent", fmt.Sprintf("the package has no Agent %s", t.Agent.Name), "correct the name, or add it to the package")
		return nil
	}
	if from := o.Get("spec", "allowedNamespaces", "from"); namespace != e.Namespace && !from.Is("All") && !from.Is("Selector") {
		e.error("not-allowed", at+".agent", fmt.Sprintf("%s does not allow other namespaces", o.Ref), "say spec.allowedNamespaces.from: All there")
	}
	return ordered{{"name", identifier(namespace + "__NS__" + o.Name)}, {"url", address(o.Name, o.Namespace, port)},
		{"headers", e.headers(at+".headersFrom", t.HeadersFrom)}}
}
