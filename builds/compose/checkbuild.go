package compose

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
)

// checkBuild looks at what neither the schema nor a step would find.
func (c *composition) checkBuild() {
	spec := c.in.Build.Spec
	c.checkPairs("spec.labels", spec.Labels, validation.IsValidLabelValue)
	c.checkPairs("spec.annotations", spec.Annotations, func(string) []string { return nil })
	c.checkSource()
	if err := imageFault(c.spec.image); c.spec.image != "" && err != nil {
		c.bad(api.ReasonInvalidBuild, "spec.buildOutput", fmt.Sprintf("%q is not an image reference: %v", c.spec.image, err),
			"give imageRegistry a host without a scheme, image a lower-case path, and imageTag a tag")
	}
	if spec.Cache != nil && spec.Cache.Mode != "off" && !c.in.Template.takesCache() {
		c.bad(api.ReasonInvalidBuild, "spec.cache", fmt.Sprintf("the template %s takes no cache, because whoever writes to one decides what is built", c.in.Template.doc.from),
			"remove it, or use another mode")
	}
	if s := spec.Source.SourceCredentials; s != nil && s.Name == "" {
		c.bad(api.ReasonInvalidBuild, "spec.source.sourceCredentials", "names no Secret", "name one, or leave sourceCredentials out")
	}
	if o := spec.BuildOutput; o != nil && o.ImageRepoCredentials != nil && o.ImageRepoCredentials.Name == "" {
		c.bad(api.ReasonInvalidBuild, "spec.buildOutput.imageRepoCredentials", "names no Secret", "name one, or leave imageRepoCredentials out")
	}
	if w := spec.Workspace; w != nil && w.Size != nil && w.Size.Sign() <= 0 {
		c.bad(api.ReasonInvalidBuild, "spec.workspace.size", fmt.Sprintf("%s is not a valid volume size", w.Size), "write it like 2Gi")
	}
	if p := spec.Pipeline; p != nil {
		for i, b := range p.Workspaces {
			if spec.Workspace != nil && spec.Workspace.Keep && (b.Name == sharedWorkspace || workspaceAliases[b.Name] == sharedWorkspace) {
				c.bad(api.ReasonInvalidBuild, fmt.Sprintf("spec.pipeline.workspaces[%d]", i), "binds the workspace that spec.workspace.keep makes a volume for",
					"keep one of the two")
			}
		}
		for i, param := range p.Parameters {
			if param.Name != "image" || param.Value == nil {
				continue
			}
			if err := imageFault(*param.Value); err != nil {
				c.bad(api.ReasonInvalidBuild, fmt.Sprintf("spec.pipeline.parameters[%d].value", i), fmt.Sprintf("%q is not an image reference: %v", *param.Value, err),
					"write it as registry/repository:tag")
			}
		}
		c.checkPasswords("spec.pipeline.parameters", p.Parameters)
		for i, s := range p.Steps {
			c.checkPasswords(fmt.Sprintf("spec.pipeline.steps[%d].parameters", i), s.Parameters)
		}
	}
}

// checkSource refuses a revision or a URL that Git would take for an option, or
// for a command or a folder; the CRD's rules see spec.source alone.
func (c *composition) checkSource() {
	if revision := Revision(c.in.Build, c.in.Template); strings.HasPrefix(revision, "-") {
		c.bad(api.ReasonInvalidBuild, "spec.source.sourceRevision", fmt.Sprintf("%q begins with '-'", revision),
			"write a branch, a tag, a full ref or a full commit SHA")
	}
	repository := Repository(c.in.Build, c.in.Template)
	if scheme, _, has := strings.Cut(repository, "://"); has && scheme != "https" && scheme != "http" && scheme != "ssh" || strings.HasPrefix(repository, "-") {
		c.bad(api.ReasonInvalidBuild, "spec.source.sourceRepository", "is not a Git URL over https or ssh", "write it like https://host/path or git@host:path")
	}
}

// checkPairs refuses labels or annotations that the API server would, and ours.
func (c *composition) checkPairs(field string, pairs map[string]string, fault func(value string) []string) {
	for _, key := range sortedKeys(pairs) {
		// Runs are recognised by these: a build that set them would be taken for another one.
		if strings.HasPrefix(key, keys.Own) || key == LabelManagedBy {
			c.bad(api.ReasonInvalidBuild, field, fmt.Sprintf("%s is reserved", key), "use another key")
		}
		for _, message := range append(validation.IsQualifiedName(strings.ToLower(key)), fault(pairs[key])...) {
			c.bad(api.ReasonInvalidBuild, field, fmt.Sprintf("%s: %q: %s", key, pairs[key], message), "correct the key or the value")
		}
	}
}

// checkPasswords refuses those in a URL that a parameter gives; the CRD's rule
// sees spec.source.sourceRepository alone.
func (c *composition) checkPasswords(field string, params []api.Parameter) {
	for i, p := range params {
		if real := canonical(p.Name); (real == "repo-url" || real == "repo-clone-url") && password().MatchString(userParameter(p).value().StringVal) {
			c.bad(api.ReasonInvalidBuild, fmt.Sprintf("%s[%d].value", field, i), "must not hold a password",
				"put it in a Secret and name that in spec.source.sourceCredentials")
		}
	}
}

// password in a Git URL, as the rule of spec.source.sourceRepository has it.
var password = krm.Pattern(`^([A-Za-z][-A-Za-z0-9+.]*://)?[^/@]*:[^/@]*@`)

// imageFault says why an image cannot be pushed under that name.
func imageFault(image string) error {
	if strings.Contains(image, "://") {
		return errors.New("it has a scheme")
	}
	_, err := name.NewTag(image)
	return err
}
