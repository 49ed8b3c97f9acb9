package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"text/tabwriter"
	"time"
)

// report is the output of the command.
type report struct {
	rows    []row
	targets []target
}

// row is one size of the corpus, with the cost of each program.
type row struct {
	n     int
	costs map[string]cost
}

// target is a promise of the design with the measured value.
type target struct {
	number                 int
	promise, met, measured string
}

func (r *report) add(number int, met bool, promise, measured string, args ...any) {
	r.targets = append(r.targets,
		target{number, promise, map[bool]string{true: "yes", false: "no"}[met],
			fmt.Sprintf(measured, args...)})
}

func (r *report) unknown(number int, promise, why string) {
	r.targets = append(r.targets, target{number, promise, "not measured", why})
}

// The names of the programs, by which a row has their costs.
const (
	copying   = "read and write in Go"
	armature  = "armature"
	kyaml     = "kyaml injector"
	kustomize = "kustomize, armature-fn by exec"
	istioctl  = "istioctl kube-inject"
)

const legend = `CPU is user + system time of the process and its children; the lowest of several
interleaved runs, peak anonymous memory the highest; all output is new. Figures of
armature are without its start-up, what "armature version" costs. "copy" reads the
same input with os.ReadFile and writes as many bytes as the rendered output with
os.WriteFile. The other columns are CPU, wall and peak as multiples of armature's.
kyaml: the same insertions through sigs.k8s.io/kustomize/kyaml. kustomize: with
armature-fn by exec. istioctl: kube-inject of one stream, without a cluster. "–" was
not measured: kustomize or istioctl is missing (make hosts, make bench-istioctl), or the
workloads are 10,000, for which kustomize needs more than ten minutes.
`

func (r *report) print(w io.Writer) error {
	fmt.Fprintf(w, "%s\n\n", machine())
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t,
		"| workloads\t| armature: CPU, wall, peak\t| of copy's\t| kyaml\t| kustomize exec\t| "+
			"istioctl\t|")
	fmt.Fprintln(t, "|---\t|---\t|---\t|---\t|---\t|---\t|")
	for _, row := range r.rows {
		own := row.costs[armature]
		fmt.Fprintf(t, "| %d\t| %s, %s, %s\t| %s", row.n, show(own.cpu), show(own.wall),
			mebibytes(own.peak), multiples(own, row.costs[copying]))
		for _, name := range []string{kyaml, kustomize, istioctl} {
			if c, ok := row.costs[name]; ok {
				fmt.Fprintf(t, "\t| %s", multiples(c, own))
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
	for _, g := range r.targets {
		fmt.Fprintf(t, "| %d. %s\t| %s\t| %s\t|\n", g.number, g.promise, g.met, g.measured)
	}
	return t.Flush()
}

// judge adds the targets that the table answers, before the others.
func (r *report) judge() {
	var large, medium *row
	for i := range r.rows {
		switch row := &r.rows[i]; row.n {
		case 10_000:
			large = row
		case 1000:
			medium = row
		}
	}
	if large == nil {
		return
	}
	rest := r.targets
	r.targets = nil
	own, base, library := large.costs[armature], large.costs[copying], large.costs[kyaml]
	io := ratio(own.cpu, base.cpu)
	r.add(1, io <= 2, "10,000 files: at most 2.0x the CPU of reading and writing those bytes in Go",
		"%.2fx (%s against %s)", io, show(own.cpu), show(base.cpu))
	r.add(1, own.peak <= 32<<20, "at most 32 MiB", "%s", mebibytes(own.peak))
	times := ratio(library.cpu, own.cpu)
	r.add(1, times >= 20, "20x less CPU than a kyaml injector", "%.0fx (%s)", times, show(library.cpu))
	if mesh, ok := large.costs[istioctl]; ok {
		times := ratio(mesh.cpu, own.cpu)
		r.add(1, times >= 500, "500x less CPU than istioctl kube-inject", "%.0fx (%s)", times,
			show(mesh.cpu))
	} else {
		r.unknown(1, "500x less CPU than istioctl kube-inject",
			"no istioctl at hand: make bench-istioctl")
	}
	if medium != nil {
		each := ratio(own.cpu, medium.costs[armature].cpu) * float64(medium.n) / float64(large.n)
		r.add(1, each <= 1.2, "a document of 10,000 costs at most 1.2x one of 1,000", "%.2fx", each)
	}
	r.targets = append(r.targets, rest...)
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(max(b, 1)) }

func multiples(a, b cost) string {
	return fmt.Sprintf("%s, %s, %s", times(ratio(a.cpu, b.cpu)), times(ratio(a.wall, b.wall)),
		times(float64(a.peak)/float64(max(b.peak, 1))))
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

var processor = regexp.MustCompile(`model name\s*: (.*)`)

// machine returns the machine of the measurements.
func machine() string {
	model := "unknown processor"
	info, _ := os.ReadFile("/proc/cpuinfo")
	if found := processor.FindSubmatch(info); found != nil {
		model = string(found[1])
	}
	return fmt.Sprintf("%d shared cores, %s, %s, %s/%s", runtime.NumCPU(), model, runtime.Version(),
		runtime.GOOS, runtime.GOARCH)
}
