// Command bench measures rendering: against reading and writing the same bytes in Go, and against
// other programs that add containers to manifests. It prints one table and the targets. It exits 0
// even if a target is not met.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/e2e/bench/workload"
	"sigs.k8s.io/kustomize/kyaml/kio"
)

func main() {
	sizes := flag.String("sizes", "10,100,1000,10000", "numbers of workloads")
	targets := flag.Bool("targets", true,
		"measure the targets of ResourceLists and re-rendering too")
	flag.Parse()
	if err := run(*sizes, *targets); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(sizes string, targets bool) error {
	var numbers []int
	for size := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(size)
		if err != nil || n < 1 {
			return fmt.Errorf("-sizes takes numbers of workloads, not %q", size)
		}
		numbers = append(numbers, n)
	}
	work, err := os.MkdirTemp("", "armature-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	b, err := build(work)
	if err != nil {
		return err
	}
	r := &report{}
	if err := b.startUp(r); err != nil {
		return err
	}
	for _, n := range numbers {
		progress("%d workloads", n)
		if err := b.size(r, n); err != nil {
			return err
		}
	}
	if targets {
		progress("targets")
		for _, target := range []func(*report) error{b.function, b.slot, b.fallback, b.oneChanged,
			b.insight, b.falsePositives} {
			if err := target(r); err != nil {
				return err
			}
		}
	}
	r.judge()
	return r.print(os.Stdout)
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }

// bench has the programs and the folder of a run of the command.
type bench struct {
	work string // the folder of all its files
	// The programs, built into the work folder; kustomize and istioctl are "" where
	// they are missing.
	armature, armatureFn, copy, empty, named, kyaml, identity, kustomize, istioctl string

	version cost // of `armature version`: the cost of armature's start-up
}

func build(work string) (*bench, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/armature-dev/armature").Output()
	if err != nil {
		return nil, fmt.Errorf("finding the module: %w", err)
	}
	dir := strings.TrimSpace(string(root))
	bin := filepath.Join(work, "bin")
	progress("building")
	cmd := exec.Command("go", "build", "-o", bin+"/", "./cmd/armature", "./cmd/armature-fn",
		"./e2e/bench/copy", "./e2e/bench/peers/...")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	b := &bench{
		work: work, armature: filepath.Join(bin, "armature"),
		armatureFn: filepath.Join(bin, "armature-fn"), copy: filepath.Join(bin, "copy"),
		empty: filepath.Join(bin, "empty"), named: filepath.Join(bin, "named"),
		kyaml: filepath.Join(bin, "kyaml"), identity: filepath.Join(bin, "identity"),
		kustomize: filepath.Join(dir, ".cache/bin/kustomize"),
	}
	if _, err := os.Stat(b.kustomize); err != nil {
		b.kustomize = ""
	}
	if program := filepath.Join(dir, ".cache/bin/istioctl"); b.istioConfig(program) == nil {
		b.istioctl = program
	}
	return b, nil
}

// istioConfig writes the webhook's configuration to files that are named after their ConfigMaps and
// keys. Without it, kube-inject would query a cluster.
func (b *bench) istioConfig(istioctl string) error {
	manifests, err := exec.Command(istioctl, "manifest", "generate").Output()
	if err != nil {
		return err
	}
	objects, err := kio.FromBytes(manifests)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o.GetKind() != "ConfigMap" {
			continue
		}
		for key, text := range o.GetDataMap() {
			if err := os.WriteFile(filepath.Join(b.work, o.GetName()+"."+key), []byte(text),
				0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// rounds returns how often a number of workloads is measured.
func rounds(n int) int {
	switch {
	case n <= 100:
		return 15
	case n <= 1000:
		return 7
	}
	return 4
}

// slower returns how often programs are measured that need a second for every hundred workloads, as
// many do.
func slower(n int) int {
	if n >= 1000 {
		return 1
	}
	return rounds(n) / 3
}

// size measures all programs at a number of workloads. Those that take seconds
// or more are measured less often.
func (b *bench) size(r *report, n int) error {
	c, err := b.newCorpus(n)
	if err != nil {
		return err
	}
	defer os.RemoveAll(c.folder)
	type group struct { // measured side by side
		rounds   int
		subjects []*subject
	}
	groups := []group{
		{rounds(n), []*subject{
			{name: copying, args: []string{b.copy, c.path("sizes"), c.path("in"), c.path("copied")},
				prepare: c.fresh("copied")},
			{name: armature,
				args:    []string{b.armature, "render", "-q", c.path("in"), "-d", c.path("out")},
				prepare: c.fresh("out"), less: b.version},
		}},
		{slower(n), []*subject{{name: kyaml,
			args: []string{b.kyaml, c.path("rendered/" + workload.File(0)), c.path("in"),
				c.path("injected")}, prepare: c.fresh("injected")}}},
	}
	if b.kustomize != "" && n <= 1000 {
		if err := c.kustomization("exec", b.armatureFn); err != nil {
			return err
		}
		groups = append(groups, group{slower(n),
			[]*subject{{name: kustomize, args: b.kustomizeBuild(c.path("exec")),
				stdout: c.path("out.yaml")}}})
	}
	if b.istioctl != "" {
		groups = append(groups, group{slower(n),
			[]*subject{{name: istioctl, stdout: c.path("out.yaml"),
				args: []string{b.istioctl, "kube-inject", "--revision", "default",
					"--injectConfigFile",
					filepath.Join(b.work, "istio-sidecar-injector.config"), "--meshConfigFile",
					filepath.Join(b.work, "istio.mesh"), "--valuesFile",
					filepath.Join(b.work, "istio-sidecar-injector.values"), "-f",
					c.path("all.yaml")}}}})
	}
	found := row{n: n, costs: map[string]cost{}}
	for _, g := range groups {
		costs, err := measure(g.rounds, g.subjects...)
		if err != nil {
			return err
		}
		for i, s := range g.subjects {
			found.costs[s.name] = costs[i]
		}
	}
	r.rows = append(r.rows, found)
	return nil
}

func (b *bench) kustomizeBuild(folder string) []string {
	return []string{b.kustomize, "build", "--enable-alpha-plugins", "--enable-exec", folder}
}
