package oci

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/source"
)

// Limits of the content that Pull unpacks, as for a render.
const (
	// MaxArchive is the maximum size of the compressed archive, which is held in memory.
	MaxArchive = 128 << 20
	// MaxContent is the maximum size of all files together.
	MaxContent = source.MaxStream
	MaxFiles   = 200_000
)

// Pull fetches an artifact into a folder that does not exist or is empty. It checks the manifest
// before it fetches the content, and all of the content before it writes a file. The folder appears
// as a whole or not at all.
func Pull(ctx context.Context, ref, folder string, opt Options) (Result, error) {
	from, err := opt.Parse(ref)
	if err != nil {
		return Result{}, err
	}
	if err := vacant(folder); err != nil {
		return Result{}, err
	}
	packed, result, err := fetch(ctx, from, opt)
	if err != nil {
		return Result{}, err
	}
	if result.Files, result.Bytes, err = unpack(packed, nil); err != nil {
		return Result{}, fmt.Errorf("%s: %w", from, err)
	}
	return result, place(ctx, packed, folder)
}

// vacant returns an error unless a folder is empty or does not exist.
func vacant(folder string) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	to, err2 := os.Stat(folder)
	here, err3 := os.Stat(".")
	switch err = cmp.Or(err, err2, err3); {
	case err != nil:
	case len(entries) > 0:
		err = errors.New("the folder is not empty: name a new one")
	case os.SameFile(to, here):
		err = errors.New("the current folder cannot be replaced: name a new one")
	default:
		return nil
	}
	return fmt.Errorf("pulling into %s: %w", folder, err)
}

// fetch returns the archive of an artifact after checking the manifest.
func fetch(ctx context.Context, from name.Reference, opt Options) ([]byte, Result, error) {
	found, artifact, err := opt.get(ctx, "pulling", from)
	if err != nil {
		return nil, Result{}, err
	}
	refuse := func(format string, args ...any) ([]byte, Result, error) {
		return nil, Result{}, fmt.Errorf("%s is refused: %w", from, fmt.Errorf(format, args...))
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(found.Manifest))
	switch {
	case found.MediaType != types.OCIManifestSchema1:
		return refuse("its media type is %s, not %s: it is not a rendered package", found.MediaType,
			types.OCIManifestSchema1)
	case err != nil:
		return refuse("reading its manifest: %w", err)
	case manifest.MediaType != "" && manifest.MediaType != found.MediaType:
		return refuse("the registry says that it is %s, the manifest says %s", found.MediaType,
			manifest.MediaType)
	case manifest.Config.MediaType != ConfigMediaType:
		return refuse("its config is %s, not %s: it is not a rendered package",
			manifest.Config.MediaType, ConfigMediaType)
	case len(manifest.Layers) != 1:
		return refuse("it has %d layers where a rendered package has one", len(manifest.Layers))
	case manifest.Layers[0].MediaType != ContentMediaType:
		return refuse("its layer is %s, not %s", manifest.Layers[0].MediaType, ContentMediaType)
	case manifest.Layers[0].Size > MaxArchive:
		return refuse("its archive is %d MiB, more than %d MiB", manifest.Layers[0].Size>>20,
			MaxArchive>>20)
	}
	packed, err := layer(ctx, from.Context(), manifest.Layers[0], opt)
	if err != nil {
		return refuse("reading its layer: %w", err)
	}
	return packed, Result{Ref: artifact.String(), Digest: found.Digest.String(),
		Origin: originOf(manifest.Annotations)}, nil
}

func layer(ctx context.Context, in name.Repository, d v1.Descriptor, opt Options) ([]byte, error) {
	r, err := Blob(in, d, opt.Remote(ctx))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var b bytes.Buffer
	for {
		_, err := io.CopyN(&b, r, 1<<20)
		if opt.Progress != nil {
			opt.Progress(int64(b.Len()), d.Size)
		}
		if errors.Is(err, io.EOF) {
			return b.Bytes(), nil
		} else if err != nil {
			return nil, err
		}
	}
}

// place unpacks a checked archive into a temporary folder and renames that to the destination.
func place(ctx context.Context, packed []byte, folder string) error {
	folder = filepath.Clean(folder)
	parent := filepath.Dir(folder)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	stage, err := os.MkdirTemp(parent, "."+filepath.Base(folder)+".pulling-")
	if err != nil {
		return fmt.Errorf("preparing to write to %s: %w", folder, err)
	}
	if err = os.Chmod(stage, 0o755); err == nil {
		_, _, err = unpack(packed, func(name string, content io.Reader) error {
			return write(ctx, filepath.Join(stage, filepath.FromSlash(name)), content)
		})
	}
	if err == nil {
		if err = os.Remove(folder); err == nil || errors.Is(err, os.ErrNotExist) { // an empty one
			err = os.Rename(stage, folder)
		}
	}
	if err != nil {
		return multi.Errors(fmt.Errorf("writing to %s: %w", folder, err), os.RemoveAll(stage))
	}
	return nil
}

// write writes a file whose name was checked.
func write(ctx context.Context, to string, content io.Reader) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return multi.Errors(err, f.Close())
}

// unpack passes each file of an archive to visit, and returns the number and size of the files. If
// visit is nil, it only checks the archive.
func unpack(packed []byte,
	visit func(name string, content io.Reader) error) (files int, size int64, err error) {
	limits := archive.Limits{Archive: MaxArchive, Unpacked: MaxContent, File: source.MaxFile,
		Files: MaxFiles}
	err = archive.Each(bytes.NewReader(packed), limits,
		func(name string, n int64, content io.Reader) error {
			// A colon may name a drive or a device of Windows.
			if strings.Contains(name, ":") || !filepath.IsLocal(name) {
				return fmt.Errorf("%w: %q is not a plain name", archive.ErrInvalid, name)
			}
			files, size = files+1, size+n
			if visit == nil {
				return nil
			}
			return visit(name, content)
		})
	return files, size, err
}
