// Package browser opens pages in Debian's Chromium as people see them: wide and narrow, light and
// dark, without scripts. It measures pages and stores pictures of them.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/armature-dev/armature/e2e/programs"
)

// View is a way to display a page.
type View struct {
	Name          string
	Width, Height int64
	Dark, Scripts bool
}

// Views returns a desktop and a phone, each light and dark and without scripts, and a desktop with
// scripts.
func Views() []View {
	return []View{
		{Name: "desktop-light", Width: 1280, Height: 800},
		{Name: "desktop-dark", Width: 1280, Height: 800, Dark: true},
		{Name: "phone-light", Width: 390, Height: 844},
		{Name: "phone-dark", Width: 390, Height: 844, Dark: true},
		{Name: "scripts", Width: 1280, Height: 800, Scripts: true},
	}
}

// Browser is a Chromium with one page.
type Browser struct {
	testing.TB
	ctx  context.Context
	view View

	mu       sync.Mutex
	address  string
	problems []string // that the browser reported of the page
}

// Open starts a browser, which ends with the test. If Chromium is missing, the test is skipped, or
// fails if peers are required.
func Open(t testing.TB) *Browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(programs.Peer(t, "chromium")), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.WindowSize(1280, 800), chromedp.WSURLReadTimeout(2*time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	return page(t, ctx)
}

// Tab opens another page, with its own cookies, for a parallel test. It ends with that test.
func (b *Browser) Tab(t testing.TB) *Browser {
	t.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	tab := page(t, ctx)
	tab.Do(call(emulation.SetFocusEmulationEnabled,
		emulation.SetFocusEmulationEnabledParams{Enabled: true}))
	return tab
}

// page opens a page of a browser, and starts the browser if necessary.
func page(t testing.TB, ctx context.Context) *Browser {
	t.Helper()
	b := &Browser{TB: t, ctx: ctx}
	if err := chromedp.Listen(ctx, b.listen); err != nil {
		t.Fatal(err)
	}
	Value[int](b, "1")
	return b
}

// listen records what a console would show in red.
func (b *Browser) listen(event any) {
	problem := ""
	switch e := event.(type) {
	case *log.EventEntryAdded:
		b.mu.Lock()
		// a page whose status is an error
		own := strings.TrimSuffix(e.Entry.URL, "/") == strings.TrimSuffix(b.address, "/") &&
			strings.HasPrefix(e.Entry.Text, "Failed to load resource")
		b.mu.Unlock()
		if !own && (e.Entry.Level == "error" || e.Entry.Level == "warning") {
			problem = e.Entry.Text
		}
	case *runtime.EventExceptionThrown:
		problem = e.ExceptionDetails.Text
	case *runtime.EventConsoleAPICalled:
		problem = fmt.Sprintf("the page calls console.%s", e.Type)
	}
	if problem != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.problems = append(b.problems, problem)
	}
}

// Do runs steps, each within two minutes.
func (b *Browser) Do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	for i, step := range steps {
		if _, err := limited(b, step); err != nil {
			b.Fatalf("step %d: %v", i+1, err)
		}
	}
}

// See returns what an action reads from the page.
func See[T any](b *Browser, what chromedp.Action[T]) T {
	b.Helper()
	v, err := limited(b, what)
	if err != nil {
		b.Fatal(err)
	}
	return v
}

// Value evaluates an expression in the page. That works without scripts, too.
func Value[T any](b *Browser, expression string) T {
	b.Helper()
	return See(b, chromedp.Evaluate[T](expression))
}

// limited runs one step, within two minutes. The browser keeps running.
func limited[T any](b *Browser, step chromedp.Action[T]) (T, error) {
	timer := time.AfterFunc(2*time.Minute, func() { _ = chromedp.Cancel(b.ctx) })
	defer timer.Stop()
	return chromedp.Run(b.ctx, step)
}

// call returns an action for a command of the browser that returns nothing.
func call[P any](c cdp.Command[P, cdp.Empty], params P) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, c, params)
		return chromedp.Void{}, err
	}
}

// File writes a page into the test's folder and returns its address.
func (b *Browser) File(name string, data []byte) string {
	b.Helper()
	file := filepath.Join(b.TempDir(), name)
	if err := os.WriteFile(file, data, 0o644); err != nil {
		b.Fatal(err)
	}
	return (&url.URL{Scheme: "file", Path: file}).String()
}

// Show opens an address in a view.
func (b *Browser) Show(view View, address string) {
	b.Helper()
	b.Look(view)
	b.mu.Lock()
	b.problems, b.address = nil, address
	b.mu.Unlock()
	b.Do(chromedp.Navigate(address))
}

// Look shows the open page in another view. Whether it has scripts is decided when it is opened.
func (b *Browser) Look(view View) {
	b.Helper()
	b.view = view
	scheme := "light"
	if view.Dark {
		scheme = "dark"
	}
	b.Do(
		call(emulation.SetDeviceMetricsOverride,
			emulation.SetDeviceMetricsOverrideParams{Width: view.Width, Height: view.Height,
				DeviceScaleFactor: 1, Mobile: view.Width < 600}),
		call(emulation.SetEmulatedMedia,
			emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme",
					Value: scheme}}}),
		call(emulation.SetScriptExecutionDisabled,
			emulation.SetScriptExecutionDisabledParams{Value: !view.Scripts}),
	)
}

// Print shows the page as for a printer, until Show is called again.
func (b *Browser) Print() {
	b.Helper()
	b.Do(call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"}))
}

// Check tests the page in its current state: every visible text has the contrast of WCAG AA, the
// page does not scroll sideways, it loads nothing from elsewhere, and the browser reports no
// problem.
func (b *Browser) Check() {
	b.Helper()
	var measured struct {
		Texts    int      // that were measured
		Faint    []string // those without contrast
		Sideways []string // elements that reach over the edge
		Loaded   []string // addresses
		Dark     bool     // which the page knows
	}
	if err := json.Unmarshal([]byte(Value[string](b, measure)), &measured); err != nil {
		b.Fatal(err)
	}
	if measured.Texts < 5 {
		b.Errorf("%s: only %d texts show", b.view.Name, measured.Texts)
	}
	for _, f := range measured.Faint {
		b.Errorf("%s: too little contrast: %s", b.view.Name, f)
	}
	for _, s := range measured.Sideways {
		b.Errorf("%s: wider than the window: %s", b.view.Name, s)
	}
	for _, l := range measured.Loaded {
		b.Errorf("%s: the page loads %s", b.view.Name, l)
	}
	if measured.Dark != b.view.Dark {
		b.Errorf("%s: the page is dark: %v", b.view.Name, measured.Dark)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		b.Errorf("%s: the browser complains: %s", b.view.Name, p)
	}
	b.problems = nil
}

// Picture stores the contents of the window as .cache/pictures/NAME.png.
func (b *Browser) Picture(name string) {
	b.Helper()
	folder, err := programs.Cache("pictures")
	if err != nil {
		b.Fatal(err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name+".png"), See(b, chromedp.CaptureScreenshot()),
		0o644); err != nil {
		b.Fatal(err)
	}
}
