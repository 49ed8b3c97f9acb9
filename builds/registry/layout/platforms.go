package layout

import (
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// maxPlatforms bounds the platforms of an index.
const maxPlatforms = maxImages / 2

// readPlatforms reads the images of all platforms before one is pushed. Each platform was built by
// a task of its own, which left its image in a layout of its own. A single image is returned as it
// is, several as an index.
func (p Push) readPlatforms(root *os.Root) (all artifact, err error) {
	if len(p.Digests) != len(p.Platforms) || len(p.Platforms) > maxPlatforms {
		return all, fmt.Errorf("%d digests are given for %d platforms; each needs one, and at "+
			"most %d platforms are supported", len(p.Digests), len(p.Platforms), maxPlatforms)
	}
	var entries []mutate.IndexAddendum
	for i, platform := range p.Platforms {
		if slices.Contains(p.Platforms[:i], platform) {
			return all, fmt.Errorf("the platform %s has two layouts", platform)
		}
		one, want, err := platformImage(root, platform, p.Digests[i])
		if err != nil {
			return all, fmt.Errorf("platform %s: %w", platform, err)
		}
		if len(p.Platforms) == 1 {
			return one, nil
		}
		all.images = append(all.images, one.images...)
		entries = append(entries,
			mutate.IndexAddendum{Add: one.images[0], Descriptor: v1.Descriptor{Platform: want}})
	}
	all.mediaType = types.OCIImageIndex
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, all.mediaType), entries...)
	if all.raw, err = index.RawManifest(); err == nil {
		all.digest, err = index.Digest()
	}
	return all, err
}

// platformImage reads the image of one platform from its layout. The configuration of the image has
// to name that platform.
func platformImage(root *os.Root,
	platform, reported string) (one artifact, want *v1.Platform, err error) {
	want, err = v1.ParsePlatform(platform)
	if err != nil || want.OS == "" || want.Architecture == "" || want.OSVersion != "" {
		return one, nil, fmt.Errorf("%.80q is not a platform: write it like linux/arm64", platform)
	}
	digest, err := parseDigest(reported)
	if err != nil {
		return one, nil, err
	}
	layout := store{root, strings.ReplaceAll(platform, "/", "-")}
	if one, err = layout.read(digest, v1.Hash{}); err != nil {
		return one, nil, err
	}
	if one.mediaType.IsIndex() {
		return one, nil, fmt.Errorf("%s is an index, and a platform has one image", digest)
	}
	config, err := one.images[0].ConfigFile()
	if err != nil {
		return one, nil, fmt.Errorf("reading the configuration of %s: %w", digest, err)
	}
	have := v1.Platform{OS: config.OS, Architecture: config.Architecture, Variant: config.Variant}
	if plain(have) != plain(*want) {
		return one, nil, fmt.Errorf("the image %s is for %.80s", digest, have.String())
	}
	return one, want, nil
}

// plain returns a platform without the default variant of its architecture.
func plain(p v1.Platform) string {
	if p.Architecture == "arm64" && p.Variant == "v8" ||
		p.Architecture == "amd64" && p.Variant == "v1" {
		p.Variant = ""
	}
	return p.String()
}
