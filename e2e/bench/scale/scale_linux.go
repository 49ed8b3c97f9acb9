// Package scale measures what many objects cost, in comparison with peers. The benchmarks named
// BenchmarkScale print the rows of one table with it, which `make bench-scale` collects.
package scale

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/programs"
)

// SizesVariable and BinVariable are set by `make bench-scale`: the sizes to measure, separated by
// commas, and the folder with the programs of this repository.
const SizesVariable, BinVariable = "ARMATURE_SCALE_SIZES", "ARMATURE_SCALE_BIN"

// Sizes returns the requested sizes, or the defaults.
func Sizes(b *testing.B, defaults ...int) (sizes []int) {
	b.Helper()
	b.ReportMetric(0, "ns/op") // the table has the results
	text := os.Getenv(SizesVariable)
	if text == "" {
		return defaults
	}
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 {
			b.Fatalf("%s=%q: %q is not a size\n  hint: write it as 100,500", SizesVariable, text, field)
		}
		sizes = append(sizes, n)
	}
	return sizes
}

// Program returns the file of a command of this repository, which it builds unless
// `make bench-scale` has done so.
func Program(t testing.TB, name string) string {
	t.Helper()
	if bin := os.Getenv(BinVariable); bin != "" {
		return filepath.Join(bin, name)
	}
	root, err := programs.Repository()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name)
	build := exec.Command("go", "build", "-o", file, "./cmd/"+name)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", name, err, out)
	}
	return file
}

// Cost is the cost of some work. Peak is the peak of resident memory in bytes, and Own is the
// resident memory at the end without files; of several processes it is the largest.
type Cost struct {
	Wall, CPU time.Duration
	Peak, Own int64
}

func (c Cost) String() string {
	text := fmt.Sprintf("%.1f s", c.Wall.Seconds())
	if c.CPU > 0 {
		text += fmt.Sprintf(", %.1f s CPU", c.CPU.Seconds())
	}
	if c.Peak > 0 {
		text += fmt.Sprintf(", %d MiB", c.Peak>>20)
	}
	if c.Own > 0 {
		text += fmt.Sprintf(" (%d its own)", c.Own>>20)
	}
	return text
}

// Row prints a row, which `make bench-scale SCALE=command` measures; peer is "" if none runs.
func Row(command, what string, n int, ours Cost, peer string, theirs Cost) {
	ratio := ""
	if peer != "" {
		peer += ": " + theirs.String()
		ratio = fmt.Sprintf("%.2fx", ours.Wall.Seconds()/theirs.Wall.Seconds())
		if ours.CPU > 0 && theirs.CPU > 0 {
			ratio += fmt.Sprintf(", CPU %.2fx", ours.CPU.Seconds()/theirs.CPU.Seconds())
		}
	}
	fmt.Printf("\n| %s | %d | %s | %s | %s | `make bench-scale SCALE=%s` |\n", what, n, ours, peer,
		ratio, command)
}

var began = time.Now()

// Progress prints the current step.
func Progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%5.0f s  %s\n", time.Since(began).Seconds(),
		fmt.Sprintf(format, args...))
}

// Await polls until n are done, and returns when that was so. It prints how many are done, and why
// another one is not.
func Await(t testing.TB, what string, n int, limit time.Duration,
	done func() (have int, why string)) time.Time {
	t.Helper()
	start := time.Now()
	for said := start; ; {
		asked := time.Now()
		have, why := done()
		now := time.Now()
		switch {
		case t.Failed():
			t.FailNow()
		case have >= n:
			Progress("%s: %d", what, have)
			return now
		case now.Sub(start) > limit:
			t.Fatalf("%s: %d of %d after %s: %s", what, have, n, limit, why)
		case now.Sub(said) > 10*time.Second:
			Progress("%s: %d of %d: %.200s", what, have, n, why)
			said = now
		}
		// Polling takes at most a tenth of the time.
		time.Sleep(max(200*time.Millisecond, 10*now.Sub(asked)))
	}
}

// Process is a program that is measured while it runs.
type Process struct {
	t        testing.TB
	cmd      *exec.Cmd
	log      controlplane.Output
	stopping atomic.Bool
	ended    chan struct{}
}

