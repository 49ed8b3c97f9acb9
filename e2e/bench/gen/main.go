// Command gen writes the corpus of the benchmarks: workloads the way people
// write them, about 4.3 KB each and every one opted in. The same number gives
// the same bytes on every machine.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/armature-dev/armature/e2e/bench/workload"
)

func main() {
	n := flag.Int("n", 1000, "how many workloads")
	out := flag.String("out", "", "folder to write to, or with -stream the file; - is standard output")
	stream := flag.Bool("stream", false, "write one YAML stream")
	list := flag.Bool("resourcelist", false, "write one ResourceList")
	flag.Parse()
	if err := write(*n, *out, *stream, *list); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func write(n int, out string, stream, list bool) error {
	if out == "" {
		return fmt.Errorf("name what to write to with -out")
	}
	if stream || list {
		return writeOne(n, out, list)
	}
	var text bytes.Buffer
	for i := range n {
		text.Reset()
		if err := workload.Write(&text, i); err != nil {
			return err
		}
		name := filepath.Join(out, workload.File(i))
		if i%100 == 0 {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(name, text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func writeOne(n int, out string, list bool) (err error) {
	f := os.Stdout
	if out != "-" {
		if f, err = os.Create(out); err != nil {
			return err
		}
		defer f.Close()
	}
	w := bufio.NewWriter(f)
	if list {
		fmt.Fprint(w, "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n")
	}
	var text bytes.Buffer
	for i := range n {
		text.Reset()
		if err := workload.Write(&text, i); err != nil {
			return err
		}
		switch {
		case list:
			writeItem(w, text.Bytes(), i)
		case i > 0:
			fmt.Fprintf(w, "---\n%s", text.Bytes())
		default:
			w.Write(text.Bytes())
		}
	}
	return w.Flush()
}

// writeItem writes a workload as a host passes it on.
func writeItem(w *bufio.Writer, text []byte, i int) {
	lead := "- "
	_, text, _ = bytes.Cut(text, []byte("\n")) // hosts drop the comment above an object
	for line := range bytes.Lines(text) {
		if len(line) > 1 {
			w.WriteString(lead)
		}
		w.Write(line)
		if lead = "  "; bytes.HasPrefix(line, []byte("  annotations:")) {
			fmt.Fprintf(w, "      config.kubernetes.io/path: '%s'\n      config.kubernetes.io/index: '0'\n", workload.File(i))
		}
	}
}
