//go:build unix

package sign

import (
	"os/exec"
	"syscall"
)

// endWithChildren makes the end of a command's context end what it started as well.
func endWithChildren(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
