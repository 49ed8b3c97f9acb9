package runs

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
)

// What a run built, as its steps reported it.

// result of a run by name, or by a name that ends in it after the task's.
func (r Run) result(name string) string {
	if value := r.exact(name); value != "" {
		return value
	}
	for _, given := range r.Status.Results {
		if strings.HasSuffix(given.Name, "-"+name) && given.Value.StringVal != "" {
			return strings.TrimSpace(given.Value.StringVal)
		}
	}
	return ""
}

func (r Run) exact(name string) string {
	for _, given := range r.Status.Results {
		if given.Name == name {
			return strings.TrimSpace(given.Value.StringVal)
		}
	}
	return ""
}

// Cloned is the commit that the clone step reports, or "".
func (r Run) Cloned() string { return r.exact("CHAINS-GIT_COMMIT") }

// Image by digest, and its platforms, from the run's results. Steps write those,
// so the name is the one that was ordered. The error says why there is no image.
func (r Run) Image() (string, []api.PlatformStatus, error) {
	digest := r.result("IMAGE_DIGEST")
	image := r.result("IMAGE_URL")
	if image == "" {
		image = r.Annotations[keys.AnnotationImage]
	}
	if image == "" || digest == "" {
		return "", nil, errors.New("no step gave the result IMAGE_DIGEST")
	}
	image, _, _ = strings.Cut(image, "@")
	if _, err := name.ParseReference(image); err != nil {
		return "", nil, errors.New("the result IMAGE_URL is not an image reference")
	}
	if !imageDigest.MatchString(digest) {
		return "", nil, errors.New("the result IMAGE_DIGEST is not a digest")
	}
	if ordered := r.Annotations[keys.AnnotationImage]; ordered != "" {
		if !sameRepository(image, ordered) {
			return "", nil, errors.New("the result IMAGE_URL names another repository than spec.buildOutput")
		}
		image = ordered
	}
	var platforms []api.PlatformStatus
	if text := r.result(compose.PlatformDigests); text != "" {
		var err error
		if platforms, err = api.ReadPlatforms(text); err != nil {
			return "", nil, fmt.Errorf("the result %s is wrong: %w", compose.PlatformDigests, err)
		}
		if len(platforms) == 1 && platforms[0].Digest != digest {
			return "", nil, fmt.Errorf("the result %s names another image than IMAGE_DIGEST", compose.PlatformDigests)
		}
	}
	return image + "@" + digest, platforms, nil
}

func sameRepository(a, b string) bool {
	x, err := name.ParseReference(a)
	if err != nil {
		return false
	}
	y, err := name.ParseReference(b)
	return err == nil && x.Context().Name() == y.Context().Name()
}

var imageDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
