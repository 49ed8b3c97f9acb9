//go:build !linux

package source

import (
	"io/fs"
	"os"
)

// stampOf gives the stamp of a file, the zero stamp where there is none.
func stampOf(name string) stamp { return newStamp(os.Stat(name)) }

// linkStamp is the same for a file that may be a link, which it does not follow.
func linkStamp(name string) stamp { return newStamp(os.Lstat(name)) }

func newStamp(info fs.FileInfo, err error) stamp {
	if err != nil {
		return stamp{}
	}
	return stamp{size: info.Size(), modified: info.ModTime().UnixNano()}
}
