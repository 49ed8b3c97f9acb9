package kagentagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/template/parse"

	"github.com/armature-dev/armature/functions/krm"
)

// maxPrompt is what a prompt may have: it has to fit a ConfigMap.
const maxPrompt = 512 << 10

// prompt is what kagent makes of a system message with a promptTemplate: a Go
// template that includes texts of ConfigMaps.
func (e *expander) prompt(d *declarative, message string, tools ...[]string) string {
	const at = "spec.declarative.promptTemplate"
	if d.SystemMessageFrom != nil {
		e.error("unsupported", at, "a template is rendered from systemMessage only, since nothing is read from Secrets", "write the message into systemMessage")
		return ""
	}
	texts := make(map[string]string)
	for i, source := range d.PromptTemplate.DataSources {
		e.promptSource(source, fmt.Sprintf("%s.dataSources[%d]", at, i), texts)
	}
	if e.Failed() {
		return ""
	}
	t := prompter{texts: texts, fields: map[string]any{
		"AgentName": e.Name, "AgentNamespace": e.Namespace, "Description": e.agent.Spec.Description,
		"ToolNames": slices.Concat(tools...), "SkillNames": e.skillNames(),
	}}
	trees, err := parse.Parse("systemMessage", message, "", "", map[string]any{"include": true})
	if err == nil && len(trees) > 1 {
		err = errors.New("templates inside the template are not expanded")
	}
	if tree := trees["systemMessage"]; err == nil && tree != nil {
		err = t.list(tree.Root, t.fields)
	}
	if err != nil {
		e.error("prompt", "spec.declarative.systemMessage", err.Error(), "correct the template, or write its text without one")
		return ""
	}
	return t.out.String()
}

// promptSource reads the texts of a ConfigMap, by "name/key".
func (e *expander) promptSource(source promptSource, at string, texts map[string]string) {
	if source.Kind != "" && source.Kind != "ConfigMap" || source.APIGroup != "" {
		e.error("prompt", at, "texts are in ConfigMaps only", "say kind: ConfigMap and no apiGroup")
		return
	}
	o := e.Read("ConfigMap", e.Namespace, source.Name)
	if o == nil {
		e.error("prompt", at, fmt.Sprintf("the package has no ConfigMap %s", krm.Shown(source.Name)), "add it to the package: the agent's instruction is made from it")
		return
	}
	var content struct {
		Data map[string]string `json:"data"`
	}
	data, err := o.JSON()
	if err == nil {
		err = json.Unmarshal(data, &content)
	}
	if err != nil {
		e.error("prompt", at, fmt.Sprintf("%s: %v", o.Ref, err), "correct the ConfigMap")
		return
	}
	name := source.Alias
	if name == "" {
		name = source.Name
	}
	for key, text := range content.Data {
		if _, twice := texts[name+"/"+key]; twice {
			e.error("prompt", at, fmt.Sprintf("a second text %s/%s", krm.Shown(name), krm.Shown(key)), "give one of the sources an alias")
			return
		}
		texts[name+"/"+key] = text
	}
}

// skillNames gives the folders of the agent's skills.
func (e *expander) skillNames() (names []string) {
	if s := e.agent.Spec.Skills; s != nil {
		for _, image := range s.Refs {
			names = append(names, imageFolder(image))
		}
		for _, ref := range s.GitRefs {
			names = append(names, ref.folder())
		}
	}
	return names
}

// prompter executes the part of Go's templates that prompts are made of: fields,
// include, if, with, and range over a list, which is not inside another. The author
// of a package may be somebody else than the one who renders it, so that nothing
// else may take its time or memory.
type prompter struct {
	texts   map[string]string
	fields  map[string]any // texts, and lists of texts
	ranging bool
	out     strings.Builder
}

func (t *prompter) write(text string) error {
	if t.out.Len()+len(text) > maxPrompt {
		return fmt.Errorf("the text has more than %d bytes", maxPrompt)
	}
	t.out.WriteString(text)
	return nil
}

// list executes nodes with a value for the dot.
func (t *prompter) list(n *parse.ListNode, dot any) error {
	if n == nil {
		return nil
	}
	for _, node := range n.Nodes {
		if err := t.node(node, dot); err != nil {
			return err
		}
	}
	return nil
}

func (t *prompter) node(n parse.Node, dot any) error {
	switch n := n.(type) {
	case *parse.TextNode:
		return t.write(string(n.Text))
	case *parse.CommentNode:
		return nil
	case *parse.ActionNode:
		value, err := t.value(n.Pipe, dot)
		if err != nil {
			return err
		}
		return t.write(fmt.Sprint(value))
	case *parse.IfNode:
		return t.branch(&n.BranchNode, dot, false)
	case *parse.WithNode:
		return t.branch(&n.BranchNode, dot, true)
	case *parse.RangeNode:
		value, err := t.value(n.Pipe, dot)
		if err != nil {
			return err
		}
		items, ok := value.([]string)
		if !ok || t.ranging {
			return fmt.Errorf("%s: only a range over .ToolNames or .SkillNames, and not inside another, is expanded", krm.Shown(n.Pipe.String()))
		}
		if len(items) == 0 {
			return t.list(n.ElseList, dot)
		}
		t.ranging = true
		defer func() { t.ranging = false }()
		for _, item := range items {
			if err := t.list(n.List, item); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%s is not expanded", krm.Shown(n.String()))
}

// branch executes an if or a with.
func (t *prompter) branch(b *parse.BranchNode, dot any, with bool) error {
	value, err := t.value(b.Pipe, dot)
	if err != nil {
		return err
	}
	list, isList := value.([]string)
	switch {
	case isList && len(list) == 0 || value == "":
		return t.list(b.ElseList, dot)
	case with:
		return t.list(b.List, value)
	}
	return t.list(b.List, dot)
}

// value is that of an action: a field, the dot, or an included text.
func (t *prompter) value(p *parse.PipeNode, dot any) (any, error) {
	other := fmt.Errorf("%s is not expanded: only fields such as .AgentName, and include", krm.Shown(p.String()))
	if len(p.Decl) > 0 || len(p.Cmds) != 1 {
		return nil, other
	}
	args := p.Cmds[0].Args
	switch first := args[0].(type) {
	case *parse.IdentifierNode: // include is the only function that parses
		if len(args) != 2 {
			return nil, other
		}
		name, ok := args[1].(*parse.StringNode)
		if !ok {
			return nil, other
		}
		text, found := t.texts[name.Text]
		if !found {
			return nil, fmt.Errorf("the data sources have no text %q", krm.Shown(name.Text))
		}
		return text, nil
	case *parse.DotNode:
		if _, all := dot.(map[string]any); !all && len(args) == 1 {
			return dot, nil
		}
	case *parse.FieldNode:
		if fields, all := dot.(map[string]any); all && len(args) == 1 && len(first.Ident) == 1 {
			return t.field(fields, first.Ident[0])
		}
	case *parse.VariableNode: // $ is the only one that parses
		if len(args) == 1 && len(first.Ident) == 2 && first.Ident[0] == "$" {
			return t.field(t.fields, first.Ident[1])
		}
	}
	return nil, other
}

func (t *prompter) field(fields map[string]any, name string) (any, error) {
	value, found := fields[name]
	if !found {
		return nil, fmt.Errorf("a prompt has no field %q", krm.Shown(name))
	}
	return value, nil
}
