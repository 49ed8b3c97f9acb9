//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package source

import (
	"os"
	"syscall"
)

// lockFolder locks an open folder until it is closed or the process ends. It
// fails where another process has it locked, and on file systems without locks.
func lockFolder(d *os.File) (locked bool) {
	for {
		err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != syscall.EINTR {
			return err == nil
		}
	}
}
