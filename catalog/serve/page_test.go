package serve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/armature-dev/armature/catalog/store"
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
	shot := func(name string) chromedp.Action {
		return chromedp.ActionFunc(func(ctx context.Context) error {
			var picture []byte
			if err := chromedp.FullScreenshot(&picture, 100).Do(ctx); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(pictures, name+".png"), picture, 0o644)
		})
	}
	var wrong, list, found, details, cookies string
	w.must(chromedp.Run(b,
		emulation.SetScriptExecutionDisabled(true),
		chromedp.Navigate(w.url),
		chromedp.SendKeys(`input[name=token]`, "wrong"),
		chromedp.Submit(`form`),
		chromedp.WaitVisible(`[role=alert]`),
		chromedp.Text(`[role=alert]`, &wrong),
		shot("login"),
		chromedp.SendKeys(`input[name=token]`, token),
		chromedp.Submit(`form`),
		chromedp.WaitVisible(`table`),
		chromedp.Text(`main`, &list),
		chromedp.OuterHTML(`html`, &cookies),
		shot("overview"),
		chromedp.SendKeys(`input[name=q]`, "forecast"),
		chromedp.Submit(`form[role=search]`),
		chromedp.WaitVisible(`//caption[contains(., "forecast")]`),
		chromedp.Text(`main`, &found),
		shot("search"),
		chromedp.Click(`tbody a`),
		chromedp.WaitVisible(`dl`),
		chromedp.Text(`main`, &details),
		shot("details"),
	))
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
	if strings.Contains(cookies, token) {
		t.Error("the page holds the token")
	}
}

// What a screen reader is told: each page has a language, a title, one main
// landmark, one first-level heading, and a name for whatever can be used.
func TestPageIsAccessible(t *testing.T) {
	w := newWorld(t)
	token := w.token("all", "*")
	b := w.browser()
	w.must(chromedp.Run(b, chromedp.Navigate(w.url), chromedp.SendKeys(`input[name=token]`, token), chromedp.Submit(`form`), chromedp.WaitVisible(`table`)))
	for _, path := range []string{"/login", "/", "/?q=weather", "/?q=nothing-matches", "/entries/" + cards + "/" + w.prefix + "team1/weather", "/entries/" + servers + "/" + w.prefix + "team1/office", "/entries/a/b/c"} {
		var nodes []*accessibility.Node
		var title, lang string
		var ok bool
		w.must(chromedp.Run(b, chromedp.Navigate(w.url+path), chromedp.Title(&title), chromedp.AttributeValue(`html`, "lang", &lang, &ok, chromedp.ByQuery),
			chromedp.ActionFunc(func(ctx context.Context) (err error) { nodes, err = accessibility.GetFullAXTree().Do(ctx); return err })))
		count := map[string]int{}
		for _, n := range nodes {
			if n.Ignored || n.Role == nil {
				continue
			}
			role := value(n.Role)
			count[role]++
			if strings.Contains("button link searchbox textbox combobox table", role) && value(n.Name) == "" {
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

// browser is Debian's Chromium. Where there is none the test is skipped, loudly;
// with CI set it fails.
func (w *world) browser() context.Context {
	w.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		message := "no chromium to run\n  hint: `make chromium` installs Debian's package"
		if os.Getenv("CI") != "" {
			w.Fatal(message)
		}
		fmt.Fprintf(os.Stderr, "SKIPPED %s: %s\n", w.Name(), message)
		w.Skip(message)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1100, 800), chromedp.WSURLReadTimeout(2*time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	w.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	w.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 4*time.Minute)
	w.Cleanup(cancel)
	return ctx
}
