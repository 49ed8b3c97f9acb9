package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what the command prints.
type report struct {
	Machine string   `json:"machine"`
	Rows    []row    `json:"rows"`
	Targets []target `json:"targets"`
}

// row is one size and form of the corpus, with what each program cost.
type row struct {
	Workloads int             `json:"workloads"`
	Form      string          `json:"form"` // files or stream
	Input     int64           `json:"input"`
	Output    int64           `json:"output"`
	Costs     map[string]cost `json:"costs"`
}

const legend = `CPU is user + system time of the process and its children; the lowest of several
interleaved runs, peak memory the highest; all output is new. "copy" reads the
same input with os.ReadFile and writes as many bytes as the rendered output with
os.WriteFile. The other columns are CPU, wall and peak as multiples of armature's.
kyaml: the same insertions through sigs.k8s.io/kustomize/kyaml. kustomize: with
armature-fn by exec, and with a strategic-merge patch of the same containers and
volumes, which cannot make the ConfigMaps. istioctl: kube-inject, one stream in.
"–" was not measured: kustomize has no such stream, and needs more than ten
minutes at 10,000 (-slow); istioctl has to be built (make bench-istioctl).
linkerd inject cannot be measured: its Go module cannot be had.
`

func (r *report) print(w io.Writer) error {
	fmt.Fprintf(w, "%s\n\n", r.Machine)
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t, "| workloads\t| armature: CPU, wall, peak\t| of copy's\t| kyaml\t| kustomize exec\t| kustomize patch\t| istioctl\t|")
	fmt.Fprintln(t, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
	for i := range r.Rows {
		row := &r.Rows[i]
		ours := row.Costs[armature]
		fmt.Fprintf(t, "| %s %s\t| %s, %s, %s\t| %s", thousands(row.Workloads), row.Form, show(ours.CPU), show(ours.Wall), mebibytes(ours.Peak), multiples(ours, row.Costs[copying]))
		for _, name := range []string{kyaml, kustExec, kustPatch, istio} {
			if c, ok := row.Costs[name]; ok {
				fmt.Fprintf(t, "\t| %s", multiples(c, ours))
			} else {
				fmt.Fprint(t, "\t| –")
			}
		}
		fmt.Fprintln(t, "\t|")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s\n", legend)
	t = tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t, "| target\t| met\t| measured\t|\n|---\t|---\t|---\t|")
	for _, g := range r.Targets {
		met := "not measured"
		if g.Met != nil {
			met = map[bool]string{true: "yes", false: "no"}[*g.Met]
		}
		fmt.Fprintf(t, "| %d. %s\t| %s\t| %s\t|\n", g.Number, g.Promise, met, g.Measured)
	}
	return t.Flush()
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(max(b, 1)) }

func multiples(a, b cost) string {
	return fmt.Sprintf("%s, %s, %s", times(ratio(a.CPU, b.CPU)), times(ratio(a.Wall, b.Wall)), times(float64(a.Peak)/float64(b.Peak)))
}

func times(x float64) string {
	if x < 10 {
		return fmt.Sprintf("%.1fx", x)
	}
	return fmt.Sprintf("%.0fx", x)
}

func show(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

func mebibytes(n int64) string { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// machine says what the figures were measured on.
func machine() string {
	model := "unknown processor"
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d shared cores, %s, %s, %s/%s", runtime.NumCPU(), model, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
