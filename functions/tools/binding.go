package tools

import (
	"cmp"
	"slices"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
)

// ServerOf returns the tool server that an object is.
func ServerOf(o *krm.Object) (server api.ToolServer, ok bool) {
	server = api.ToolServer{Group: o.Group(), Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
	return server, server.Name != "" &&
		(server.Kind == "RemoteMCPServer" &&
			(server.Group == keys.Kagent || server.Group == keys.Kagent1) ||
			server.Kind == "MCPServer" && server.Group == keys.Kagent)
}

// Binding is a server that an agent binds tools of.
type Binding struct {
	Server api.ToolServer
	// At is where the agent names it, and Tools are the names of the tools; none means all.
	At    krm.Node
	Tools []krm.Node
}

// Bindings returns the tool servers that an agent of kagent binds. A Service of 0.x is not one
// of them: nothing but the cluster says what it offers.
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

// Find returns the entry of a lock for a server. A manifest may leave the namespace to
// kubectl -n, where another one names it.
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

// Same reports whether two names are of one server.
func Same(a, b api.ToolServer) bool {
	if a.Namespace == "" || b.Namespace == "" {
		a.Namespace, b.Namespace = "", ""
	}
	return a == b
}
