package render

import (
	"io/fs"
	"syscall"
)

// changed is when a file's content or metadata last changed, which unlike the
// time of modification nobody can set.
func changed(info fs.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ctim.Nano()
	}
	return 0
}
