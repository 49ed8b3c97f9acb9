package archive

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/armature-dev/armature/functions/multi"
)

// Unpack says which source to unpack where.
type Unpack struct {
	// From is the folder that has FileName. It is not trusted, and may change at any time.
	From string
	// Digest is the required digest of the tar: sha256: and 64 hexadecimal digits.
	Digest string
	// To is an empty folder that no other process writes to.
	To string
}

// Run unpacks the source. It unpacks nothing unless the tar has the digest and each of its entries
// is a regular file, a folder or a link within the source. It reads the tar once, into a copy that
// no other process can open, and hashes and unpacks that copy.
func (u Unpack) Run() error {
	if !sha256Digest.MatchString(u.Digest) {
		return fmt.Errorf("%.80q is not a digest: write sha256: and 64 hexadecimal digits", u.Digest)
	}
	from, err := os.OpenRoot(u.From)
	if err != nil {
		return fmt.Errorf("opening the folder of the packed source: %w", err)
	}
	defer from.Close()
	to, err := os.OpenRoot(u.To)
	if err != nil {
		return fmt.Errorf("opening the folder for the source: %w", err)
	}
	defer to.Close()
	if there, err := fs.ReadDir(to.FS(), "."); err != nil {
		return fmt.Errorf("unpacking to %s: %w", u.To, err)
	} else if len(there) > 0 {
		return fmt.Errorf("unpacking to %s: the folder is not empty: it has %.80q", u.To, there[0].Name())
	}
	packed, info, err := OpenFile(from, FileName)
	if errors.Is(err, os.ErrNotExist) {
		return errors.New(
			"there is no packed source: the step that packs it did not run, or it was removed")
	}
	if err != nil {
		return fmt.Errorf("opening the packed source: %w", err)
	}
	defer packed.Close()
	if info.Size() > maxBytes {
		return fmt.Errorf("the packed source has more than %d GiB", maxBytes>>30)
	}
	private, err := take(packed, info.Size(), u.Digest, to)
	if err != nil {
		return err
	}
	defer private.Close()
	if err := inspect(private); err != nil {
		return fmt.Errorf("the packed source is refused: %w", err)
	}
	if err := write(private, to); err != nil {
		return fmt.Errorf("unpacking the source: %w", err)
	}
	return nil
}

// take copies a file of size bytes to an unnamed file on the volume of to. It returns an error if
// from has another size or another digest.
func take(from io.Reader, size int64, digest string, to *os.Root) (*os.File, error) {
	private, err := to.OpenFile(FileName, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = to.Remove(FileName)
	}
	if err != nil {
		return nil, fmt.Errorf("making a file for the packed source: %w", err)
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(private, sum), io.LimitReader(from, size+1))
	got := fmt.Sprintf("sha256:%x", sum.Sum(nil))
	switch {
	case err != nil:
		err = fmt.Errorf("copying the packed source: %w", err)
	case n != size:
		err = errors.New("the packed source changed while it was read")
	case got != digest:
		err = fmt.Errorf("the packed source has the digest %s, and the step that packed it "+
			"reported %s: it was changed", got, digest)
	}
	if err != nil {
		return nil, multi.Errors(err, private.Close())
	}
	return private, nil
}

// each visits the entries of a tar with their names, without the slash that ends those of folders.
func each(packed io.ReadSeeker, visit func(*tar.Header, string, io.Reader) error) error {
	if _, err := packed.Seek(0, io.SeekStart); err != nil {
		return err
	}
	for reader := tar.NewReader(packed); ; {
		h, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			name := h.Name
			if h.Typeflag == tar.TypeDir {
				name = strings.TrimSuffix(name, "/")
			}
			err = visit(h, name, reader)
		}
		if err != nil {
			return err
		}
	}
}

// inspect checks all entries of a tar, before the first one is written.
func inspect(packed io.ReadSeeker) error {
	kinds, links := map[string]byte{}, links{} // by path
	err := each(packed, func(h *tar.Header, name string, _ io.Reader) error {
		if err := checkName(name); err != nil {
			return err
		}
		if _, twice := kinds[name]; twice {
			return fmt.Errorf("%.200q is in it twice", name)
		}
		if kinds[name] = h.Typeflag; len(kinds) > maxEntries {
			return fmt.Errorf("it has more than %d files", maxEntries)
		}
		if parent := path.Dir(name); parent != "." && kinds[parent] != tar.TypeDir {
			return fmt.Errorf("the folder of %.200q is not in it before", name)
		}
		if h.Mode&^0o777 != 0 {
			return fmt.Errorf("%.200q has the mode %o, and only permissions are supported", name, h.Mode)
		}
		switch h.Typeflag {
		case tar.TypeDir, tar.TypeReg:
		case tar.TypeSymlink:
			links[name] = h.Linkname
		default:
			return fmt.Errorf("%.200q is neither a file, a folder nor a link", name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return links.check()
}

// write writes the entries of a tar that was inspected. No entry replaces another one or is written
// through a link, even if the file system treats two names as equal.
func write(packed io.ReadSeeker, to *os.Root) error {
	top, err := to.Stat(".")
	if err != nil {
		return err
	}
	// Kubernetes sets the setgid bit on volumes, so that files belong to the group.
	folder := os.FileMode(folderMode) | top.Mode()&os.ModeSetgid
	return each(packed, func(h *tar.Header, name string, content io.Reader) error {
		switch h.Typeflag {
		case tar.TypeDir:
			if err := to.Mkdir(name, 0o700); err != nil {
				return err
			}
			return to.Chmod(name, folder)
		case tar.TypeSymlink:
			return to.Symlink(h.Linkname, name)
		}
		return writeFile(to, name, os.FileMode(h.Mode), h.Size, content)
	})
}

func writeFile(to *os.Root, name string, mode os.FileMode, size int64, content io.Reader) error {
	file, err := to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(file, content, size)
	return multi.Errors(err, file.Chmod(mode), file.Close())
}
