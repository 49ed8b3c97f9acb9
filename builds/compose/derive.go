package compose

import (
	"path"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/krm"
)

// The parameters that a build's spec becomes, and the other names that the
// documents use for them (000, "Parameter Resolution").
var (
	aliases = map[string]string{
		"SOURCE_REPO_URL": "repo-url",
		"SOURCE_REVISION": "revision",
		"BUILD_CONTEXT":   "subfolder-path",
		// The step that looks for a Dockerfile and those that build it must not
		// differ about its name.
		"dockerfile": "DOCKERFILE",
	}
	// implied values hold when nobody gave one.
	implied = map[string]string{"subfolder-path": ".", "revision": "main"}
	// noted parameters control the build itself or occur in published manifests,
	// and need no step that declares them.
	noted = map[string]bool{timeoutParameter: true, "github-token-secret": true}

	operators = map[string]selection.Operator{"in": selection.In, "notin": selection.NotIn}
)

const timeoutParameter = "pipeline-timeout"

// derived are the parameters that the spec becomes.
type derived struct {
	values map[string]tektonv1.ParamValue
	field  map[string]string
	image  string
}

func canonical(name string) string {
	if real, ok := aliases[name]; ok {
		return real
	}
	return name
}

func derive(in Input) derived {
	d := derived{values: map[string]tektonv1.ParamValue{}, field: map[string]string{}}
	set := func(name, value, field string) {
		if value != "" {
			d.values[name], d.field[name] = *tektonv1.NewStructuredValues(value), field
		}
	}
	spec := in.Build.Spec
	repository := Repository(in.Build, in.Template)
	revision := Revision(in.Build, in.Template)
	set("repo-url", repository, "spec.source.sourceRepository")
	set("repo-clone-url", CloneURL(repository), "spec.source.sourceRepository")
	set("source-revision", revision, "spec.source.sourceRevision")
	if in.Commit != "" {
		revision = in.Commit
	}
	set("revision", revision, "spec.source.sourceRevision")
	set("subfolder-path", spec.Source.SourceSubfolder, "spec.source.sourceSubfolder")
	set("repo-user", spec.Source.RepoUser, "spec.source.repoUser")
	set("build-name", in.Build.Name, "metadata.name")
	if s := spec.Source.SourceCredentials; s != nil {
		set("SOURCE_REPO_SECRET", s.Name, "spec.source.sourceCredentials.name")
	}
	if out := spec.BuildOutput; out != nil {
		d.image = Image(in.Build)
		set("image", d.image, "spec.buildOutput")
		if out.ImageRepoCredentials != nil {
			set("registry-secret", out.ImageRepoCredentials.Name, "spec.buildOutput.imageRepoCredentials.name")
		}
		setPairs(d, "image-labels", out.Labels, "spec.buildOutput.labels")
		setPairs(d, "image-annotations", out.Annotations, "spec.buildOutput.annotations")
	}
	if len(spec.BuildArgs) > 0 {
		args := make([]string, 0, len(spec.BuildArgs))
		for _, a := range spec.BuildArgs {
			value := ""
			if a.Value != nil {
				value = *a.Value
			}
			args = append(args, a.Name+"="+value)
		}
		d.values["build-args"] = tektonv1.ParamValue{Type: tektonv1.ParamTypeArray, ArrayVal: args}
		d.field["build-args"] = "spec.buildArgs"
	}
	if len(spec.Secrets) > 0 {
		var secrets []string
		for _, s := range spec.Secrets {
			secrets = append(secrets, "id="+s.ID+",src="+path.Join(secretsFolder, s.ID))
		}
		d.values[buildSecrets] = tektonv1.ParamValue{Type: tektonv1.ParamTypeArray, ArrayVal: secrets}
		d.field[buildSecrets] = "spec.secrets"
	}
	set("network", spec.Network, "spec.network")
	set(platformsParameter, strings.Join(spec.Platforms, ","), "spec.platforms")
	if len(spec.Platforms) == 1 {
		set(PlatformParameter, spec.Platforms[0], "spec.platforms")
	}
	set("cache", registryCache(in), "spec.cache.registry")
	set(imageCache, inlineCache(in), "spec.cache.mode")
	set(buildpacksCache, lifecycleCache(in), "spec.cache.mode")
	if c := spec.Cache; c != nil {
		set("cache-mode", firstOf(c.Mode, "max"), "spec.cache.mode")
	}
	return d
}

func setPairs(d derived, name string, pairs map[string]string, field string) {
	if len(pairs) == 0 {
		return
	}
	list := make([]string, 0, len(pairs))
	for _, k := range sortedKeys(pairs) {
		list = append(list, k+"="+pairs[k])
	}
	d.values[name], d.field[name] = tektonv1.ParamValue{Type: tektonv1.ParamTypeArray, ArrayVal: list}, field
}

// Repository that a build clones, as it was written.
func Repository(b *api.AgentBuild, t *Template) string {
	return effective(b, t, "repo-url", b.Spec.Source.SourceRepository)
}

// Revision that a build asks for: the user's, the template's default, or main.
func Revision(b *api.AgentBuild, t *Template) string {
	if r := effective(b, t, "revision", b.Spec.Source.SourceRevision); r != "" {
		return r
	}
	return implied["revision"]
}

// effective string value of a parameter before any step is looked at.
func effective(b *api.AgentBuild, t *Template, name, fromSpec string) string {
	if b.Spec.Pipeline != nil {
		if p := findUser(b.Spec.Pipeline.Parameters, name); p != nil && p.Value != nil {
			return *p.Value
		}
	}
	if fromSpec != "" {
		return fromSpec
	}
	for _, s := range t.Steps {
		if p := findDefault(s.DefaultParameters, name); p != nil && p.Value != nil && p.Value.StringVal != "" {
			return p.Value.StringVal
		}
	}
	if p := findDefault(t.GlobalParameters, name); p != nil && p.Value != nil {
		return p.Value.StringVal
	}
	return ""
}

var scpLike = krm.Pattern(`^[A-Za-z0-9._-]+@[^/:]+:`)

// Image that spec.buildOutput names, with its tag; empty where the build has none.
func Image(b *api.AgentBuild) string {
	out := b.Spec.BuildOutput
	if out == nil {
		return ""
	}
	return imageRepository(b) + ":" + out.ImageTag
}

// imageRepository is that of spec.buildOutput, which the build has.
func imageRepository(b *api.AgentBuild) string {
	out := b.Spec.BuildOutput
	image := out.Image
	if strings.HasPrefix(image, "<") {
		image = b.Name // a published placeholder
	}
	return strings.TrimSuffix(out.ImageRegistry, "/") + "/" + image
}

// CloneURL is the URL to clone: a repository without a scheme means https.
func CloneURL(repository string) string {
	if repository == "" || strings.Contains(repository, "://") || scpLike().MatchString(repository) {
		return repository
	}
	return "https://" + repository
}
