package storage

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/sourceignore"
	"github.com/fluxcd/pkg/sourceignore/gitignore"
)

// SourceIgnoreFilter skips what patterns and Flux's defaults exclude.
func SourceIgnoreFilter(patterns []gitignore.Pattern, domain []string) func(string, os.FileInfo) bool {
	matcher := sourceignore.NewDefaultMatcher(patterns, domain)
	return func(file string, info os.FileInfo) bool {
		return matcher.Match(strings.Split(file, string(filepath.Separator)), info.IsDir())
	}
}

// Archive stores the files and folders of a folder, but those that skip, which may be
// nil, excludes. The same files give the same bytes.
func (s *Storage) Archive(a *meta.Artifact, dir string, skip func(string, os.FileInfo) bool) error {
	return s.write(a, func(w io.Writer) error {
		zipped := gzip.NewWriter(w)
		packed := tar.NewWriter(zipped)
		err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil || !d.IsDir() && !info.Mode().IsRegular() || skip != nil && skip(file, info) {
				return err
			}
			name, err := filepath.Rel(dir, file)
			if err != nil {
				return err
			}
			return pack(packed, filepath.ToSlash(name), file, info)
		})
		return errors.Join(err, packed.Close(), zipped.Close())
	})
}

// pack a file or folder, without what belongs to the machine.
func pack(w *tar.Writer, name, file string, info os.FileInfo) error {
	if info.IsDir() {
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o750})
	}
	mode := int64(0o600)
	if info.Mode()&0o100 != 0 {
		mode = 0o700
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
