package graph_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/graph"
)

// large is a pipeline whose tasks wait for some of those before them. Every tenth failed.
func large(tasks int, waits func(task, other int) bool) graph.Pipeline {
	var p tektonv1.Pipeline
	for i := range tasks {
		task := tektonv1.PipelineTask{Name: fmt.Sprintf("task-%d", i)}
		for j := range i {
			if waits(i, j) {
				task.RunAfter = append(task.RunAfter, fmt.Sprintf("task-%d", j))
			}
		}
		p.Spec.Tasks = append(p.Spec.Tasks, task)
	}
	out := graph.Of("large", &p)
	for i := range out.Tasks {
		out.Tasks[i].State = "Succeeded"
		if i%10 == 0 {
			out.Tasks[i].State = "Failed"
		}
	}
	return out
}

// Of a large pipeline the most relevant tasks are drawn, in their order, and a task that
// waited for one that is left out waits for what this one waited for.
func TestMostDrawsTheMostRelevant(t *testing.T) {
	p := large(300, func(i, j int) bool { return j == i-1 }).Most(200)
	var names []string
	failed := 0
	for _, task := range p.Tasks {
		names = append(names, task.Name)
		if task.State == "Failed" {
			failed++
		}
	}
	if len(names) != 200 || failed != 30 {
		t.Errorf("%d tasks are drawn, %d of them failed", len(names), failed)
	}
	if p.LeftOut != "100 succeeded not drawn" {
		t.Errorf("it says %q", p.LeftOut)
	}
	if n := strings.Count(p.Inline(), `class="edge"`); n != 199 {
		t.Errorf("%d edges of the chain", n)
	}
	last := p.Tasks[199]
	if last.Name != "task-290" || !slices.Equal(last.After, []string{"task-280"}) {
		t.Errorf("%s waits for %v", last.Name, last.After)
	}
	if small := large(20, func(i, j int) bool { return j == i-1 }); len(small.Most(200).Tasks) != 20 || small.Most(200).LeftOut != "" {
		t.Error("a small pipeline is not drawn whole")
	}
}

// A circle, which Tekton refuses, ends.
func TestMostOfACircle(t *testing.T) {
	var p tektonv1.Pipeline
	for i := range 10 {
		p.Spec.Tasks = append(p.Spec.Tasks, tektonv1.PipelineTask{Name: fmt.Sprint(i), RunAfter: []string{fmt.Sprint((i + 1) % 10)}})
	}
	if got := graph.Of("circle", &p).Most(5); len(got.Tasks) != 5 || got.Inline() == "" {
		t.Errorf("%d tasks", len(got.Tasks))
	}
}

// What is put into a page is well-formed, has no style or script, and shows the states in
// words. Hostile names and links stay what they are.
func TestInline(t *testing.T) {
	p, _ := attacked()
	for i := range p.Tasks {
		p.Tasks[i].State, p.Tasks[i].Note, p.Tasks[i].Link = []string{"Failed", "Running", `"><script>`}[i%3], "<b>12s</b>", `#task"><script>`
	}
	out := p.Inline()
	elements := []string{"svg", "title", "defs", "marker", "path", "rect", "g", "text", "a"}
	decoder := xml.NewDecoder(strings.NewReader(out))
	links := 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		x, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		if !slices.Contains(elements, x.Name.Local) {
			t.Errorf("an element %s", x.Name.Local)
		}
		for _, a := range x.Attr {
			if a.Name.Local == "style" || strings.HasPrefix(a.Name.Local, "on") {
				t.Errorf("an attribute %s", a.Name.Local)
			}
			if a.Name.Local == "href" {
				links++
			}
		}
	}
	if links != len(p.Tasks) {
		t.Errorf("%d links of %d tasks", links, len(p.Tasks))
	}
	if !strings.Contains(out, ">Failed &lt;b&gt;12s&lt;/b&gt;<") || !strings.Contains(out, `class="task failed"`) && !strings.Contains(out, `class="task maybe failed"`) {
		t.Error("no state is shown")
	}
	for _, rule := range regexp.MustCompile(`(?m)^\s*([^@{}\n]+) \{`).FindAllStringSubmatch(graph.Style(), -1) {
		for selector := range strings.SplitSeq(rule[1], ", ") {
			if !strings.HasPrefix(selector, ".pipeline") {
				t.Errorf("the style changes more of the page than the drawing: %s", selector)
			}
		}
	}
}

// shapes of large pipelines: ordinary, and those that cost most.
var shapes = map[string]func(i, j int) bool{
	"chain": func(i, j int) bool { return j == i-1 },
	"wide":  func(i, j int) bool { return j < 5 && i >= 5 },
	"mesh":  func(i, j int) bool { return (i*7+j*13)%11 == 0 },
	"all":   func(i, j int) bool { return true },
	"two":   func(i, j int) bool { return i >= 150 && j < 150 },
}

func TestLargeGraphIsQuick(t *testing.T) {
	for name, waits := range shapes {
		p := large(300, waits)
		begun := time.Now()
		out := p.Most(200).Inline()
		if took := time.Since(begun); took > time.Second { // ten times the aim, for a machine under load
			t.Errorf("%s takes %s", name, took)
		}
		if len(out) > 2<<20 {
			t.Errorf("%s is %d KiB", name, len(out)>>10)
		}
	}
}

func BenchmarkConsoleGraph(b *testing.B) {
	for name, waits := range shapes {
		p := large(300, waits)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_ = p.Most(200).Inline()
			}
		})
	}
}
