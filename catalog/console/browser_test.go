package console_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/e2e/browser"
	"github.com/armature-dev/armature/e2e/openid"
)

// pagesByName are what is looked at, by the names of the pictures.
func pagesByName() map[string]string {
	return map[string]string{
		"home": "/", "agents": "/agents", "search": "/agents?q=travel",
		"agent":   "/entries/" + cards + "/travel/weather",
		"failing": "/entries/" + cards + "/travel/concierge", "tools": "/tools",
		"tool":  "/entries/" + remotes + "/office/booking",
		"bound": "/entries/" + agents + "/office/assistant", "packages": "/packages",
		"package": "/packages/travel/travel", "nothing": "/agents?q=nothing-like-this",
		"builds": "/builds", "building": "/builds/travel/planner",
		"failed": "/builds/travel/concierge", "built": "/builds/travel/weather",
		"log": "/builds/travel/planner?task=github-clone", "rights": "/rights",
	}
}

// views are what people have: wide and narrow, light and dark.
func views() []browser.View {
	return []browser.View{
		{Name: "desktop-light", Width: 1440, Height: 900},
		{Name: "desktop-dark", Width: 1440, Height: 900, Dark: true},
		{Name: "phone-light", Width: 390, Height: 844},
		{Name: "phone-dark", Width: 390, Height: 844, Dark: true},
	}
}

// signIn as a person does, with the form.
func signIn(w *world, b *browser.Browser, token string) {
	w.Helper()
	b.Show(views()[0], w.url+"/login")
	b.Do(chromedp.SendKeys(`input[name=token]`, token), chromedp.Click(`main button`),
		chromedp.WaitVisible(`.who`))
}

// broken returns the words that are broken over two lines, outside of code.
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

// shifts is how far what is on a page moved since it was opened.
const shifts = `new Promise((done) => {
	let sum = 0;
	const observer = new PerformanceObserver((list) => { for (const e of list.getEntries()) if (!e.hadRecentInput) sum += e.value; });
	observer.observe({type: 'layout-shift', buffered: true});
	setTimeout(() => { observer.disconnect(); done(sum); }, 50);
})`

// reachable notes what can be used on a page, and what of it gets the focus and shows that.
const reachable = `(() => {
	window.reached = new Set();
	document.addEventListener('focusin', (event) => {
		const s = getComputedStyle(event.target);
		if (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2) window.reached.add(event.target);
	});
	return [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, summary, [tabindex="0"]')].filter((e) => e.checkVisibility({visibilityProperty: true})).length;
})()`

// inspect a page as people have it. With scripts: axe-core finds no violation, the keyboard reaches
// everything, and nothing moves while the page loads. With and without them: nothing is wider than
// the window, each text has contrast, no word is broken, and the browser has no complaint.
func inspect(b *browser.Browser, name, address string) {
	b.Helper()
	check := func(view browser.View, picture bool) {
		b.Check()
		if words := browser.Value[string](b, broken); words != "" {
			b.Errorf("%s, %s: broken words: %s", name, view.Name, words)
		}
		if picture {
			b.Picture("console-" + name + "-" + view.Name)
		}
	}
	all := views()
	for i := range all {
		all[i].Scripts = true
	}
	for _, both := range [][2]browser.View{{all[0], all[1]}, {all[3], all[2]}} { // in both colours
		b.Show(both[0], address)
		if shift := browser.See(b,
			chromedp.Evaluate[float64](shifts, chromedp.EvalAwaitPromise)); shift > 0.01 {
			b.Errorf("%s, %s: the layout shifts by %.3f", name, both[0].Name, shift)
		}
		check(both[0], true)
		b.Axe()
		if both[0] == all[0] {
			total := browser.Value[int](b, reachable)
			for range total + 2 {
				b.Do(chromedp.KeyEvent("\t"))
			}
			if reached := browser.Value[int](b, `window.reached.size`); reached != total || total < 2 {
				b.Errorf("%s: the keyboard reaches %d of %d", name, reached, total)
			}
		}
		b.Look(both[1])
		check(both[1], true)
	}
	for _, view := range []browser.View{{Name: "plain-phone", Width: 390, Height: 844},
		{Name: "plain-tablet", Width: 820, Height: 1180}} {
		b.Show(view, address)
		check(view, false)
	}
}

// has fails where the page that is open does not show a text.
func has(b *browser.Browser, text string) {
	b.Helper()
	if shown := browser.Value[string](b,
		`document.querySelector('main').innerText`); !strings.Contains(shown, text) {
		b.Errorf("no %q in %s", text, shown)
	}
}

// bare is a console of a store alone, as worldOf.
func bare(t testing.TB, address string) *world {
	w := worldOf(t, address, nil)
	w.start()
	return w
}

