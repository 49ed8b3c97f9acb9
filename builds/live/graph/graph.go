// Package graph draws the pipelines that AgentBuilds become, as text and as Mermaid, and
// arranges their tasks in columns. It is pure. Equal pipelines result in equal bytes, and
// names in them may be anything.
package graph

import (
	"fmt"
	"io"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/functions/text"
)

// Pipeline is what is drawn of one pipeline.
type Pipeline struct {
	// Name is the build's.
	Name string
	// Tasks of the pipeline in its order, followed by the finally tasks.
	Tasks []Task
	// Results are lines such as "image = $(tasks.push.results.image)".
	Results []string
}

// Task is a task of a pipeline.
type Task struct {
	Name    string
	Finally bool
	// After are the tasks that it waits for, by order or for a result.
	After []string
	// When are the conditions that it runs under, such as "$(params.scan) in yes".
	When []string
	// from are the edges that are drawn: the indices of the tasks in After, without those
	// that another task in After waits for.
	from []int
}

// Of reads a pipeline. Name is the build's.
func Of(name string, p *tektonv1.Pipeline) Pipeline {
	out := Pipeline{Name: text.Printable(name)}
	for i, list := range [][]tektonv1.PipelineTask{p.Spec.Tasks, p.Spec.Finally} {
		for _, t := range list {
			task := Task{Name: text.Printable(t.Name), Finally: i == 1}
			for _, name := range dependencies(t) {
				task.After = append(task.After, text.Printable(name))
			}
			for _, w := range t.When {
				task.When = append(task.When,
					text.Printable(fmt.Sprintf("%s %s %s", w.Input, w.Operator,
						strings.Join(w.Values, "|"))))
			}
			out.Tasks = append(out.Tasks, task)
		}
	}
	for _, r := range p.Spec.Results {
		out.Results = append(out.Results, text.Printable(r.Name+" = "+r.Value.StringVal))
	}
	out.connect()
	return out
}

// dependencies of a task by order or by result, each once, order first.
func dependencies(t tektonv1.PipelineTask) []string {
	out := slices.Clone(t.RunAfter)
	for _, name := range t.Deps() {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// connect finds the edges. A task gets no edge to a task that it reaches through another one.
func (p *Pipeline) connect() {
	all, above := p.waits()
	for i := range p.Tasks {
		p.Tasks[i].from = nil
		for _, j := range all[i] {
			if !slices.ContainsFunc(all[i], func(k int) bool { return k != j && above[k].has(j) }) {
				p.Tasks[i].from = append(p.Tasks[i].from, j)
			}
		}
	}
}

// waits returns the tasks that each task names in After, and all those that it waits for, over
// one edge or more.
func (p *Pipeline) waits() (all [][]int, above []set) {
	number := map[string][]int{}
	for i, t := range p.Tasks {
		if !t.Finally {
			number[t.Name] = append(number[t.Name], i)
		}
	}
	all, above = make([][]int, len(p.Tasks)), make([]set, len(p.Tasks))
	for i, t := range p.Tasks {
		above[i] = make(set, (len(p.Tasks)+63)/64)
		for _, name := range t.After {
			for _, j := range number[name] {
				if i != j && !t.Finally && !slices.Contains(all[i], j) {
					all[i] = append(all[i], j)
				}
			}
		}
		slices.Sort(all[i])
	}
	// Tasks after those that they wait for, so that a second round finds something to add only
	// in a circle.
	var order []int
	seen := make([]bool, len(p.Tasks))
	var visit func(int)
	visit = func(i int) {
		if seen[i] {
			return
		}
		seen[i] = true
		for _, j := range all[i] {
			visit(j)
		}
		order = append(order, i)
	}
	for i := range p.Tasks {
		visit(i)
	}
	for changed := true; changed; {
		changed = false
		for _, i := range order {
			for _, j := range all[i] {
				changed = above[i].add(j, above[j]) || changed
			}
		}
	}
	return all, above
}

// set of numbers of tasks.
type set []uint64

func (s set) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

// add a number and all of another set, and report whether that changed anything.
func (s set) add(i int, more set) (changed bool) {
	if changed = !s.has(i); changed {
		s[i/64] |= 1 << (i % 64)
	}
	for n, bits := range more {
		changed = changed || bits&^s[n] != 0
		s[n] |= bits
	}
	return changed
}

// Columns returns the indices of the tasks in each column. A task is right of all that it
// waits for, and finally tasks are in the last column. Tasks in a circle, which Tekton
// refuses, are somewhere.
func (p *Pipeline) Columns() (out [][]int) {
	column := make([]int, len(p.Tasks))
	seen := make([]bool, len(p.Tasks))
	var place func(int) int
	place = func(i int) int {
		if !seen[i] {
			seen[i] = true
			for _, j := range p.Tasks[i].from {
				column[i] = max(column[i], place(j)+1)
			}
		}
		return column[i]
	}

	last := -1
	for i := range p.Tasks {
		if !p.Tasks[i].Finally {
			last = max(last, place(i))
		}
	}
	for i := range p.Tasks {
		if p.Tasks[i].Finally {
			column[i] = last + 1
		}
		for len(out) <= column[i] {
			out = append(out, nil)
		}
		out[column[i]] = append(out[column[i]], i)
	}
	return out
}

// Formats are the ways to draw.
func Formats() []string { return []string{"text", "mermaid"} }

// Write draws pipelines in one of the Formats: one drawing for all of them.
func Write(w io.Writer, format string, pipelines []Pipeline) error {
	draw, ok := map[string]func(*strings.Builder, []Pipeline){"text": textOf, "mermaid": mermaid}[format]
	if !ok {
		return fmt.Errorf("unknown format %q: choose from %s", format,
			strings.Join(Formats(), ", "))
	}
	var b strings.Builder
	draw(&b, pipelines)
	_, err := io.WriteString(w, b.String())
	return err
}

// text has a line for each task, in the order of the pipeline.
func textOf(b *strings.Builder, pipelines []Pipeline) {
	for i := range pipelines {
		p := &pipelines[i]
		if len(pipelines) > 1 {
			fmt.Fprintf(b, "%s\n", p.Name)
		}
		last := len(p.Tasks) - 1
		for n, t := range p.Tasks {
			switch {
			case t.Finally && (n == 0 || !p.Tasks[n-1].Finally):
				b.WriteString("finally\n")
			case n == 0:
				b.WriteString("tasks\n")
			}
			mark := "├─"
			if n == last || p.Tasks[n+1].Finally != t.Finally {
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
