package page_test

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/armature-dev/armature/e2e/bench/workload"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/compare"
	"github.com/armature-dev/armature/render/explain"
	"github.com/armature-dev/armature/render/page"
)

// kagenti is the configuration of the profile of source 001.
var kagenti = &api.RenderConfig{Spec: api.RenderConfigSpec{Profile: new(sidecars.Kagenti),
	Trace: &api.TraceSpec{}}}

// explained renders files and prints the page of the first.
func explained(t testing.TB, files ...render.File) string {
	t.Helper()
	e, findings, err := explain.File(render.Source{Files: files}, render.Options{Config: kagenti},
		files[0].Path, explain.Selection{})
	if err != nil || finding.Failed(findings) {
		t.Fatal(err, findings)
	}
	return printed(t, func(w io.Writer) error { return page.Explain(w, e) })
}

// compared renders a file before and after a change, and prints the page of what
// differs.
func compared(t testing.TB, before, after string) string {
	t.Helper()
	var sides [2]compare.Package
	for i, text := range []string{before, after} {
		var findings []finding.Finding
		var err error
		sides[i], findings, err = compare.Render(
			render.Source{Files: []render.File{{Path: "a.yaml", Data: []byte(text)}}},
			render.Options{Config: kagenti})
		if err != nil || finding.Failed(findings) {
			t.Fatal(err, findings)
		}
	}
	report := compare.Packages(sides[0], sides[1])
	changes, err := page.ChangesOf("apps: the working tree against main", &report)
	if err != nil {
		t.Fatal(err)
	}
	return printed(t, func(w io.Writer) error { return page.Diff(w, changes) })
}

func printed(t testing.TB, print func(io.Writer) error) string {
	t.Helper()
	var first, second bytes.Buffer
	if err := print(&first); err != nil {
		t.Fatal(err)
	}
	if err := print(&second); err != nil || first.String() != second.String() {
		t.Errorf("printed again it differs: %v", err)
	}
	return first.String()
}

const web = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: team
  labels: {kagenti.io/inject: enabled}
  annotations:
    kagenti.io/auth-proxy-cpu-limit: "1"
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: "example.com/web:v1"
        env:
        - {name: TEXT, value: "%s"}
