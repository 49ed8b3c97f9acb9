package kagentagent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// toolsOf returns the servers and agents that the agent may call.
func toolsOf(e *expander, tools []tool) (http, sse, remote []ordered) {
	for i, t := range tools {
		at := fmt.Sprintf("spec.declarative.tools[%d]", i)
		if t.IsolateSessions != nil && t.Type != "Agent" {
			e.error("tool", at+".isolateSessions", "only an agent has sessions to isolate", "remove it")
		}
		switch {
		case t.McpServer != nil && (t.Type == "McpServer" || t.Type == ""):
			params, streaming := serverParams(e, t, at)
			entry := ordered{{"params", params}}
			entry.set("tools", t.McpServer.ToolNames)
			entry.set("allowed_headers", t.McpServer.AllowedHeaders)
			entry.set("require_approval", t.McpServer.RequireApproval)
			for _, name := range t.McpServer.RequireApproval {
				if !slices.Contains(t.McpServer.ToolNames, name) {
					e.error("approval", at+".mcpServer.requireApproval",
						fmt.Sprintf("%q is not one of the toolNames", text.Shown(name)),
						"add it there, or remove it here")
				}
			}
			if streaming {
				http = append(http, entry)
			} else {
				sse = append(sse, entry)
			}
		case t.Agent != nil && t.Type == "Agent":
			remote = append(remote, remoteAgent(e, t, at))
		default:
			e.error("tool", at, "neither an MCP server nor an agent",
				"set type and mcpServer, or type: Agent and agent")
		}
	}
	return http, sse, remote
}

// toolNames returns the names of the tools of servers.
func toolNames(servers []ordered) (names []string) {
	for _, s := range servers {
		of, _ := s.get("tools").([]string)
		names = append(names, of...)
	}
	return names
}

// endpointOf is how an MCP server is reached. timeouts are durations, "" for none.
type endpoint struct {
	url, protocol, timeout, read string
	headers                      []header
	terminate                    *bool // ends its sessions, nil for a server that is not asked
	tls                          *tlsConfig
	inside                       bool // of the cluster, so that a proxy is asked
}

// serverParams returns the parameters of an MCP server.
func serverParams(e *expander, t tool, at string) (params ordered, streaming bool) {
	s, found := endpointOf(e, t.McpServer, at+".mcpServer")
	if !found {
		return nil, true
	}
	headers := e.headers(at+".headersFrom", s.headers, t.HeadersFrom)
	if s.inside {
		s.url = e.through(s.url, headers)
	}
	params = ordered{{"url", s.url}, {"headers", headers}}
	for _, d := range []pair{{"timeout", s.timeout}, {"sse_read_timeout", s.read}} {
		if d.value != "" {
			params.add(d.key, e.seconds(d.value.(string), at))
		}
	}
	if s.terminate != nil && s.protocol != "SSE" {
		params.add("terminate_on_close", *s.terminate)
	}
	params.addTLS(s.tls)
	use := &modelUse{}
	use.mountCA(s.tls)
	e.take(use, at)
	return params, s.protocol != "SSE"
}

func endpointOf(e *expander, ref *reference, at string) (s endpoint, found bool) {
	namespace, kind := cmp.Or(ref.Namespace, e.Namespace), cmp.Or(ref.Kind, "MCPServer")
	if kind == "Service" {
		return serviceEndpoint(e, namespace, ref.Name, at)
	}
	if kind != "MCPServer" && kind != "RemoteMCPServer" {
		e.error("unsupported", at+".kind",
			fmt.Sprintf("a tool of the kind %q is not expanded", text.Shown(kind)),
			"name an MCPServer, a RemoteMCPServer or a Service")
		return s, false
	}
	o := e.Find(group, kind, namespace, ref.Name)
	if o == nil {
		e.error("no-tool", at, fmt.Sprintf("the package has no %s %s", kind, ref.Name),
			"correct the name, or add it to the package")
		return s, false
	}
	if kind == "MCPServer" {
		var m mcpServer
		o.Decode("kagent-agent/field", &m) // its own expansion reports what is wrong
		address := address(o.Name, o.Namespace, cmp.Or(m.Spec.Deployment.Port, defaultServerPort)) +
			"/mcp"
		return endpoint{url: address, timeout: cmp.Or(m.Spec.Timeout, "30s"), inside: true}, true
	}
	var m remoteServer
	if findings := o.Decode("kagent-agent/field", &m); finding.Failed(findings) {
		e.Findings = append(e.Findings, findings...)
		return s, false
	}
	yes := true
	s = endpoint{
		url: m.Spec.URL, protocol: m.Spec.Protocol, timeout: cmp.Or(m.Spec.Timeout, "30s"),
		read:    m.Spec.SSEReadTimeout,
		headers: m.Spec.HeadersFrom, terminate: cmp.Or(m.Spec.TerminateOnClose, &yes),
		tls: m.Spec.TLS, inside: e.inside(m.Spec.URL, e.Namespace, namespace),
	}
	if s.protocol != "" && s.protocol != "SSE" && s.protocol != "STREAMABLE_HTTP" {
		e.error("protocol", at,
			fmt.Sprintf("%s %s has the protocol %q", kind, ref.Name, text.Shown(s.protocol)),
			"use SSE or STREAMABLE_HTTP")
	}
	m.Spec.TLS.check(func(rule, field, message, hint string) {
		e.error(rule, at, fmt.Sprintf("%s %s: %s: %s", kind, ref.Name, field, message), hint)
	})
	if namespace != e.Namespace {
		checkForeign(e, o, &m, at)
	}
	return s, true
}

