package client

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/functions/text"
)

// Pipeline is a pipeline to draw. Equal pipelines yield equal bytes. Names may have any characters.
type Pipeline struct {
	// Name is the name of the build.
	Name string
	// Tasks are in the order of the pipeline, followed by the finally tasks.
	Tasks []Task
	// Results are lines, for example "image = $(tasks.push.results.image)".
	Results []string
}

// Order is the position of a task in its pipeline.
type Order struct {
	// After are the tasks that it waits for, because of runAfter or a result.
	After []string
	// When lists its conditions, for example "$(params.scan) in yes".
	When    []string
	Finally bool
	// from are the edges: the indices of the tasks in After, except those that another task in
	// After waits for.
	from   []int
	column int
}

// PipelineOf reads a pipeline. name is the name of the build.
func PipelineOf(name string, p *tektonv1.PipelineSpec) Pipeline {
	out := Pipeline{Name: text.Printable(name)}
	for t := range tekton.Tasks(p) {
		var task Task
		task.Name, task.Finally = text.Printable(t.Name), len(out.Tasks) >= len(p.Tasks)
		for _, name := range slices.Concat(t.RunAfter, t.Deps()) {
			if name := text.Printable(name); !slices.Contains(task.After, name) {
				task.After = append(task.After, name)
			}
		}
		for _, w := range t.When {
			task.When = append(task.When, text.Printable(
				fmt.Sprintf("%s %s %s", w.Input, w.Operator, strings.Join(w.Values, "|"))))
		}
		out.Tasks = append(out.Tasks, task)
	}
	for _, r := range p.Results {
		out.Results = append(out.Results, text.Printable(r.Name+" = "+r.Value.StringVal))
	}
	connect(out.Tasks)
	return out
}

// connect finds the edges and the columns. A task gets no edge to a task that it reaches through
// another one, and is right of all tasks that it waits for. Finally tasks are in the last column.
// The columns of tasks in a cycle, which Tekton refuses, are arbitrary.
func connect(tasks []Task) {
	number := map[string]int{}
	for i, t := range tasks {
		if !t.Finally {
			number[t.Name] = i
		}
	}
	above := make([]map[int]bool, len(tasks)) // the tasks that each waits for, also indirectly
	var visit func(i int)
	visit = func(i int) {
		if above[i] != nil {
			return
		}
		above[i] = map[int]bool{}
		t := &tasks[i]
		var all []int
		for _, name := range t.After {
			if j, known := number[name]; known && j != i {
				visit(j)
				maps.Copy(above[i], above[j])
				above[i][j] = true
				t.column, all = max(t.column, tasks[j].column+1), append(all, j)
			}
		}
		slices.Sort(all)
		for _, j := range all {
			if !slices.ContainsFunc(all, func(k int) bool { return k != j && above[k][j] }) {
				t.from = append(t.from, j)
			}
		}
	}

	last := 0
	for i := range tasks {
		if tasks[i].Finally {
			tasks[i].column = last
		} else {
			visit(i)
			last = max(last, tasks[i].column+1)
		}
	}
}

// columns groups the tasks by column.
func columns(tasks []Task) (out [][]Task) {
	for _, t := range tasks {
		for len(out) <= t.column {
			out = append(out, nil)
		}
		out[t.column] = append(out[t.column], t)
	}
	return out
}

// Formats returns the formats of Write.
func Formats() []string { return []string{"text", "mermaid"} }

// Write writes one drawing of all pipelines in one of the Formats.
func Write(w io.Writer, format string, pipelines []Pipeline) error {
	var b strings.Builder
	switch format {
	case "text":
		lines(&b, pipelines)
	case "mermaid":
		mermaid(&b, pipelines)
	default:
		return fmt.Errorf("unknown format %q: choose from %s", format,
			strings.Join(Formats(), ", "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// lines writes a line for each task, in the order of the pipeline.
func lines(b *strings.Builder, pipelines []Pipeline) {
	for i := range pipelines {
		p := &pipelines[i]
		if len(pipelines) > 1 {
			fmt.Fprintf(b, "%s\n", p.Name)
		}
		for n, t := range p.Tasks {
			switch {
			case t.Finally && (n == 0 || !p.Tasks[n-1].Finally):
				b.WriteString("finally\n")
			case n == 0:
				b.WriteString("tasks\n")
			}
			mark := "├─"
			if n == len(p.Tasks)-1 || p.Tasks[n+1].Finally != t.Finally {
				mark = "└─"
			}
			fmt.Fprintf(b, "%s %s", mark, t.Name)
			if len(t.After) > 0 {
				fmt.Fprintf(b, "  after %s", strings.Join(t.After, ", "))
			}
			for _, w := range t.When {
				fmt.Fprintf(b, "  when %s", w)
			}
			b.WriteString("\n")
		}
		for _, r := range p.Results {
			fmt.Fprintf(b, "result %s\n", r)
		}
	}
}

// mermaid writes a flowchart. By Mermaid's page on flowcharts, text is in quotes, and special
// characters are decimal entities, for example #34; for a quote.
func mermaid(b *strings.Builder, pipelines []Pipeline) {
	b.WriteString("flowchart TD\n")
	for n, p := range pipelines {
		indent, prefix := "  ", ""
		if len(pipelines) > 1 {
			prefix = fmt.Sprintf("b%d_", n+1)
			fmt.Fprintf(b, "  subgraph %sbuild[\"%s\"]\n", prefix, entities(p.Name))
			indent = "    "
		}
		for i, t := range p.Tasks {
			fmt.Fprintf(b, "%s%s[\"%s\"]\n", indent, prefix+p.id(i), entities(t.Name))
		}
		for i, t := range p.Tasks {
			label := ""
			if len(t.When) > 0 {
				label = "|\"" + entities(strings.Join(t.When, " and ")) + "\"|"
			}
			for _, from := range t.from {
				fmt.Fprintf(b, "%s%s -->%s %s\n", indent, prefix+p.id(from), label, prefix+p.id(i))
			}
			if t.Finally {
				fmt.Fprintf(b, "%s%sfinally((finally)) -.->%s %s\n", indent, prefix, label,
					prefix+p.id(i))
			}
		}
		if len(pipelines) > 1 {
			b.WriteString("  end\n")
		}
	}
}

// id returns the name of a task in Mermaid: the name of the task if it is valid in Kubernetes, with
// a prefix because end is a keyword.
func (p *Pipeline) id(task int) string {
	name := p.Tasks[task].Name
	other := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
	if strings.ContainsFunc(name, other) || name == "" {
		return fmt.Sprintf("n_%d", task+1)
	}
	return "t_" + strings.ReplaceAll(name, "-", "_")
}

// entities replaces the characters that have a meaning to Mermaid, Markdown or HTML.
func entities(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(" -.,:/()", r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "#%d;", r)
		}
	}
	return b.String()
}
