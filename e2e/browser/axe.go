package browser

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"time"
)

// axe is axe-core, in the version that axe/package.json names.
//
//go:embed axe/axe.min.js.gz
var axe []byte

var axeText = sync.OnceValue(func() string {
	z, err := gzip.NewReader(bytes.NewReader(axe))
	if err != nil {
		panic(err) // it is embedded
	}
	text, err := io.ReadAll(z)
	if err != nil {
		panic(err)
	}
	return string(text)
})

// Axe fails the test with each violation that axe-core finds on the page in its current state.
func (b *Browser) Axe() {
	b.Helper()
	Value[bool](b, axeText()+
		";window.axeResult = ''; axe.run(document, {resultTypes: ['violations'], iframes: "+
		"false}).then((r) => { window.axeResult = JSON.stringify({violations: r.violations, "+
		"passes: r.passes.length}); }); true")
	text := ""
	for deadline := time.Now().Add(time.Minute); text == ""; time.Sleep(50 * time.Millisecond) {
		if text = Value[string](b, "window.axeResult"); text == "" && time.Now().After(deadline) {
			b.Fatal("axe-core does not end")
		}
	}
	var result struct {
		Violations []struct {
			ID, Help string
			Nodes    []struct{ HTML, FailureSummary string }
		}
		Passes int
	}
	if err := json.Unmarshal([]byte(text), &result); err != nil {
		b.Fatal(err)
	}
	if result.Passes < 10 {
		b.Errorf("%s: axe-core checked only %d rules", b.view.Name, result.Passes)
	}
	for _, v := range result.Violations {
		for _, n := range v.Nodes {
			b.Errorf("%s: %s: %s: %s (%s)", b.view.Name, v.ID, v.Help, n.HTML,
				strings.ReplaceAll(n.FailureSummary, "\n", " "))
		}
	}
}
