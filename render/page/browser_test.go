package page_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/armature-dev/armature/e2e/browser"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/compare"
	"github.com/armature-dev/armature/render/explain"
	"github.com/armature-dev/armature/render/page"
)

// examples reads folders of examples, with a change to each file.
func examples(t testing.TB, change *strings.Replacer, folders ...string) (src render.Source) {
	t.Helper()
	for _, folder := range folders {
		at := filepath.Join("..", "..", "examples", folder)
		entries, err := os.ReadDir(at)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if entry.Name() == render.ConfigFile {
				continue // a package has one, at its root
			}
			data, err := os.ReadFile(filepath.Join(at, entry.Name()))
			if err != nil {
				t.Fatal(err)
			}
			src.Files = append(src.Files, render.File{Path: folder + "/" + entry.Name(),
				Data: []byte(change.Replace(string(data)))})
		}
	}
	return src
}

// pages are those of the examples: the Deployment of production explained, and what
// a change of three workloads does.
func pages(t testing.TB) (explained, changes []byte) {
	t.Helper()
	e, findings, err := explain.File(examples(t, strings.NewReplacer(), "weather-agent-prod"),
		render.Options{Config: kagenti}, "weather-agent-prod/deployment.yaml", explain.Selection{})
	if err != nil || finding.Failed(findings) {
		t.Fatal(err, findings)
	}
	var sides []compare.Package
	for _, change := range []*strings.Replacer{strings.NewReplacer(),
		strings.NewReplacer("weather:historical", "weather:forecast", "digest-agent:v1",
			"digest-agent:v2", "report-agent:v3", "report-agent:v4")} {
		p, findings, err := compare.Render(examples(t, change, "weather-agent-prod",
			"nightly-cronjob", "report-job"), render.Options{Config: kagenti})
		if err != nil || finding.Failed(findings) {
			t.Fatal(err, findings)
		}
		sides = append(sides, p)
	}
	report := compare.Packages(sides[0], sides[1])
	c, err := page.ChangesOf("examples: the working tree against main", &report)
	if err != nil {
		t.Fatal(err)
	}
	var one, two strings.Builder
	if err := page.Explain(&one, e); err != nil {
		t.Fatal(err)
	}
	if err := page.Diff(&two, c); err != nil {
		t.Fatal(err)
	}
	return []byte(one.String()), []byte(two.String())
}

// TestPagesInABrowser: explain and diff can be read on a desktop and a phone, in light
// and dark, with scripts and without; Tab reaches what pointing at a line shows. The
// pictures stay in .cache/pictures.
func TestPagesInABrowser(t *testing.T) {
	b := browser.Open(t)
	explained, changes := pages(t)
	address := map[string]string{"explain": b.File("explain.html", explained),
		"diff": b.File("diff.html", changes)}
	dom := map[string]string{}
	for _, view := range browser.Views() {
		for _, name := range []string{"explain", "diff"} {
			b.Show(view, address[name])
			b.Check()
			b.Picture(name + "-" + view.Name)
			content := browser.Value[string](b, "document.documentElement.outerHTML")
			if before, ok := dom[name]; ok && before != content {
				t.Errorf("%s: the page is another one", view.Name)
			}
			dom[name] = content
		}
		b.Show(view, address["explain"])
		reachable(t, b, view)
	}
	// For docs/images: the beginning of a diff.
	docs := browser.View{Name: "docs", Width: 1000, Height: 600}
	b.Show(docs, address["diff"])
	b.Picture("diff-docs")
}

