// Package archive passes the files of a source from one task of a build to others, by digest. The
// volume between them is not trusted: steps of a tenant and pods that mount it can write to it at
// any time. Unpack unpacks exactly the files that the digest names, or nothing.
//
// The tar has one form, so that equal files have equal digests: the entries of a folder are sorted
// by name, a folder precedes its content, and times, owners and the modes of folders are omitted.
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

// FileName is the name of the tar in the volume. A source has no file of that name.
const FileName = ".armature-source.tar"

// These are the limits of a source: the entries, the bytes of the tar, and the bytes of a path and
// of each part of it. Those of paths are Linux's own.
const (
	maxEntries = 1 << 19
	maxBytes   = 16 << 30
	maxPath    = 4096
	maxPart    = 255
)

// folderMode is the mode of each unpacked folder, to which the group of a build's steps may write.
// Git stores no modes of folders.
const folderMode = 0o775

var sha256Digest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// checkName returns an error unless name is a path within the source, in its shortest form.
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

// OpenFile opens a file that must be regular, in a folder that tenants may write to: a link could
// lead to another file of the container, and a pipe has no end.
func OpenFile(root *os.Root, name string) (*os.File, os.FileInfo, error) {
	return openAs(root, name, 0, "a regular file")
}

// openAs opens a file that must be of the given type. It does not block if the file was replaced by
// a pipe meanwhile.
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

// links are the targets of the links of a source, by path.
type links map[string]string

// maxHops bounds the links that a path follows, as on Linux. A path with more leads nowhere.
const maxHops = 40

// check returns an error if a link leads out of the source, directly or through other links.
func (l links) check() error {
	for _, name := range slices.Sorted(maps.Keys(l)) {
		hops := 0
		if _, inside := l.follow(strings.Split(path.Dir(name), "/"), l[name], &hops); !inside {
			return fmt.Errorf("the link %.200q leads out of the source, to %.200q", name, l[name])
		}
	}
	return nil
}

// follow resolves a target from a folder, which is given by its parts and contains no links. A path
// that does not exist counts as a folder.
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
