package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cost is the cost of a run of a program: its CPU, user and system, with that of its children, and
// the peak of its own anonymous memory in bytes, without pages of its program file.
type cost struct {
	cpu, wall time.Duration
	peak      int64
}

func (c cost) String() string {
	return fmt.Sprintf("%s CPU, %s wall, %s", show(c.cpu), show(c.wall), mebibytes(c.peak))
}

// subject is a program with the work that is measured.
type subject struct {
	name string
	args []string
	// stdin and stdout are files; stdout may be "", for work that writes files.
	stdin, stdout string
	// prepare prepares the work before each run.
	prepare func() error
	// less is subtracted: the start-up of a program.
	less cost
}

// measure runs subjects in turn, so that other work of the machine affects all of them, and returns
// the lowest CPU and wall time of each and the highest peak.
func measure(rounds int, subjects ...*subject) ([]cost, error) {
	best := make([]cost, len(subjects))
	for round := range rounds {
		for i, s := range subjects {
			c, err := s.run()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			if round == 0 {
				best[i] = c
			}
			best[i] = cost{min(best[i].cpu, c.cpu), min(best[i].wall, c.wall), max(best[i].peak, c.peak)}
		}
	}
	for i, s := range subjects {
		best[i].cpu, best[i].wall, best[i].peak = max(best[i].cpu-s.less.cpu, 0),
			max(best[i].wall-s.less.wall, 0), max(best[i].peak-s.less.peak, 0)
	}
	return best, nil
}

func (s *subject) run() (c cost, err error) {
	if s.prepare != nil {
		if err := s.prepare(); err != nil {
			return c, err
		}
	}
	cmd := exec.Command(s.args[0], s.args[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if s.stdin != "" {
		f, err := os.Open(s.stdin)
		if err != nil {
			return c, err
		}
		defer f.Close()
		cmd.Stdin = f
	}
	if s.stdout != "" {
		f, err := os.Create(s.stdout)
		if err != nil {
			return c, err
		}
		defer f.Close()
		cmd.Stdout = f
	}
	// What earlier runs wrote must not be written back during this one.
	debug.FreeOSMemory()
	syscall.Sync()
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return c, err
	}
	ended := make(chan struct{})
	peak := make(chan int64)
	go func() { peak <- watchMemory(cmd.Process.Pid, ended) }()
	err = cmd.Wait()
	c.wall = time.Since(start)
	close(ended)
	c.peak = <-peak
	if err != nil {
		return c, fmt.Errorf("%w\n%s", err, firstLines(stderr.String()))
	}
	c.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return c, nil
}

var anonymous = regexp.MustCompile(`RssAnon:\s+(\d+) kB`)

// watchMemory reads the memory of a process each millisecond, and returns the peak of its anonymous
// memory in bytes: the kernel records only a peak of all memory.
func watchMemory(pid int, ended <-chan struct{}) (peak int64) {
	for tick := time.NewTicker(time.Millisecond); ; {
		select {
		case <-ended:
			tick.Stop()
			return peak
		case <-tick.C:
			// A process that has ended has none.
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if found := anonymous.FindSubmatch(status); found != nil {
				// The expression matches digits only.
				kilobytes, _ := strconv.ParseInt(string(found[1]), 10, 64)
				peak = max(peak, kilobytes<<10)
			}
		}
	}
}

// command runs a program that is not measured.
func command(args ...string) error {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, firstLines(string(out)))
	}
	return nil
}

func firstLines(text string) string {
	lines := strings.SplitN(text, "\n", 6)
	return strings.Join(lines[:min(5, len(lines))], "\n")
}
