// Package pins reads the digests that the images of steps are pinned to.
package pins

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/failure/findings"
	render "github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
)

// Load reads a file of pins. Unless given says that the user named the file, Load reads the lock of
// this release. An empty name, or a development build without a lock, pins none.
func Load(file string, given bool, lock []byte) (map[string]string, error) {
	if !given && lock != nil {
		return Read("the lock of this release", lock)
	}
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the image pins: %w", err)
	}
	return Read(file, data)
}

// Read reads a map from step images, as the steps write them, to digests, or the ImageLock that
// `armature pin --steps` wrote.
func Read(file string, data []byte) (map[string]string, error) {
	var object struct{ Kind string }
	isLock := yaml.Unmarshal(data, &object) == nil && object.Kind == "ImageLock"
	pins, hint, err := map[string]string{}, "write each line as image: sha256:…", error(nil)
	if isLock {
		hint = "run `armature pin` to write the lock"
		pins, err = locked(data)
	} else {
		err = yaml.UnmarshalStrict(data, &pins)
	}
	var found []*finding.Finding
	place := finding.Place{File: file}
	if err != nil {
		found = append(found,
			place.Fault(api.ReasonInvalidBuild, strings.ReplaceAll(err.Error(), "\n", " "), hint))
	}
	for _, image := range slices.Sorted(maps.Keys(pins)) {
		if !api.IsDigest(pins[image]) {
			found = append(found,
				place.At(image).Fault(api.ReasonInvalidBuild,
					fmt.Sprintf("%q is not a sha256 digest", pins[image]),
					"write sha256: and 64 hexadecimal digits"))
		}
	}
	return pins, findings.Error(found)
}

func locked(data []byte) (map[string]string, error) {
	var lock render.ImageLock
	if err := yaml.UnmarshalStrict(data, &lock); err != nil {
		return nil, err
	}
	if lock.APIVersion != render.RenderV1alpha1 {
		return nil, fmt.Errorf("an ImageLock of apiVersion %q is unknown", lock.APIVersion)
	}
	pins := make(map[string]string)
	for _, image := range lock.Spec.Images {
		if before, twice := pins[image.Image]; twice && before != image.Digest {
			return nil, fmt.Errorf("%s has two digests", image.Image)
		}
		pins[image.Image] = image.Digest
	}
	return pins, nil
}
