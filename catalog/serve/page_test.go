package serve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/e2e/programs"
)

// A person signs in, searches and reads about an agent, in a real browser that
// runs no scripts. The pictures stay in .cache/catalog.
func TestPageInABrowser(t *testing.T) {
	w := newWorld(t)
	token := w.token("all", "*")
	b := w.browser()
	pictures, err := filepath.Abs("../../.cache/catalog")
	w.must(err)
	w.must(os.MkdirAll(pictures, 0o755))
	shot := func(name string) {
		t.Helper()
		w.must(os.WriteFile(filepath.Join(pictures, name+".png"), see(b, chromedp.FullScreenshot(100)), 0o644))
	}
	b.do(chromedp.Navigate(w.url), chromedp.SendKeys(`input[name=token]`, "wrong"), chromedp.Click(`main button`), chromedp.WaitVisible(`[role=alert]`))
	wrong := see(b, chromedp.Text(`[role=alert]`))
	shot("login")
	b.do(chromedp.SendKeys(`input[name=token]`, token), chromedp.Click(`main button`), chromedp.WaitVisible(`table`))
	list, source := see(b, chromedp.Text(`main`)), see(b, chromedp.OuterHTML(`html`))
	shot("overview")
	b.do(chromedp.SendKeys(`input[name=q]`, "forecast"), chromedp.Click(`form[role=search] button`), chromedp.WaitVisible(`//caption[contains(., "forecast")]`))
	found := see(b, chromedp.Text(`main`))
	shot("search")
	b.do(chromedp.Click(`tbody a`), chromedp.WaitVisible(`dl`))
	details := see(b, chromedp.Text(`main`))
	shot("details")
	for what, c := range map[string]struct{ text, want string }{
		"wrong token": {wrong, "does not know this token"},
		"list":        {list, "Title of weather"},
		"health":      {list, "Healthy"},
		"age":         {list, "60m ago"},
		"search":      {found, "get_forecast"},
		"details":     {details, "Get weather forecast"},
		"pods":        {details, "weather-1"},
		"builds":      {details, "weather-build"},
	} {
		if !strings.Contains(c.text, c.want) {
			t.Errorf("%s: no %q in %s", what, c.want, c.text)
		}
	}
	if strings.Contains(source, token) {
		t.Error("the page holds the token")
	}
}

// For screen readers, each page has a language, a title, one main
// landmark, one first-level heading, and a name for whatever can be used.
func TestPageIsAccessible(t *testing.T) {
	w := newWorld(t)
	token := w.token("all", "*")
	b := w.browser()
	b.do(chromedp.Navigate(w.url), chromedp.SendKeys(`input[name=token]`, token), chromedp.Click(`main button`), chromedp.WaitVisible(`table`))
	for _, path := range []string{"/login", "/", "/?q=weather", "/?q=nothing-matches", "/entries/" + cards + "/" + w.prefix + "team1/weather", "/entries/" + servers + "/" + w.prefix + "team1/office", "/entries/a/b/c"} {
		b.do(chromedp.Navigate(w.url + path))
		title, lang := see(b, chromedp.Title()), see(b, chromedp.AttributeValue(`html`, "lang")).Value
		nodes := see(b, func(ctx context.Context, t *chromedp.Target) ([]*accessibility.Node, error) {
			tree, err := cdp.Call(ctx, t, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
			return tree.Nodes, err
		})
		count := map[string]int{}
		for _, n := range nodes {
			if n.Ignored || n.Role == nil {
				continue
			}
			role := value(n.Role)
			count[role]++
			if slices.Contains([]string{"button", "link", "searchbox", "textbox", "combobox", "table", "search"}, role) && value(n.Name) == "" {
				t.Errorf("%s: a %s has no name", path, role)
			}
			if role == "heading" {
				for _, p := range n.Properties {
					if p.Name == "level" && value(p.Value) == "1" {
						count["h1"]++
					}
				}
			}
		}
		if lang != "en" || title == "" || count["main"] != 1 || count["h1"] != 1 {
			t.Errorf("%s: language %q, title %q, %d main, %d first-level headings", path, lang, title, count["main"], count["h1"])
		}
	}
}

func value(v *accessibility.Value) string {
	if v == nil {
		return ""
	}
	var out any
	if json.Unmarshal(v.Value, &out) != nil {
		return ""
	}
	return fmt.Sprint(out)
}

// What agents and servers say of themselves is shown as text: no markup, no
// script, no address but http and https.
func TestPageEscapes(t *testing.T) {
	w := newWorld(t)
	token := w.token("all", "*")
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(2)>`
	w.must2(w.store.Replace(t.Context(), store.Entry{
		Key: store.Key{Resource: cards, Namespace: w.prefix + "team1", Name: "evil"}, UID: "evil", Type: store.Agent, Title: evil, Description: evil, Version: evil,
		URL: "javascript:alert(3)", Tags: []string{evil}, Message: evil, Health: store.Failing, Items: []store.Item{{Kind: store.Skill, Name: evil, Description: evil, Document: json.RawMessage(`{"a":"</pre><script>"}`)}},
		Builds: []store.Build{{Name: "b", Commit: "c", Repository: "javascript:alert(4)"}},
	}))
	for _, path := range []string{"/", "/?q=script", "/entries/" + cards + "/" + w.prefix + "team1/evil"} {
		status, body := w.ask(token, path)
		if status != http.StatusOK || strings.Contains(body, "<script") || strings.Contains(body, "<img") || strings.Contains(body, `href="javascript:`) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// browser is Debian's Chromium, with scripts off. Where there is none the test is
// skipped, or fails where peers are required.
func (w *world) browser() *browser {
	w.Helper()
	program := programs.Peer(w, "chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1100, 800), chromedp.WSURLReadTimeout(2*time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	w.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	w.Cleanup(cancel)
	b := &browser{w, ctx}
	b.do(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return chromedp.Void{}, err
	})
	return b
}

type browser struct {
	testing.TB
	ctx context.Context
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	for i, step := range steps {
		if _, err := limited(b, step); err != nil {
			b.Fatalf("step %d: %v", i+1, err)
		}
	}
}

func see[T any](b *browser, what chromedp.Action[T]) T {
	b.Helper()
	v, err := limited(b, what)
	if err != nil {
		b.Fatal(err)
	}
	return v
}

// limited runs one step, within two minutes; the browser itself lives on.
func limited[T any](b *browser, step chromedp.Action[T]) (T, error) {
	timer := time.AfterFunc(2*time.Minute, func() { _ = chromedp.Cancel(b.ctx) })
	defer timer.Stop()
	return chromedp.Run(b.ctx, step)
}