// Every page, for everybody: with rights and without, of a fleet, of nothing and of ten thousand,
// while the store is away, and where one signs in.
func TestPagesInChromium(t *testing.T) {
	t.Parallel()
	first := browser.Open(t)
	w := newWorld(t)
	token := w.tokenFor(owner, "*")
	side := func(name string, run func(t *testing.T, b *browser.Browser)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, first.Tab(t))
		})
	}
	for _, names := range [][]string{{"home", "agents", "search", "nothing", "agent", "failing",
		"packages", "rights"}, {"tools", "tool", "bound", "builds", "building", "failed", "built",
		"log", "package"}} {
		side(names[0], func(t *testing.T, b *browser.Browser) {
			signIn(w, b, token)
			for _, name := range names {
				inspect(b, name, w.url+pagesByName()[name])
			}
		})
	}
	side("signing in", func(_ *testing.T, b *browser.Browser) {
		inspect(b, "login", w.url+"/login?next=/agents")
		inspect(b, "unknown", w.url+"/agents")
		view := views()[0]
		view.Scripts = true
		b.Show(view, w.url+"/agents")
		b.Do(chromedp.SendKeys(`input[name=token]`, "wrong"), chromedp.Click(`main button`),
			chromedp.WaitVisible(`[role=alert]`))
		b.Axe()
		b.Do(chromedp.SendKeys(`input[name=token]`, token), chromedp.Click(`main button`),
			chromedp.WaitVisible(`.who`))
		if at := browser.Value[string](b, `location.pathname`); at != "/agents" {
			b.Errorf("after signing in, the page is %s", at)
		}
		inspect(b, "missing", w.url+"/packages/travel/none")
		b.Do(chromedp.Click(`.who button`), chromedp.WaitVisible(`input[name=token]`))
		signIn(w, b, w.token())
		for _, path := range []string{"", "agents"} {
			inspect(b, "norights-"+path, w.url+"/"+path)
		}
	})
	side("a company's account", func(t *testing.T, b *browser.Browser) {
		provider := openid.New(t)
		w := worldOf(t, "", shared.Get(t).Admin.Config)
		file, secret :=
			filepath.Join(t.TempDir(), "oidc.yaml"), filepath.Join(t.TempDir(), "secret")
		w.must(os.WriteFile(secret, []byte("of the console\n"), 0o600))
		w.must(os.WriteFile(file,
			[]byte("issuer: "+provider.Issuer+"\nclientID: armature\nclientSecretFile: "+secret+
				"\nurl: "+w.url+"\nusernameClaim: email\nscopes: [groups]\n"), 0o600))
		var err error
		w.login.Config, err = access.ReadLogin(file)
		w.must(err)
		w.start()
		w.watches()
		provider.Start(t, w.url+access.LoginCallback)
		w.grant(rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "anna@example.com"},
			"anna-at-example", owner, "*")
		inspect(b, "login-oidc", w.url+"/login?next=/builds")
		b.Do(chromedp.Click(`a.button`), chromedp.SendKeys(`input[name=username]`, "anna"),
			chromedp.SendKeys(`input[name=password]`, "right"),
			chromedp.Submit(`input[name=password]`), chromedp.WaitVisible(`.who`))
		if at := browser.Value[string](b, `location.pathname`); at != "/builds" {
			b.Errorf("after signing in, the page is %s", at)
		}
		has(b, "planner")
		b.Do(chromedp.Click(`.who button`), chromedp.WaitVisible(`input[name=token]`))
	})
	side("nothing, and then no store", func(t *testing.T, b *browser.Browser) {
		w := bare(t, filepath.Join(t.TempDir(), "catalog.db"))
		signIn(w, b, token)
		for _, path := range []string{"", "agents"} {
			inspect(b, "empty-"+path, w.url+"/"+path)
		}
		w.must(w.store.Close())
		inspect(b, "away", w.url)
		has(b, "The catalog cannot answer now.")
	})
	side("ten thousand", func(t *testing.T, b *browser.Browser) {
		w := bare(t, "")
		for i := range 10000 {
			e := catalog()[i%8]
			e.Namespace, e.Name, e.UID, e.Document, e.Items =
				fmt.Sprintf("team-%02d", i%50), fmt.Sprintf("%s-%05d", e.Name, i), fmt.Sprint(i),
				nil, e.Items[:1]
			w.put(e)
		}
		signIn(w, b, token)
		inspect(b, "many", w.url+"/agents")
		has(b, "6,250 agents")
		b.Do(chromedp.Click(`.more a`), chromedp.WaitReady(`.more a[href*="after="]`))
		inspect(b, "many-home", w.url)
		has(b, "3,750 things to look at")
		b.Show(views()[2], w.url+"/agents?q=secretary&namespace=team-03")
		has(b, "best first")
		b.Check()
	})
	side("acting", func(t *testing.T, b *browser.Browser) {
		y := newYard(t)
		made := y.build("weather", "buildkit-build", "Running")
		y.log(made, "collecting\n")
		signIn(y.world, b, y.tokenFor(owner, y.ns))
		at := y.url + "/builds/" + y.ns + "/weather"
		inspect(b, "running", at)
		view := views()[0]
		view.Scripts = true
		b.Show(view, at)
		has(b, "collecting")
		y.log(made,
			"collecting\nTraceback (most recent call last):\n  File \"a\", line 1\n    a()\n"+
				"  File \"b\", line 2\n    b()\nValueError: no\n")
		b.Do(chromedp.WaitVisible(`.log summary`)) // the open page follows
		has(b, "4 lines of a stack trace")
		b.Do(chromedp.Focus(`.log summary`), chromedp.KeyEvent("\r"),
			chromedp.WaitVisible(`.log details pre`))
		b.Axe()
		b.Check()
		b.Show(views()[0], at) // buttons are forms, which work without scripts
		b.Do(chromedp.Click(`form[action$="/cancel"] button`),
			chromedp.WaitVisible(`form[action$="/retry"]`),
			chromedp.Click(`form[action$="/retry"] button`),
			chromedp.WaitVisible(`form[action$="/cancel"]`))
		var now api.AgentBuild
		y.must(y.client.Get(t.Context(), client.ObjectKeyFromObject(made), &now))
		if now.Spec.Cancel || now.Annotations[api.RerunAnnotation(api.DefaultGroup)] == "" {
			t.Errorf("what was clicked did not arrive: %v", now.Annotations)
		}
	})
	side("pictures of the docs", func(_ *testing.T, b *browser.Browser) {
		signIn(w, b, token)
		wide := browser.View{Name: "docs", Width: 1280, Height: 800}
		for _, name := range []string{"home", "agent", "tool", "package"} {
			b.Show(wide, w.url+pagesByName()[name])
			if name == "tool" {
				b.Do(chromedp.Click(`#tool-0 > summary`))
			}
			b.Picture("docs-console-" + name)
		}
		wide.Dark = true
		b.Show(wide, w.url+pagesByName()["failed"])
		b.Picture("docs-console-build")
		b.Show(views()[3], w.url)
		b.Picture("docs-console-phone")
	})
	side("what changes", openPage)
	side("typing", typing)
}

