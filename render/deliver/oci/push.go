package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render"
)

// Metadata says where a package is from. None of it is looked up, so that the
// same package has the same digest wherever and whenever it is pushed.
type Metadata struct {
	// Source is the URL of the repository, Revision a branch and commit as Flux
	// writes them: "main@sha1:<commit>". Both may be "".
	Source, Revision string
	// Created is the time of the source's commit; zero is 1970.
	Created time.Time
}

// Push stores files, each with its Data, as an artifact under a reference with
// a tag. The same files and metadata have the same digest.
func Push(ctx context.Context, ref string, files []render.File, meta Metadata,
	opt Options) (Result, error) {
	image, result, err := Artifact(files, meta)
	if err != nil {
		return Result{}, err
	}
	result.Ref, err = PushImage(ctx, ref, image, opt)
	return result, err
}

// PushImage stores an image under a reference with a tag, which moves when everything is attached.
// It returns the reference with the digest.
func PushImage(ctx context.Context, ref string, image v1.Image, opt Options) (string, error) {
	to, err := opt.Parse(ref)
	if err != nil {
		return "", err
	}
	if strings.Contains(ref, "@") {
		return "", fmt.Errorf("%s names a digest, which cannot be chosen: push to a tag", ref)
	}
	digest, err := image.Digest()
	if err != nil {
		return "", fmt.Errorf("making the image: %w", err)
	}
	options := opt.Remote(ctx)
	if opt.Progress != nil {
		updates := make(chan v1.Update, 16)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for u := range updates {
				opt.Progress(u.Complete, u.Total)
			}
		}()
		defer func() { <-done }()
		options = append(options, remote.WithProgress(updates))
	}
	artifact := to.Context().Digest(digest.String())
	if opt.Attach == nil {
		if err := remote.Write(to, image, options...); err != nil {
			return "", explain("pushing", to, err)
		}
		return artifact.String(), nil
	}
	if err := remote.Write(artifact, image, options...); err != nil {
		return "", explain("pushing", artifact, err)
	}
	if err := opt.Attach(ctx, artifact); err != nil {
		return "", err
	}
	if err := remote.Tag(to.Context().Tag(to.Identifier()), image, opt.Remote(ctx)...); err != nil {
		return "", explain("tagging", to, err)
	}
	return artifact.String(), nil
}

// Artifact makes an artifact without storing it.
func Artifact(files []render.File, meta Metadata) (v1.Image, Result, error) {
	if len(files) == 0 {
		return nil, Result{}, errors.New("the package has no files")
	}
	content, size, err := pack(files)
	if err != nil {
		return nil, Result{}, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	},
		tarball.WithMediaType(ContentMediaType))
	if err != nil {
		return nil, Result{}, fmt.Errorf("making the layer: %w", err)
	}
	created := meta.Created.UTC()
	if meta.Created.IsZero() {
		created = time.Unix(0, 0).UTC()
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		ConfigMediaType)
	config, err := image.ConfigFile()
	if err != nil {
		return nil, Result{}, fmt.Errorf("making the artifact: %w", err)
	}
	config.Created = v1.Time{Time: created}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, Result{}, fmt.Errorf("making the artifact: %w", err)
	}
	annotations := map[string]string{CreatedAnnotation: created.Format(time.RFC3339)}
	if meta.Source != "" {
		annotations[SourceAnnotation] = meta.Source
	}
	if meta.Revision != "" {
		annotations[RevisionAnnotation] = meta.Revision
	}
	image = mutate.Annotations(image, annotations).(v1.Image)
	if image, err = mutate.Append(image, mutate.Addendum{Layer: layer}); err != nil {
		return nil, Result{}, fmt.Errorf("making the artifact: %w", err)
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, Result{}, fmt.Errorf("making the artifact: %w", err)
	}
	return image, Result{Digest: digest.String(), Source: meta.Source, Revision: meta.Revision,
		Created: annotations[CreatedAnnotation], Files: len(files), Bytes: size}, nil
}

// pack writes a gzipped tar archive that depends on names and content alone.
// It refuses what Pull would.
func pack(files []render.File) (archive []byte, size int64, err error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b render.File) int { return strings.Compare(a.Path, b.Path) })
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	w := tar.NewWriter(zip)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Mode: 0o644,
			Size: int64(len(f.Data)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		if err := w.WriteHeader(header); err != nil {
			return nil, 0, fmt.Errorf("packing %s: %w", f.Path, err)
		}
		if _, err := w.Write(f.Data); err != nil {
			return nil, 0, fmt.Errorf("packing %s: %w", f.Path, err)
		}
		size += int64(len(f.Data))
	}
	if err := multi.Errors(w.Close(), zip.Close()); err != nil {
		return nil, 0, fmt.Errorf("packing: %w", err)
	}
	if _, _, err := unpack(b.Bytes(), nil); err != nil {
		return nil, 0, fmt.Errorf("packing: %w", err)
	}
	if b.Len() > MaxArchive {
		return nil, 0, fmt.Errorf(
			"packing: the archive is %d MiB, more than the %d MiB that a pull takes", b.Len()>>20,
			MaxArchive>>20)
	}
	return b.Bytes(), size, nil
}