// reachable moves by Tab to a line that a setting decides, and looks for the reason.
func reachable(t *testing.T, b *browser.Browser, view browser.View) {
	t.Helper()
	const reason = "document.activeElement?.querySelector?.(':scope > .why')"
	for range 400 {
		b.Do(chromedp.KeyEvent(kb.Tab))
		if browser.Value[bool](b, "!!"+reason+"?.textContent.includes('TokenExchange')") {
			break
		}
	}
	shown := browser.Value[string](b, fmt.Sprintf(`(() => {
		const p = %s?.querySelector('p'), em = p?.querySelector('em');
		if (!em) return 'nothing has the focus';
		if (!em.checkVisibility()) return 'the reason is hidden';
		const at = p.getBoundingClientRect(), top = document.elementFromPoint(at.left + at.width / 2, at.top + at.height / 2);
		if (at.left < 0 || at.right > innerWidth || at.top < 0 || at.bottom > innerHeight) return 'the reason is outside of the window: ' + JSON.stringify(at);
		if (!p.contains(top)) return 'something covers the reason: ' + top?.outerHTML.slice(0, 200);
		if (p.scrollWidth > p.clientWidth || p.scrollHeight > p.clientHeight) return 'the reason is cut';
		return '';
	})()`, reason))
	if shown != "" {
		t.Errorf("%s: by Tab: %s", view.Name, shown)
	}
	b.Check()
	b.Picture("explain-focus-" + view.Name)
}

// TestHostilePagesInABrowser: what a manifest holds neither runs nor loads in a browser
// that would run it, and does not make the page wider than a phone.
func TestHostilePagesInABrowser(t *testing.T) {
	explained, changes := hostilePages(t)
	b := browser.Open(t)
	for name, out := range map[string]string{"explain": explained, "diff": changes} {
		b.Show(browser.View{Name: "hostile " + name, Width: 390, Height: 844, Scripts: true},
			b.File("hostile.html", []byte(out)))
		b.Check()
		if n := browser.Value[int](b, "document.scripts.length + document.images.length"); n != 0 {
			t.Errorf("%s has %d scripts and images", name, n)
		}
	}
}

// TestPrintedPage: on paper objects that are closed show their lines, with reasons.
func TestPrintedPage(t *testing.T) {
	explained, _ := pages(t)
	b := browser.Open(t)
	b.Show(browser.Views()[0], b.File("explain.html", explained))
	const visible = `[...document.querySelectorAll('.run code, .run .why p')].filter((e) => e.checkVisibility({ contentVisibilityAuto: true })).length`
	before := browser.Value[int](b, visible)
	browser.Value[bool](b,
		"document.querySelectorAll('details').forEach((d) => { d.open = false }) ?? true")
	if n := browser.Value[int](b, visible); n != 0 {
		t.Fatalf("%d lines of closed objects show", n)
	}
	b.Print()
	b.Picture("explain-print")
	// The browser lays out what was closed with a frame to come.
	n := 0
	for deadline := time.Now().Add(time.Minute); n != before &&
		time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		n = browser.Value[int](b, visible)
	}
	if n != before || n < 900 {
		t.Errorf("%d lines and reasons are printed, want %d", n, before)
	}
}

// TestManyWorkloadsInABrowser: a page about 1,000 workloads opens, and a link of its
// list leads to an object and opens it.
func TestManyWorkloadsInABrowser(t *testing.T) {
	var e explain.Explanation
	for i := range 1000 {
		for n := range 60 {
			e.Lines = append(e.Lines,
				explain.Line{Line: len(e.Lines) + 1, Text: "      - name: SETTING",
					Object: finding.Ref{Kind: "Deployment", Namespace: "team",
						Name: fmt.Sprint("web-", i)}, Field: "spec",
					Function: []string{"inject", explain.Author}[n/5%2]})
		}
	}
	var out strings.Builder
	if err := page.Explain(&out, e); err != nil {
		t.Fatal(err)
	}
	b := browser.Open(t)
	b.Show(browser.Views()[0], b.File("many.html", []byte(out.String())))
	b.Check()
	browser.Value[bool](b, `document.querySelector('nav summary').click() ?? true`)
	browser.Value[bool](b, `document.querySelector('a[href="#o500"]').click() ?? true`)
	if top := browser.Value[float64](b,
		"document.querySelector('#o500 code').getBoundingClientRect().top"); top < 0 || top > 800 {
		t.Errorf("the object is at %v", top)
	}
	if n := browser.Value[int](b, "document.querySelectorAll('details.object[open]').length"); n != 1 {
		t.Errorf("%d objects are open", n)
	}
}
