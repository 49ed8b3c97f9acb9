package compose

import (
	"cmp"
	"path"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/render/gitrepo"
)

// implied has the values of parameters that are not set.
var implied = map[string]string{"subfolder-path": ".", "revision": "main"}

// derived has the parameters that follow from a build's spec.
type derived map[string]derivedValue

type derivedValue struct {
	tektonv1.ParamValue
	field string // of the build
}

func derive(c *composer) derived {
	d := derived{}
	set := func(name, value string) {
		if value != "" {
			d[name] = derivedValue{*tektonv1.NewStructuredValues(value), templates.Field(name)}
		}
	}
	list := func(name string, values []string) {
		if len(values) > 0 {
			d[name] = derivedValue{tektonv1.ParamValue{Type: tektonv1.ParamTypeArray,
				ArrayVal: values}, templates.Field(name)}
		}
	}
	spec := c.Build.Spec
	repository, revision := Repository(c.Build, c.Template), Revision(c.Build, c.Template)
	d["source-revision"] = derivedValue{*tektonv1.NewStructuredValues(revision),
		templates.Field("revision")}
	d["build-name"] = derivedValue{*tektonv1.NewStructuredValues(c.Build.Name), "metadata.name"}
	set("repo-url", repository)
	set("repo-clone-url", cloneURL(repository))
	set("revision", cmp.Or(c.Commit, revision))
	set("subfolder-path", spec.Source.SourceSubfolder)
	set("repo-user", spec.Source.RepoUser)
	if s := spec.Source.SourceCredentials; s != nil {
		set("SOURCE_REPO_SECRET", s.Name)
	}
	if out := spec.BuildOutput; out != nil {
		set("image", Image(c.Build))
		if out.ImageRepoCredentials != nil {
			set("registry-secret", out.ImageRepoCredentials.Name)
		}
		list("image-labels", pairs(out.Labels))
		list("image-annotations", pairs(out.Annotations))
	}
	var args, secrets []string
	for _, a := range spec.BuildArgs {
		args = append(args, a.Name+"="+ptr.Deref(a.Value, ""))
	}
	for _, s := range spec.Secrets {
		secrets = append(secrets, "id="+s.ID+",src="+path.Join(secretsFolder, s.ID))
	}
	list("build-args", args)
	list(templates.Secrets, secrets)
	set("network", spec.Network)
	set(templates.Platforms, strings.Join(spec.Platforms, ","))
	if len(spec.Platforms) == 1 {
		set(templates.Platform, spec.Platforms[0])
	}
	registry, within, buildpacks := caches(c)
	set("cache", registry)
	set(templates.ImageCache, within)
	set(templates.BuildpacksCache, buildpacks)
	if spec.Cache != nil {
		set("cache-mode", cmp.Or(spec.Cache.Mode, "max"))
	}
	return d
}

func pairs(of map[string]string) (out []string) {
	for _, key := range sortedKeys(of) {
		out = append(out, key+"="+of[key])
	}
	return out
}

// Repository returns the repository that a build clones, as it was written.
func Repository(b *api.AgentBuild, t *templates.Template) string {
	return effective(b, t, "repo-url", b.Spec.Source.SourceRepository)
}

// Revision returns the revision of a build: the user's, the template's default, or main.
func Revision(b *api.AgentBuild, t *templates.Template) string {
	return cmp.Or(effective(b, t, "revision", b.Spec.Source.SourceRevision), implied["revision"])
}

// effective returns the string value of a parameter regardless of the steps that take it.
func effective(b *api.AgentBuild, t *templates.Template, name, fromSpec string) string {
	if p := templates.Find(pipelineOf(b).Parameters, name); p != nil && p.Value != nil {
		return *p.Value
	}
	for _, s := range t.Steps {
		fromSpec = cmp.Or(fromSpec, templates.FindValue(name, s.DefaultParameters).StringVal)
	}
	return cmp.Or(fromSpec, templates.FindValue(name, t.GlobalParameters).StringVal)
}

// Image returns the image of spec.buildOutput with its tag; "" without buildOutput.
func Image(b *api.AgentBuild) string {
	if b.Spec.BuildOutput == nil {
		return ""
	}
	return imageRepository(b) + ":" + b.Spec.BuildOutput.ImageTag
}

// imageRepository returns the repository of spec.buildOutput, which must not be nil.
func imageRepository(b *api.AgentBuild) string {
	out := b.Spec.BuildOutput
	image := out.Image
	if strings.HasPrefix(image, "<") {
		image = b.Name // a published placeholder
	}
	return strings.TrimSuffix(out.ImageRegistry, "/") + "/" + image
}

// cloneURL returns the URL to clone in its canonical form. It returns an invalid URL, which
// checkBuild refuses, unchanged.
func cloneURL(repository string) string {
	if r, err := gitrepo.Parse(repository); err == nil {
		return r.String()
	}
	return repository
}

// maxCacheTag leaves room for a platform or a builder in the 128 characters of a tag.
const maxCacheTag = 108

// takesCache reports whether builds of a template may use a cache. A writer of the cache decides
// what is built, so isolated runs have none.
func takesCache(t *templates.Template) bool { return !t.Isolates() && (t.Cache == nil || *t.Cache) }

// caches returns the caches of a build; each may be empty.
//
// registry is an image that holds the layers of a build. The task that builds writes to it, without
// a login to push with.
//
// within is a second tag of an image that is pushed with a login. The next build reads from the
// image itself which of its layers it can reuse. The image has only its own layers, so a build that
// asks for all layers has no cache of this kind.
//
// buildpacks is an image that holds the layers of buildpacks, whose task has the login of the
// image. It differs from BuildKit's cache because the lifecycle deletes the previous cache image,
// which may share its manifest with the image.
func caches(c *composer) (registry, within, buildpacks string) {
	out, cache := c.Build.Spec.BuildOutput, ptr.Deref(c.Build.Spec.Cache, api.BuildCache{})
	if cache.Registry != "" || out == nil || !takesCache(c.Template) || cache.Mode == "off" {
		return cache.Registry, "", ""
	}
	tag := cacheTag(c.Build)
	if out.ImageRepoCredentials != nil && (c.Build.Spec.Cache == nil || cache.Mode == "min") {
		return "", tag, tag + "-buildpacks"
	}
	return tag, "", tag + "-buildpacks"
}

// cacheTag returns a tag in the repository of the image that only this build uses: it contains the
// build's namespace and name.
func cacheTag(build *api.AgentBuild) string {
	tag := cmp.Or(build.Namespace, "default") + "." + build.Name // a namespace has no dot
	if len(tag) > maxCacheTag {
		tag = fingerprint(tag)
	}
	return imageRepository(build) + ":" + tag + "-cache"
}