// Start starts a program with some variables, until Stop or the end of the test. The test fails if
// the program ends by itself.
func Start(t testing.TB, variables []string, file string, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, cmd: exec.Command(file, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), variables...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		err := p.cmd.Wait()
		if !p.stopping.Load() {
			t.Errorf("%s ended: %v\n%s", filepath.Base(file), err, p.Log())
		}
		close(p.ended)
	}()
	t.Cleanup(p.Stop)
	return p
}

// Log returns the end of the program's output.
func (p *Process) Log() string {
	text := p.log.String()
	return text[max(0, len(text)-4000):]
}

// Stop ends the program, and waits.
func (p *Process) Stop() {
	p.t.Helper()
	first := !p.stopping.Swap(true)
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
	if first && p.t.Failed() {
		p.t.Logf("%s:\n%s", filepath.Base(p.cmd.Path), p.Log())
	}
}

// Measure measures the cost of processes from now until the result is called with the time at which
// the work was done.
func Measure(all ...*Process) func(end time.Time) Cost {
	start := time.Now()
	var before time.Duration
	for _, p := range all {
		before += p.cost().CPU
	}
	return func(end time.Time) Cost {
		c := Cost{Wall: end.Sub(start), CPU: -before}
		for _, p := range all {
			now := p.cost()
			c.CPU, c.Peak, c.Own = c.CPU+now.CPU, max(c.Peak, now.Peak), max(c.Own, now.Own)
		}
		return c
	}
}

// cost returns the cost until now, from Linux's /proc.
func (p *Process) cost() (c Cost) {
	p.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	status, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err := cmp.Or(err, err2); err != nil {
		p.t.Fatal(err)
	}
	// proc(5): behind the name, which ends with the last parenthesis, utime and stime are the
	// 12th and 13th fields, in ticks of 10 ms.
	for _, field := range strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[11:13] {
		ticks, err := strconv.Atoi(field)
		if err != nil {
			p.t.Fatal(err)
		}
		c.CPU += time.Duration(ticks) * 10 * time.Millisecond
	}
	kib := func(key string) int64 {
		_, rest, _ := strings.Cut(string(status), key)
		n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		if err != nil {
			p.t.Fatal(err)
		}
		return n << 10
	}
	c.Peak, c.Own = kib("VmHWM:"), kib("RssAnon:")
	return c
}

// Run runs a program to its end, and returns its cost, including its children's, and its output.
func Run(t testing.TB, variables []string, file string, args ...string) (Cost, []byte) {
	t.Helper()
	cmd := exec.Command(file, args...)
	cmd.Env = append(os.Environ(), variables...)
	start := time.Now()
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		t.Fatalf("%s %s: %v\n%s", file, strings.Join(args, " "), err, exit.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	s := cmd.ProcessState
	c := Cost{Wall: time.Since(start), CPU: s.UserTime() + s.SystemTime()}
	if usage, ok := s.SysUsage().(*syscall.Rusage); ok {
		c.Peak = usage.Maxrss << 10
	}
	return c, out
}

// Hold limits the process to a quarter of a core and 256 MiB with new cgroups, and fails the test
// if the kernel does not allow it.
func (p *Process) Hold() {
	p.t.Helper()
	type limit struct{ folder, file, text string }
	hold := func(l limit) error {
		group := filepath.Join(l.folder, fmt.Sprintf("armature-scale-%d", p.cmd.Process.Pid))
		if err := os.Mkdir(group, 0o755); err == nil {
			p.t.Cleanup(func() {
				p.Stop()
				_ = os.Remove(group)
			})
		} else if !os.IsExist(err) {
			return err
		}
		for _, file := range [][2]string{{l.file, l.text},
			{"cgroup.procs", strconv.Itoa(p.cmd.Process.Pid)}} {
			// The kernel has created the file.
			f, err := os.OpenFile(filepath.Join(group, file[0]), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString(file[1])
			if err := cmp.Or(err, f.Close()); err != nil {
				return err
			}
		}
		return nil
	}
	const memory = "268435456"
	for _, version := range [][]limit{
		{{"/sys/fs/cgroup", "cpu.max", "25000 100000"}, {"/sys/fs/cgroup", "memory.max", memory}},
		{{"/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "25000"},
			{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", memory}},
	} {
		if hold(version[0]) == nil && hold(version[1]) == nil {
			return
		}
	}
	p.t.Fatal("no process can be held to a quarter of a core and 256 MiB: /sys/fs/cgroup cannot " +
		"be written\n  hint: run it as root")
}
