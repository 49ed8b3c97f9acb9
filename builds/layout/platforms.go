package layout

import (
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Several platforms: each was built by a task of its own, which left its image in a
// layout of its own. What is in the index is what was ordered: one image for each
// platform, that says itself that it is for it.

// maxPlatforms of an index that is read back.
const maxPlatforms = maxImages / 2

// readPlatforms reads the image of each platform, all of them before one is pushed:
// one is the image itself, several are an index.
func (p Push) readPlatforms(root *os.Root) (v1.Image, v1.ImageIndex, error) {
	if len(p.Digests) != len(p.Platforms) || len(p.Platforms) > maxPlatforms {
		return nil, nil, fmt.Errorf("%d digests are given for %d platforms; each needs one, and at most %d platforms are supported", len(p.Digests), len(p.Platforms), maxPlatforms)
	}
	var entries []mutate.IndexAddendum
	for i, platform := range p.Platforms {
		if slices.Contains(p.Platforms[:i], platform) {
			return nil, nil, fmt.Errorf("the platform %s has two layouts", platform)
		}
		img, want, err := platformImage(root, platform, p.Digests[i])
		if err != nil {
			return nil, nil, fmt.Errorf("platform %s: %w", platform, err)
		}
		entries = append(entries, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: want}})
		if len(p.Platforms) == 1 {
			return img, nil, nil
		}
	}
	return nil, mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), entries...), nil
}

// platformImage reads the image of one platform from its own layout.
func platformImage(root *os.Root, platform, reported string) (v1.Image, *v1.Platform, error) {
	want, err := v1.ParsePlatform(platform)
	if err != nil || want.OS == "" || want.Architecture == "" || want.OSVersion != "" {
		return nil, nil, fmt.Errorf("%.80q is not a platform: write it like linux/arm64", platform)
	}
	digest, err := parseDigest(reported)
	if err != nil {
		return nil, nil, err
	}
	found, list, err := store{root, strings.ReplaceAll(platform, "/", "-")}.read(digest)
	if err != nil {
		return nil, nil, err
	}
	if list != nil {
		return nil, nil, fmt.Errorf("%s is an index, and a platform has one image", digest)
	}
	img, err := partial.CompressedToImage(found)
	if err != nil {
		return nil, nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, nil, fmt.Errorf("reading the configuration of %s: %w", digest, err)
	}
	have := v1.Platform{OS: config.OS, Architecture: config.Architecture, Variant: config.Variant}
	if plain(have) != plain(*want) {
		return nil, nil, fmt.Errorf("the image %s is for %.80s", digest, have.String())
	}
	return img, want, nil
}

// plain leaves out the variant that an architecture has anyway.
func plain(p v1.Platform) string {
	if p.Architecture == "arm64" && p.Variant == "v8" || p.Architecture == "amd64" && p.Variant == "v1" {
		p.Variant = ""
	}
	return p.String()
}
