//go:build linux

package cluster

import (
	"fmt"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// builtImages are the images that Build built, by name.
type builtImages map[string]v1.Image

func openImages(cache string) (builtImages, error) {
	store, err := layout.FromPath(filepath.Join(cache, imageDir))
	if err != nil {
		return nil, err
	}
	index, err := store.ImageIndex()
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	built := builtImages{}
	for _, descriptor := range manifest.Manifests {
		if built[descriptor.Annotations[nameKey]], err = index.Image(descriptor.Digest); err != nil {
			return nil, err
		}
	}
	return built, nil
}

// writeTo writes the references to info.
func (b builtImages) writeTo(info *Info) error {
	info.Mirror = info.Registry + "/mirror"
	info.Images = map[string]string{}
	for name, img := range b {
		digest, err := img.Digest()
		if err != nil {
			return err
		}
		info.Images[name] = fmt.Sprintf("%s/armature/%s@%s", info.Registry, name, digest)
	}
	return nil
}

// push pushes all images to a registry. Content that it already has is not sent.
func (b builtImages) push(registry string) error {
	for _, image := range images {
		tags := []string{registry + "/armature/" + image.name}
		if image.standsFor != "" {
			tags = append(tags, registry+"/mirror/"+image.standsFor)
		}
		for _, tag := range tags {
			ref, err := name.ParseReference(tag)
			if err != nil {
				return err
			}
			if err := remote.Write(ref, b[image.name]); err != nil {
				return fmt.Errorf("pushing %s: %w", tag, err)
			}
		}
	}
	return nil
}
