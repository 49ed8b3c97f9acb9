package kagentagent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/template/parse"

	"github.com/armature-dev/armature/functions/krm"
	fetch "github.com/armature-dev/armature/functions/skills"
	"github.com/armature-dev/armature/functions/text"
)

// maxPrompt bounds the length of a prompt, which has to fit into a ConfigMap.
const maxPrompt = 512 << 10

// maxSteps bounds the nodes of a template that are executed, because nodes without output are not
// bounded by maxPrompt.
const maxSteps = 400_000

// promptOf returns the instruction that kagent derives from a system message with a promptTemplate:
// a Go template that includes texts of ConfigMaps.
func promptOf(e *expander, d *declarative, message string, tools ...[]string) string {
	const at = "spec.declarative.promptTemplate"
	texts := make(map[string]string)
	for i, source := range d.PromptTemplate.DataSources {
		readSource(e, source, fmt.Sprintf("%s.dataSources[%d]", at, i), texts)
	}
	if e.Failed() {
		return ""
	}
	t := prompter{texts: texts, fields: map[string]any{
		"AgentName": e.Name, "AgentNamespace": e.Namespace, "Description": e.agent.Spec.Description,
		"ToolNames": slices.Concat(tools...), "SkillNames": skillNames(e),
	}}
	trees, err := parse.Parse("systemMessage", message, "", "", map[string]any{"include": true})
	if err == nil && len(trees) > 1 {
		err = errors.New("templates inside the template are not expanded")
	}
	if tree := trees["systemMessage"]; err == nil && tree != nil {
		err = t.list(tree.Root, t.fields)
	}
	if e.FailIf(err != nil, "prompt", "spec.declarative.systemMessage",
		"correct the template, or write its text without one", "%v", err) {
		return ""
	}
	return t.out.String()
}

// readSource reads the texts of a ConfigMap, by "name/key".
func readSource(e *expander, source promptSource, at string, texts map[string]string) {
	if e.FailIf(source.Kind != "" && source.Kind != "ConfigMap" || source.APIGroup != "", "prompt",
		at, "set kind: ConfigMap, without apiGroup", "texts are in ConfigMaps only") {
		return
	}
	o := e.Read("ConfigMap", e.Namespace, source.Name)
	if e.FailIf(o == nil, "prompt", at,
		"add it to the package: the agent's instruction is made from it",
		"the package has no ConfigMap %s", source.Name) {
		return
	}
	name := cmp.Or(source.Alias, source.Name)
	for key, content := range e.texts(o, "prompt", at) {
		if _, twice := texts[name+"/"+key]; twice {
			e.Fail("prompt", at, "give one of the sources an alias", "a second text %s/%s", name,
				key)
			return
		}
		texts[name+"/"+key] = content
	}
}

// texts returns the data of a ConfigMap.
func (e *expander) texts(o *krm.Object, rule, at string) map[string]string {
	var content struct {
		Data map[string]string `json:"data"`
	}
	data, err := o.JSON()
	if err == nil {
		err = json.Unmarshal(data, &content)
	}
	e.FailIf(err != nil, rule, at, "correct the ConfigMap", "%s: %v", o.Ref, err)
	return content.Data
}

// skillNames returns the folders of the agent's skills.
func skillNames(e *expander) (names []string) {
	if s := e.agent.Spec.Skills; s != nil {
		for _, image := range s.Refs {
			names = append(names, fetch.Folder(image))
		}
		for _, ref := range s.GitRefs {
			names = append(names, ref.folder())
		}
	}
	return names
}

// prompter executes the part of Go's templates that prompts use: fields, include, if, with, and
// range over a list, which is not nested. The author of a package may not be the person who renders
// it, so that a template must not take unbounded time or memory.
type prompter struct {
	texts   map[string]string
	fields  map[string]any // texts, and lists of texts
	ranging bool
	steps   int
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
func (t *prompter) list(list *parse.ListNode, dot any) (err error) {
	for i := 0; list != nil && err == nil && i < len(list.Nodes); i++ {
		if t.steps++; t.steps > maxSteps {
			return fmt.Errorf("the template takes more than %d steps", maxSteps)
		}
		switch n := list.Nodes[i].(type) {
		case *parse.TextNode:
			err = t.write(string(n.Text))
		case *parse.CommentNode:
		case *parse.ActionNode:
			var value any
			if value, err = t.value(n.Pipe, dot); err == nil {
				err = t.write(fmt.Sprint(value))
			}
		case *parse.IfNode:
			err = t.branch(&n.BranchNode, dot)
		case *parse.WithNode:
			err = t.branch(&n.BranchNode, dot)
		case *parse.RangeNode:
			err = t.branch(&n.BranchNode, dot)
		default:
			err = fmt.Errorf("%s is not expanded", text.Shown(n.String()))
		}
	}
	return err
}

// branch executes an if, a with or a range.
func (t *prompter) branch(b *parse.BranchNode, dot any) error {
	value, err := t.value(b.Pipe, dot)
	list, isList := value.([]string)
	switch {
	case err != nil:
		return err
	case b.NodeType == parse.NodeRange && (!isList || t.ranging):
		return fmt.Errorf(
			"%s: only a range over .ToolNames or .SkillNames, and not inside another, is expanded",
			text.Shown(b.Pipe.String()))
	case isList && len(list) == 0 || value == "":
		return t.list(b.ElseList, dot)
	case b.NodeType == parse.NodeWith:
		return t.list(b.List, value)
	case b.NodeType == parse.NodeIf:
		return t.list(b.List, dot)
	}
	t.ranging = true
	defer func() { t.ranging = false }()
	for _, item := range list {
		if err := t.list(b.List, item); err != nil {
			return err
		}
	}
	return nil
}

// value returns the value of an action: a field, the dot, or an included text.
func (t *prompter) value(p *parse.PipeNode, dot any) (any, error) {
	action := p.String()
	root, ofRoot := strings.CutPrefix(action, "$.")
	name, ofDot := strings.CutPrefix(action, ".")
	argument, includes := strings.CutPrefix(action, "include ")
	included, err := strconv.Unquote(argument)
	const others = "$. |()" // characters of actions that are more than a field
	switch fields, all := dot.(map[string]any); {
	case action == "." && !all:
		return dot, nil
	case ofRoot && !strings.ContainsAny(root, others):
		return t.field(t.fields, root)
	case ofDot && all && name != "" && !strings.ContainsAny(name, others):
		return t.field(fields, name)
	case includes && err == nil:
		content, found := t.texts[included]
		if !found {
			return nil, fmt.Errorf("the data sources have no text %q", text.Shown(included))
		}
		return content, nil
	}
	return nil, fmt.Errorf("%s is not expanded: only fields such as .AgentName, and include",
		text.Shown(action))
}

func (t *prompter) field(fields map[string]any, name string) (any, error) {
	value, found := fields[name]
	if !found {
		return nil, fmt.Errorf("a prompt has no field %q", text.Shown(name))
	}
	return value, nil
}
