// Package layout pushes an image from an OCI layout that is not trusted: a task that ran a
// Dockerfile wrote it, into a volume that other tasks can write to. The package pushes exactly the
// bytes that the digest names, or nothing.
package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/armature-dev/armature/builds/source/archive"
)

// maxDocument bounds a manifest, an index and an image's configuration in bytes. Registries accept
// manifests of 4 MiB.
const maxDocument = 4 << 20

// store is an OCI layout. It reads only blobs/sha256 and not index.json: the caller has the digest.
type store struct {
	root *os.Root
	dir  string // the layout's folder in root; empty is root itself
}

// open opens a blob, which has to be a regular file: a link could lead out of the layout.
func (s store) open(digest v1.Hash) (*os.File, int64, error) {
	if digest.Algorithm != "sha256" {
		return nil, 0, fmt.Errorf("%s: only sha256 digests are supported", digest)
	}
	file, info, err := archive.OpenFile(s.root, path.Join(s.dir, "blobs", "sha256", digest.Hex))
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, fmt.Errorf("the layout has no blob %s", digest)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("opening a blob of the layout: %w", err)
	}
	return file, info.Size(), nil
}

// document reads a manifest, an index or a configuration into memory.
func (s store) document(digest v1.Hash) ([]byte, error) {
	file, size, err := s.open(digest)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if size > maxDocument {
		return nil, fmt.Errorf("the layout's document %s has %d bytes, more than %d", digest, size,
			maxDocument)
	}
	return io.ReadAll(&checked{ReadCloser: file, sum: sha256.New(), want: digest, left: size})
}

// checked reads a blob, and ends with an error if its content does not match the digest.
type checked struct {
	io.ReadCloser
	sum  hash.Hash
	want v1.Hash
	left int64
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.sum.Write(p[:n])
	if c.left -= int64(n); c.left < 0 {
		return 0, fmt.Errorf("the layout's blob %s grew while it was read", c.want)
	}
	if errors.Is(err, io.EOF) {
		if got := hex.EncodeToString(c.sum.Sum(nil)); c.left != 0 || got != c.want.Hex {
			return 0, fmt.Errorf("the layout's blob %s has the content of sha256:%s", c.want, got)
		}
	}
	return n, err
}

// artifact is an image or an index with its images. The images of an image are itself.
type artifact struct {
	digest    v1.Hash
	mediaType types.MediaType
	raw       []byte
	images    []v1.Image
}

func (a artifact) MediaType() (types.MediaType, error) { return a.mediaType, nil }
func (a artifact) RawManifest() ([]byte, error)        { return a.raw, nil }

// maxImages bounds the entries of an index: an image and its attestation for each of 32 platforms.
const maxImages = 64

// read reads the image or the index of images that a digest names. parent is the digest of the
// index that lists it, or zero; an index within an index is an error before its entries are read.
func (s store) read(digest, parent v1.Hash) (a artifact, err error) {
	a.digest = digest
	if a.raw, err = s.document(digest); err != nil {
		return a, err
	}
	var list struct {
		MediaType types.MediaType `json:"mediaType"`
		Manifests []v1.Descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(a.raw, &list); err != nil {
		return a, fmt.Errorf("reading the manifest %s: %w", digest, err)
	}
	a.mediaType = list.MediaType
	switch n := len(list.Manifests); {
	case a.mediaType.IsImage():
		img, err := s.image(a)
		a.images = []v1.Image{img}
		return a, err
	case !a.mediaType.IsIndex():
		return a, fmt.Errorf("%s is %q, neither an image manifest nor an index", digest, a.mediaType)
	case parent != v1.Hash{}:
		return a, fmt.Errorf("the index %s has another index in it", parent)
	case n == 0 || n > maxImages:
		return a, fmt.Errorf("the index %s has %d images, and 1 to %d are supported", digest, n,
			maxImages)
	}
	for _, d := range list.Manifests {
		one, err := s.read(d.Digest, digest)
		if err != nil {
			return a, err
		}
		a.images = append(a.images, one.images...)
	}
	return a, nil
}

// image becomes a v1.Image by partial.CompressedToImage: its documents are in memory, and its
// layers are checked while they are sent.
type image struct {
	artifact
	store    store
	config   []byte
	manifest v1.Manifest
}

func (s store) image(a artifact) (v1.Image, error) {
	img, digest := &image{artifact: a, store: s}, a.digest
	if err := json.Unmarshal(a.raw, &img.manifest); err != nil {
		return nil, fmt.Errorf("reading the manifest %s: %w", digest, err)
	}
	for _, layer := range append([]v1.Descriptor{img.manifest.Config}, img.manifest.Layers...) {
		if len(layer.URLs) > 0 || !layer.MediaType.IsDistributable() {
			return nil, fmt.Errorf("the layer %s of %s is not in the layout but somewhere else",
				layer.Digest, digest)
		}
		file, size, err := s.open(layer.Digest)
		if err != nil {
			return nil, err
		}
		if err := file.Close(); err != nil {
			return nil, err
		}
		if size != layer.Size {
			return nil, fmt.Errorf("the layout's blob %s has %d bytes, and its manifest says %d",
				layer.Digest, size, layer.Size)
		}
	}
	var err error
	if img.config, err = s.document(img.manifest.Config.Digest); err != nil {
		return nil, err
	}
	return partial.CompressedToImage(img)
}

func (i *image) RawConfigFile() ([]byte, error) { return i.config, nil }

func (i *image) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	for _, d := range append([]v1.Descriptor{i.manifest.Config}, i.manifest.Layers...) {
		if d.Digest == digest {
			return &layer{i.store, d}, nil
		}
	}
	return nil, fmt.Errorf("the image has no layer %s", digest)
}

type layer struct {
	store      store
	descriptor v1.Descriptor
}

func (l *layer) Digest() (v1.Hash, error)            { return l.descriptor.Digest, nil }
func (l *layer) Size() (int64, error)                { return l.descriptor.Size, nil }
func (l *layer) MediaType() (types.MediaType, error) { return l.descriptor.MediaType, nil }
func (l *layer) Compressed() (io.ReadCloser, error) {
	file, _, err := l.store.open(l.descriptor.Digest)
	if err != nil {
		return nil, err
	}
	return &checked{ReadCloser: file, sum: sha256.New(), want: l.descriptor.Digest,
		left: l.descriptor.Size}, nil
}
