package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/armature-dev/armature/render/source"
)

// Limits of what a pull unpacks. They are those of a render.
const (
	// MaxArchive is of the compressed archive, which is held in memory.
	MaxArchive = 128 << 20
	// MaxContent is of all files together.
	MaxContent = source.MaxStream
	MaxFiles   = 200_000
	maxPath    = 1024
)

// Pull fetches an artifact into a folder that does not exist or is empty. The
// manifest is judged before the content is fetched, and all of the content
// before anything is written. The folder appears as a whole or not at all.
func Pull(ctx context.Context, ref, folder string, opt Options) (Result, error) {
	from, err := opt.Parse(ref)
	if err != nil {
		return Result{}, err
	}
	if err := vacant(folder); err != nil {
		return Result{}, err
	}
	archive, result, err := fetch(ctx, from, opt)
	if err != nil {
		return Result{}, err
	}
	var all total
	if err := unpack(bytes.NewReader(archive), &all); err != nil {
		return Result{}, fmt.Errorf("%s is refused: %w", from, err)
	}
	result.Files, result.Bytes = all.files, all.bytes
	return result, place(ctx, archive, folder)
}

// vacant reports whether a folder can be made.
func vacant(folder string) error {
	entries, err := os.ReadDir(folder)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("pulling into %s: %w", folder, err)
	case len(entries) > 0:
		return fmt.Errorf("pulling into %s: the folder is not empty: name a new one", folder)
	}
	to, err := os.Stat(folder)
	here, err2 := os.Stat(".")
	if err := errors.Join(err, err2); err != nil {
		return fmt.Errorf("pulling into %s: %w", folder, err)
	}
	if os.SameFile(to, here) {
		return fmt.Errorf("pulling into %s: the folder that you are in cannot be replaced: name a new one", folder)
	}
	return nil
}

// fetch gives the archive of an artifact whose manifest is as it should be.
func fetch(ctx context.Context, from name.Reference, opt Options) ([]byte, Result, error) {
	found, err := remote.Get(from, opt.Remote(ctx)...)
	if err != nil {
		return nil, Result{}, explain("pulling", from, err)
	}
	artifact := from.Context().Digest(found.Digest.String())
	if opt.Verify != nil {
		if err := opt.Verify(ctx, artifact); err != nil {
			return nil, Result{}, err
		}
	}
	refuse := func(format string, args ...any) ([]byte, Result, error) {
		return nil, Result{}, fmt.Errorf("%s is refused: %w", from, fmt.Errorf(format, args...))
	}
	if found.MediaType != types.OCIManifestSchema1 {
		return refuse("its media type is %s, not %s: it is not a rendered package", found.MediaType, types.OCIManifestSchema1)
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(found.Manifest))
	switch {
	case err != nil:
		return refuse("reading its manifest: %w", err)
	case manifest.MediaType != "" && manifest.MediaType != found.MediaType:
		return refuse("the registry says that it is %s, the manifest says %s", found.MediaType, manifest.MediaType)
	case manifest.Config.MediaType != ConfigMediaType:
		return refuse("its config is %s, not %s: it is not a rendered package", manifest.Config.MediaType, ConfigMediaType)
	case len(manifest.Layers) != 1:
		return refuse("it has %d layers where a rendered package has one", len(manifest.Layers))
	case manifest.Layers[0].MediaType != ContentMediaType:
		return refuse("its layer is %s, not %s", manifest.Layers[0].MediaType, ContentMediaType)
	case manifest.Layers[0].Size > MaxArchive:
		return refuse("its archive is %d MiB, more than %d MiB", manifest.Layers[0].Size>>20, MaxArchive>>20)
	}
	archive, err := layer(ctx, from.Context().Digest(manifest.Layers[0].Digest.String()), manifest.Layers[0].Size, opt)
	if err != nil {
		return refuse("reading its layer: %w", err)
	}
	return archive, Result{
		Ref: artifact.String(), Digest: found.Digest.String(),
		Source: manifest.Annotations[SourceAnnotation], Revision: manifest.Annotations[RevisionAnnotation], Created: manifest.Annotations[CreatedAnnotation],
	}, nil
}

