package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/armature-dev/armature/functions/text"
)

// mostOutput is the maximum size of a function's output in bytes.
const mostOutput = 64 << 20

// Program is a function that is an executable program.
type Program struct {
	Path string
	Args []string
	// Limit is the maximum time of a run.
	Limit time.Duration
}

func (p Program) Run(ctx context.Context, input []byte) (Answer, error) {
	within, cancel := context.WithTimeout(ctx, p.Limit)
	defer cancel()
	cmd := exec.CommandContext(within, p.Path, p.Args...)
	out, words := &text.Head{Most: mostOutput, Full: cancel}, &text.Head{Most: 64 << 10}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), out, words
	cmd.WaitDelay = time.Second // for other processes that have its pipes open
	// The processes that the program has started are killed with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // remaining child processes
	}
	var ended *exec.ExitError
	switch {
	case out.More:
		return Answer{}, fmt.Errorf("it prints more than %d MiB", mostOutput>>20)
	case errors.Is(within.Err(), context.DeadlineExceeded):
		return Answer{}, fmt.Errorf("it was still running after %s", p.Limit)
	case ctx.Err() != nil:
		return Answer{}, ctx.Err()
	case errors.Is(err, exec.ErrWaitDelay):
		return Answer{}, errors.New("it ended, but a child process still holds its output")
	case errors.As(err, &ended) && ended.ExitCode() < 0:
		return Answer{}, fmt.Errorf("it was ended: %s", ended)
	case err != nil && ended == nil && !errors.Is(err, syscall.EPIPE): // it need not read all
		return Answer{}, err
	}
	return Answer{Stdout: out.Kept, Stderr: words.Kept, Exit: cmd.ProcessState.ExitCode()}, nil
}
