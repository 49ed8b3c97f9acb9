// Package archive reads and writes the archives of Flux's artifacts: gzipped tar
// archives of files and folders. Reading trusts nothing: digest, sizes, number of
// files, names and types are checked before a byte is used. Writing gives the
// same bytes for the same files.
package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of what is read.
type Limits struct {
	// Archive is the size of the archive in bytes; whoever fetches it keeps to it.
	Archive int64
	// Unpacked is the size of all files together, File that of one, in bytes.
	Unpacked, File int64
	// Files is the number of files and folders.
	Files int
}

// DefaultLimits allow the Git repository of a large fleet.
var DefaultLimits = Limits{Archive: 32 << 20, Unpacked: 128 << 20, File: 64 << 20, Files: 50_000}

// Errors that callers tell apart with errors.Is.
var (
	// ErrDigest is an archive that is not the one its source declares.
	ErrDigest = errors.New("the archive does not have the digest that its source declares")
	// ErrLimit is an archive beyond the limits.
	ErrLimit = errors.New("larger than the limit")
	// ErrInvalid is an archive with an entry that is refused, or not an archive.
	ErrInvalid = errors.New("the archive is refused")
)

// Digest of data, as sha256:….
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Check that data has a digest, which is sha256:…, sha384:… or sha512:… in hex.
func Check(data []byte, digest string) error {
	algorithm, want, _ := strings.Cut(digest, ":")
	var h hash.Hash
	switch algorithm {
	case "sha256":
		h = sha256.New()
	case "sha384":
		h = sha512.New384()
	case "sha512":
		h = sha512.New()
	default:
		return fmt.Errorf("%w: digest %q is of an unknown algorithm: let the source-controller use sha256", ErrDigest, digest)
	}
	h.Write(data)
	if have := hex.EncodeToString(h.Sum(nil)); have != want {
		return fmt.Errorf("%w: it has %s:%s, declared is %s", ErrDigest, algorithm, have, digest)
	}
	return nil
}

// Open verifies an archive and unpacks it into memory: paths with slashes,
// relative to its root, and contents.
func Open(data []byte, digest string, l Limits) (map[string][]byte, error) {
	if int64(len(data)) > l.Archive {
		return nil, fmt.Errorf("the archive has %d bytes: %w of %d", len(data), ErrLimit, l.Archive)
	}
	if err := Check(data, digest); err != nil {
		return nil, err
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: it is not gzipped: %w", ErrInvalid, err)
	}
	files, entries, left := map[string][]byte{}, 0, l.Unpacked
	// Headers count as well: an archive may consist of them.
	budget := &io.LimitedReader{R: unzipped, N: l.Unpacked + 1024*int64(l.Files)}
	for r := tar.NewReader(budget); ; {
		header, err := r.Next()
		if err == io.EOF {
			return files, nil
		}
		if budget.N <= 0 {
			return nil, fmt.Errorf("the archive unpacks to more than %d bytes: %w", l.Unpacked, ErrLimit)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		if entries++; entries > l.Files {
			return nil, fmt.Errorf("the archive has more than %d files and folders: %w", l.Files, ErrLimit)
		}
		name, err := entryName(header)
		if err != nil {
			return nil, err
		}
		if header.Typeflag == tar.TypeDir || header.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if _, twice := files[name]; twice {
			return nil, fmt.Errorf("%w: it has %q twice", ErrInvalid, name)
		}
		if header.Size > l.File || header.Size > left {
			return nil, fmt.Errorf("%q has %d bytes: %w (%d a file, %d together)", name, header.Size, ErrLimit, l.File, l.Unpacked)
		}
		left -= header.Size
		content := make([]byte, header.Size)
		if _, err := io.ReadFull(r, content); err != nil {
			return nil, fmt.Errorf("%w: reading %q: %w", ErrInvalid, name, err)
		}
		files[name] = content
	}
}

// entryName is the path of an entry that is a file or a folder inside the root.
func entryName(h *tar.Header) (string, error) {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeXGlobalHeader:
	case tar.TypeSymlink, tar.TypeLink:
		return "", fmt.Errorf("%w: %q is a link: put the file itself there", ErrInvalid, h.Name)
	default:
		return "", fmt.Errorf("%w: %q is neither file nor folder", ErrInvalid, h.Name)
	}
	name := path.Clean(h.Name)
	if name == "." && h.Typeflag == tar.TypeReg {
		return "", fmt.Errorf("%w: a file has no name", ErrInvalid)
	}
	if strings.HasPrefix(name, "/") || name == ".." || strings.HasPrefix(name, "../") || slices.Contains(strings.Split(h.Name, "/"), "..") {
		return "", fmt.Errorf("%w: %q leads out of it", ErrInvalid, h.Name)
	}
	if !utf8.ValidString(name) || strings.ContainsAny(name, "\\\x00") {
		return "", fmt.Errorf("%w: %q has characters that a path may not have", ErrInvalid, h.Name)
	}
	return name, nil
}

// Write packs files: folders and files in lexical order, without owner, time or
// anything else of the machine.
func Write(files map[string][]byte) ([]byte, error) {
	folders := map[string]bool{}
	for name := range files {
		for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
			folders[dir+"/"] = true
		}
	}
	var out bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(zipped)
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o750, Format: tar.FormatPAX}); err != nil {
			return nil, fmt.Errorf("packing %s: %w", name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(files[name])), Format: tar.FormatPAX}); err != nil {
			return nil, fmt.Errorf("packing %s: %w", name, err)
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, fmt.Errorf("packing %s: %w", name, err)
		}
	}
	if err := errors.Join(w.Close(), zipped.Close()); err != nil {
		return nil, fmt.Errorf("packing: %w", err)
	}
	return out.Bytes(), nil
}
