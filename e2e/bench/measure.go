package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
)

// cost is what a run of a program took, its own children included.
type cost struct {
	CPU  time.Duration `json:"cpu"` // user and system
	Wall time.Duration `json:"wall"`
	Peak int64         `json:"peak"` // resident bytes of its largest process
}

// subject is a program with the work that it is measured at.
type subject struct {
	name string
	args []string
	// stdin and stdout are files; stdout may be "", for work that writes files.
	stdin, stdout string
	dir           string
	env           []string
	// prepare makes the work afresh before each run.
	prepare func() error
}

// measure runs subjects in turn, so that what else the machine does falls on
// all of them, and gives the lowest CPU and wall time of each and the highest
// peak.
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
			best[i] = cost{min(best[i].CPU, c.CPU), min(best[i].Wall, c.Wall), max(best[i].Peak, c.Peak)}
		}
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
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.env...)
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
	// A child is born with its parent's peak, so the parent stays small; and
	// what earlier runs wrote must not be written back during this one.
	debug.FreeOSMemory()
	syscall.Sync()
	start := time.Now()
	err = cmd.Run()
	c.Wall = time.Since(start)
	if err != nil {
		return c, fmt.Errorf("%w\n%s", err, firstLines(stderr.String()))
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return c, fmt.Errorf("this system does not report what a process used")
	}
	c.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	c.Peak = usage.Maxrss << 10
	return c, nil
}

func firstLines(text string) string {
	lines := strings.SplitN(text, "\n", 6)
	return strings.Join(lines[:min(5, len(lines))], "\n")
}
