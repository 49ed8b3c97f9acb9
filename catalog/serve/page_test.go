package serve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/e2e/browser"
)

// A person signs in, searches and reads about an agent, in a real browser that
// runs no scripts. The pictures stay in .cache/pictures.
func TestPageInABrowser(t *testing.T) {
	w := newWorld(t)
	token := w.token("all", "*")
	b := browser.Open(t)
	shot := func(name string) { t.Helper(); b.Picture("catalog-" + name) }
	b.Show(browser.Views()[0], w.url)
	b.Do(chromedp.SendKeys(`input[name=token]`, "wrong"), chromedp.Click(`main button`), chromedp.WaitVisible(`[role=alert]`))
	wrong := browser.See(b, chromedp.Text(`[role=alert]`))
	shot("login")
	b.Do(chromedp.SendKeys(`input[name=token]`, token), chromedp.Click(`main button`), chromedp.WaitVisible(`table`))
	list, source := browser.See(b, chromedp.Text(`main`)), browser.See(b, chromedp.OuterHTML(`html`))
	shot("overview")
	b.Do(chromedp.SendKeys(`input[name=q]`, "forecast"), chromedp.Click(`form[role=search] button`), chromedp.WaitVisible(`//caption[contains(., "forecast")]`))
	found := browser.See(b, chromedp.Text(`main`))
	shot("search")
	b.Do(chromedp.Click(`tbody a`), chromedp.WaitVisible(`dl`))
	details := browser.See(b, chromedp.Text(`main`))
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

// The pages can be read in every view: on a desktop and a phone, in light and dark,
// with scripts and without.
func TestPageInEveryView(t *testing.T) {
	w := newWorld(t)
	token := w.token("all", "*")
	for _, e := range []store.Entry{
		{Key: store.Key{Resource: cards, Namespace: "forecasts", Name: "weather"}, Title: "Weather", Description: "Answers questions about the weather of the next ten days, with sources", Version: "2.1.0", Health: store.Healthy},
		{Key: store.Key{Resource: cards, Namespace: "travel", Name: "planner"}, Title: "Trip planner", Description: "Plans trips by train, and asks the weather agent before it books", Version: "1.4.2", Health: store.Healthy},
		{Key: store.Key{Resource: servers, Namespace: "travel", Name: "timetables"}, Title: "Timetables", Description: "Trains and connections of twelve railways", Health: store.Failing, Message: "the server answers 503 since 14:02"},
	} {
		e.UID, e.APIVersion, e.Kind, e.Type, e.Fetched = e.Name, "v1", "AgentCard", store.Agent, now.Add(-2*time.Minute)
		e.Tags, e.URL, e.Document = []string{"example"}, "http://"+e.Name+".example/", json.RawMessage(`{"name":"`+strings.Repeat("long ", 100)+`"}`)
		e.Items = []store.Item{{Kind: store.Skill, Name: "get_" + e.Name, Description: e.Description}}
		if e.Resource == servers {
			e.Kind, e.Type = "RemoteMCPServer", store.Server
		}
		w.must2(w.store.Replace(t.Context(), e))
	}
	b := browser.Open(t)
	b.Show(browser.Views()[0], w.url)
	b.Do(chromedp.SendKeys(`input[name=token]`, token), chromedp.Click(`main button`), chromedp.WaitVisible(`main table`))
	for _, view := range append(browser.Views(), browser.View{Name: "docs", Width: 1000, Height: 560}) {
		for name, path := range map[string]string{"overview": "/", "search": "/?q=train", "details": "/entries/" + cards + "/forecasts/weather"} {
			b.Show(view, w.url+path)
			b.Check()
			b.Picture("catalog-" + name + "-" + view.Name)
		}
	}
}

// For screen readers, each page has a language, a title, one main
// landmark, one first-level heading, and a name for whatever can be used.
func TestPageIsAccessible(t *testing.T) {
	w := newWorld(t)
	token := w.token("all", "*")
	b := browser.Open(t)
	b.Show(browser.Views()[0], w.url)
	b.Do(chromedp.SendKeys(`input[name=token]`, token), chromedp.Click(`main button`), chromedp.WaitVisible(`table`))
	for _, path := range []string{"/login", "/", "/?q=weather", "/?q=nothing-matches", "/entries/" + cards + "/" + w.prefix + "team1/weather", "/entries/" + servers + "/" + w.prefix + "team1/office", "/entries/a/b/c"} {
		b.Do(chromedp.Navigate(w.url + path))
		title, lang := browser.See(b, chromedp.Title()), browser.See(b, chromedp.AttributeValue(`html`, "lang")).Value
		nodes := browser.See(b, func(ctx context.Context, t *chromedp.Target) ([]*accessibility.Node, error) {
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
