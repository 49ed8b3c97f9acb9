package main

import (
	"strings"
	"testing"
)

// A story's time begins when its turn comes. A failed one is reported with its
// output and that of its parts, and the report fails.
func TestReport(t *testing.T) {
	const events = `not JSON
{"Time":"2026-01-01T00:00:00Z","Action":"run","Test":"TestB"}
{"Time":"2026-01-01T00:00:00Z","Action":"pause","Test":"TestB"}
{"Time":"2026-01-01T00:00:10Z","Action":"cont","Test":"TestB"}
{"Time":"2026-01-01T00:00:10Z","Action":"run","Test":"TestB/part"}
{"Time":"2026-01-01T00:00:11Z","Action":"pause","Test":"TestB"}
{"Time":"2026-01-01T00:00:12Z","Action":"cont","Test":"TestB"}
{"Time":"2026-01-01T00:00:20Z","Action":"output","Test":"TestB/part","Output":"it broke\n"}
{"Time":"2026-01-01T00:00:20Z","Action":"RESULT","Test":"TestB/part"}
{"Time":"2026-01-01T00:00:40Z","Action":"RESULT","Test":"TestB"}
{"Time":"2026-01-01T00:00:40Z","Action":"RESULT"}
`
	var out strings.Builder
	ok, err := report(strings.NewReader(strings.ReplaceAll(events, "RESULT", "fail")), &out)
	if err != nil || ok {
		t.Errorf("a failed story: ok %t, %v", ok, err)
	}
	want := "not JSON\nfail     30 s  TestB\nit broke\n\neach story, most of them side by side:\n     30 s  B\n"
	if got := out.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	out.Reset()
	if ok, err := report(strings.NewReader(strings.ReplaceAll(events, "RESULT", "pass")), &out); err != nil || !ok || strings.Contains(out.String(), "it broke") {
		t.Errorf("a story that passed: ok %t, %v\n%s", ok, err, &out)
	}
	if ok, err := report(strings.NewReader(""), &out); err != nil || ok {
		t.Errorf("no story at all: ok %t, %v", ok, err)
	}
}
