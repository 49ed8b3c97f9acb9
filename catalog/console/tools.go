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

	"github.com/armature-dev/armature/catalog/store"
)

// toolForm is a tool with its parameters as people read them.
type toolForm struct {
	store.Item
	ID     string
	Params []param
	Hints  []string // of the server about the tool
	Left   int      // parameters that are not shown
	Raw    string
}

// toolGroup are the tools whose names begin alike.
type toolGroup struct {
	Name  string
	Tools []toolForm
}

// param is a parameter, or a field of one.
type param struct {
	Name, Type, Description string
	Required                bool
	Default                 string
	Values                  []string // that it may have
	Fields                  []param
}

// Bounds of the parameters of a tool that are shown.
const (
	maxParams = 60
	maxDepth  = 4
	maxValues = 20
)

// forms of the tools among items.
func forms(items []store.Item) (out []toolForm) {
	for i, item := range items {
		f := toolForm{Item: item, ID: fmt.Sprintf("tool-%d", i), Raw: pretty(item.Document)}
		var tool struct {
			InputSchema map[string]any
			Annotations map[string]any
		}
		if item.Kind == store.Tool && json.Unmarshal(item.Document, &tool) == nil {
			left := maxParams
			f.Params = params(tool.InputSchema, maxDepth, &left)
			f.Left = max(0, -left)
			for name, words := range map[string]string{"readOnlyHint": "reads only", "destructiveHint": "may destroy", "idempotentHint": "may be repeated", "openWorldHint": "reaches other systems"} {
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

// params reads the properties of a JSON Schema, those that are required first.
func params(s map[string]any, depth int, left *int) (out []param) {
	properties, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if *left--; *left < 0 {
			continue
		}
		p, _ := properties[name].(map[string]any)
		one := param{Name: name, Type: typeOf(p), Required: slices.Contains(required, any(name))}
		one.Description, _ = p["description"].(string)
		if d, ok := p["default"]; ok {
			one.Default = shown(d)
		}
		values, _ := p["enum"].([]any)
		for _, value := range values[:min(len(values), maxValues)] {
			one.Values = append(one.Values, shown(value))
		}
		if depth > 1 {
			inner := p
			if items, ok := p["items"].(map[string]any); ok {
				inner = items
			}
			one.Fields = params(inner, depth-1, left)
		}
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(a, b param) int {
		switch {
		case a.Required == b.Required:
			return 0
		case a.Required:
			return -1
		}
		return 1
	})
	return out
}

// typeOf a schema in a few words.
func typeOf(s map[string]any) string {
	var words []string
	switch t := s["type"].(type) {
	case string:
		words = append(words, t)
	case []any:
		for _, one := range t {
			words = append(words, fmt.Sprint(one))
		}
	}
	if items, ok := s["items"].(map[string]any); ok {
		if of := typeOf(items); of != "" {
			words = append(words, "of "+of)
		}
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		if list, ok := s[key].([]any); ok {
			for _, one := range list[:min(len(list), 5)] {
				if m, ok := one.(map[string]any); ok {
					words = append(words, typeOf(m))
				}
			}
		}
	}
	text := strings.Join(words, " or ")
	text = strings.ReplaceAll(text, " or of ", " of ")
	if format, ok := s["format"].(string); ok {
		text += ", " + clip(30, format)
	}
	for key, sign := range map[string]string{"minimum": "≥", "maximum": "≤"} {
		if n, ok := s[key].(float64); ok {
			text += fmt.Sprintf(" %s %v", sign, n)
		}
	}
	return text
}

// Groups are the tools by the beginning of their names, up to _ or -, where at least two
// begin so; all others are one group without a name.
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

// BoundBy are the agents that are bound to a tool.
func (d entryData) BoundBy(tool string) (out []binding) {
	for _, b := range d.UsedBy {
		if len(b.Tools) == 0 || slices.Contains(b.Tools, tool) {
			out = append(out, b)
		}
	}
	return out
}

// agentKind are kagent's agents, which say what they are bound to.
var agentKind = schema.GroupVersionKind{Group: "kagent.dev", Version: "v1alpha2", Kind: "Agent"}

const agentsResource = "agents.kagent.dev"

// binding is a server or agent that an agent may call.
type binding struct {
	Agent store.Key
	// Kind, Namespace and Name of what it may call.
	Kind, Namespace, Name string
	// Tools that it may call; empty means all.
	Tools []string
}

// AgentPath is the page of the agent, and Path that of what it may call, if the catalog
// has pages of its kind.
func (b binding) AgentPath() string { return entryPath(b.Agent) }

// Path of the page of what may be called.
func (b binding) Path() string {
	resource := map[string]string{"RemoteMCPServer": "remotemcpservers.kagent.dev", "MCPServer": "mcpservers.kagent.dev", "Agent": agentsResource}[b.Kind]
	if resource == "" {
		return ""
	}
	return entryPath(store.Key{Resource: resource, Namespace: b.Namespace, Name: b.Name})
}

func (b binding) serves(e store.Entry) bool {
	return b.Kind == e.Kind && b.Namespace == e.Namespace && b.Name == e.Name
}

// bindings of the agents that the caller may list.
func (v *Visit) bindings() (out []binding, err error) {
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(agentKind.GroupVersion().WithKind("AgentList"))
	if err := v.Console.Cluster.list(v.Context(), agentsResource, &list); err != nil {
		return nil, err
	}
	agents, err := Visible(v, agentsResource, list.Items, func(u unstructured.Unstructured) string { return u.GetNamespace() })
	for _, u := range agents {
		tools, _, _ := unstructured.NestedSlice(u.Object, "spec", "declarative", "tools")
		for _, one := range tools {
			text, err := json.Marshal(one)
			if err != nil {
				continue
			}
			type reference struct {
				Kind, Name, Namespace string
				ToolNames             []string
			}
			var t struct{ McpServer, Agent *reference }
			if json.Unmarshal(text, &t) != nil {
				continue
			}
			to := t.McpServer
			if to == nil {
				to = t.Agent
			}
			if to == nil {
				continue
			}
			kind := to.Kind
			if t.McpServer == nil {
				kind = "Agent"
			}
			out = append(out, binding{store.Key{Resource: agentsResource, Namespace: u.GetNamespace(), Name: u.GetName()},
				cmp.Or(kind, "MCPServer"), cmp.Or(to.Namespace, u.GetNamespace()), to.Name, to.ToolNames})
		}
	}
	slices.SortFunc(out, func(a, b binding) int {
		return strings.Compare(a.Agent.Namespace+"/"+a.Agent.Name+"/"+a.Name, b.Agent.Namespace+"/"+b.Agent.Name+"/"+b.Name)
	})
	return out, err
}