`

// TestExplain: the page has every line of the render with its number, the class of
// its function and its reason, and can be jumped about in.
func TestExplain(t *testing.T) {
	file := render.File{Path: "web.yaml", Data: fmt.Appendf(nil, web, "")}
	e, _, err := explain.File(render.Source{Files: []render.File{file}},
		render.Options{Config: kagenti}, "web.yaml", explain.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	root := parse(t, explained(t, file))
	lines := find(root, func(n *html.Node) bool { return n.Data == "code" })
	if len(lines) != len(e.Lines) {
		t.Fatalf("%d lines, want %d", len(lines), len(e.Lines))
	}
	for i, l := range e.Lines {
		if got, want := text(lines[i]), fmt.Sprint(l.Line)+l.Text; got != want {
			t.Errorf("line %q, want %q", got, want)
		}
		run := lines[i].Parent.Parent
		why := text(find(run, func(n *html.Node) bool { return attribute(n, "class") == "why" })[0])
		if !strings.HasPrefix(why, l.Function) || attribute(run, "tabindex") != "0" {
			t.Errorf("line %d, of %s: %s", l.Line, l.Function, why)
		}
		for _, p := range l.Because {
			place := "default"
			if p.By != identity.ByDefault {
				place = fmt.Sprintf("%s:%d", p.File, p.Line)
			}
			if !strings.Contains(why, p.Setting+" "+place) {
				t.Errorf("line %d: no %s by %s in %s", l.Line, p.Setting, place, why)
			}
		}
	}
	ids := find(root, func(n *html.Node) bool {
		return strings.HasPrefix(attribute(n, "id"), "o") && n.Data == "div"
	})
	links := find(root, func(n *html.Node) bool {
		return strings.HasPrefix(attribute(n, "href"), "#o") && attribute(n, "href") != "#objects"
	})
	if len(ids) < 3 || len(ids) != len(links) {
		t.Errorf("%d objects, %d links to them", len(ids), len(links))
	}
	for i := range links {
		if attribute(links[i], "href") != "#"+attribute(ids[i], "id") || text(links[i]) == "" {
			t.Errorf("link %d leads to %s", i, attribute(links[i], "href"))
		}
	}
	if legend := text(find(root, func(n *html.Node) bool {
		return attribute(n, "class") == "legend"
	})[0]); !strings.Contains(legend, "author") || !strings.Contains(legend, "inject") {
		t.Errorf("legend: %s", legend)
	}
}

// TestDiff: the page shows the lines that differ, what that does to pods, and what
// somebody has to restart.
func TestDiff(t *testing.T) {
	config := "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: team}\n" +
		"data:\n  LEVEL: %s\n"
	api := strings.NewReplacer("name: web", "name: api", "  labels: {kagenti.io/inject: enabled}\n",
		"", "env:", "envFrom: [{configMapRef: {name: settings}}]\n        env:")
	before := fmt.Sprintf(web, "") + "---\n" + api.Replace(fmt.Sprintf(web, "")) +
		fmt.Sprintf(config, "info")
	after := strings.Replace(fmt.Sprintf(web, ""), "web:v1", "web:v2", 1) + "---\n" +
		api.Replace(fmt.Sprintf(web, "")) + fmt.Sprintf(config, "debug")
	root := parse(t, compared(t, before, after))
	if restart := text(find(root, func(n *html.Node) bool {
		return n.Data == "section"
	})[0]); !strings.Contains(restart,
		"Deployment team/api reads as it starts: ConfigMap settings: LEVEL") {
		t.Errorf("to be restarted: %s", restart)
	}
	rows := func(class string) (all []string) {
		for _, n := range find(root, func(n *html.Node) bool {
			return n.Data == "code" && attribute(n, "class") == class
		}) {
			all = append(all, text(n))
		}
		return all
	}
	added, removed := rows("a"), rows("r")
	if !slices.Contains(added, "+  LEVEL: debug") || !slices.Contains(removed, "-  LEVEL: info") ||
		!slices.Contains(added, `+        image: "example.com/web:v2"`) ||
		!slices.Contains(removed, `-        image: "example.com/web:v1"`) {
		t.Errorf("added %q, removed %q", added, removed)
	}
	if out := text(root); !strings.Contains(out, "1 rolling, 1 to be restarted") ||
		!strings.Contains(out, "rolls: spec.template.spec.containers[web].image") {
		t.Errorf("no summary or headline in %s", out)
	}
}

// TestDiffOfNothing: a page about nothing says so.
func TestDiffOfNothing(t *testing.T) {
	if out := compared(t, fmt.Sprintf(web, ""), fmt.Sprintf(web, "")); !strings.Contains(out,
		"<p>Nothing changes.</p>") {
		t.Error(out)
	}
}

// TestSecretsAreMasked: no value of a Secret is in a page, in whatever form its
// author wrote it; its keys are.
func TestSecretsAreMasked(t *testing.T) {
	forms := []string{
		"stringData:\n  token: hunter2\n", "stringData: {token: hunter2}\n",
		"stringData: {token: hunter2, other: hunter2}\n", `stringData: {"token":"hunter2"}` + "\n",
		"stringData:\n  token: |\n    first\n    hunter2: x\n\n    last: hunter2\n",
		"stringData:\n  token: >-\n    hunter2\n    hunter2:\n",
		"stringData:\n  token:\n    hunter2\n", "stringData:\n  token:\n    \"hunter2: x\"\n",
		"stringData:\n  \"token\": \"hunter2\"\n", "data:\n  token: aHVudGVyMg== # hunter2\n",
		"stringData:\n  ? token\n  : hunter2\n",
	}
	for _, form := range forms {
		secret := "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n  annotations:\n" +
			"    kubectl.kubernetes.io/last-applied-configuration: " +
			"'{\"stringData\":{\"token\":\"hunter2\"}}'\n" + form
		other := strings.NewReplacer("hunter2", "changed9", "aHVudGVyMg==", "Y2hhbmdlZDk=").Replace(
			secret)
		for name, out := range map[string]string{
			"explain": explained(t, render.File{Path: "s.yaml", Data: []byte(secret)}),
			"list": explained(t,
				render.File{Path: "s.yaml",
					Data: []byte("apiVersion: v1\nkind: List\nitems:\n- " +
						strings.ReplaceAll(strings.TrimSuffix(secret, "\n"), "\n", "\n  ") +
						"\n")}),
			"diff":    compared(t, secret, other),
			"added":   compared(t, "", secret),
			"removed": compared(t, secret, ""),
		} {
			if strings.Contains(out, "hunter2") || strings.Contains(out, "aHVudGVyMg") ||
				strings.Contains(out, "changed9") || strings.Contains(out, "Y2hhbmdlZDk") {
				t.Errorf("%s shows the value of\n%s", name, form)
			}
			if !strings.Contains(out, "***") {
				t.Errorf("%s hides that there is a value in\n%s", name, form)
			}
			if name == "diff" && !strings.Contains(out, "*** (after)") {
				t.Errorf("%s hides that a value changes in\n%s", name, form)
			}
		}
	}
}

// TestFlowSecretsAreMasked: neither is a value of a line with several fields.
func TestFlowSecretsAreMasked(t *testing.T) {
	for _, text := range []string{
		"{apiVersion: v1, kind: Secret, stringData: {token: hunter2}, metadata: {name: s}}\n",
		"{apiVersion: v1, kind: Secret, stringData: {a: b,\n  token: hunter2}, metadata: " +
			"{name: s}}\n",
	} {
		if out := explained(t,
			render.File{Path: "s.yaml", Data: []byte(text)}); strings.Contains(out, "hunter2") ||
			!strings.Contains(out, "***") {
			t.Errorf("the page shows the value of\n%s", text)
		}
	}
}

// evil is what would be markup, a script, or other text than it seems.
const evil = `</script><script>alert(1)</script><img src=x onerror=alert(2)>\" onmouseover=\"alert(3)' </pre></code></style><style>*{display:none}</style>{{.}} &lt;b&gt;\u202egnp\u2066\u200b\x1b[2J\x07`

