package local

import "syscall"

// endsWithUs sends SIGTERM to a program when this one ends, however that is, and keeps the
// terminal's Ctrl-C from it.
func endsWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
}

// free bytes of the file system of a folder; zero where that is not known, or the folder is "".
func free(folder string) int64 {
	var s syscall.Statfs_t
	if syscall.Statfs(folder, &s) != nil {
		return 0
	}
	return int64(s.Bavail) * s.Bsize
}

func alive(pid int) bool { return syscall.Kill(pid, 0) != syscall.ESRCH }
