// Package layout pushes an image from an OCI layout whose content nobody trusts: a
// task that executed a Dockerfile wrote it, into a volume that other tasks can
// write to. What is pushed is what the digest names, byte for byte, or nothing.
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
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// maxDocument bounds a manifest, an index and an image's configuration, in bytes.
// Registries take manifests of 4 MiB.
const maxDocument = 4 << 20

// store is an OCI layout. Only blobs/sha256 is read. index.json is not:
// the caller has the digest.
type store struct {
	root *os.Root
	dir  string // of the layout in root; empty is root itself
}

// open a blob. It has to be a regular file: a link could lead to a file of the
// container that reads it.
func (s store) open(digest v1.Hash) (*os.File, int64, error) {
	if digest.Algorithm != "sha256" {
		return nil, 0, fmt.Errorf("%s: only sha256 digests are supported", digest)
	}
	name := path.Join(s.dir, "blobs", "sha256", digest.Hex)
	info, err := s.root.Lstat(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, fmt.Errorf("the layout has no blob %s", digest)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("opening a blob of the layout: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("the layout's blob %s is not a regular file", digest)
	}
	// Without waiting: a pipe may have taken its place, and would wait for a writer.
	file, err := s.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("opening a blob of the layout: %w", err)
	}
	opened, err := file.Stat()
	if err == nil && (!opened.Mode().IsRegular() || !os.SameFile(info, opened)) {
		err = fmt.Errorf("the layout's blob %s was replaced while it was opened", digest)
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, opened.Size(), nil
}

// document reads a manifest, an index or a configuration whole.
func (s store) document(digest v1.Hash) ([]byte, error) {
	file, size, err := s.open(digest)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if size > maxDocument {
		return nil, fmt.Errorf("the layout's document %s has %d bytes, more than %d", digest, size, maxDocument)
	}
	return io.ReadAll(&checked{ReadCloser: file, sum: sha256.New(), want: digest, left: size})
}

// checked is a blob whose last byte is followed by an error if its content is
// not what the digest names.
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

// read what a digest names: an image or an index of images.
func (s store) read(digest v1.Hash) (*image, *index, error) {
	raw, err := s.document(digest)
	if err != nil {
		return nil, nil, err
	}
	var kind struct {
		MediaType types.MediaType `json:"mediaType"`
	}
	if err := json.Unmarshal(raw, &kind); err != nil {
		return nil, nil, fmt.Errorf("reading the manifest %s: %w", digest, err)
	}
	switch {
	case kind.MediaType.IsImage():
		img, err := s.image(raw, digest, kind.MediaType)
		return img, nil, err
	case kind.MediaType.IsIndex():
		idx, err := s.index(raw, digest, kind.MediaType)
		return nil, idx, err
	}
	return nil, nil, fmt.Errorf("%s is %q, neither an image manifest nor an index", digest, kind.MediaType)
}

// image is a v1.Image by way of partial.CompressedToImage: its documents are in
// memory, and its layers are checked as they are sent.
type image struct {
	store     store
	mediaType types.MediaType
	raw       []byte
	config    []byte
	manifest  v1.Manifest
}

func (s store) image(raw []byte, digest v1.Hash, mediaType types.MediaType) (*image, error) {
	img := &image{store: s, raw: raw, mediaType: mediaType}
	if err := json.Unmarshal(raw, &img.manifest); err != nil {
		return nil, fmt.Errorf("reading the manifest %s: %w", digest, err)
	}
	for _, layer := range append([]v1.Descriptor{img.manifest.Config}, img.manifest.Layers...) {
		if len(layer.URLs) > 0 || !layer.MediaType.IsDistributable() {
			return nil, fmt.Errorf("the layer %s of %s is not in the layout but somewhere else", layer.Digest, digest)
		}
		file, size, err := s.open(layer.Digest)
		if err != nil {
			return nil, err
		}
		if err := file.Close(); err != nil {
			return nil, err
		}
		if size != layer.Size {
			return nil, fmt.Errorf("the layout's blob %s has %d bytes, and its manifest says %d", layer.Digest, size, layer.Size)
		}
	}
	var err error
	img.config, err = s.document(img.manifest.Config.Digest)
	return img, err
}

func (i *image) MediaType() (types.MediaType, error) { return i.mediaType, nil }
func (i *image) RawManifest() ([]byte, error)        { return i.raw, nil }
func (i *image) RawConfigFile() ([]byte, error)      { return i.config, nil }

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
	return &checked{ReadCloser: file, sum: sha256.New(), want: l.descriptor.Digest, left: l.descriptor.Size}, nil
}

// index is a v1.ImageIndex of images; an index in an index is refused.
type index struct {
	mediaType types.MediaType
	digest    v1.Hash
	raw       []byte
	manifest  v1.IndexManifest
	images    map[v1.Hash]*image
}

// maxImages in an index: one and its attestation for each of 32 platforms.
const maxImages = 64

func (s store) index(raw []byte, digest v1.Hash, mediaType types.MediaType) (*index, error) {
	idx := &index{raw: raw, digest: digest, mediaType: mediaType, images: map[v1.Hash]*image{}}
	if err := json.Unmarshal(raw, &idx.manifest); err != nil {
		return nil, fmt.Errorf("reading the index %s: %w", digest, err)
	}
	if n := len(idx.manifest.Manifests); n == 0 || n > maxImages {
		return nil, fmt.Errorf("the index %s has %d images, and 1 to %d are supported", digest, n, maxImages)
	}
	for _, d := range idx.manifest.Manifests {
		img, nested, err := s.read(d.Digest)
		if err != nil {
			return nil, err
		}
		if nested != nil {
			return nil, fmt.Errorf("the index %s has another index in it", digest)
		}
		idx.images[d.Digest] = img
	}
	return idx, nil
}

func (i *index) MediaType() (types.MediaType, error)       { return i.mediaType, nil }
func (i *index) Digest() (v1.Hash, error)                  { return i.digest, nil }
func (i *index) Size() (int64, error)                      { return int64(len(i.raw)), nil }
func (i *index) RawManifest() ([]byte, error)              { return i.raw, nil }
func (i *index) IndexManifest() (*v1.IndexManifest, error) { return &i.manifest, nil }
func (i *index) ImageIndex(d v1.Hash) (v1.ImageIndex, error) {
	return nil, fmt.Errorf("the index has no index %s", d)
}

func (i *index) Image(digest v1.Hash) (v1.Image, error) {
	img, ok := i.images[digest]
	if !ok {
		return nil, fmt.Errorf("the index has no image %s", digest)
	}
	return partial.CompressedToImage(img)
}
