package source

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/armature-dev/armature/functions/multi"
)

// A stage is a folder that collects rendered files until all of them are written. The process that
// created it locks it as long as it lives, so that a later process can find and remove the stages
// of dead processes.

// stageMark is the prefix or suffix of the name of a stage; a number follows.
const stageMark = ".rendering-"

// stageBeside returns the prefix of the name of a stage in the folder's parent.
func stageBeside(folder string) string { return "." + filepath.Base(folder) + stageMark }

// newStage creates a stage and locks it if the file system supports locks.
func newStage(parent, begin string) (stage string, lock io.Closer, err error) {
	for {
		if stage, err = os.MkdirTemp(parent, begin); err != nil {
			return "", nil, err
		}
		d, err := os.Open(stage)
		if errors.Is(err, os.ErrNotExist) {
			continue // another process removed it, since it was not locked yet
		} else if err != nil {
			return "", nil, multi.Errors(err, os.Remove(stage))
		}
		lockFolder(d)
		if sameFolder(stage, d) {
			return stage, d, nil
		}
		d.Close()
	}
}

// removeStages removes the stages of dead processes in a folder and in its parent. Files that
// cannot be removed stay.
func removeStages(folder string) {
	for parent, begin := range map[string]string{folder: stageMark,
		filepath.Dir(folder): stageBeside(folder)} {
		d, err := os.Open(parent)
		if err != nil {
			continue
		}
		names, _ := d.Readdirnames(-1)
		d.Close()
		for _, name := range names {
			number, ok := strings.CutPrefix(name, begin)
			if ok && number != "" && strings.Trim(number, "0123456789") == "" {
				removeStage(filepath.Join(parent, name))
			}
		}
	}
}

func removeStage(stage string) {
	if info, err := os.Lstat(stage); err != nil || !info.IsDir() {
		return
	}
	d, err := os.Open(stage)
	if err != nil {
		return
	}
	defer d.Close()
	if lockFolder(d) && sameFolder(stage, d) {
		os.RemoveAll(stage)
	}
}

// lockFolder locks an open folder until it is closed or the process ends. It returns false if
// another process holds the lock, and on file systems without locks.
func lockFolder(d *os.File) (locked bool) {
	for {
		err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != syscall.EINTR {
			return err == nil
		}
	}
}

// sameFolder reports whether a path still leads to an open file.
func sameFolder(path string, file *os.File) bool {
	one, err1 := os.Lstat(path)
	two, err2 := file.Stat()
	return err1 == nil && err2 == nil && os.SameFile(one, two)
}
