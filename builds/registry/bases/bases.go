// Package bases knows from which images an image was built. It reads them from the
// record that BuildKit's daemon keeps of a build, and from the result by which a step
// reports them. Nobody can believe that daemon more than the Dockerfile that it ran:
// what is here is of the right form, and is what the daemon says.
package bases

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// Image that a build took files or settings from.
type Image struct {
	// Name with registry and repository, and the tag where the Dockerfile has one, such
	// as docker.io/library/busybox:1.37.0.
	Name string
	// Digest that was used, even if the Dockerfile names none: sha256: and 64 hexadecimal
	// digits.
	Digest string
}

func (i Image) String() string { return i.Name + "@" + i.Digest }

// Result of the step that reports the base images.
const Result = "base-images"

// What Result has instead of images.
const (
	none    = "none"
	tooMany = "too-many"
)

const (
	// maxRecord of a build, in bytes. It has the Dockerfile and all that was run.
	maxRecord = 16 << 20
	// maxText is the bound of Result in bytes. The results of a container and what Tekton adds
	// share a message of 4 KiB, and Kubernetes allows 12 KiB for all containers of a pod.
	maxText = 1200
	// maxName is the length of an image's name at most.
	maxName = 512
)

// The build type and the frontend of the records that are read.
const (
	buildType = "https://github.com/moby/buildkit/blob/master/docs/attestations/slsa-definitions.md"
	frontend  = "dockerfile.v0"
)

// record is the part that is read of a SLSA provenance v1 as BuildKit's history has it.
// Its resolvedDependencies are not read: an image that a Dockerfile names by digest is
// missing there if the same tag is named without one as well.
type record struct {
	BuildDefinition struct {
		BuildType          string `json:"buildType"`
		ExternalParameters struct {
			Request struct {
				Frontend string `json:"frontend"`
			} `json:"request"`
		} `json:"externalParameters"`
		InternalParameters struct {
			BuildConfig struct {
				Definition []struct {
					Vertex struct {
						Op struct {
							Source *struct {
								Identifier string `json:"identifier"`
							} `json:"source"`
						} `json:"Op"`
					} `json:"op"`
				} `json:"llbDefinition"`
			} `json:"buildConfig"`
		} `json:"internalParameters"`
	} `json:"buildDefinition"`
}

// Read the images from BuildKit's record of a build: those of all its sources, sorted.
// A record that is not complete, of another frontend than BuildKit's own, or with an
// image that has no digest is an error.
func Read(from io.Reader) ([]Image, error) {
	data, err := io.ReadAll(io.LimitReader(from, maxRecord+1))
	if err != nil {
		return nil, fmt.Errorf("reading BuildKit's record of the build: %w", err)
	}
	if len(data) > maxRecord {
		return nil, fmt.Errorf("BuildKit's record of the build has more than %d MiB", maxRecord>>20)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, errors.New("BuildKit's record of the build is not a provenance in JSON")
	}
	definition := r.BuildDefinition
	if definition.BuildType != buildType {
		return nil, fmt.Errorf("BuildKit's record of the build has the build type %.100q, and only %q is read", definition.BuildType, buildType)
	}
	if got := definition.ExternalParameters.Request.Frontend; got != frontend {
		return nil, fmt.Errorf("the Dockerfile was read by the frontend %.100q, not by BuildKit's own", got)
	}
	if len(definition.InternalParameters.BuildConfig.Definition) == 0 {
		return nil, errors.New("BuildKit's record of the build does not say what was done")
	}
	var images []Image
	for _, step := range definition.InternalParameters.BuildConfig.Definition {
		if step.Vertex.Op.Source == nil {
			continue
		}
		text, ok := strings.CutPrefix(step.Vertex.Op.Source.Identifier, "docker-image://")
		if !ok {
			continue
		}
		image, err := parse(text)
		if err != nil {
			return nil, err
		}
		images = append(images, image)
	}
	return sorted(images), nil
}

// imageForm of an image by digest. What is not in it, such as a space, separates images.
var imageForm = regexp.MustCompile(`^((?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?(?:/[a-z0-9][a-z0-9._-]*)+(?::[A-Za-z0-9_][A-Za-z0-9._-]*)?)@(sha256:[0-9a-f]{64})$`)

func parse(text string) (Image, error) {
	m := imageForm.FindStringSubmatch(text)
	if m == nil || len(m[1]) > maxName {
		return Image{}, fmt.Errorf("%.100q is not an image with its digest", text)
	}
	return Image{m[1], m[2]}, nil
}

func sorted(images []Image) []Image {
	slices.SortFunc(images, func(a, b Image) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(images)
}

// Format images as the text of Result. More than fit into it are left out, all of them,
// and the text says so.
func Format(images []Image) string {
	var texts []string
	for _, image := range sorted(slices.Clone(images)) {
		texts = append(texts, image.String())
	}
	switch text := strings.Join(texts, " "); {
	case text == "":
		return none
	case len(text) > maxText:
		return tooMany
	default:
		return text
	}
}

// ErrTooMany is what Parse returns where the images did not fit.
var ErrTooMany = fmt.Errorf("the names of the base images have more than %d bytes in all", maxText)

// Parse the text of Result.
func Parse(text string) ([]Image, error) {
	switch {
	case text == none:
		return nil, nil
	case text == tooMany:
		return nil, ErrTooMany
	case len(text) > maxText:
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(text), maxText)
	}
	var images []Image
	for _, one := range strings.Split(text, " ") {
		image, err := parse(one)
		if err != nil {
			return nil, err
		}
		images = append(images, image)
	}
	if Format(images) != text {
		return nil, errors.New("it names an image twice, or is not sorted")
	}
	return images, nil
}
