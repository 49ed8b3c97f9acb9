package compose

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	render "github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
)

var soleParam = krm.Pattern(`^\$\(params\.([_a-zA-Z][_a-zA-Z0-9.-]*)\)$`)

// ControllerRepository is where releases publish the controller's image.
const ControllerRepository = "ghcr.io/armature-dev/armature-controller"

// controllerImage as the image of a step is the controller's own.
const controllerImage = "$(controller.image)"

// mapImages pins the images of a step and sends them to the mirror. An image that
// is a parameter is mapped where its value is set. The controller's image stays what
// the controller runs as.
func (c *composition) mapImages(s *plannedStep) {
	spec := s.task.TaskSpec
	var params []string
	change := func(image *string, path string) {
		if *image == controllerImage {
			*image = cmp.Or(c.in.Settings.ControllerImage, ControllerRepository+":latest")
			return
		}
		if c.in.Settings.ImageMirror == "" && len(c.in.Settings.ImagePins) == 0 {
			return
		}
		if m := soleParam().FindStringSubmatch(*image); m != nil {
			params = append(params, m[1])
			return
		}
		*image = c.image(s, *image, path)
	}
	for i := range spec.Steps {
		change(&spec.Steps[i].Image, fmt.Sprintf("steps[%d].image", i))
	}
	for i := range spec.Sidecars {
		change(&spec.Sidecars[i].Image, fmt.Sprintf("sidecars[%d].image", i))
	}
	if spec.StepTemplate != nil {
		change(&spec.StepTemplate.Image, "stepTemplate.image")
	}
	for _, param := range params {
		given := false
		for i := range s.task.Params {
			if p := &s.task.Params[i]; p.Name == param && p.Value.Type == tektonv1.ParamTypeString {
				given = true
				p.Value.StringVal = c.image(s, p.Value.StringVal, "params")
			}
		}
		for i := range spec.Params {
			if p := &spec.Params[i]; !given && p.Name == param && p.Default != nil {
				p.Default.StringVal = c.image(s, p.Default.StringVal, fmt.Sprintf("params[%d].default", i))
			}
		}
	}
}

// emptyControllerImages empties the images that are the controller's.
func emptyControllerImages(task *tektonv1.TaskSpec) {
	empty := func(image *string) {
		if *image == controllerImage {
			*image = ""
		}
	}
	for i := range task.Steps {
		empty(&task.Steps[i].Image)
	}
	for i := range task.Sidecars {
		empty(&task.Sidecars[i].Image)
	}
	if task.StepTemplate != nil {
		empty(&task.StepTemplate.Image)
	}
}

// image as the cluster shall pull it. References that hold a variable stay.
func (c *composition) image(s *plannedStep, image, path string) string {
	if image == "" || paramReference().MatchString(image) || wholeReference().MatchString(image) {
		return image
	}
	ref, err := name.ParseReference(image)
	if err != nil {
		c.fault(s.row.Name, s.file.doc.place(path).Fault(api.ReasonInvalidStep,
			fmt.Sprintf("%q is not an image reference: %v", image, err), "write it as registry/repository:tag"))
		return image
	}
	repository, end := ref.Context().Name(), ":"+ref.Identifier()
	if _, ok := ref.(name.Digest); ok {
		end = "@" + ref.Identifier()
	}
	if digest, ok := c.in.Settings.ImagePins[image]; ok {
		end = "@" + digest
	}
	if mirror := strings.TrimSuffix(c.in.Settings.ImageMirror, "/"); mirror != "" {
		registry := ref.Context().RegistryStr()
		if registry == name.DefaultRegistry {
			registry = "docker.io" // as people write it
		}
		repository = mirror + "/" + registry + "/" + ref.Context().RepositoryStr()
		if CheckMirror(mirror) != nil {
			c.problems.add(krm.Place{Field: "the image mirror"}.Fault(api.ReasonInvalidBuild, fmt.Sprintf("%q is not a registry or path in one", mirror),
				"write it as host/path, without a scheme"))
			return image
		}
	}
	return repository + end
}

// CheckMirror returns an error if Settings.ImageMirror is not valid.
func CheckMirror(mirror string) error {
	if _, err := name.NewRepository(strings.TrimSuffix(mirror, "/") + "/image"); err != nil || strings.Contains(mirror, "://") {
		return fmt.Errorf("%q is not a registry or path in one: write it as host/path, without a scheme", mirror)
	}
	return nil
}

// ReadPins reads a map of step images, as the steps write them, to digests, or
// the ImageLock that `armature pin --steps` wrote.
func ReadPins(file string, data []byte) (map[string]string, error) {
	pins, problems, place := map[string]string{}, &findings{}, krm.Place{File: file}
	hint := "write each line as image: sha256:…"
	var err error
	if isLock(data) {
		hint = "run `armature pin` to write the lock"
		pins, err = lockedImages(data)
	} else {
		err = yaml.UnmarshalStrict(data, &pins)
	}
	if err != nil {
		problems.add(place.Fault(api.ReasonInvalidBuild, strings.ReplaceAll(err.Error(), "\n", " "), hint))
	}
	for _, image := range sortedKeys(pins) {
		if !imageDigest().MatchString(pins[image]) {
			problems.add(place.At(image).Fault(api.ReasonInvalidBuild, fmt.Sprintf("%q is not a sha256 digest", pins[image]), "write sha256: and 64 hexadecimal digits"))
		}
	}
	return pins, problems.err()
}

func isLock(data []byte) bool {
	var object struct{ Kind string }
	return yaml.Unmarshal(data, &object) == nil && object.Kind == "ImageLock"
}

func lockedImages(data []byte) (map[string]string, error) {
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

var imageDigest = krm.Pattern(`^sha256:[0-9a-f]{64}$`)
