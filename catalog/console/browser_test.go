package console_test

import (
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/armature-dev/armature/e2e/browser"
)

// pages that are looked at, by the names of their pictures.
func pagesByName() map[string]string {
	return map[string]string{
		"home": "/", "agents": "/agents", "search": "/agents?q=travel", "agent": "/entries/" + cards + "/travel/weather", "failing": "/entries/" + cards + "/travel/concierge",
		"tools": "/tools", "tool": "/entries/" + remotes + "/office/booking", "bound": "/entries/" + agents + "/office/assistant",
		"packages": "/packages", "package": "/packages/travel/travel", "nothing": "/agents?q=nothing-like-this",
	}
}

// signIn as a person does, with the form.
func signIn(w *world, b *browser.Browser, token string) {
	b.Show(browser.Views()[0], w.url)
	b.Do(chromedp.SendKeys(`input[name=token]`, token), chromedp.Click(`main button`), chromedp.WaitVisible(`.who`))
}

// The pages can be read in every view: on a desktop and a phone, in light and dark, with
// scripts and without.
func TestPagesInEveryView(t *testing.T) {
	w := newWorld(t)
	token := w.token("*")
	b := browser.Open(t)
	b.Show(browser.Views()[0], w.url)
	b.Picture("console-login")
	signIn(w, b, token)
	for _, view := range browser.Views() {
		for name, path := range pagesByName() {
			b.Show(view, w.url+path)
			b.Check()
			b.Picture("console-" + name + "-" + view.Name)
		}
	}
}
