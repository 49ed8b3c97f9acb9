package local

import "syscall"

// endsWithUs makes the kernel send SIGTERM to a program when this process ends in any way, and
// shields the program from Ctrl-C in the terminal.
func endsWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
}

// free returns the free bytes of the file system of a folder, or zero if they are not known or the
// folder is "".
func free(folder string) int64 {
	var s syscall.Statfs_t
	if syscall.Statfs(folder, &s) != nil {
		return 0
	}
	return int64(s.Bavail) * s.Bsize
}

func alive(pid int) bool { return syscall.Kill(pid, 0) != syscall.ESRCH }
