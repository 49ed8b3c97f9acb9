package compose

import (
	"cmp"
	"path"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/render/gitrepo"
)

// implied values hold when nobody gave one.
var implied = map[string]string{"subfolder-path": ".", "revision": "main"}

// derived are the parameters that the spec becomes.
type derived map[string]derivedValue

type derivedValue struct {
	tektonv1.ParamValue
	field string // of the build
}

func derive(in Input) derived {
	d := derived{}
	set := func(name, value string) {
		if value != "" {
			d[name] = derivedValue{*tektonv1.NewStructuredValues(value), recipe.Field(name)}
		}
	}
	list := func(name string, values []string) {
		if len(values) > 0 {
			d[name] = derivedValue{tektonv1.ParamValue{Type: tektonv1.ParamTypeArray,
				ArrayVal: values}, recipe.Field(name)}
		}
	}
	spec := in.Build.Spec
	repository, revision := Repository(in.Build, in.Template), Revision(in.Build, in.Template)
	d["source-revision"] = derivedValue{*tektonv1.NewStructuredValues(revision), recipe.Field("revision")}
	d["build-name"] = derivedValue{*tektonv1.NewStructuredValues(in.Build.Name), "metadata.name"}
	set("repo-url", repository)
	set("repo-clone-url", cloneURL(repository))
	set("revision", cmp.Or(in.Commit, revision))
	set("subfolder-path", spec.Source.SourceSubfolder)
	set("repo-user", spec.Source.RepoUser)
	if s := spec.Source.SourceCredentials; s != nil {
		set("SOURCE_REPO_SECRET", s.Name)
	}
	if out := spec.BuildOutput; out != nil {
		set("image", Image(in.Build))
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
	list(recipe.Secrets, secrets)
	set("network", spec.Network)
	set(recipe.Platforms, strings.Join(spec.Platforms, ","))
	if len(spec.Platforms) == 1 {
		set(recipe.Platform, spec.Platforms[0])
	}
	set("cache", registryCache(in))
	set(recipe.ImageCache, inlineCache(in))
	set(recipe.BuildpacksCache, lifecycleCache(in))
	if c := spec.Cache; c != nil {
		set("cache-mode", cmp.Or(c.Mode, "max"))
	}
	return d
}

func pairs(of map[string]string) (out []string) {
	for _, key := range sortedKeys(of) {
		out = append(out, key+"="+of[key])
	}
	return out
}

// Repository that a build clones, as it was written.
func Repository(b *api.AgentBuild, t *recipe.Template) string {
	return effective(b, t, "repo-url", b.Spec.Source.SourceRepository)
}

// Revision that a build asks for: the user's, the template's default, or main.
func Revision(b *api.AgentBuild, t *recipe.Template) string {
	if r := effective(b, t, "revision", b.Spec.Source.SourceRevision); r != "" {
		return r
	}
	return implied["revision"]
}

// effective string value of a parameter before any step is looked at.
func effective(b *api.AgentBuild, t *recipe.Template, name, fromSpec string) string {
	if b.Spec.Pipeline != nil {
		if p := recipe.Find(b.Spec.Pipeline.Parameters, name); p != nil && p.Value != nil {
			return *p.Value
		}
	}
	if fromSpec != "" {
		return fromSpec
	}
	for _, s := range t.Steps {
		if p := recipe.FindDefault(s.DefaultParameters, name); p != nil && p.Value != nil &&
			p.Value.StringVal != "" {
			return p.Value.StringVal
		}
	}
	if p := recipe.FindDefault(t.GlobalParameters, name); p != nil && p.Value != nil {
		return p.Value.StringVal
	}
	return ""
}

// Image returns the image of spec.buildOutput with its tag; "" without buildOutput.
func Image(b *api.AgentBuild) string {
	out := b.Spec.BuildOutput
	if out == nil {
		return ""
	}
	return imageRepository(b) + ":" + out.ImageTag
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

// cloneURL returns the URL to clone in its canonical form. A URL that is not valid, which
// checkSource refuses, is returned unchanged.
func cloneURL(repository string) string {
	if r, err := gitrepo.Parse(repository); err == nil {
		return r.String()
	}
	return repository
}
