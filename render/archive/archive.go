// Package archive reads and writes the archives of rendered packages and of Flux's artifacts:
// gzipped tar archives of files and folders. Archives are not trusted: digest, sizes, number of
// files, names and types are checked before a byte is used. Equal files yield equal archives.
package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	_ "crypto/sha256" // for digests
	_ "crypto/sha512"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"

	"github.com/armature-dev/armature/functions/multi"
)

// Limits of an archive.
type Limits struct {
	// Archive is the size of the archive in bytes; the caller enforces it while fetching.
	Archive int64
	// Unpacked is the size of all files together, and File that of one file, in bytes.
	Unpacked, File int64
	// Files is the number of files and folders.
	Files int
}

// DefaultLimits allow the Git repository of a large fleet.
var DefaultLimits = Limits{Archive: 32 << 20, Unpacked: 128 << 20, File: 64 << 20, Files: 50_000}

// Errors for errors.Is.
var (
	// ErrDigest means that an archive is not the one that its source declares.
	ErrDigest = errors.New("the archive does not have the digest that its source declares")
	// ErrLimit means that an archive exceeds the limits.
	ErrLimit = errors.New("larger than the limit")
	// ErrInvalid means that an entry of an archive is refused, or that it is no archive.
	ErrInvalid = errors.New("the archive is refused")
)

// Digest returns the digest of data as sha256:….
func Digest(data []byte) string { return digest.FromBytes(data).String() }

// Check returns an error unless data has a digest, which is sha256:…, sha384:… or sha512:… in hex.
func Check(data []byte, text string) error {
	want, err := digest.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf(
			"%w: digest %q has an unknown algorithm: set the source-controller to sha256",
			ErrDigest, text)
	case want.Algorithm().FromBytes(data) != want:
		// The error must not contain the actual digest, with which the archive could be declared.
		return fmt.Errorf("%w: %s", ErrDigest, text)
	}
	return nil
}

// Open verifies an archive and unpacks it into memory. It returns the contents by path, with
// slashes and relative to the root.
func Open(data []byte, digest string, l Limits) (map[string][]byte, error) {
	if int64(len(data)) > l.Archive {
		return nil, fmt.Errorf("the archive has %d bytes: %w of %d", len(data), ErrLimit, l.Archive)
	}
	if err := Check(data, digest); err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	err := Each(bytes.NewReader(data), l, func(name string, size int64, from io.Reader) error {
		content := make([]byte, size)
		if _, err := io.ReadFull(from, content); err != nil {
			return fmt.Errorf("%w: reading %q: %w", ErrInvalid, name, err)
		}
		files[name] = content
		return nil
	})
	if err != nil {
		return nil, err
	}
	return files, nil
}

