package attest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// BaseImage is an image from which a build took files or settings.
type BaseImage struct {
	// Name has the registry and the repository, and the tag if the Dockerfile has one:
	// docker.io/library/busybox:1.37.0.
	Name string
	// Digest is the one that was used, even if the Dockerfile names none: "sha256:" and 64
	// hexadecimal digits.
	Digest string
}

func (i BaseImage) String() string { return i.Name + "@" + i.Digest }

// BaseImagesResult is the result of the step that reports the base images. The step reads them from
// the record that BuildKit's daemon keeps of a build. The daemon ran the Dockerfile and is not
// trusted more than it: only the form of the result is verified, not its content.
const BaseImagesResult = "base-images"

// noBaseImages and tooManyBaseImages are values of the result that name no images.
const (
	noBaseImages      = "none"
	tooManyBaseImages = "too-many"
)

const (
	// maxRecord limits the record of a build in bytes. It contains the Dockerfile and everything
	// that was run.
	maxRecord = 16 << 20
	// maxText limits BaseImagesResult in bytes. The results of a container and Tekton's own data
	// share a message of 4 KiB, and Kubernetes allows 12 KiB for all containers of a pod.
	maxText = 1200
	// maxName limits the length of an image's name.
	maxName = 512
)

// The build type and the frontend of the records that are read.
const (
	buildType = "https://github.com/moby/buildkit/blob/master/docs/attestations/slsa-definitions.md"
	frontend  = "dockerfile.v0"
)

// buildRecord is a part of the SLSA provenance v1 in BuildKit's history. Its resolvedDependencies
// are not read: they lack an image that a Dockerfile names by digest if the Dockerfile also names
// the same tag without a digest.
type buildRecord struct {
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

// ReadBaseImages returns the sorted images of all sources in BuildKit's record of a build. A record
// that is incomplete, of another frontend than BuildKit's own, or has an image without a digest is
// an error.
func ReadBaseImages(from io.Reader) ([]BaseImage, error) {
	data, err := io.ReadAll(io.LimitReader(from, maxRecord+1))
	if err != nil {
		return nil, fmt.Errorf("reading BuildKit's record of the build: %w", err)
	}
	if len(data) > maxRecord {
		return nil, fmt.Errorf("BuildKit's record of the build has more than %d MiB", maxRecord>>20)
	}
	var r buildRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, errors.New("BuildKit's record of the build is not a provenance in JSON")
	}
	definition := r.BuildDefinition
	if definition.BuildType != buildType {
		return nil, fmt.Errorf(
			"BuildKit's record of the build has the build type %.100q, and only %q is read",
			definition.BuildType, buildType)
	}
	if got := definition.ExternalParameters.Request.Frontend; got != frontend {
		return nil, fmt.Errorf(
			"the Dockerfile was read by the frontend %.100q, not by BuildKit's own", got)
	}
	if len(definition.InternalParameters.BuildConfig.Definition) == 0 {
		return nil, errors.New("BuildKit's record of the build does not say what was done")
	}
	var images []BaseImage
	for _, step := range definition.InternalParameters.BuildConfig.Definition {
		if step.Vertex.Op.Source == nil {
			continue
		}
		if text, ok := strings.CutPrefix(step.Vertex.Op.Source.Identifier, "docker-image://"); ok {
			image, err := parseBaseImage(text)
			if err != nil {
				return nil, err
			}
			images = append(images, image)
		}
	}
	return sortedImages(images), nil
}

// imageForm matches an image with its digest. It matches no spaces, which separate images.
var imageForm = regexp.MustCompile(
	`^((?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?(?:/[a-z0-9][a-z0-9._-]*)+(?::[A-Za-z0-9_][A-Za-z0-9._-]*)?)@(sha256:[0-9a-f]{64})$`)

func parseBaseImage(text string) (BaseImage, error) {
	m := imageForm.FindStringSubmatch(text)
	if m == nil || len(m[1]) > maxName {
		return BaseImage{}, fmt.Errorf("%.100q is not an image with its digest", text)
	}
	return BaseImage{m[1], m[2]}, nil
}

func sortedImages(images []BaseImage) []BaseImage {
	slices.SortFunc(images, func(a, b BaseImage) int {
		return strings.Compare(a.String(), b.String())
	})
	return slices.Compact(images)
}

// FormatBaseImages returns the text of BaseImagesResult for images. If they do not fit, the text
// contains no image and says so.
func FormatBaseImages(images []BaseImage) string {
	var texts []string
	for _, image := range sortedImages(slices.Clone(images)) {
		texts = append(texts, image.String())
	}
	switch text := strings.Join(texts, " "); {
	case text == "":
		return noBaseImages
	case len(text) > maxText:
		return tooManyBaseImages
	default:
		return text
	}
}

// ErrTooManyBaseImages is the error of ParseBaseImages if the images did not fit into the result.
var ErrTooManyBaseImages = fmt.Errorf("the names of the base images have more than %d bytes in all",
	maxText)

// ParseBaseImages reads the text of BaseImagesResult.
func ParseBaseImages(text string) ([]BaseImage, error) {
	switch {
	case text == noBaseImages:
		return nil, nil
	case text == tooManyBaseImages:
		return nil, ErrTooManyBaseImages
	case len(text) > maxText:
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(text), maxText)
	}
	var images []BaseImage
	for _, one := range strings.Split(text, " ") {
		image, err := parseBaseImage(one)
		if err != nil {
			return nil, err
		}
		images = append(images, image)
	}
	if FormatBaseImages(images) != text {
		return nil, errors.New("it names an image twice, or is not sorted")
	}
	return images, nil
}
