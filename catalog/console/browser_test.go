package console_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/e2e/browser"
)

// pagesByName are what is looked at, by the names of the pictures.
func pagesByName() map[string]string {
	return map[string]string{
		"home": "/", "agents": "/agents", "search": "/agents?q=travel", "agent": "/entries/" + cards + "/travel/weather", "failing": "/entries/" + cards + "/travel/concierge",
		"tools": "/tools", "tool": "/entries/" + remotes + "/office/booking", "bound": "/entries/" + agents + "/office/assistant",
		"packages": "/packages", "package": "/packages/travel/travel", "nothing": "/agents?q=nothing-like-this",
		"builds": "/builds", "building": "/builds/travel/planner", "failed": "/builds/travel/concierge", "rights": "/rights",
	}
}

// views are what people have: wide and narrow, light and dark.
func views() []browser.View {
	return []browser.View{
		{Name: "desktop-light", Width: 1440, Height: 900}, {Name: "desktop-dark", Width: 1440, Height: 900, Dark: true},
		{Name: "phone-light", Width: 390, Height: 844}, {Name: "phone-dark", Width: 390, Height: 844, Dark: true},
	}
}

// signIn as a person does, with the form.
func signIn(w *world, b *browser.Browser, token string) {
	w.Helper()
	b.Show(views()[0], w.url)
	b.Do(chromedp.SendKeys(`input[name=token]`, token), chromedp.Click(`main button`), chromedp.WaitVisible(`.who`))
}

// broken gives the words that are broken over two lines, outside of code.
const broken = `(() => {
	const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let node = walker.nextNode(); node; node = walker.nextNode()) {
		if (node.parentElement.closest('code, pre, .diff') || !node.parentElement.checkVisibility()) continue;
		for (const m of node.data.matchAll(/[\p{L}\p{N}]+/gu)) {
			const range = document.createRange();
			range.setStart(node, m.index);
			range.setEnd(node, m.index + m[0].length);
			if (new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1) found.push(m[0]);
		}
	}
	return found.join(' ');
})()`

// Without scripts, the pages can be read in every view: nothing is wider than the window,
// each text has contrast, and no word is broken.
func TestPagesInEveryView(t *testing.T) {
	w := newWorld(t)
	token := w.token("*")
	b := browser.Open(t)
	b.Show(views()[0], w.url)
	b.Picture("console-login")
	signIn(w, b, token)
	for _, view := range append(views(), browser.View{Name: "tablet", Width: 820, Height: 1180}) {
		for name, path := range pagesByName() {
			b.Show(view, w.url+path)
			b.Check()
			if words := browser.Value[string](b, broken); words != "" {
				t.Errorf("%s, %s: broken words: %s", name, view.Name, words)
			}
			b.Picture("console-" + name + "-" + view.Name)
		}
	}
	// Whoever may list nothing, and a store that is away.
	b.Do(chromedp.Click(`.who button`), chromedp.WaitVisible(`input[name=token]`))
	signIn(w, b, w.token())
	for _, view := range views() {
		for _, path := range []string{"/", "/agents", "/packages"} {
			b.Show(view, w.url+path)
			if words := browser.Value[string](b, broken); words != "" {
				t.Errorf("no rights, %s: broken words: %s", view.Name, words)
			}
			b.Picture("console-norights-" + strings.Trim(path, "/") + "-" + view.Name)
		}
	}
	b.Do(chromedp.Click(`.who button`), chromedp.WaitVisible(`input[name=token]`))
	signIn(w, b, token)
	// The pictures of docs/images.
	wide := browser.View{Name: "docs", Width: 1280, Height: 800}
	for name, path := range map[string]string{"home": "/", "agent": pagesByName()["agent"], "tool": pagesByName()["tool"], "package": pagesByName()["package"]} {
		b.Show(wide, w.url+path)
		if name == "tool" {
			b.Do(chromedp.Click(`#tool-0 > summary`))
		}
		b.Picture("docs-console-" + name)
	}
	wide.Dark = true
	b.Show(wide, w.url+"/agents")
	b.Picture("docs-console-agents")
	b.Show(views()[3], w.url)
	b.Picture("docs-console-phone")
	w.must(w.store.Close())
	for _, view := range views() {
		b.Show(view, w.url)
		if text := browser.Value[string](b, `document.querySelector('main').textContent`); !strings.Contains(text, "The catalog cannot answer now.") {
			t.Errorf("without its store, the page says %s", text)
		}
		b.Picture("console-away-" + view.Name)
	}
}

