package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// get returns the artifact of a reference if Verify accepts it.
func (o Options) get(ctx context.Context, doing string,
	ref name.Reference) (*remote.Descriptor, name.Digest, error) {
	found, err := remote.Get(ref, o.Remote(ctx)...)
	if err != nil {
		return nil, name.Digest{}, explain(doing, ref, err)
	}
	named := ref.Context().Digest(found.Digest.String())
	if o.Verify != nil {
		if err := o.Verify(ctx, named); err != nil {
			return nil, name.Digest{}, err
		}
	}
	return found, named, nil
}

// maxImages is the maximum number of images in an index.
const maxImages = 32

// Images returns the images of an index, and false if the artifact is not an index. It omits
// BuildKit's attestations, which are for an unknown platform that no node pulls.
func Images(artifact name.Digest, options []remote.Option) (images []name.Digest, index bool,
	err error) {
	found, err := remote.Get(artifact, options...)
	if err != nil || !found.MediaType.IsIndex() {
		return nil, false, err
	}
	manifest, err := v1.ParseIndexManifest(bytes.NewReader(found.Manifest))
	if err != nil {
		return nil, true, fmt.Errorf("%s: reading its index: %w", artifact, err)
	}
	if n := len(manifest.Manifests); n > maxImages {
		return nil, true, fmt.Errorf("%s lists %d images, and at most %d are looked at", artifact,
			n, maxImages)
	}
	for _, d := range manifest.Manifests {
		if p := d.Platform; p != nil && p.OS == "unknown" && p.Architecture == "unknown" {
			continue
		}
		if !d.MediaType.IsImage() {
			return nil, true, fmt.Errorf("%s lists %s, which is %.80q and not an image", artifact,
				d.Digest, d.MediaType)
		}
		images = append(images, artifact.Context().Digest(d.Digest.String()))
	}
	return images, true, nil
}

// Blob reads a blob of a repository. Reading fails if the blob exceeds the size of its descriptor,
// and at the end unless digest and size match. URLs in the descriptor are not followed.
func Blob(in name.Repository, d v1.Descriptor, options []remote.Option) (io.ReadCloser, error) {
	l, err := remote.Layer(in.Digest(d.Digest.String()), options...)
	if err != nil {
		return nil, err
	}
	r, err := l.Compressed() // verifies the digest
	if err != nil {
		return nil, err
	}
	return &exact{r, d.Size}, nil
}

// exact returns an error unless exactly left bytes are read.
type exact struct {
	io.ReadCloser
	left int64
}

func (e *exact) Read(p []byte) (int, error) {
	if e.left < 0 {
		return 0, errSize
	}
	if int64(len(p)) > e.left+1 {
		p = p[:e.left+1] // the extra byte shows that there is more
	}
	n, err := e.ReadCloser.Read(p)
	if e.left -= int64(n); e.left < 0 || err == io.EOF && e.left > 0 {
		return 0, errSize
	}
	return n, err
}

var errSize = errors.New("its size is not that of the manifest")
