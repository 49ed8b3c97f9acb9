package kagentagent

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/krm"
)

// toolsOf returns the servers and agents that the agent may call.
func toolsOf(e *expander, tools []tool) (http, sse, remote []ordered) {
	for i, t := range tools {
		at := fmt.Sprintf("spec.declarative.tools[%d]", i)
		e.FailIf(t.IsolateSessions != nil && t.Type != "Agent", "tool", at+".isolateSessions",
			"remove it", "only an agent has sessions to isolate")
		switch {
		case t.McpServer != nil && (t.Type == "McpServer" || t.Type == ""):
			params, streaming := serverParams(e, t, at)
			entry := append(node.Map("params", params), some("tools", t.McpServer.ToolNames,
				"allowed_headers", t.McpServer.AllowedHeaders,
				"require_approval", t.McpServer.RequireApproval)...)
			for _, name := range t.McpServer.RequireApproval {
				e.FailIf(!slices.Contains(t.McpServer.ToolNames, name), "approval",
					at+".mcpServer.requireApproval", "add it there, or remove it here",
					"%q is not one of the toolNames", name)
			}
			if streaming {
				http = append(http, entry)
			} else {
				sse = append(sse, entry)
			}
		case t.Agent != nil && t.Type == "Agent":
			remote = append(remote, remoteAgent(e, t, at))
		default:
			e.Fail("tool", at, "set type and mcpServer, or type: Agent and agent",
				"neither an MCP server nor an agent")
		}
	}
	return http, sse, remote
}

// toolNames returns the names of the tools of servers.
func toolNames(servers []ordered) (names []string) {
	for _, s := range servers {
		of, _ := s.Get("tools").([]string)
		names = append(names, of...)
	}
	return names
}

// serverParams returns the parameters of an MCP server.
func serverParams(e *expander, t tool, at string) (params ordered, streaming bool) {
	s, inside, found := endpointOf(e, t.McpServer, at+".mcpServer")
	if !found {
		return nil, true
	}
	headers := e.headers(object{}, at+".headersFrom", s.HeadersFrom)
	headers = e.headers(headers, at+".headersFrom", t.HeadersFrom)
	if inside {
		s.URL = e.proxied(s.URL, headers)
	}
	params = node.Map("url", s.URL, "headers", headers)
	for _, d := range [][2]string{{"timeout", s.Timeout}, {"sse_read_timeout", s.SSEReadTimeout}} {
		if d[1] != "" {
			duration, err := time.ParseDuration(d[1])
			e.FailIf(err != nil, "timeout", at, "write it as 30s or 5m",
				"%q is not a duration", d[1])
			params = append(params, node.Map(d[0], duration.Seconds())...)
		}
	}
	if s.TerminateOnClose != nil && s.Protocol != "SSE" {
		params = append(params, node.Map("terminate_on_close", *s.TerminateOnClose)...)
	}
	use := &modelUse{}
	use.mountCA(s.TLS)
	e.addModel(use, at)
	return append(params, s.TLS.config()...), s.Protocol != "SSE"
}

// endpointOf returns the endpoint of an MCP server. inside reports that it is in the cluster, so
// that the proxy is used. TerminateOnClose is nil for servers that are not asked to end sessions.
func endpointOf(e *expander, ref *reference, at string) (s remoteSpec, inside, found bool) {
	namespace, kind := cmp.Or(ref.Namespace, e.Namespace), cmp.Or(ref.Kind, "MCPServer")
	if kind == "Service" {
		s, found = serviceEndpoint(e, namespace, ref.Name, at)
		return s, true, found
	}
	if e.FailIf(kind != "MCPServer" && kind != "RemoteMCPServer", "unsupported", at+".kind",
		"name an MCPServer, a RemoteMCPServer or a Service",
		"a tool of the kind %q is not expanded", kind) {
		return s, false, false
	}
	o := e.Find(group, kind, namespace, ref.Name)
	if e.FailIf(o == nil, "no-tool", at, "correct the name, or add it to the package",
		"the package has no %s %s", kind, ref.Name) {
		return s, false, false
	}
	if kind == "MCPServer" {
		var m mcpServer
		o.Decode("kagent-agent/field", &m) // its own expansion reports errors
		port := cmp.Or(m.Spec.Deployment.Port, defaultServerPort)
		return remoteSpec{URL: address(o.Name, o.Namespace, port) + "/mcp",
			Timeout: cmp.Or(m.Spec.Timeout, "30s")}, true, true
	}
	var m remoteServer
	if findings := o.Decode("kagent-agent/field", &m); finding.Failed(findings) {
		e.Findings = append(e.Findings, findings...)
		return s, false, false
	}
	yes := true
	s = m.Spec
	s.Timeout, s.TerminateOnClose = cmp.Or(s.Timeout, "30s"), cmp.Or(s.TerminateOnClose, &yes)
	e.FailIf(s.Protocol != "" && s.Protocol != "SSE" && s.Protocol != "STREAMABLE_HTTP", "protocol",
		at, "use SSE or STREAMABLE_HTTP", "%s %s has the protocol %q", kind, ref.Name, s.Protocol)
	s.TLS.check(func(rule, field, hint, message string, _ ...any) {
		e.Fail(rule, at, hint, "%s %s: %s: %s", kind, ref.Name, field, message)
	})
	if namespace != e.Namespace {
		checkForeign(e, o, &s, at)
	}
	return s, e.inside(s.URL, e.Namespace, namespace), true
}

