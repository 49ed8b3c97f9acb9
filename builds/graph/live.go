package graph

import (
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"
)

// relevance of the states, the most relevant first. A task of another state, and of a
// pipeline that does not run, is as relevant as a pending one.
var relevance = []string{"Failed", "Running", "Cancelled", "Pending", "Skipped", "Succeeded"}

func (t *Task) relevance() int {
	if i := slices.Index(relevance, t.State); i >= 0 {
		return i
	}
	return slices.Index(relevance, "Pending")
}

// state of a task in a run, in words.
func (t *Task) state() string { return strings.TrimSpace(t.State + " " + t.Note) }

// maxEdges are drawn of a pipeline. More are a knot that nobody can follow.
const maxEdges = 1000

// Most keeps that many tasks, the most relevant ones, in their order. A task that waited for
// one that is left out then waits for those that this one waited for.
func (p Pipeline) Most(most int) Pipeline {
	if len(p.Tasks) > most {
		p = p.without(most)
	}
	edges := 0
	for i := range p.Tasks {
		if edges += len(p.Tasks[i].from); edges > maxEdges {
			p.Tasks = slices.Clone(p.Tasks)
			for i := range p.Tasks {
				p.Tasks[i].from = nil
			}
			p.LeftOut = strings.TrimPrefix(p.LeftOut+"; more dependencies than can be drawn", "; ")
			break
		}
	}
	return p
}

func (p Pipeline) without(most int) Pipeline {
	order := make([]int, len(p.Tasks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return p.Tasks[a].relevance() - p.Tasks[b].relevance() })
	_, above := p.waits()
	kept, left := slices.Sorted(slices.Values(order[:most])), map[string]int{}
	for _, i := range order[most:] {
		left[strings.ToLower(cmp.Or(p.Tasks[i].State, "Pending"))]++
	}
	out := p
	out.Tasks = make([]Task, 0, most)
	for _, i := range kept {
		t := p.Tasks[i]
		t.After = nil
		for _, j := range kept {
			if above[i].has(j) {
				t.After = append(t.After, p.Tasks[j].Name)
			}
		}
		out.Tasks = append(out.Tasks, t)
	}
	out.connect()
	for i, t := range out.Tasks { // what is shown of a task are the tasks right before it
		out.Tasks[i].After = nil
		for _, j := range t.from {
			out.Tasks[i].After = append(out.Tasks[i].After, out.Tasks[j].Name)
		}
	}
	var words []string
	for _, state := range relevance {
		if n := left[strings.ToLower(state)]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, strings.ToLower(state)))
		}
	}
	out.LeftOut = strings.Join(words, ", ") + " not drawn"
	return out
}

// Style is the style sheet of Inline.
func Style() string { return style }

// Inline is a pipeline as an SVG for a page that has Style: without a style of its own,
// which a strict Content-Security-Policy refuses, and without a title. The page has the list
// of its tasks as text.
func (p Pipeline) Inline() string {
	var b, body strings.Builder
	width, height := p.draw(&body, -heading+margin, false)
	fmt.Fprintf(&b, `<svg class="pipeline" xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="group" aria-label="Pipeline of %s">`+"\n",
		width, height, width, height, html.EscapeString(p.Name))
	b.WriteString(tip + body.String() + "</svg>\n")
	return b.String()
}
