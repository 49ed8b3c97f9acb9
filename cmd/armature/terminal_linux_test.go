package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/armature-dev/armature/e2e/controlplane"
)

// openTerminal makes a terminal, and what a person has of it: keyboard and screen.
func openTerminal(t *testing.T) (person, terminal *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetUint32(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return person, terminal
}

// interruptQuestion runs a command on a terminal until it asks something, and
// expects Ctrl-C to end it with nothing done.
func interruptQuestion(t *testing.T, a *armature, args ...string) {
	t.Helper()
	_, terminal := openTerminal(t)
	cmd := exec.CommandContext(t.Context(), a.file, args...)
	var out controlplane.Output
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = a.env, terminal, &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	go func() {
		for !strings.Contains(out.String(), "[y/N]") && t.Context().Err() == nil {
			time.Sleep(50 * time.Millisecond)
		}
		_ = cmd.Process.Signal(os.Interrupt)
	}()
	_ = cmd.Wait()
	if !kill.Stop() || cmd.ProcessState.ExitCode() != 1 ||
		!strings.Contains(out.String(), "nothing was done: interrupted") {
		t.Errorf("after Ctrl-C: %s\n%s", cmd.ProcessState, out.String())
	}
}
