package archive

import (
	"archive/tar"
	"bufio"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"time"

	"github.com/armature-dev/armature/functions/multi"
)

// Pack says which source to pack where.
type Pack struct {
	// From is the folder of the source.
	From string
	// To is the folder that receives FileName; empty is From.
	To string
	// KeepGit packs the entries with the name .git as well, of the source and of its submodules.
	// They differ between two clones of one commit.
	KeepGit bool
}

// Run packs the source and returns the digest of the tar. After an error there is no tar. A file
// that is neither a regular file, a folder nor a link is an error, and so is a link that leads out
// of the source.
func (p Pack) Run() (digest string, err error) {
	from, err := os.OpenRoot(p.From)
	if err != nil {
		return "", fmt.Errorf("opening the source: %w", err)
	}
	defer from.Close()
	to, err := os.OpenRoot(cmp.Or(p.To, p.From))
	if err != nil {
		return "", fmt.Errorf("opening the folder for the packed source: %w", err)
	}
	defer to.Close()
	if err := to.RemoveAll(FileName); err != nil { // an earlier run may have left it in the volume
		return "", fmt.Errorf("making room for the packed source: %w", err)
	}
	out, err := to.OpenFile(FileName, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", fmt.Errorf("writing the packed source: %w", err)
	}
	sum := sha256.New()
	buffer := bufio.NewWriterSize(io.MultiWriter(out, sum), 1<<20)
	w := &writer{from: from, tar: tar.NewWriter(buffer), keepGit: p.KeepGit, links: links{}}
	err = w.folder("")
	if err == nil {
		err = w.links.check()
	}
	if err == nil {
		err = w.tar.Close()
	}
	if err = multi.Errors(err, buffer.Flush(), out.Close()); err != nil {
		return "", multi.Errors(fmt.Errorf("packing the source: %w", err), to.Remove(FileName))
	}
	return fmt.Sprintf("sha256:%x", sum.Sum(nil)), nil
}

type writer struct {
	from    *os.Root
	tar     *tar.Writer
	keepGit bool
	links   links
	entries int
	bytes   int64
}

// folder packs the content of a folder. "" is the source itself.
func (w *writer) folder(name string) error {
	names, err := w.list(name)
	if err != nil {
		return err
	}
	for _, base := range names {
		if base == ".git" && !w.keepGit || name == "" && base == FileName {
			continue
		}
		if err := w.entry(path.Join(name, base)); err != nil {
			return err
		}
	}
	return nil
}

// list returns the sorted names in a folder.
func (w *writer) list(name string) ([]string, error) {
	dir, _, err := openAs(w.from, cmp.Or(name, "."), os.ModeDir, "a folder")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(names) > maxEntries {
		return nil, fmt.Errorf("it has more than %d files", maxEntries)
	}
	slices.Sort(names)
	return names, nil
}

func (w *writer) entry(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if w.entries++; w.entries > maxEntries {
		return fmt.Errorf("it has more than %d files", maxEntries)
	}
	info, err := w.from.Lstat(name)
	if err != nil {
		return err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		if err := w.tar.WriteHeader(header(name+"/", tar.TypeDir, folderMode)); err != nil {
			return err
		}
		return w.folder(name)
	case mode.IsRegular():
		return w.file(name)
	case mode.Type() == os.ModeSymlink:
		target, err := w.from.Readlink(name)
		if err != nil {
			return err
		}
		w.links[name] = target
		h := header(name, tar.TypeSymlink, 0o777)
		h.Linkname = target
		return w.tar.WriteHeader(h)
	default:
		return fmt.Errorf("%.200q is neither a file, a folder nor a link", name)
	}
}

func (w *writer) file(name string) error {
	file, info, err := OpenFile(w.from, name)
	if err != nil {
		return err
	}
	defer file.Close()
	if w.bytes += info.Size(); w.bytes > maxBytes {
		return fmt.Errorf("its files have more than %d GiB", maxBytes>>30)
	}
	h := header(name, tar.TypeReg, info.Mode().Perm())
	h.Size = info.Size()
	if err := w.tar.WriteHeader(h); err != nil {
		return err
	}
	if n, err := io.Copy(w.tar, io.LimitReader(file, h.Size+1)); err != nil || n != h.Size {
		return multi.Errors(fmt.Errorf("%.200q changed while it was read", name), err)
	}
	return nil
}

// header returns the header of an entry. It omits the owner and the times, so that equal files have
// equal headers.
func header(name string, kind byte, mode os.FileMode) *tar.Header {
	return &tar.Header{Format: tar.FormatPAX, Typeflag: kind, Name: name, Mode: int64(mode),
		ModTime: time.Unix(0, 0)}
}