// With scripts, axe-core finds no violation, nothing shifts while a page loads, and the
// policy lets everything run that the page needs.
func TestPagesAreAccessible(t *testing.T) {
	w := newWorld(t)
	token := w.token("*")
	b := browser.Open(t)
	scripts := views()[0]
	scripts.Scripts = true
	b.Show(scripts, w.url+"/login?next=/agents")
	b.Axe()
	signIn(w, b, token)
	for _, view := range views() {
		view.Scripts = true
		for name, path := range pagesByName() {
			b.Show(view, w.url+path)
			browser.Value[bool](b, `window.shift = 0; new PerformanceObserver((list) => { for (const e of list.getEntries()) if (!e.hadRecentInput) window.shift += e.value; }).observe({type: 'layout-shift', buffered: true}); true`)
			b.Axe()
			if shift := browser.Value[float64](b, "window.shift"); shift > 0.01 {
				t.Errorf("%s, %s: the layout shifts by %.3f", name, view.Name, shift)
			}
			b.Check()
		}
	}
}

// With the keyboard alone, everything that can be used is reached, in the order of the page,
// and what has the focus shows.
func TestKeyboard(t *testing.T) {
	w := newWorld(t)
	token := w.token("*")
	b := browser.Open(t)
	signIn(w, b, token)
	for name, path := range pagesByName() {
		view := views()[0]
		view.Scripts = true
		b.Show(view, w.url+path)
		total := browser.Value[int](b, `[...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, summary, [tabindex="0"]')].filter((e) => e.checkVisibility({visibilityProperty: true})).length`)
		reached := 0
		for range total + 5 {
			b.Do(chromedp.KeyEvent("\t"))
			if !browser.Value[bool](b, `(() => { const e = document.activeElement; if (!e || e === document.body || e.dataset.seen) return false; e.dataset.seen = 1; const s = getComputedStyle(e); return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2; })()`) {
				break
			}
			reached++
		}
		if reached != total || total < 8 {
			t.Errorf("%s: the keyboard reaches %d of %d", name, reached, total)
		}
	}
}

// An open page shows what changes, keeps what the reader opened, and asks for nothing while
// it is hidden.
func TestOpenPage(t *testing.T) {
	w := newWorld(t)
	b := browser.Open(t)
	signIn(w, b, w.token("*"))
	view := views()[0]
	view.Scripts = true
	b.Show(view, w.url+"/entries/"+remotes+"/office/booking")
	b.Do(chromedp.Click(`#tool-0 > summary`), chromedp.WaitVisible(`#tool-0 .params`))
	e := catalog()[5]
	e.Title, e.Health, e.Message = "Booking of tables", store.Failing, "the server answers 502"
	w.put(e)
	w.eventually("the page shows the change", func() bool {
		return strings.Contains(browser.Value[string](b, `document.querySelector('main').textContent`), "the server answers 502")
	})
	if !browser.Value[bool](b, `document.getElementById('tool-0').open`) {
		t.Error("what the reader opened is closed")
	}
	if got := browser.Value[string](b, `document.querySelector('h1').textContent`); !strings.Contains(got, "Booking of tables") {
		t.Errorf("the title is %q", got)
	}
	b.Check()
}

// A list filters while one types, its state is in the address, and the stream follows it.
func TestTyping(t *testing.T) {
	w := newWorld(t)
	b := browser.Open(t)
	signIn(w, b, w.token("*"))
	view := views()[0]
	view.Scripts = true
	b.Show(view, w.url+"/agents")
	b.Do(chromedp.Focus(`input[name=q]`), chromedp.KeyEvent("climate"))
	w.eventually("the list is filtered", func() bool {
		text := browser.Value[string](b, `document.getElementById('list').textContent`)
		return strings.Contains(text, "get_climate_data") && !strings.Contains(text, "Trip Planner")
	})
	if at := browser.Value[string](b, `location.pathname + location.search`); !strings.Contains(at, "/agents?q=climate") {
		t.Errorf("the address is %s", at)
	}
	if got := browser.Value[string](b, `document.activeElement.name + '=' + document.activeElement.value`); got != "q=climate" {
		t.Errorf("what has the focus is %q", got)
	}
	w.put(store.Entry{Key: store.Key{Resource: cards, Namespace: "travel", Name: "almanac"}, UID: "almanac", Kind: "AgentCard", Type: store.Agent, Title: "Almanac", Description: "The climate of a hundred years", Health: store.Healthy, Fetched: now, Changed: now})
	w.eventually("the filtered list shows what is new", func() bool {
		return strings.Contains(browser.Value[string](b, `document.getElementById('list').textContent`), "Almanac")
	})
	if strings.Contains(browser.Value[string](b, `document.getElementById('list').textContent`), "Trip Planner") {
		t.Error("the stream shows what the filter leaves out")
	}
	b.Check()
}