// serviceEndpoint returns how a Service is reached whose annotations say what it speaks.
func serviceEndpoint(e *expander, namespace, name, at string) (s endpoint, found bool) {
	o := e.Read("Service", namespace, name)
	if o == nil {
		e.error("no-tool", at, fmt.Sprintf("the package has no Service %s", name),
			"correct the name, or describe the server with a RemoteMCPServer")
		return s, false
	}
	var service struct {
		Spec struct {
			Ports []struct {
				Port        int    `json:"port"`
				AppProtocol string `json:"appProtocol"`
			} `json:"ports"`
		} `json:"spec"`
	}
	data, err := o.JSON()
	if err == nil {
		err = json.Unmarshal(data, &service)
	}
	if err != nil {
		e.error("no-tool", at, fmt.Sprintf("%s: %v", o.Ref, err), "correct the Service")
		return s, false
	}
	number := 0
	if text, given := o.Annotation(keys.Kagent + "/mcp-service-port"); given {
		number, _ = strconv.Atoi(text)
	} else if ports := service.Spec.Ports; len(ports) == 1 {
		number = ports[0].Port
	} else {
		for i := len(ports) - 1; i >= 0; i-- {
			if strings.EqualFold(ports[i].AppProtocol, "mcp") {
				number = ports[i].Port
			}
		}
	}
	if number < 1 || number > 65535 {
		e.error("port", at, fmt.Sprintf("%s does not say which of its ports speaks MCP", o.Ref),
			"annotate it kagent.dev/mcp-service-port, or give one port appProtocol: mcp")
		return s, false
	}
	path, given := o.Annotation(keys.Kagent + "/mcp-service-path")
	if !given {
		path = "/mcp"
	}
	s = endpoint{url: address(o.Name, o.Namespace, number) + path, inside: true}
	if protocol, _ := o.Annotation(keys.Kagent + "/mcp-service-protocol"); protocol == "SSE" {
		s.protocol = protocol
	}
	return s, true
}

// checkForeign reports what an agent cannot have of a server in another namespace.
func checkForeign(e *expander, o *krm.Object, m *remoteServer, at string) {
	e.checkAllowed(o, at)
	for _, h := range m.Spec.HeadersFrom {
		if h.ValueFrom != nil {
			e.error("foreign-secret", at,
				fmt.Sprintf("%s takes the header %s from its own namespace, where "+
					"the agent's pod cannot read", o.Ref, text.Shown(h.Name)),
				"give the tool a header of that name in headersFrom, from the agent's namespace, "+
					"and remove it there")
		}
	}
	if m.Spec.TLS != nil && m.Spec.TLS.CACertSecretRef != "" {
		e.error("foreign-secret", at,
			fmt.Sprintf("%s has its CA in its own namespace, where the agent's "+
				"pod cannot read", o.Ref), "describe the server in the agent's namespace as well")
	}
}

// checkAllowed reports an object of another namespace that does not let agents
// of this one call it.
func (e *expander) checkAllowed(o *krm.Object, at string) {
	if from := o.Get("spec", "allowedNamespaces", "from"); !from.Is("All") && !from.Is("Selector") {
		e.error("not-allowed", at, fmt.Sprintf("%s does not allow other namespaces", o.Ref),
			"set spec.allowedNamespaces.from: All there")
	}
}

func (e *expander) seconds(duration, at string) float64 {
	d, err := time.ParseDuration(duration)
	if err != nil {
		e.error("timeout", at, fmt.Sprintf("%q is not a duration", text.Shown(duration)),
			"write it as 30s or 5m")
	}
	return d.Seconds()
}

// remoteAgent returns how to reach another agent.
func remoteAgent(e *expander, t tool, at string) ordered {
	namespace := cmp.Or(t.Agent.Namespace, e.Namespace)
	if t.Agent.Kind != "" && t.Agent.Kind != "Agent" {
		e.error("unsupported", at+".agent.kind",
			fmt.Sprintf("a tool of the kind %q is not expanded", text.Shown(t.Agent.Kind)),
			"name an Agent")
		return nil
	}
	if namespace == e.Namespace && t.Agent.Name == e.Name {
		e.error("tool", at+".agent", "an agent cannot be a tool of itself", "remove it")
		return nil
	}
	o := e.Find(group, "Agent", namespace, t.Agent.Name)
	if o == nil {
		e.error("no-tool", at+".agent", fmt.Sprintf("the package has no Agent %s", t.Agent.Name),
			"correct the name, or add it to the package")
		return nil
	}
	if namespace != e.Namespace {
		e.checkAllowed(o, at+".agent")
	}
	headers := e.headers(at+".headersFrom", t.HeadersFrom)
	to := e.through(address(o.Name, o.Namespace, port), headers)
	remote := ordered{{"name", identifier(namespace + "__NS__" + o.Name)}, {"url", to}}
	remote.set("headers", headers)
	remote.set("description", o.Get("spec", "description").Text())
	remote.set("isolate_sessions", t.IsolateSessions != nil && *t.IsolateSessions)
	return remote
}
