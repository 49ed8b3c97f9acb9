package controller

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
func result(run run, name string) string {
	if value := exact(run, name); value != "" {
		return value
	}
	for _, r := range run.Status.Results {
		if strings.HasSuffix(r.Name, "-"+name) && r.Value.StringVal != "" {
			return strings.TrimSpace(r.Value.StringVal)
		}
	}
	return ""
}

func exact(run run, name string) string {
	for _, r := range run.Status.Results {
		if r.Name == name {
			return strings.TrimSpace(r.Value.StringVal)
		}
	}
	return ""
}

// attestedPlatforms of an image that was built for some, none where it was not.
func attestedPlatforms(platforms []string, a *api.Attestation) (out []api.PlatformStatus) {
	for _, p := range a.Platforms {
		out = append(out, api.PlatformStatus{Platform: p.Platform, Digest: p.Digest})
	}
	if len(platforms) == 1 {
		_, digest, _ := strings.Cut(a.Image, "@")
		out = []api.PlatformStatus{{Platform: platforms[0], Digest: digest}}
	}
	return out
}

// builtImage by digest, and its platforms, from the run's results. Steps wrote those,
// so the name is the one that was ordered, and an attested run names the commit that
// was ordered. The error says why there is no image.
func builtImage(run run) (string, []api.PlatformStatus, error) {
	digest := result(run, "IMAGE_DIGEST")
	image := result(run, "IMAGE_URL")
	if image == "" {
		image = run.Annotations[keys.AnnotationImage]
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
	if ordered := run.Annotations[keys.AnnotationImage]; ordered != "" {
		if !sameRepository(image, ordered) {
			return "", nil, errors.New("the result IMAGE_URL names another repository than spec.buildOutput")
		}
		image = ordered
	}
	if cloned := exact(run, "CHAINS-GIT_COMMIT"); run.Annotations[keys.AnnotationRunDigest] != "" && cloned != run.commit {
		return "", nil, fmt.Errorf("the result CHAINS-GIT_COMMIT is not the commit %s", run.commit)
	}
	var platforms []api.PlatformStatus
	if text := result(run, compose.PlatformDigests); text != "" {
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
