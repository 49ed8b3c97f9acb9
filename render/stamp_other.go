//go:build !linux

package render

import (
	"io/fs"
	"os"
)

// stampOf gives the stamp of a file, the zero Stamp where there is none.
func stampOf(name string) Stamp { return stamp(os.Stat(name)) }

// linkStamp is the same for a file that may be a link, which it does not follow.
func linkStamp(name string) Stamp { return stamp(os.Lstat(name)) }

func stamp(info fs.FileInfo, err error) Stamp {
	if err != nil {
		return Stamp{}
	}
	return Stamp{Size: info.Size(), Modified: info.ModTime().UnixNano()}
}