// Each unpacks an archive. It calls visit for each file with its path, with slashes and relative to
// the root; visit may read the content until it returns. An entry other than a file or folder, and
// a name that is not below the root, is an error. Each never reads more than the limits allow,
// whatever size the archive would unpack to.
func Each(packed io.Reader, l Limits,
	visit func(name string, size int64, content io.Reader) error) error {
	unzipped, err := gzip.NewReader(packed)
	if err != nil {
		return fmt.Errorf("%w: it is not gzipped: %w", ErrInvalid, err)
	}
	// Headers count as well, because an archive may consist of them.
	budget := &io.LimitedReader{R: unzipped, N: l.Unpacked + 1024*int64(l.Files)}
	entries, left, seen := 0, l.Unpacked, map[string]bool{} // whether it is a folder, by name
	for r := tar.NewReader(budget); ; {
		header, err := r.Next()
		ended := err == io.EOF
		if ended {
			_, err = io.Copy(io.Discard, budget) // the checksum is at the end
		}
		switch {
		case budget.N <= 0:
			return fmt.Errorf("the archive unpacks to more than %d bytes: %w", l.Unpacked, ErrLimit)
		case err != nil:
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		case ended:
			return nil
		}
		if err = checkAttributes(header); err == nil && header.Typeflag != tar.TypeXGlobalHeader {
			err = check(header, seen)
		}
		if err != nil {
			return err
		}
		if entries++; max(entries, len(seen)) > l.Files {
			return fmt.Errorf("the archive has more than %d files and folders: %w", l.Files, ErrLimit)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		name := path.Clean(header.Name)
		if header.Size > l.File || header.Size > left {
			return fmt.Errorf("%q has %d bytes: %w (%d a file, %d together)", name, header.Size,
				ErrLimit, l.File, l.Unpacked)
		}
		left -= header.Size
		if err := visit(name, header.Size, r); err != nil {
			return err
		}
	}
}

// maxPath is the maximum length of the name of an entry in bytes.
const maxPath = 1024

// checkAttributes returns an error for extended attributes that grant capabilities to the process
// of a file, or with which an overlay file system hides and redirects other files.
func checkAttributes(h *tar.Header) error {
	for key := range h.PAXRecords {
		for _, of := range []string{"SCHILY.xattr.", "LIBARCHIVE.xattr."} {
			name, is := strings.CutPrefix(key, of)
			if is && name != "security.selinux" &&
				(strings.HasPrefix(name, "security.") || strings.HasPrefix(name, "trusted.") ||
					strings.Contains(name, "overlay.")) {
				return fmt.Errorf(
					"%w: %q has the extended attribute %.80q: pack it without such attributes",
					ErrInvalid, h.Name, name)
			}
		}
	}
	return nil
}

// check returns an error unless an entry is a new file or folder inside the root. seen contains the
// earlier entries.
func check(h *tar.Header, seen map[string]bool) error {
	name, folder := path.Clean(h.Name), h.Typeflag == tar.TypeDir
	_, sparse := h.PAXRecords["GNU.sparse.major"]
	isFolder, twice := seen[name]
	switch {
	case h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink:
		return fmt.Errorf("%w: %q is a link: put the file itself there", ErrInvalid, h.Name)
	case sparse || h.Typeflag != tar.TypeReg && !folder:
		return fmt.Errorf("%w: %q is neither file nor folder", ErrInvalid, h.Name)
	case !folder && h.Mode&0o6000 != 0:
		return fmt.Errorf("%w: %q is set-uid or set-gid", ErrInvalid, h.Name)
	case name == "." && !folder:
		return fmt.Errorf("%w: a file has no name", ErrInvalid)
	case path.IsAbs(name) || slices.Contains(strings.Split(h.Name, "/"), ".."):
		return fmt.Errorf("%w: %q leads out of it", ErrInvalid, h.Name)
	case !utf8.ValidString(name) || strings.ContainsAny(name, "\\\x00"):
		return fmt.Errorf("%w: %q has characters that a path may not have", ErrInvalid, h.Name)
	case len(h.Name) > maxPath:
		return fmt.Errorf("%w: the name %.80q… has more than %d bytes", ErrInvalid, h.Name, maxPath)
	case twice && !(isFolder && folder):
		return fmt.Errorf("%w: it has %q twice", ErrInvalid, h.Name)
	}
	seen[name] = folder
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		if folder, known := seen[parent]; known && !folder {
			return fmt.Errorf("%w: %q is below %q, which is a file", ErrInvalid, h.Name, parent)
		}
		seen[parent] = true
	}
	return nil
}

// Write packs files in lexical order, with their folders and without owner, time or other facts of
// the machine.
func Write(files map[string][]byte) ([]byte, error) {
	folders := map[string]bool{}
	for name := range files {
		for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
			folders[dir+"/"] = true
		}
	}
	var entries []Entry
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		entries = append(entries, Entry{name, 0o750, nil})
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		entries = append(entries, Entry{name, 0o600, files[name]})
	}
	return Pack(gzip.BestCompression, entries...)
}

// Entry is a file of an archive, or a folder, whose name ends with a slash.
type Entry struct {
	Name string
	Mode int64
	Data []byte
}

// Pack returns an archive that depends only on its entries and the level of compression.
func Pack(level int, entries ...Entry) ([]byte, error) {
	var out bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&out, level)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(zipped)
	for _, e := range entries {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: e.Name, Mode: e.Mode,
			Size: int64(len(e.Data)), Format: tar.FormatPAX}
		if strings.HasSuffix(e.Name, "/") {
			header.Typeflag = tar.TypeDir
		}
		err := w.WriteHeader(header)
		if err == nil {
			_, err = w.Write(e.Data)
		}
		if err != nil {
			return nil, fmt.Errorf("packing %s: %w", e.Name, err)
		}
	}
	if err := multi.Errors(w.Close(), zipped.Close()); err != nil {
		return nil, fmt.Errorf("packing: %w", err)
	}
	return out.Bytes(), nil
}