// layer reads a blob, which has to have its digest and the size that the
// manifest says.
func layer(ctx context.Context, blob name.Digest, size int64, opt Options) ([]byte, error) {
	l, err := remote.Layer(blob, opt.Remote(ctx)...)
	if err != nil {
		return nil, err
	}
	r, err := l.Compressed() // compares what comes with the digest
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var b bytes.Buffer
	for int64(b.Len()) <= size {
		_, err := io.CopyN(&b, r, 1<<20)
		if opt.Progress != nil {
			opt.Progress(int64(b.Len()), size)
		}
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	if int64(b.Len()) != size {
		return nil, fmt.Errorf("it is not of the %d bytes that the manifest says", size)
	}
	return b.Bytes(), nil
}

// place writes a judged archive beside the folder, and moves it there at once.
func place(ctx context.Context, archive []byte, folder string) error {
	folder = filepath.Clean(folder)
	parent := filepath.Dir(folder)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	stage, err := os.MkdirTemp(parent, "."+filepath.Base(folder)+".pulling-")
	if err != nil {
		return fmt.Errorf("preparing to write to %s: %w", folder, err)
	}
	err = errors.Join(os.Chmod(stage, 0o755), unpack(bytes.NewReader(archive), &writer{ctx: ctx, root: stage}))
	if err == nil {
		if err = os.Remove(folder); err == nil || errors.Is(err, os.ErrNotExist) { // an empty one
			err = os.Rename(stage, folder)
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing to %s: %w", folder, err), os.RemoveAll(stage))
	}
	return nil
}

// sink takes the files of an archive.
type sink interface {
	file(name string, content io.Reader) error
}

type discard struct{}

func (discard) file(_ string, content io.Reader) error {
	_, err := io.Copy(io.Discard, content)
	return err
}

// total counts what there is.
type total struct {
	files int
	bytes int64
}

func (t *total) file(_ string, content io.Reader) error {
	n, err := io.Copy(io.Discard, content)
	t.files++
	t.bytes += n
	return err
}

// writer writes files below a root. The names have been judged before.
type writer struct {
	ctx  context.Context
	root string
}

func (w *writer) file(name string, content io.Reader) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	to := filepath.Join(w.root, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// unpack reads a gzipped tar archive of files and folders. Everything else, and
// every name that is not plainly below the root, is an error. It reads no
// further than the limits, whatever the archive would grow to.
func unpack(archive io.Reader, to sink) error {
	zip, err := gzip.NewReader(archive)
	if err != nil {
		return fmt.Errorf("its layer is not a gzipped archive: %w", err)
	}
	content := &limited{from: zip, left: MaxContent}
	r := tar.NewReader(content)
	seen := make(map[string]byte) // type of the entry, by name
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading its archive: %w", err)
		}
		if err := judge(header, seen); err != nil {
			return err
		}
		if header.Typeflag == tar.TypeDir {
			continue
		}
		if err := to.file(path.Clean(header.Name), r); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
	if _, err := io.Copy(io.Discard, content); err != nil { // the checksum comes last
		return fmt.Errorf("reading its archive: %w", err)
	}
	return nil
}

// judge refuses entries other than plain files and folders below the root.
func judge(header *tar.Header, seen map[string]byte) error {
	named := header.Name
	clean := path.Clean(named)
	kind := header.Typeflag
	if _, sparse := header.PAXRecords["GNU.sparse.major"]; sparse || kind == tar.TypeGNUSparse {
		return fmt.Errorf("%q is a sparse file", named)
	}
	switch kind {
	case tar.TypeReg, tar.TypeDir:
	case tar.TypeSymlink, tar.TypeLink:
		return fmt.Errorf("%q is a link, to %q", named, header.Linkname)
	default:
		return fmt.Errorf("%q is neither file nor folder", named)
	}
	switch {
	case clean == "." && kind == tar.TypeDir:
		return nil
	case clean == "." || !filepath.IsLocal(clean) || path.IsAbs(named) || strings.ContainsAny(named, "\\:\x00") || hasDots(named) || len(named) > maxPath:
		return fmt.Errorf("%q leads out of the package, or is not a plain name", named)
	case header.Size > source.MaxFile:
		return fmt.Errorf("%q is %d MiB large, more than %d MiB", named, header.Size>>20, source.MaxFile>>20)
	case len(seen) >= MaxFiles:
		return fmt.Errorf("it has more than %d files", MaxFiles)
	}
	if was, twice := seen[clean]; twice && (was != tar.TypeDir || kind != tar.TypeDir) {
		return fmt.Errorf("%q occurs in it twice", named)
	}
	seen[clean] = kind
	for parent := path.Dir(clean); parent != "."; parent = path.Dir(parent) {
		if was, ok := seen[parent]; ok && was != tar.TypeDir {
			return fmt.Errorf("%q lies below %q, which is a file", named, parent)
		}
		seen[parent] = tar.TypeDir
	}
	return nil
}

// hasDots reports whether ".." is a part of a name.
func hasDots(named string) bool {
	for part := range strings.SplitSeq(named, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

// limited reads no more than a limit, and says so.
type limited struct {
	from io.Reader
	left int64
}

func (l *limited) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("it unpacks to more than %d MiB", int64(MaxContent)>>20)
	}
	if int64(len(b)) > l.left {
		b = b[:l.left]
	}
	n, err := l.from.Read(b)
	l.left -= int64(n)
	return n, err
}
