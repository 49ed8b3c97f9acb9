package graph_test

import (
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"html"
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
	"github.com/armature-dev/armature/builds/graph"
	"github.com/armature-dev/armature/builds/manifest"
)

var update = flag.Bool("update", false, "write testdata/*.txtar")

func drawn(t testing.TB, format string, pipelines ...graph.Pipeline) string {
	t.Helper()
	var b strings.Builder
	if err := graph.Write(&b, format, pipelines); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// shipped composes the example's build in a shipped mode.
func shipped(t testing.TB, mode string) graph.Pipeline {
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
	return graph.Of("AgentBuild "+builds[0].Name, out.Pipeline)
}

// TestGoldens: each shipped mode has its drawings in testdata, in every format.
func TestGoldens(t *testing.T) {
	for _, mode := range []string{"dev", "buildpack-dev", "dev-local", "dev-external", "preprod", "prod", "custom"} {
		t.Run(mode, func(t *testing.T) {
			p := shipped(t, mode)
			got := &txtar.Archive{}
			for _, format := range graph.Formats() {
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

// TestPictureInDocs: the documentation shows the drawing as it is made today.
func TestPictureInDocs(t *testing.T) {
	file := "../../docs/images/build.svg"
	now := drawn(t, "svg", shipped(t, "prod"))
	if *update {
		if err := os.WriteFile(file, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if shown, err := os.ReadFile(file); err != nil || string(shown) != now {
		t.Errorf("%s is out of date (%v): go test ./builds/graph -update", file, err)
	}
}

// hostile are names that mean something to what reads the drawings.
var hostile = []string{
	`"><script>alert(1)</script>`, `x"]; click x "javascript:alert(1)"`, `%%{init: {"securityLevel": "loose"}}%%`, "end", "a\nb --> c", `back\slash\`, `&quot;&#34;`,
	"#quot;", "`**bold**`", "\u202egnp.exe", "nul\x00 esc\x1b[2J", "not \xff valid", "\ufffe", strings.Repeat("long-", 200), "漢字漢字漢字漢字漢字漢字漢字漢字", "$$x^2$$", "", "finally",
}

// attacked is a pipeline of hostile names in every place, which says what its tasks
// are called in a drawing.
func attacked() (graph.Pipeline, []string) {
	var p tektonv1.Pipeline
	for i, name := range hostile {
		task := tektonv1.PipelineTask{Name: name, When: tektonv1.WhenExpressions{{Input: name, Operator: selection.In, Values: []string{name}}}}
		task.TaskSpec = &tektonv1.EmbeddedTask{TaskSpec: tektonv1.TaskSpec{Steps: []tektonv1.Step{{Name: name}}}}
		if i > 0 {
			task.RunAfter = []string{hostile[i-1]}
		}
		p.Spec.Tasks = append(p.Spec.Tasks, task)
		p.Spec.Finally = append(p.Spec.Finally, tektonv1.PipelineTask{Name: name + "-finally"})
		p.Spec.Results = append(p.Spec.Results, tektonv1.PipelineResult{Name: name, Value: *tektonv1.NewStructuredValues(name)})
	}
	drawn := graph.Of(hostile[0], &p)
	var names []string
	for _, task := range drawn.Tasks {
		names = append(names, task.Name)
	}
	return drawn, names
}

// TestHostileNamesInSVG: whatever tasks are called, the drawing is well-formed XML
// of the elements and attributes that it is made of, and the names are text.
func TestHostileNamesInSVG(t *testing.T) {
	p, names := attacked()
	elements := []string{"svg", "title", "desc", "style", "defs", "marker", "path", "rect", "g", "text"}
	attributes := []string{"xmlns", "width", "height", "viewBox", "role", "aria-labelledby", "aria-describedby", "id", "refX", "refY", "markerWidth", "markerHeight", "orient", "class", "d",
		"transform", "x", "y", "rx", "marker-end", "textLength", "lengthAdjust"}
	decoder := xml.NewDecoder(strings.NewReader(drawn(t, "svg", p, p)))
	var titles []string
	element := ""
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			element = x.Name.Local
			if !slices.Contains(elements, element) {
				t.Errorf("an element %s", element)
			}
			for _, a := range x.Attr {
				if !slices.Contains(attributes, a.Name.Local) {
					t.Errorf("an attribute %s=%q", a.Name.Local, a.Value)
				}
			}
		case xml.CharData:
			if element == "title" {
				titles = append(titles, string(x))
			}
			if strings.ContainsAny(string(x), "\u202e\x00\x1b\ufffe") {
				t.Errorf("a character that steers: %q", x)
			}
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(titles, func(s string) bool { return strings.HasPrefix(s, name) }) {
			t.Errorf("no title for %q", name)
		}
	}
}

// TestHostileNamesInMermaid: each line is a node, an edge or a frame, and what is in
// quotes consists of plain characters and entities.
func TestHostileNamesInMermaid(t *testing.T) {
	p, names := attacked()
	const id, label = `(?:b\d_)?(?:[nt]_[a-z0-9_]+)`, `"((?:[\pL\p{Nd} \-.,:/()]|#\d+;)*)"`
	line := regexp.MustCompile(`^(?:flowchart TD|  subgraph b\d_build\[` + label + `\]|  end| +` + id + `\[` + label + `\]| +` + id + ` -->\|` + label + `\| ` + id +
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

// TestHostileNamesInDOT: each line is a statement, and the strings in it, unescaped
// as Graphviz does, are the names.
func TestHostileNamesInDOT(t *testing.T) {
	p, names := attacked()
	const text = `"((?:[^"\\]|\\.)*)"`
	line := regexp.MustCompile(`^(?:digraph ` + text + ` \{|  rankdir=LR|  node \[shape=box, style=rounded\]| +n\d+ \[label=` + text + `, tooltip=` + text +
		`\]|  n\d+ -> n\d+|  subgraph cluster_finally \{|    label=finally|    style=dashed|  ?\}|\})$`)
	label := regexp.MustCompile(` +n\d+ \[label=` + text)
	var found []string
	for l := range strings.Lines(drawn(t, "dot", p, p)) {
		l = strings.TrimSuffix(l, "\n")
		if !line.MatchString(l) {
			t.Errorf("not of the language: %q", l)
		}
		if m := label.FindStringSubmatch(l); m != nil {
			first, _, _ := strings.Cut(strings.ReplaceAll(m[1], `\\`, "\x01"), `\n`)
			found = append(found, html.UnescapeString(strings.NewReplacer(`\"`, `"`, "\x01", `\`).Replace(first)))
		}
	}
	if diff := cmp.Diff(append(slices.Clone(names), names...), sorted(found, append(slices.Clone(names), names...))); diff != "" {
		t.Error(diff)
	}
}

// sorted gives texts in the order of others; those that are not among them last.
func sorted(texts, order []string) []string {
	slices.SortStableFunc(texts, func(a, b string) int { return index(order, a) - index(order, b) })
	if half := len(order) / 2; len(texts) == len(order) { // each is there twice
		var out []string
		for pass := range 2 {
			for i := range half {
				out = append(out, texts[2*i+pass])
			}
		}
		return out
	}
	return texts
}

func index(of []string, s string) int {
	if i := slices.Index(of, s); i >= 0 {
		return i
	}
	return len(of)
}

// TestLayout: in a pipeline of many tasks boxes do not overlap, each task is right of
// those that it waits for, and an edge that others imply is not drawn.
func TestLayout(t *testing.T) {
	var p tektonv1.Pipeline
	edges := 0
	for i := range 60 {
		task := tektonv1.PipelineTask{Name: fmt.Sprintf("task-%d", i)}
		for j := range i {
			if (i*7+j*13)%11 == 0 {
				task.RunAfter = append(task.RunAfter, fmt.Sprintf("task-%d", j))
			}
		}
		edges += len(task.RunAfter)
		p.Spec.Tasks = append(p.Spec.Tasks, task)
	}
	p.Spec.Finally = []tektonv1.PipelineTask{{Name: "report"}, {Name: "clean-up"}}
	out := drawn(t, "svg", graph.Of("many", &p))
	group := regexp.MustCompile(`<g class="task[ a-z]*" transform="translate\((\d+) (\d+)\)"><title>([^;,<]*)[^<]*</title>\n<rect width="(\d+)" height="(\d+)"`)
	type place struct{ x, y, w, h int }
	at := map[string]place{}
	for _, m := range group.FindAllStringSubmatch(out, -1) {
		n := func(i int) int { v, _ := strconv.Atoi(m[i]); return v }
		at[m[3]] = place{n(1), n(2), n(4), n(5)}
	}
	if len(at) != 62 {
		t.Fatalf("%d tasks are drawn:\n%s", len(at), out)
	}
	for a, p := range at {
		for b, q := range at {
			if a != b && p.x < q.x+q.w && q.x < p.x+p.w && p.y < q.y+q.h && q.y < p.y+p.h {
				t.Errorf("%s and %s overlap", a, b)
			}
		}
	}
	for _, task := range p.Spec.Tasks {
		for _, from := range task.RunAfter {
			if at[from].x+at[from].w > at[task.Name].x {
				t.Errorf("%s is not right of %s", task.Name, from)
			}
		}
		if at["report"].x <= at[task.Name].x {
			t.Errorf("%s is not left of what runs finally", task.Name)
		}
	}
	if n := strings.Count(out, `class="edge"`); n == 0 || n >= edges {
		t.Errorf("%d of %d edges are drawn", n, edges)
	}
}

// TestSeveralBuilds: a file of two builds gives one drawing that names both.
func TestSeveralBuilds(t *testing.T) {
	one, two := shipped(t, "dev"), shipped(t, "custom")
	one.Name, two.Name = "one", "two"
	for format, documents := range map[string]string{"text": "tasks\n", "mermaid": "flowchart TD", "dot": "digraph ", "svg": "</svg>"} {
		out := drawn(t, format, one, two)
		want := map[string]int{"text": 2, "dot": 2, "mermaid": 1, "svg": 1}[format]
		if strings.Count(out, documents) != want || !strings.Contains(out, "one") || !strings.Contains(out, "two") {
			t.Errorf("%s: %s", format, out)
		}
	}
	if err := graph.Write(io.Discard, "png", []graph.Pipeline{one}); err == nil {
		t.Error("an unknown format is accepted")
	}
}
