package tools

import (
	"cmp"
	"slices"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
)

// ServerOf returns the reference to an object that is a tool server.
func ServerOf(o *krm.Object) (server api.ToolServer, ok bool) {
	server = api.ToolServer{Group: o.Group(), Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
	return server, server.Name != "" &&
		(server.Kind == "RemoteMCPServer" &&
			(server.Group == keys.Kagent || server.Group == keys.Kagent1) ||
			server.Kind == "MCPServer" && server.Group == keys.Kagent)
}

// Binding is a server whose tools an agent binds.
type Binding struct {
	Server api.ToolServer
	// At is the server's name in the agent, and Tools are the names of the tools; an empty list
	// means all.
	At    krm.Node
	Tools []krm.Node
}

// Bindings returns the tool servers that an agent of kagent binds. It omits a Service of 0.x,
// because only the cluster knows its tools.
func Bindings(o *krm.Object) (found []Binding) {
	template, current := o.Get("spec", "declarative"), o.Group() == keys.Kagent1
	switch {
	case o.Group() == keys.Kagent && o.Kind == "Agent":
	case current && o.Kind == "Agent":
		template = o.Get("spec", "template")
	case current && o.Kind == "AgentTemplate":
		template = o.Get("spec")
	default:
		return nil
	}
	for t := range template.Get("tools").Items() {
		ref, namespace := t.Get("mcpServer"), t.Get("mcpServer", "namespace").Text()
		names := ref.Get("toolNames")
		if current {
			ref, namespace, names = t.Get("mcp", "server"), "", t.Get("mcp", "tools")
		}
		server := api.ToolServer{Group: o.Group(), Kind: cmp.Or(ref.Get("kind").Text(), "MCPServer"),
			Namespace: cmp.Or(namespace, o.Namespace), Name: ref.Get("name").Text()}
		if server.Kind == "MCPServer" {
			server.Group = keys.Kagent
		}
		if server.Name == "" || server.Kind != "MCPServer" && server.Kind != "RemoteMCPServer" {
			continue
		}
		b := Binding{Server: server, At: ref.Get("name")}
		for item := range names.Items() {
			if !item.IsScalar() {
				item = item.Get("name")
			}
			b.Tools = append(b.Tools, item)
		}
		found = append(found, b)
	}
	return found
}

// Find returns the entry of a lock for a server. The namespace is compared only if both name one,
// because a manifest may leave it to kubectl -n.
func Find(locked []api.LockedToolServer,
	server api.ToolServer) (found api.LockedToolServer, ok bool) {
	i := slices.IndexFunc(locked, func(l api.LockedToolServer) bool {
		return Same(l.ToolServer, server)
	})
	if i < 0 {
		return found, false
	}
	return locked[i], true
}

// Same reports whether two references denote one server.
func Same(a, b api.ToolServer) bool {
	if a.Namespace == "" || b.Namespace == "" {
		a.Namespace, b.Namespace = "", ""
	}
	return a == b
}