// hostilePages explain a manifest of evil, and say what it changes.
func hostilePages(t testing.TB) (explanation, changes string) {
	before := fmt.Sprintf(web, "")
	after := fmt.Sprintf(web, evil) +
		"---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: \"" + evil +
		"\"\n  namespace: team\ndata:\n  \"" + evil + "\": \"" + evil + "\"\n" +
		"# </code><script>alert(4)</script> \u202e \u00ad\n"
	return explained(t, render.File{Path: `"><script>alert(5)</script>.yaml`,
		Data: []byte(after)}), compared(t, before, after)
}

// TestHostileManifests: names and values of a manifest are text in a page, and what
// they hide can be seen.
func TestHostileManifests(t *testing.T) {
	explained, changes := hostilePages(t)
	for name, out := range map[string]string{"explain": explained, "diff": changes} {
		root := parse(t, out)
		for _, n := range find(root, func(*html.Node) bool { return true }) {
			if !slices.Contains([]string{"html", "head", "meta", "title", "style", "body", "a",
				"header", "p", "h1", "h2", "ul", "li", "b", "br", "span", "i", "em", "nav",
				"details", "summary", "main", "div", "code", "section", "dl", "dt", "dd", "del",
				"ins"}, n.Data) {
				t.Errorf("%s: an element %s", name, n.Data)
			}
			for _, a := range n.Attr {
				if !slices.Contains([]string{"lang", "charset", "content", "http-equiv", "name",
					"class", "href", "id", "open", "tabindex", "aria-label", "aria-labelledby"}, a.Key) {
					t.Errorf("%s: an attribute %s=%q of %s", name, a.Key, a.Val, n.Data)
				}
				if a.Key == "href" && !regexp.MustCompile(`^#(o\d+|objects)$`).MatchString(a.Val) {
					t.Errorf("%s: a link to %s", name, a.Val)
				}
			}
		}
		if i := strings.IndexFunc(out, func(r rune) bool {
			return r < ' ' && r != '\n' && r != '\t' || r >= 0x202a && r <= 0x202e || r == 0x2066 ||
				r == 0x200b || r == 0x2028 || r == 0xad
		}); i >= 0 {
			t.Errorf("%s: a hidden character at %q", name, out[max(0, i-40):i+4])
		}
		if !strings.Contains(text(root), `<script>alert(4)</script> \u202e \u00ad`) ||
			!strings.Contains(text(root), "<script>alert(1)</script>") {
			t.Errorf("%s: the text is not shown as it is", name)
		}
		head := find(root, func(n *html.Node) bool {
			return attribute(n, "http-equiv") == "Content-Security-Policy"
		})
		if len(head) != 1 || !strings.HasPrefix(attribute(head[0], "content"),
			"default-src 'none'; style-src 'unsafe-inline'") {
			t.Errorf("%s: no policy of content", name)
		}
		if len(find(root, func(n *html.Node) bool { return n.Data == "style" })) != 1 {
			t.Errorf("%s: more than one style", name)
		}
	}
}

