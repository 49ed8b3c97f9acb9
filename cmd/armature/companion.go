package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// companion is a command that armature-remote carries out. What talks to
// clusters and registries needs ten times the memory and start-up time of rendering, so that
// it lives in a program of its own.
func companion(name, short string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              short,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, given []string) error {
			program, err := companionProgram()
			if err != nil {
				return err
			}
			run := exec.CommandContext(cmd.Context(), program, append([]string{name}, given...)...)
			run.Stdin, run.Stdout, run.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			// It ends when it is ready to, and its exit status counts. Ctrl-C reaches it
			// by itself, a signal to this process alone does not.
			run.Cancel = func() error {
				_ = run.Process.Signal(syscall.SIGTERM) // it may have ended
				return os.ErrProcessDone
			}
			err = run.Run()
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.Exited() {
				return exitStatus(exit.ExitCode())
			}
			if exit != nil {
				if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGPIPE {
					return exitStatus(128 + syscall.SIGPIPE) // its reader has read enough, as with | head
				}
			}
			if err != nil { // killed, for one, and could not say so
				return fmt.Errorf("%s: %w", filepath.Base(program), err)
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, given []string, partial string) ([]string, cobra.ShellCompDirective) {
			program, err := companionProgram()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			out, err := exec.CommandContext(cmd.Context(), program, append(append([]string{"__complete", name}, given...), partial)...).Output()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			return completions(string(out))
		},
	}
}

// completions reads what cobra's command __complete prints.
func completions(out string) ([]string, cobra.ShellCompDirective) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := lines[len(lines)-1]
	directive, err := strconv.Atoi(strings.TrimPrefix(last, ":"))
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return lines[:len(lines)-1], cobra.ShellCompDirective(directive)
}

// exitStatus is that of a companion, which has said why.
type exitStatus int

func (s exitStatus) Error() string { return "exit status " + strconv.Itoa(int(s)) }

// companionProgram finds armature-remote beside this program, or on the PATH.
func companionProgram() (string, error) {
	const name = "armature-remote"
	if self, err := os.Executable(); err == nil {
		if resolved, err := filepath.EvalSymlinks(self); err == nil {
			beside := filepath.Join(filepath.Dir(resolved), name)
			if _, err := os.Stat(beside); err == nil {
				return beside, nil
			}
		}
	}
	program, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("this command needs %s beside armature or on the PATH: make build makes both", name)
	}
	return program, nil
}
