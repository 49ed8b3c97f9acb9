package compose

import (
	"fmt"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
)

// Graph draws a pipeline as text, one line a task in the order of the pipeline.
func Graph(p *tektonv1.Pipeline) string {
	var b strings.Builder
	list := func(title string, tasks []tektonv1.PipelineTask) {
		if len(tasks) == 0 {
			return
		}
		fmt.Fprintf(&b, "%s\n", title)
		for i, t := range tasks {
			mark := "├─"
			if i == len(tasks)-1 {
				mark = "└─"
			}
			fmt.Fprintf(&b, "%s %s", mark, t.Name)
			if after := dependencies(t); len(after) > 0 {
				fmt.Fprintf(&b, "  after %s", strings.Join(after, ", "))
			}
			for _, w := range t.When {
				fmt.Fprintf(&b, "  when %s", whenText(w))
			}
			b.WriteString("\n")
		}
	}
	list("tasks", p.Spec.Tasks)
	list("finally", p.Spec.Finally)
	for _, r := range p.Spec.Results {
		fmt.Fprintf(&b, "result %s = %s\n", r.Name, r.Value.StringVal)
	}
	return b.String()
}

// Mermaid draws a pipeline as a Mermaid flowchart.
func Mermaid(p *tektonv1.Pipeline) string {
	var b strings.Builder
	b.WriteString("flowchart TD\n")
	for _, t := range append(append([]tektonv1.PipelineTask{}, p.Spec.Tasks...), p.Spec.Finally...) {
		fmt.Fprintf(&b, "  %s[\"%s\"]\n", mermaidID(t.Name), t.Name)
	}
	for _, t := range p.Spec.Tasks {
		label := ""
		if len(t.When) > 0 {
			label = "|\"" + strings.ReplaceAll(whenText(t.When[0]), "\"", "'") + "\"|"
		}
		for _, after := range dependencies(t) {
			fmt.Fprintf(&b, "  %s -->%s %s\n", mermaidID(after), label, mermaidID(t.Name))
		}
	}
	for _, t := range p.Spec.Finally {
		fmt.Fprintf(&b, "  finally((finally)) -.-> %s\n", mermaidID(t.Name))
	}
	return b.String()
}

// dependencies of a task by order or by result, each once, order first.
func dependencies(t tektonv1.PipelineTask) []string {
	out := append([]string{}, t.RunAfter...)
	seen := map[string]bool{}
	for _, name := range out {
		seen[name] = true
	}
	for _, name := range t.Deps() {
		if !seen[name] {
			seen[name] = true
			out = append(out, name)
		}
	}
	return out
}

func whenText(w tektonv1.WhenExpression) string {
	return fmt.Sprintf("%s %s %s", w.Input, w.Operator, strings.Join(w.Values, "|"))
}

// mermaidID avoids the words that Mermaid keeps for itself, such as end.
func mermaidID(task string) string { return "t_" + strings.ReplaceAll(task, "-", "_") }
