package compose

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

var soleParam = text.Pattern(`^\$\(params\.([_a-zA-Z][_a-zA-Z0-9.-]*)\)$`)

// ControllerRepository is where releases publish the controller's image.
const ControllerRepository = "ghcr.io/armature-dev/armature-controller"

// controllerImage returns the image that runs the steps of the controller.
func (s Settings) controllerImage() string {
	return cmp.Or(s.ControllerImage, ControllerRepository+":latest")
}

// mapImages pins the images of a task and redirects them to the mirror. It maps an image that is a
// parameter in the parameter's value. The controller's own image is neither pinned nor mirrored.
func mapImages(c *composer, doc *templates.Document, task *tektonv1.PipelineTask) {
	mapped := func(image *string, path string) {
		*image = c.mapped(*image, task.Name, doc.At(path))
	}
	var params []string
	tekton.EachImage(&task.TaskSpec.TaskSpec, func(image *string, path string) {
		switch m := soleParam().FindStringSubmatch(*image); {
		case *image == templates.ControllerImage:
			*image = c.Settings.controllerImage()
		case c.Settings.ImageMirror == "" && len(c.Settings.ImagePins) == 0:
		case m != nil:
			params = append(params, m[1])
		default:
			mapped(image, path)
		}
	})
	for _, param := range params {
		given := false
		for i := range task.Params {
			if p := &task.Params[i]; p.Name == param && p.Value.Type == tektonv1.ParamTypeString {
				given = true
				mapped(&p.Value.StringVal, "params")
			}
		}
		for i := range task.TaskSpec.Params {
			if p := &task.TaskSpec.Params[i]; !given && p.Name == param && p.Default != nil {
				mapped(&p.Default.StringVal, fmt.Sprintf("params[%d].default", i))
			}
		}
	}
}

// mapped returns the reference from which the cluster pulls an image. It adds a finding about an
// invalid reference and returns references with variables unchanged.
func (c *composer) mapped(image, task string, at finding.Place) string {
	if image == "" || templates.ParamReference().MatchString(image) ||
		wholeReference().MatchString(image) {
		return image
	}
	ref, err := name.ParseReference(image)
	if err != nil {
		c.fault(task, at, api.ReasonInvalidStep, "write it as registry/repository:tag",
			"%q is not an image reference: %v", image, err)
		return image
	}
	repository, end := ref.Context().Name(), ":"+ref.Identifier()
	if _, ok := ref.(name.Digest); ok {
		end = "@" + ref.Identifier()
	}
	if digest, ok := c.Settings.ImagePins[image]; ok {
		end = "@" + digest
	}
	if mirror := strings.TrimSuffix(c.Settings.ImageMirror, "/"); mirror != "" {
		registry := ref.Context().RegistryStr()
		if registry == name.DefaultRegistry {
			registry = "docker.io" // the name that people use
		}
		repository = mirror + "/" + registry + "/" + ref.Context().RepositoryStr()
		if CheckMirror(mirror) != nil {
			c.fault(task, finding.Place{Field: "the image mirror"}, api.ReasonInvalidBuild,
				"write it as host/path, without a scheme", "%q is not a registry or path in one",
				mirror)
			return image
		}
	}
	return repository + end
}

// CheckMirror returns an error if Settings.ImageMirror is not valid.
func CheckMirror(mirror string) error {
	if _, err := name.NewRepository(strings.TrimSuffix(mirror, "/") + "/image"); err != nil ||
		strings.Contains(mirror, "://") {
		return fmt.Errorf(
			"%q is not a registry or path in one: write it as host/path, without a scheme", mirror)
	}
	return nil
}