// serviceEndpoint returns the endpoint of a Service whose annotations define its protocol.
func serviceEndpoint(e *expander, namespace, name, at string) (s remoteSpec, found bool) {
	o := e.Read("Service", namespace, name)
	if e.FailIf(o == nil, "no-tool", at,
		"correct the name, or describe the server with a RemoteMCPServer",
		"the package has no Service %s", name) {
		return s, false
	}
	port, given := o.Annotation(keys.Kagent + "/mcp-service-port")
	if ports := slices.Collect(o.Get("spec", "ports").Items()); !given {
		if len(ports) != 1 {
			ports = slices.DeleteFunc(ports, func(p krm.Node) bool {
				return !strings.EqualFold(p.Get("appProtocol").Text(), "mcp")
			})
		}
		if len(ports) > 0 {
			port = ports[0].Get("port").Text()
		}
	}
	number, _ := strconv.Atoi(port)
	if e.FailIf(number < 1 || number > 65535, "port", at,
		"annotate it kagent.dev/mcp-service-port, or give one port appProtocol: mcp",
		"%s does not say which of its ports speaks MCP", o.Ref) {
		return s, false
	}
	path, given := o.Annotation(keys.Kagent + "/mcp-service-path")
	if !given {
		path = "/mcp"
	}
	s.URL = address(o.Name, o.Namespace, number) + path
	if protocol, _ := o.Annotation(keys.Kagent + "/mcp-service-protocol"); protocol == "SSE" {
		s.Protocol = protocol
	}
	return s, true
}

// checkForeign reports settings of a server in another namespace that an agent cannot use.
func checkForeign(e *expander, o *krm.Object, s *remoteSpec, at string) {
	e.checkAllowed(o, at)
	for _, h := range s.HeadersFrom {
		e.FailIf(h.ValueFrom != nil, "foreign-secret", at,
			"give the tool a header of that name in headersFrom, from the agent's namespace, and "+
				"remove it there",
			"%s takes the header %s from its own namespace, where the agent's pod cannot read",
			o.Ref, h.Name)
	}
	e.FailIf(s.TLS != nil && s.TLS.CACertSecretRef != "", "foreign-secret", at,
		"describe the server in the agent's namespace as well",
		"%s has its CA in its own namespace, where the agent's pod cannot read", o.Ref)
}

// checkAllowed reports an object of another namespace that does not permit calls from this one.
func (e *expander) checkAllowed(o *krm.Object, at string) {
	if from := o.Get("spec", "allowedNamespaces", "from"); !from.Is("All") && !from.Is("Selector") {
		e.Fail("not-allowed", at, "set spec.allowedNamespaces.from: All there",
			"%s does not allow other namespaces", o.Ref)
	}
}

// remoteAgent returns the address and headers of another agent.
func remoteAgent(e *expander, t tool, at string) ordered {
	namespace := cmp.Or(t.Agent.Namespace, e.Namespace)
	if e.FailIf(t.Agent.Kind != "" && t.Agent.Kind != "Agent", "unsupported", at+".agent.kind",
		"name an Agent", "a tool of the kind %q is not expanded", t.Agent.Kind) ||
		e.FailIf(namespace == e.Namespace && t.Agent.Name == e.Name, "tool", at+".agent",
			"remove it", "an agent cannot be a tool of itself") {
		return nil
	}
	o := e.Find(group, "Agent", namespace, t.Agent.Name)
	if e.FailIf(o == nil, "no-tool", at+".agent", "correct the name, or add it to the package",
		"the package has no Agent %s", t.Agent.Name) {
		return nil
	}
	if namespace != e.Namespace {
		e.checkAllowed(o, at+".agent")
	}
	headers := e.headers(object{}, at+".headersFrom", t.HeadersFrom)
	to := e.proxied(address(o.Name, o.Namespace, port), headers)
	return append(node.Map("name", identifier(namespace+"__NS__"+o.Name), "url", to),
		some("headers", headers, "description", o.Get("spec", "description").Text(),
			"isolate_sessions", node.Or(t.IsolateSessions, false))...)
}
