package oci

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/archive"
)

// Metadata is the origin of a package. Push looks nothing up, so that the same package always has
// the same digest.
type Metadata struct {
	// Source is the URL of the repository, and Revision a branch and commit in Flux's form:
	// "main@sha1:<commit>". Both may be "".
	Source, Revision string
	// Created is the time of the source's commit; zero means 1970.
	Created time.Time
}

// Push stores files as an artifact under a reference with a tag. Equal files and metadata have the
// same digest.
func Push(ctx context.Context, ref string, files []render.File, meta Metadata,
	opt Options) (Result, error) {
	image, result, err := Artifact(files, meta)
	if err == nil {
		result.Ref, err = PushImage(ctx, ref, image, opt)
	}
	return result, err
}

// PushImage stores an image under a reference with a tag, which it sets after calling Attach. It
// returns the reference with the digest.
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
	if err := remote.Write(artifact, image, options...); err != nil {
		return "", explain("pushing", to, err)
	}
	if opt.Attach != nil {
		if err := opt.Attach(ctx, artifact); err != nil {
			return "", err
		}
	}
	if err := remote.Tag(to.Context().Tag(to.Identifier()), image, opt.Remote(ctx)...); err != nil {
		return "", explain("tagging", to, err)
	}
	return artifact.String(), nil
}

// Artifact returns an artifact without storing it. The archive in it depends only on names and
// content. Artifact returns an error if Pull would refuse the result.
func Artifact(files []render.File, meta Metadata) (v1.Image, Result, error) {
	if len(files) == 0 {
		return nil, Result{}, errors.New("the package has no files")
	}
	entries := make([]archive.Entry, len(files))
	for i, f := range files {
		entries[i] = archive.Entry{Name: f.Path, Mode: 0o644, Data: f.Data}
	}
	slices.SortFunc(entries,
		func(a, b archive.Entry) int { return strings.Compare(a.Name, b.Name) })
	packed, err := archive.Pack(gzip.DefaultCompression, entries...)
	if err != nil {
		return nil, Result{}, err
	}
	_, size, err := unpack(packed, nil)
	if err == nil && len(packed) > MaxArchive {
		err = fmt.Errorf("the archive is %d MiB, more than the %d MiB that a pull takes",
			len(packed)>>20, MaxArchive>>20)
	}
	if err != nil {
		return nil, Result{}, fmt.Errorf("packing: %w", err)
	}
	created := cmp.Or(meta.Created, time.Unix(0, 0)).UTC()
	annotations := map[string]string{CreatedAnnotation: created.Format(time.RFC3339),
		SourceAnnotation: meta.Source, RevisionAnnotation: meta.Revision}
	maps.DeleteFunc(annotations, func(_, value string) bool { return value == "" })
	image, err := Image(packed, ContentMediaType, ConfigMediaType,
		v1.ConfigFile{Created: v1.Time{Time: created}}, annotations)
	if err != nil {
		return nil, Result{}, err
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, Result{}, fmt.Errorf("making the image: %w", err)
	}
	return image, Result{Digest: digest.String(), Origin: originOf(annotations),
		Files: len(files), Bytes: size}, nil
}

// Image returns an image whose only layer is an archive. layer and config are media types.
func Image(packed []byte, layer, config types.MediaType, file v1.ConfigFile,
	annotations map[string]string) (image v1.Image, err error) {
	content, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed)), nil
	}, tarball.WithMediaType(layer))
	if err == nil {
		file.RootFS.Type = "layers"
		image, err = mutate.ConfigFile(mutate.ConfigMediaType(
			mutate.MediaType(empty.Image, types.OCIManifestSchema1), config), &file)
	}
	if err == nil {
		image, err = mutate.AppendLayers(mutate.Annotations(image, annotations).(v1.Image), content)
	}
	if err != nil {
		return nil, fmt.Errorf("making the image: %w", err)
	}
	return image, nil
}
