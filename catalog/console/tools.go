package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/catalog/console/resources"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/api/keys"
)

// toolForm is a tool with its parameters as people read them.
type toolForm struct {
	store.Item
	ID     string
	Params []resources.Param
	Hints  []string // of the server about the tool
	Left   int      // parameters that are not shown
	Raw    string
}

// toolGroup has the tools whose names begin with the same word.
type toolGroup struct {
	Name  string
	Tools []toolForm
}

// forms returns the forms of the tools among items.
func forms(items []store.Item) (out []toolForm) {
	for i, item := range items {
		f := toolForm{Item: item, ID: fmt.Sprintf("tool-%d", i), Raw: resources.Pretty(item.Document)}
		var tool struct {
			InputSchema map[string]any
			Annotations map[string]any
		}
		if item.Kind == store.Tool && json.Unmarshal(item.Document, &tool) == nil {
			f.Params, f.Left = resources.Params(tool.InputSchema)
			for name, words := range map[string]string{"readOnlyHint": "reads only",
				"destructiveHint": "may destroy", "idempotentHint": "may be repeated",
				"openWorldHint": "reaches other systems"} {
				if tool.Annotations[name] == true {
					f.Hints = append(f.Hints, words)
				}
			}
			slices.Sort(f.Hints)
		}
		out = append(out, f)
	}
	return out
}

// Groups returns the tools by the beginning of their names, up to _ or -, if at least two share it;
// all others are one group without a name.
func (d entryData) Groups() []toolGroup {
	begin := func(t toolForm) string {
		if at := strings.IndexAny(t.Name, "_-./"); at > 0 && t.Kind == store.Tool {
			return t.Name[:at]
		}
		return ""
	}
	counts := map[string]int{}
	for _, t := range d.Tools {
		counts[begin(t)]++
	}
	groups := map[string][]toolForm{}
	for _, t := range d.Tools {
		name := begin(t)
		switch {
		case t.Kind != store.Tool:
			name = map[string]string{store.Resource: "Resources", store.Prompt: "Prompts"}[t.Kind]
		case counts[name] < 2 || len(d.Tools) < 6:
			name = ""
		}
		groups[name] = append(groups[name], t)
	}
	var out []toolGroup
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		out = append(out, toolGroup{name, groups[name]})
	}
	return out
}

// BoundBy returns the agents that are bound to a tool.
func (d entryData) BoundBy(tool string) (out []binding) {
	for _, b := range d.UsedBy {
		if len(b.Tools) == 0 || slices.Contains(b.Tools, tool) {
			out = append(out, b)
		}
	}
	return out
}

// agentKind is kagent's agent, which names what it may call.
var agentKind = schema.GroupVersionKind{Group: keys.Kagent, Version: "v1alpha2", Kind: "Agent"}

const agentsResource = "agents." + keys.Kagent

// binding is a server or agent that an agent may call.
type binding struct {
	Agent store.Key
	// Kind, Namespace and Name of the server or agent.
	Kind, Namespace, Name string
	// Tools that it may call; empty means all.
	Tools []string
}

// AgentPath returns the path of the page of the agent.
func (b binding) AgentPath() string { return entryPath(b.Agent) }

// Path returns the path of the page of the server or agent.
func (b binding) Path() string {
	if !slices.Contains([]string{"RemoteMCPServer", "MCPServer", "Agent"}, b.Kind) {
		return ""
	}
	resource := strings.ToLower(b.Kind) + "s." + keys.Kagent
	return entryPath(store.Key{Resource: resource, Namespace: b.Namespace, Name: b.Name})
}

func (b binding) serves(e store.Entry) bool {
	return b.Kind == e.Kind && b.Namespace == e.Namespace && b.Name == e.Name
}

// bindings returns the bindings of the agents that the caller may list.
func (v *Visit) bindings() (out []binding, err error) {
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(agentKind.GroupVersion().WithKind("AgentList"))
	if err := v.Console.Cluster.list(v.Context(), agentsResource, &list); err != nil {
		return nil, err
	}
	agents, err := Visible(v, agentsResource, list.Items,
		func(u unstructured.Unstructured) string { return u.GetNamespace() })
	for _, u := range agents {
		type reference struct {
			Kind, Name, Namespace string
			ToolNames             []string
		}
		var tools []struct{ McpServer, Agent *reference }
		given, _, _ := unstructured.NestedSlice(u.Object, "spec", "declarative", "tools")
		text, err := json.Marshal(given)
		if err != nil || json.Unmarshal(text, &tools) != nil {
			continue
		}
		for _, t := range tools {
			to := t.McpServer
			if to == nil && t.Agent != nil {
				to = t.Agent
				to.Kind = "Agent"
			}
			if to != nil {
				key := store.Key{Resource: agentsResource, Namespace: u.GetNamespace(),
					Name: u.GetName()}
				out = append(out, binding{key, cmp.Or(to.Kind, "MCPServer"),
					cmp.Or(to.Namespace, u.GetNamespace()), to.Name, to.ToolNames})
			}
		}
	}
	slices.SortFunc(out, func(a, b binding) int {
		return strings.Compare(a.Agent.Namespace+"/"+a.Agent.Name+"/"+a.Name,
			b.Agent.Namespace+"/"+b.Agent.Name+"/"+b.Name)
	})
	return out, err
}
