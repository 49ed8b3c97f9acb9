package templates

import (
	"cmp"
	"slices"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
)

// aliases are the other names that the documents use for the parameters that a build's spec
// becomes (000, "Parameter Resolution").
var aliases = map[string]string{
	"SOURCE_REPO_URL": "repo-url",
	"SOURCE_REVISION": "revision",
	"BUILD_CONTEXT":   "subfolder-path",
	// The step that looks for a Dockerfile and those that build it must not
	// differ about its name.
	"dockerfile": "DOCKERFILE",
}

// Parameters by which steps take what the spec says.
const (
	// Secrets is an array, each id=ID,src=FILE, and the name of the volume that has the files.
	Secrets   = "build-secrets"
	Platform  = "platform"
	Platforms = "platforms"
	// ImageCache is a cache within the image; the other one is that of buildpacks.
	ImageCache      = "image-cache"
	BuildpacksCache = "buildpacks-cache"
	// ImageDigest is for steps that look at an image.
	ImageDigest = "image-digest"
	// Timeout of the pipeline controls the run itself.
	Timeout = "pipeline-timeout"
)

// fields of the spec that parameters come from.
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

// Field of the spec that a parameter comes from; empty for none.
func Field(parameter string) string { return fields[Canonical(parameter)] }

// FromSpec reports whether a parameter has its value from a field of the spec.
func FromSpec(parameter string) bool { return Field(parameter) != "" }

// Noted reports whether a parameter needs no step that declares it: it controls the build
// itself, or occurs in published manifests.
func Noted(parameter string) bool {
	return parameter == Timeout || parameter == "github-token-secret"
}

// Handed reports whether shipped steps hand a parameter to each other: the digests of the
// image, the SBOM and the source, and the commit.
func Handed(parameter string) bool {
	return slices.Contains([]string{ImageDigest, "sbom-digest", tekton.SourceDigest, "commit"}, parameter)
}

// Canonical is the one name of a parameter that has several.
func Canonical(name string) string {
	return cmp.Or(aliases[name], name)
}

// Declares reports whether a parameter is among those of a task, under any of its names.
func Declares(params tektonv1.ParamSpecs, name string) bool {
	return slices.ContainsFunc(params, func(p tektonv1.ParamSpec) bool {
		return Canonical(p.Name) == Canonical(name)
	})
}

// find a parameter by name or by an alias; the name itself wins.
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

// Find a parameter of a build, under any of its names; nil for none.
func Find(params []api.Parameter, name string) *api.Parameter {
	return find(params, name, func(p *api.Parameter) string { return p.Name })
}

// FindDefault finds one of a template, likewise.
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
