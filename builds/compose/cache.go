package compose

import (
	"cmp"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
)

// maxCacheTag leaves room for a platform or a builder in the 128 characters of a tag.
const maxCacheTag = 108

// takesCache reports whether builds of a template may use a cache. A writer of the cache
// decides what is built, so isolated runs have none.
func takesCache(t *recipe.Template) bool { return !t.Isolates() && (t.Cache == nil || *t.Cache) }

// registryCache is the image in a registry that holds the layers of a build, empty for
// none. The task that builds writes to it, and has no login to push with.
func registryCache(in Input) string {
	spec := in.Build.Spec
	switch c := spec.Cache; {
	case c != nil && c.Registry != "":
		return c.Registry
	case !keepsCache(in), withImage(spec):
		return ""
	}
	return cacheTag(in.Build)
}

// inlineCache is the tag beside an image that is pushed with a login, where the step that
// pushes it leaves it a second time for the next build: the image itself says which of its
// layers can be used again. It is empty for none.
func inlineCache(in Input) string {
	if !keepsCache(in) || !withImage(in.Build.Spec) {
		return ""
	}
	return cacheTag(in.Build)
}

// lifecycleCache is the image that holds the layers of buildpacks, whose task has the login
// of the image. It is another one than BuildKit's: the lifecycle deletes the one before, which
// BuildKit's may share with the image. It is empty for none.
func lifecycleCache(in Input) string {
	if !keepsCache(in) {
		return ""
	}
	return cacheTag(in.Build) + "-buildpacks"
}

// keepsCache reports whether a build that names no cache has one.
func keepsCache(in Input) bool {
	spec := in.Build.Spec
	return spec.BuildOutput != nil && takesCache(in.Template) &&
		(spec.Cache == nil || spec.Cache.Registry == "" && spec.Cache.Mode != "off")
}

// withImage reports whether the cache of a build that names none is within the image. That has
// the layers of the image alone, so that a build which asks for all has no such cache.
func withImage(spec api.AgentBuildSpec) bool {
	c := spec.Cache
	return spec.BuildOutput.ImageRepoCredentials != nil && (c == nil || c.Mode == "min")
}

// cacheTag is a tag of the build's own beside its image, with its namespace and its name: it
// shares that one with no other.
func cacheTag(build *api.AgentBuild) string {
	tag := cmp.Or(build.Namespace, "default") + "." + build.Name // a namespace has no dot
	if len(tag) > maxCacheTag {
		tag = fingerprint(tag)
	}
	return imageRepository(build) + ":" + tag + "-cache"
}
