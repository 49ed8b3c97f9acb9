package templates

import (
	"cmp"
	"slices"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
)

// aliases maps other names in the documents to the parameters that follow from a build's spec (000,
// "Parameter Resolution").
var aliases = map[string]string{
	"SOURCE_REPO_URL": "repo-url",
	"SOURCE_REVISION": "revision",
	"BUILD_CONTEXT":   "subfolder-path",
	// The step that searches for a Dockerfile and the steps that build it must agree on its name.
	"dockerfile": "DOCKERFILE",
}

// The parameters by which steps take fields of the spec.
const (
	// Secrets is an array of id=ID,src=FILE, and the name of the volume that holds the files.
	Secrets   = "build-secrets"
	Platform  = "platform"
	Platforms = "platforms"
	// ImageCache is a cache within the image; BuildpacksCache is an image of its own.
	ImageCache      = "image-cache"
	BuildpacksCache = "buildpacks-cache"
	// ImageDigest is for steps that inspect an image.
	ImageDigest = "image-digest"
	// Timeout is the timeout of the run itself; no step takes it.
	Timeout = "pipeline-timeout"
)

// fields maps parameters to the fields of the spec that set them.
var fields = map[string]string{
	"repo-url":           "spec.source.sourceRepository",
	"repo-clone-url":     "spec.source.sourceRepository",
	"image":              "spec.buildOutput",
	"registry-secret":    "spec.buildOutput.imageRepoCredentials.name",
	"SOURCE_REPO_SECRET": "spec.source.sourceCredentials.name",
	"repo-user":          "spec.source.repoUser",
	"build-args":         "spec.buildArgs",
	"image-labels":       "spec.buildOutput.labels",
	"image-annotations":  "spec.buildOutput.annotations",
	"subfolder-path":     "spec.source.sourceSubfolder",
	"revision":           "spec.source.sourceRevision",
	Secrets:              "spec.secrets",
	"network":            "spec.network",
	"cache":              "spec.cache.registry",
	"cache-mode":         "spec.cache.mode",
	ImageCache:           "spec.cache.mode",
	BuildpacksCache:      "spec.cache.mode",
	Platform:             "spec.platforms",
	Platforms:            "spec.platforms",
}

// Field returns the field of the spec that sets a parameter, or "".
func Field(parameter string) string { return fields[Canonical(parameter)] }

// FromSpec reports whether a field of the spec sets a parameter.
func FromSpec(parameter string) bool { return Field(parameter) != "" }

// Noted reports whether a parameter needs no step that declares it: it controls the build
// itself, or occurs in published manifests.
func Noted(parameter string) bool {
	return parameter == Timeout || parameter == "github-token-secret"
}

// Handed reports whether shipped steps pass a parameter to each other: the digests of the image,
// the SBOM and the source, and the commit.
func Handed(parameter string) bool {
	return slices.Contains([]string{ImageDigest, "sbom-digest", tekton.SourceDigest, "commit"},
		parameter)
}

// Canonical returns the parameter's name that aliases stand for.
func Canonical(name string) string { return cmp.Or(aliases[name], name) }

// Declares reports whether a parameter is among those of a task, under any of its names.
func Declares(params tektonv1.ParamSpecs, name string) bool {
	return slices.ContainsFunc(params, func(p tektonv1.ParamSpec) bool {
		return Canonical(p.Name) == Canonical(name)
	})
}

// find returns a parameter by its name or an alias; an exact match takes precedence.
func find[P any](params []P, name string, nameOf func(*P) string) *P {
	var alias *P
	for i := range params {
		switch have := nameOf(&params[i]); {
		case have == name:
			return &params[i]
		case alias == nil && Canonical(have) == Canonical(name):
			alias = &params[i]
		}
	}
	return alias
}

// Find returns a parameter of a build under any of its names, or nil.
func Find(params []api.Parameter, name string) *api.Parameter {
	return find(params, name, func(p *api.Parameter) string { return p.Name })
}

// FindDefault returns a parameter of a template under any of its names, or nil.
func FindDefault(params []Parameter, name string) *Parameter {
	return find(params, name, func(p *Parameter) string { return p.Name })
}

// FindValue returns the value that the first of several lists has for a parameter, or the zero
// value, which has no type.
func FindValue(name string, lists ...[]Parameter) (value tektonv1.ParamValue) {
	for _, list := range lists {
		if p := FindDefault(list, name); p != nil && p.Value != nil {
			return *p.Value
		}
	}
	return value
}
