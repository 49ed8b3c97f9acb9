//go:build !linux

package local

import "syscall"

func endsWithUs() *syscall.SysProcAttr { return nil }

func free(string) int64 { return 0 }

// alive returns true, because it is not known.
func alive(int) bool { return true }
