package compose

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/gitrepo"
)

// checkBuild finds problems of a build that neither the schema nor a step detects.
func checkBuild(c *composer) {
	spec := c.Build.Spec
	checkPairs(c, "spec.labels", spec.Labels, validation.IsValidLabelValue)
	checkPairs(c, "spec.annotations", spec.Annotations, func(string) []string { return nil })
	// The CRD's rules see spec.source only.
	if revision := Revision(c.Build, c.Template); strings.HasPrefix(revision, "-") {
		c.invalid("spec.source.sourceRevision",
			"write a branch, a tag, a full ref or a full commit SHA", "%q begins with '-'",
			revision)
	}
	if repository := Repository(c.Build, c.Template); repository != "" {
		if _, err := gitrepo.Parse(repository); err != nil {
			c.invalid("spec.source.sourceRepository", gitrepo.Hint, "%v", err)
		}
	}
	if image := Image(c.Build); image != "" {
		if err := imageFault(image); err != nil {
			c.invalid("spec.buildOutput", "give imageRegistry a host without a scheme, image a "+
				"lower-case path, and imageTag a tag", "%q is not an image reference: %v", image, err)
		}
	}
	if spec.Cache != nil && spec.Cache.Mode != "off" && !takesCache(c.Template) {
		c.invalid("spec.cache", "remove it, or use another mode",
			"the template %s takes no cache, because a writer of the cache decides what is built",
			c.Template.Doc.From)
	}
	if s := spec.Source.SourceCredentials; s != nil && s.Name == "" {
		c.invalid("spec.source.sourceCredentials", "name one, or leave sourceCredentials out",
			"names no Secret")
	}
	if o := spec.BuildOutput; o != nil && o.ImageRepoCredentials != nil &&
		o.ImageRepoCredentials.Name == "" {
		c.invalid("spec.buildOutput.imageRepoCredentials",
			"name one, or leave imageRepoCredentials out", "names no Secret")
	}
	if w := spec.Workspace; w != nil && w.Size != nil && w.Size.Sign() <= 0 {
		c.invalid("spec.workspace.size", "write it like 2Gi", "%s is not a valid volume size",
			w.Size)
	}
	if p := spec.Pipeline; p != nil {
		for i, b := range p.Workspaces {
			if keepsWorkspace(spec) && isShared(b.Name) {
				c.invalid(fmt.Sprintf("spec.pipeline.workspaces[%d]", i), "keep one of the two",
					"binds the workspace that spec.workspace.keep makes a volume for")
			}
		}
		for i, param := range p.Parameters {
			if param.Name != "image" || param.Value == nil {
				continue
			}
			if err := imageFault(*param.Value); err != nil {
				c.invalid(fmt.Sprintf("spec.pipeline.parameters[%d].value", i),
					"write it as registry/repository:tag", "%q is not an image reference: %v",
					*param.Value, err)
			}
		}
		checkPasswords(c, "spec.pipeline.parameters", p.Parameters)
		for i, s := range p.Steps {
			checkPasswords(c, fmt.Sprintf("spec.pipeline.steps[%d].parameters", i), s.Parameters)
		}
	}
}

// checkBuilder refuses a builder that the template does not offer, and any builder if the build
// lists the whole pipeline.
func checkBuilder(c *composer) {
	builder, template := c.Build.Spec.Builder, c.Template
	if builder == "" || template.Broken {
		return
	}
	const field = "spec.builder"
	offered := template.Builders()
	switch {
	case templates.ListsAll(c.Build):
		c.invalid(field, "remove spec.builder, or list no configMap",
			"spec.pipeline.steps lists the whole pipeline, so there is nothing to choose")
	case len(offered) == 0:
		c.invalid(field, "remove it, or use another mode",
			"the template %s offers no choice of builders", template.Doc.From)
	case template.Isolates() && slices.Contains(templates.Unisolated, builder):
		// checkIsolated reports it.
	case !slices.Contains(offered, builder):
		c.invalid(field, "use one of "+strings.Join(offered, ", "),
			"the template %s has no builder %q", template.Doc.From, builder)
	}
}

// checkPairs refuses labels or annotations that the API server would refuse, and reserved ones.
func checkPairs(c *composer, field string, pairs map[string]string,
	fault func(value string) []string) {
	for _, key := range sortedKeys(pairs) {
		// Runs are matched to builds by these keys, so a build that sets them could pose as
		// another.
		if strings.HasPrefix(key, keys.Own) || key == LabelManagedBy {
			c.invalid(field, "use another key", "%s is reserved", key)
		}
		for _, message := range append(validation.IsQualifiedName(strings.ToLower(key)),
			fault(pairs[key])...) {
			c.invalid(field, "correct the key or the value", "%s: %q: %s", key, pairs[key], message)
		}
	}
}

// checkPasswords refuses parameters whose value is a repository URL with a password. The CRD's rule
// sees spec.source.sourceRepository only.
func checkPasswords(c *composer, field string, params []api.Parameter) {
	for i, p := range params {
		if isRepository(p.Name) && password().MatchString(ValueOf(p).StringVal) {
			c.invalid(fmt.Sprintf("%s[%d].value", field, i),
				"put it in a Secret and name that in spec.source.sourceCredentials",
				"must not hold a password")
		}
	}
}

// isRepository reports whether a parameter is the address of a repository.
func isRepository(parameter string) bool {
	real := templates.Canonical(parameter)
	return real == "repo-url" || real == "repo-clone-url"
}

// checkLogin refuses addresses over plain http, where the network could read the build's Git login:
// that of the repository that the controller asks, and those that steps get.
func checkLogin(c *composer) {
	if c.Build.Spec.Source.SourceCredentials == nil {
		return
	}
	for _, login := range c.logins() {
		u, err := url.Parse(login.address)
		if err == nil && strings.EqualFold(u.Scheme, "http") &&
			!slices.Contains(c.Settings.PlainHTTPHosts, u.Host) &&
			!slices.Contains(c.Settings.PlainHTTPHosts, u.Hostname()) {
			c.bad(api.ReasonInsecureSource, login.field, "use https or ssh, or let the operator "+
				"name the host in --plain-http-hosts of the controller",
				"a login is not sent to %s over plain http", u.Host)
		}
	}
}

// login is the address of a repository that receives the build's Git login, and the field that
// names it.
type login struct{ address, field string }

func (c *composer) logins() []login {
	out := []login{{cloneURL(Repository(c.Build, c.Template)), "spec.source.sourceRepository"}}
	for _, s := range c.steps {
		for _, name := range sortedKeys(s.known) {
			if isRepository(name) {
				out = append(out, login{cloneURL(s.known[name].StringVal),
					fmt.Sprintf("spec.pipeline.steps[%s].parameters[%s]", s.row.Name, name)})
			}
		}
	}
	return out
}

// password matches a Git URL with a password, like the CRD's rule of spec.source.sourceRepository.
var password = text.Pattern(`^([A-Za-z][-A-Za-z0-9+.]*://)?[^/@]*:[^/@]*@`)

// imageFault returns an error if an image cannot be pushed under a name.
func imageFault(image string) error {
	if strings.Contains(image, "://") {
		return errors.New("it has a scheme")
	}
	tag, err := name.NewTag(image)
	if err == nil && !repositoryForm().MatchString(tag.RepositoryStr()) {
		err = errors.New(
			"each part of its path has to begin and end with a small letter or a digit")
	}
	return err
}

// repositoryForm matches the name of a repository by OCI's distribution specification. The library
// also accepts dot segments and empty parts, which servers interpret differently.
var repositoryForm = text.Pattern(
	`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