// many is a stream of workloads.
func many(t testing.TB, n int) []byte {
	var all bytes.Buffer
	for i := range n {
		all.WriteString("---\n")
		if err := workload.Write(&all, i); err != nil {
			t.Fatal(err)
		}
	}
	return all.Bytes()
}

// TestManyWorkloads: a page of many objects shows them closed, and takes little more
// memory than what it is about. One of few shows them open.
func TestManyWorkloads(t *testing.T) {
	var e explain.Explanation
	for i := range 1000 {
		for n := range 400 {
			e.Lines = append(e.Lines,
				explain.Line{Line: len(e.Lines) + 1, Text: "      - name: SETTING_OF_A_SIDECAR",
					Object: finding.Ref{Kind: "Deployment", Name: fmt.Sprint("web-", i)},
					Field:  "spec", Function: []string{"inject", explain.Author}[n/5%2],
					Because: []identity.Provenance{{Setting: fmt.Sprint("outbound.setting", n/3),
						By: identity.ByDefault}}})
		}
	}
	size := counter{before: inUse()}
	if err := page.Explain(&size, e); err != nil {
		t.Fatal(err)
	}
	if closed, open := size.counts[0], size.counts[1]; closed != 1000 || open != 0 {
		t.Errorf("%d objects are closed, %d open", closed, open)
	}
	if perLine := size.bytes / len(e.Lines); perLine > 250 {
		t.Errorf("%d bytes a line", perLine)
	}
	if size.most == 0 || size.most > 96<<20 {
		t.Errorf("it takes %d MiB beside what it is about", size.most>>20)
	}
	runtime.KeepAlive(e)
	if out := explained(t, render.File{Path: "a.yaml", Data: many(t, 2)}); strings.Count(out,
		`<details class="object" open>`) < 2 {
		t.Error("the objects of a small page are closed")
	}
}

// counter counts how objects of a page begin, and looks now and then how much memory
// is in use.
type counter struct {
	bytes, writes int
	counts        [2]int // closed, open
	tails         [2][]byte
	before, most  uint64
}

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += len(p)
	for i, begin := range [...]string{`<details class="object">`, `<details class="object" open>`} {
		all := append(c.tails[i], p...)
		c.counts[i] += bytes.Count(all, []byte(begin))
		c.tails[i] = bytes.Clone(all[max(0, len(all)-len(begin)+1):])
	}
	if c.writes++; c.writes%150 == 0 {
		if now := inUse(); now > c.before {
			c.most = max(c.most, now-c.before)
		}
	}
	return len(p), nil
}

func inUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func parse(t testing.TB, text string) *html.Node {
	t.Helper()
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func find(in *html.Node, is func(*html.Node) bool) (all []*html.Node) {
	for n := range in.Descendants() {
		if n.Type == html.ElementNode && is(n) {
			all = append(all, n)
		}
	}
	return all
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func text(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode && d.Parent.Data != "style" {
			b.WriteString(d.Data)
		}
	}
	return b.String()
}