// An open page shows what changes, keeps what the reader opened, and asks for nothing while
// it is hidden.
func openPage(t *testing.T, b *browser.Browser) {
	w := newWorld(t)
	signIn(w, b, w.token("*"))
	view := views()[0]
	view.Scripts = true
	b.Show(view, w.url+"/entries/"+remotes+"/office/booking")
	b.Do(chromedp.Click(`#tool-0 > summary`), chromedp.WaitVisible(`#tool-0 .params`))
	e := catalog()[5]
	e.Title, e.Health, e.Message = "Booking of tables", store.Failing, "the server answers 502"
	w.put(e)
	w.eventually("the page shows the change", func() bool {
		return strings.Contains(browser.Value[string](b,
			`document.querySelector('main').textContent`), "the server answers 502")
	})
	if !browser.Value[bool](b, `document.getElementById('tool-0').open`) {
		t.Error("what the reader opened is closed")
	}
	if got := browser.Value[string](b,
		`document.querySelector('h1').textContent`); !strings.Contains(got, "Booking of tables") {
		t.Errorf("the title is %q", got)
	}
	b.Check()
}

// A list filters while one types, its state is in the address, and the stream follows it.
func typing(t *testing.T, b *browser.Browser) {
	w := newWorld(t)
	signIn(w, b, w.token("*"))
	view := views()[0]
	view.Scripts = true
	b.Show(view, w.url+"/agents")
	b.Do(chromedp.Focus(`input[name=q]`), chromedp.KeyEvent("climate"))
	w.eventually("the list is filtered", func() bool {
		text := browser.Value[string](b, `document.getElementById('list').textContent`)
		return strings.Contains(text, "get_climate_data") && !strings.Contains(text, "Trip Planner")
	})
	if at := browser.Value[string](b, `location.pathname + location.search`); !strings.Contains(at,
		"/agents?q=climate") {
		t.Errorf("the address is %s", at)
	}
	if got := browser.Value[string](b,
		`document.activeElement.name + '=' + document.activeElement.value`); got != "q=climate" {
		t.Errorf("what has the focus is %q", got)
	}
	w.put(store.Entry{Key: store.Key{Resource: cards, Namespace: "travel", Name: "almanac"},
		UID: "almanac", Kind: "AgentCard", Type: store.Agent, Title: "Almanac",
		Description: "The climate of a hundred years", Health: store.Healthy, Fetched: now, Changed: now})
	w.eventually("the filtered list shows what is new", func() bool {
		return strings.Contains(browser.Value[string](b,
			`document.getElementById('list').textContent`), "Almanac")
	})
	if strings.Contains(browser.Value[string](b, `document.getElementById('list').textContent`),
		"Trip Planner") {
		t.Error("the stream shows what the filter leaves out")
	}
	b.Check()
}
