package client

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
)

var update = flag.Bool("update", false, "write testdata/*.txtar")

func drawn(t testing.TB, format string, pipelines ...Pipeline) string {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, format, pipelines); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// shipped composes the example's build in a shipped mode.
func shipped(t testing.TB, mode string) Pipeline {
	t.Helper()
	data, err := os.ReadFile("../../examples/builds/weather.yaml")
	if err != nil {
		t.Fatal(err)
	}
	builds, err := manifest.Builds("weather.yaml", data, api.DefaultGroup)
	if err != nil {
		t.Fatal(err)
	}
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	builds[0].Spec.Mode = mode
	out, err := library.Compose(builds[0], compose.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	return PipelineOf("AgentBuild "+builds[0].Name, &out.Pipeline.Spec)
}

// TestGoldens: each shipped mode has its drawings in testdata, in every format.
func TestGoldens(t *testing.T) {
	for _, mode := range []string{"dev", "buildpack-dev", "dev-local", "dev-external", "preprod",
		"prod", "custom"} {
		t.Run(mode, func(t *testing.T) {
			p := shipped(t, mode)
			got := &txtar.Archive{}
			for _, format := range Formats() {
				first := drawn(t, format, p)
				if again := drawn(t, format, shipped(t, mode)); again != first {
					t.Errorf("%s: drawn again it differs:\n%s", format, cmp.Diff(first, again))
				}
				got.Files = append(got.Files, txtar.File{Name: format, Data: []byte(first)})
			}
			file := filepath.Join("testdata", mode+".txtar")
			if *update {
				if err := os.WriteFile(file, txtar.Format(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(txtar.Format(got))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDrawingInDocs checks that the documentation shows the drawing as it is made today.
func TestDrawingInDocs(t *testing.T) {
	const file = "../../docs/builds.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(page), "```mermaid\n")
	_, after, _ := strings.Cut(rest, "```\n")
	now := before + "```mermaid\n" + drawn(t, "mermaid", shipped(t, "prod")) + "```\n" + after
	if now == string(page) {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date: go test ./builds/client -update", file)
	}
	if err := os.WriteFile(file, []byte(now), 0o644); err != nil {
		t.Fatal(err)
	}
}

// hostileNames are names that mean something to what reads the drawings.
var hostileNames = []string{
	`"><script>alert(1)</script>`, `x"]; click x "javascript:alert(1)"`,
	`%%{init: {"securityLevel": "loose"}}%%`, "end", "a\nb --> c", `back\slash\`, `&quot;&#34;`,
	"#quot;", "`**bold**`", "\u202egnp.exe", "nul\x00 esc\x1b[2J", "not \xff valid", "\ufffe",
	strings.Repeat("long-", 200), "漢字漢字漢字漢字漢字漢字漢字漢字", "$$x^2$$", "", "finally",
}

// attacked is a pipeline of hostile names in every place, which says what its tasks
// are called in a drawing.
func attacked() (Pipeline, []string) {
	var p tektonv1.PipelineSpec
	for i, name := range hostileNames {
		task := tektonv1.PipelineTask{Name: name,
			When: tektonv1.WhenExpressions{{Input: name, Operator: selection.In, Values: []string{name}}}}
		task.TaskSpec = &tektonv1.EmbeddedTask{
			TaskSpec: tektonv1.TaskSpec{Steps: []tektonv1.Step{{Name: name}}}}
		if i > 0 {
			task.RunAfter = []string{hostileNames[i-1]}
		}
		p.Tasks = append(p.Tasks, task)
		p.Finally = append(p.Finally, tektonv1.PipelineTask{Name: name + "-finally"})
		p.Results = append(p.Results,
			tektonv1.PipelineResult{Name: name, Value: *tektonv1.NewStructuredValues(name)})
	}
	drawn := PipelineOf(hostileNames[0], &p)
	var names []string
	for _, task := range drawn.Tasks {
		names = append(names, task.Name)
	}
	return drawn, names
}

// TestHostileNamesInMermaid: each line is a node, an edge or a frame, and what is in
// quotes consists of plain characters and entities.
func TestHostileNamesInMermaid(t *testing.T) {
	p, names := attacked()
	const id, label = `(?:b\d_)?(?:[nt]_[a-z0-9_]+)`, `"((?:[\pL\p{Nd} \-.,:/()]|#\d+;)*)"`
	line := regexp.MustCompile(`^(?:flowchart TD|  subgraph b\d_build\[` + label + `\]|  end| +` +
		id + `\[` + label + `\]| +` + id + ` -->\|` + label + `\| ` + id +
		`| +b\d_finally\(\(finally\)\) -\.-> ` + id + `)$`)
	node := regexp.MustCompile(`^ +(` + id + `)\[` + label + `\]$`)
	entity := regexp.MustCompile(`#(\d+);`)
	found := map[string]string{}
	for l := range strings.Lines(drawn(t, "mermaid", p, p)) {
		l = strings.TrimSuffix(l, "\n")
		if !line.MatchString(l) {
			t.Errorf("not of the language: %q", l)
		}
		if m := node.FindStringSubmatch(l); m != nil {
			if _, twice := found[m[1]]; twice {
				t.Errorf("two nodes %s", m[1])
			}
			found[m[1]] = entity.ReplaceAllStringFunc(m[2], func(s string) string {
				code, _ := strconv.Atoi(strings.Trim(s, "#;"))
				return string(rune(code))
			})
		}
	}
	if len(found) != 2*len(names) {
		t.Errorf("%d nodes, want %d", len(found), 2*len(names))
	}
	for _, name := range names {
		if !slices.Contains(slices.Collect(values(found)), name) {
			t.Errorf("no node is called %q", name)
		}
	}
}

func values(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

// TestColumns checks that in a pipeline of many tasks each is right of those that it waits
// for, that finally tasks are in the last column, and that each task is in one column. A
// circle, which Tekton refuses, ends.
func TestColumns(t *testing.T) {
	var p tektonv1.PipelineSpec
	for i := range 300 {
		task := tektonv1.PipelineTask{Name: fmt.Sprintf("task-%d", i)}
		for j := range i {
			if (i*7+j*13)%11 == 0 {
				task.RunAfter = append(task.RunAfter, fmt.Sprintf("task-%d", j))
			}
		}
		p.Tasks = append(p.Tasks, task)
	}
	p.Finally = []tektonv1.PipelineTask{{Name: "report"}, {Name: "clean-up"}}
	many := PipelineOf("many", &p)
	all, at := columns(many.Tasks), map[string]int{}
	for n, column := range all {
		for _, task := range column {
			at[task.Name] = n + 1
		}
	}
	if len(at) != 302 || len(slices.Concat(all...)) != 302 {
		t.Fatalf("%d tasks are in columns", len(at))
	}
	for _, task := range many.Tasks {
		for _, from := range task.After {
			if at[from] >= at[task.Name] {
				t.Errorf("%s is not right of %s", task.Name, from)
			}
		}
		if last := at[task.Name] == len(all); last != task.Finally {
			t.Errorf("%s is in the last column: %v", task.Name, last)
		}
	}

	var circle tektonv1.PipelineSpec
	for i := range 10 {
		circle.Tasks = append(circle.Tasks, tektonv1.PipelineTask{Name: fmt.Sprint(i),
			RunAfter: []string{fmt.Sprint((i + 1) % 10)}})
	}
	ring := PipelineOf("circle", &circle)
	if got := slices.Concat(columns(ring.Tasks)...); len(got) != 10 {
		t.Errorf("%d tasks of the circle", len(got))
	}
}

// TestSeveralBuilds checks that a file of two builds makes one drawing that names both.
func TestSeveralBuilds(t *testing.T) {
	one, two := shipped(t, "dev"), shipped(t, "custom")
	one.Name, two.Name = "one", "two"
	for format, documents := range map[string]string{"text": "tasks\n", "mermaid": "flowchart TD"} {
		out := drawn(t, format, one, two)
		want := map[string]int{"text": 2, "mermaid": 1}[format]
		if strings.Count(out, documents) != want || !strings.Contains(out, "one") ||
			!strings.Contains(out, "two") {
			t.Errorf("%s: %s", format, out)
		}
	}
	if err := Write(io.Discard, "png", []Pipeline{one}); err == nil {
		t.Error("an unknown format is accepted")
	}
}
