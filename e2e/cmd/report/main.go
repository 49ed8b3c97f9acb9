// Report follows `go test -json` on standard input: it prints each test when it
// ends, with the output of a failed one, then a table of the times, and fails if a
// test did.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	ok, err := report(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

// event is one of `go doc test2json`.
type event struct {
	Time         time.Time
	Action, Test string
	Output       string
}

// test is one that was run. What waited for its turn began when that came.
type test struct {
	name       string
	began      time.Time
	took       time.Duration
	output     []string
	hasStarted bool
}

func report(in io.Reader, out io.Writer) (ok bool, err error) {
	running := map[string]*test{}
	var ended []*test
	ok = true
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(out, lines.Text()) // of the compiler
			continue
		}
		name, _, isPart := strings.Cut(e.Test, "/")
		t := running[name]
		switch {
		case e.Action == "run" && !isPart:
			running[name] = &test{name: name, began: e.Time}
		case e.Action == "cont" && !isPart && !t.hasStarted:
			t.began, t.hasStarted = e.Time, true
		case e.Action == "output" && t != nil:
			t.output = append(t.output, e.Output)
		case e.Action == "output" || e.Action == "build-output":
			fmt.Fprint(out, e.Output)
		case (e.Action == "pass" || e.Action == "fail" || e.Action == "skip") && t != nil && !isPart:
			t.took = e.Time.Sub(t.began)
			fmt.Fprintf(out, "%s  %5.0f s  %s\n", e.Action, t.took.Seconds(), name)
			if e.Action != "pass" {
				fmt.Fprint(out, strings.Join(t.output, ""))
			}
			ended = append(ended, t)
		}
		ok = ok && e.Action != "fail" && e.Action != "build-fail"
	}
	slices.SortFunc(ended, func(a, b *test) int { return strings.Compare(a.name, b.name) })
	fmt.Fprintln(out, "\neach story, most of them side by side:")
	for _, t := range ended {
		fmt.Fprintf(out, "%7.0f s  %s\n", t.took.Seconds(), strings.TrimPrefix(t.name, "Test"))
	}
	return ok && len(ended) > 0, lines.Err()
}
