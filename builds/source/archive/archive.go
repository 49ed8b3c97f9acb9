// Package archive hands the files of a source from one task of a build to others, by
// digest. The volume between them is nobody's: steps of a tenant and pods that mount it
// can write to it at any time. What is unpacked is what the digest names, or nothing.
//
// The tar has one form: the entries of a folder in the order of their names, folders
// before what is in them, without times, owners and the modes of folders. The same files
// have the same digest.
package archive

import (
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/armature-dev/armature/functions/multi"
)

// FileName of the tar in the volume. A source has no file of that name.
const FileName = ".armature-source.tar"

// Limits of a source: entries, bytes of the tar, and bytes of a path and of each part
// of it, which are Linux's own.
const (
	maxEntries = 1 << 19
	maxBytes   = 16 << 30
	maxPath    = 4096
	maxPart    = 255
)

// folderMode that each unpacked folder has: those of the group of a build's steps may
// write to it. Git knows no modes of folders.
const folderMode = 0o775

var sha256Digest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// checkName returns an error unless name is a path within the tree, in its shortest form.
func checkName(name string) error {
	if name == "" || len(name) > maxPath || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%.80q is not the path of a file", name)
	}
	for _, part := range strings.Split(name, "/") {
		if part == "" || part == "." || part == ".." || len(part) > maxPart {
			return fmt.Errorf("%.80q is not a path within the source", name)
		}
	}
	return nil
}

// OpenFile opens what has to be a regular file, in a folder that others may write to. A link
// could lead to another file of the container, and a pipe has no end.
func OpenFile(root *os.Root, name string) (*os.File, os.FileInfo, error) {
	return openAs(root, name, 0, "a regular file")
}

// openAs opens what has to be of a type. Without waiting: it may be a pipe by then.
func openAs(root *os.Root, name string, kind os.FileMode,
	what string) (*os.File, os.FileInfo, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if info.Mode().Type() != kind {
		return nil, nil, fmt.Errorf("%.200q is not %s", name, what)
	}
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	now, err := file.Stat()
	if err == nil && !os.SameFile(info, now) {
		err = fmt.Errorf("%.200q was replaced while it was opened", name)
	}
	if err != nil {
		return nil, nil, multi.Errors(err, file.Close())
	}
	return file, now, nil
}

// links of a tree: their targets by path.
type links map[string]string

// maxHops from link to link, as on Linux; a path with more leads nowhere.
const maxHops = 40

// check returns an error if a link leads out of the tree, by way of others too.
func (l links) check() error {
	for _, name := range slices.Sorted(maps.Keys(l)) {
		hops := 0
		if _, inside := l.follow(strings.Split(path.Dir(name), "/"), l[name], &hops); !inside {
			return fmt.Errorf("the link %.200q leads out of the source, to %.200q", name, l[name])
		}
	}
	return nil
}

// follow a target from a folder, which is given by its parts and has no links in it.
// What does not exist counts as a folder.
func (l links) follow(from []string, target string, hops *int) (to []string, inside bool) {
	if path.IsAbs(target) {
		return nil, false
	}
	at := from
	if len(at) == 1 && at[0] == "." {
		at = nil
	}
	for _, part := range strings.Split(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if len(at) == 0 {
				return nil, false
			}
			at = at[:len(at)-1]
		default:
			next := append(at[:len(at):len(at)], part)
			further, is := l[strings.Join(next, "/")]
			if !is {
				at = next
				continue
			}
			if *hops++; *hops > maxHops {
				return at, true
			}
			if at, inside = l.follow(at, further, hops); !inside {
				return nil, false
			}
		}
	}
	return at, true
}
