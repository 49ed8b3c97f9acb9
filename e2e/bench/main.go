// Command bench measures rendering: against reading and writing the same bytes
// in Go, and against the other programs that put containers into manifests. It
// prints one table and the targets, and judges nothing: it exits 0 whatever
// they say.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

func main() {
	var opt options
	var sizes string
	flag.StringVar(&sizes, "sizes", "10,100,1000,10000", "numbers of workloads")
	flag.StringVar(&opt.output, "o", "text", "write text or json")
	flag.StringVar(&opt.kustomize, "kustomize", "", "kustomize to measure, or none (default: .cache/bin/kustomize or PATH)")
	flag.StringVar(&opt.istioctl, "istioctl", "", "istioctl to measure (make bench-istioctl builds one)")
	flag.BoolVar(&opt.slow, "slow", false, "include kustomize at 10,000 workloads: more than ten minutes for each run")
	flag.BoolVar(&opt.targets, "targets", true, "measure the targets of ResourceLists and re-rendering too")
	flag.StringVar(&opt.work, "work", "", "folder to work in (default: a temporary one)")
	flag.Parse()
	if err := opt.run(sizes); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	sizes                             []int
	output, kustomize, istioctl, work string
	slow, targets                     bool
}

func (o *options) run(sizes string) error {
	for size := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(size)
		if err != nil || n < 1 {
			return fmt.Errorf("-sizes takes numbers of workloads, not %q", size)
		}
		o.sizes = append(o.sizes, n)
	}
	if o.output != "text" && o.output != "json" {
		return fmt.Errorf("-o takes text or json, not %q", o.output)
	}
	if o.work == "" {
		work, err := os.MkdirTemp("", "armature-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(work)
		o.work = work
	}
	bin, err := build(o)
	if err != nil {
		return err
	}
	r := &report{Machine: machine()}
	for _, n := range o.sizes {
		progress("%d workloads", n)
		if err := o.size(bin, r, n); err != nil {
			return err
		}
	}
	if o.targets {
		progress("targets")
		if err := o.measureTargets(bin, r); err != nil {
			return err
		}
	}
	r.judge()
	if o.output == "json" {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	return r.print(os.Stdout)
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }

// binaries are the programs, built into the work folder.
type binaries struct {
	armature, armatureFn, gen, copy, kyaml, identity string
	kustomize, istioctl                              string // "" where there is none
}

func build(o *options) (*binaries, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/armature-dev/armature").Output()
	if err != nil {
		return nil, fmt.Errorf("finding the module: %w", err)
	}
	dir := strings.TrimSpace(string(root))
	bin := filepath.Join(o.work, "bin")
	progress("building")
	for module, packages := range map[string][]string{
		dir:                                   {"./cmd/armature", "./cmd/armature-fn", "./e2e/bench/gen", "./e2e/bench/copy"},
		filepath.Join(dir, "e2e/bench/peers"): {"./kyaml", "./identity"},
	} {
		cmd := exec.Command("go", append([]string{"build", "-o", bin + "/"}, packages...)...)
		cmd.Dir = module
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building %v: %w\n%s", packages, err, out)
		}
	}
	b := &binaries{
		armature: filepath.Join(bin, "armature"), armatureFn: filepath.Join(bin, "armature-fn"),
		gen: filepath.Join(bin, "gen"), copy: filepath.Join(bin, "copy"),
		kyaml: filepath.Join(bin, "kyaml"), identity: filepath.Join(bin, "identity"),
		kustomize: o.kustomize, istioctl: o.istioctl,
	}
	if b.kustomize == "none" {
		b.kustomize = ""
	} else if b.kustomize == "" {
		b.kustomize = filepath.Join(dir, ".cache/bin/kustomize")
		if _, err := os.Stat(b.kustomize); err != nil {
			b.kustomize, _ = exec.LookPath("kustomize") // without one, its columns stay empty
		}
	}
	if b.istioctl == "" {
		b.istioctl = filepath.Join(dir, ".cache/bin/istioctl")
		if _, err := os.Stat(b.istioctl); err != nil {
			b.istioctl = ""
		}
	}
	return b, nil
}

// rounds is how often a number of workloads is measured.
func rounds(n int) int {
	switch {
	case n <= 100:
		return 15
	case n <= 1000:
		return 7
	}
	return 4
}

// size measures all programs at a number of workloads. Those that take seconds
// or more are measured less often.
func (o *options) size(bin *binaries, r *report, n int) error {
	c, err := newCorpus(bin, o.work, n)
	if err != nil {
		return err
	}
	defer os.RemoveAll(c.folder)
	count := rounds(n)
	files := row{Workloads: n, Form: "files", Input: c.input, Output: c.rendered, Costs: make(map[string]cost)}
	stream := row{Workloads: n, Form: "stream", Input: c.input, Output: c.stream, Costs: make(map[string]cost)}
	all := c.path("all.yaml")
	out := c.path("out.yaml")
	for _, b := range []struct {
		row      *row
		rounds   int
		subjects []*subject
	}{
		{&files, count, []*subject{
			{name: copying, args: []string{bin.copy, c.path("sizes"), c.path("in"), c.path("copied")}, prepare: c.fresh("copied")},
			{name: armature, args: []string{bin.armature, "render", "-q", c.path("in"), "-o", c.path("out")}, prepare: c.fresh("out")},
		}},
		{&stream, count, []*subject{
			{name: copying, args: []string{bin.copy, strconv.FormatInt(c.stream, 10)}, stdin: all, stdout: out},
			{name: armature, args: []string{bin.armature, "render", "-q", "-"}, stdin: all, stdout: out},
		}},
		{&files, slower(count, n), []*subject{
			{name: kyaml, args: []string{bin.kyaml, c.sample(), c.path("in"), c.path("injected")}, prepare: c.fresh("injected")},
		}},
		{&stream, slower(count, n), []*subject{
			{name: kyaml, args: []string{bin.kyaml, c.sample()}, stdin: all, stdout: out},
		}},
	} {
		costs, err := measure(b.rounds, b.subjects...)
		if err != nil {
			return err
		}
		for i, s := range b.subjects {
			b.row.Costs[s.name] = costs[i]
		}
	}
	if err := o.hosts(bin, c, &files, n); err != nil {
		return err
	}
	if err := o.istio(bin, c, &stream, n); err != nil {
		return err
	}
	r.Rows = append(r.Rows, files, stream)
	return nil
}

// slower is how often programs are measured that need a second for every
// hundred workloads, as many do.
func slower(rounds, n int) int {
	if n >= 1000 {
		return 1
	}
	return rounds / 3
}
