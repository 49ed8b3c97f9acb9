package compose

import (
	"errors"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/gitrepo"
)

// checkBuild looks at what neither the schema nor a step would find.
func checkBuild(in Input) (found faults) {
	spec := in.Build.Spec
	found = slices.Concat(checkPairs(in, "spec.labels", spec.Labels, validation.IsValidLabelValue),
		checkPairs(in, "spec.annotations", spec.Annotations, func(string) []string { return nil }),
		checkSource(in))
	if image := Image(in.Build); image != "" && imageFault(image) != nil {
		found.bad(in, api.ReasonInvalidBuild, "spec.buildOutput",
			fmt.Sprintf("%q is not an image reference: %v", image, imageFault(image)),
			"give imageRegistry a host without a scheme, image a lower-case path, and "+
				"imageTag a tag")
	}
	if spec.Cache != nil && spec.Cache.Mode != "off" && !takesCache(in.Template) {
		found.bad(in, api.ReasonInvalidBuild, "spec.cache",
			fmt.Sprintf("the template %s takes no cache, because a writer of the cache decides "+
				"what is built", in.Template.Doc.From),
			"remove it, or use another mode")
	}
	if s := spec.Source.SourceCredentials; s != nil && s.Name == "" {
		found.bad(in, api.ReasonInvalidBuild, "spec.source.sourceCredentials", "names no Secret",
			"name one, or leave sourceCredentials out")
	}
	if o := spec.BuildOutput; o != nil && o.ImageRepoCredentials != nil &&
		o.ImageRepoCredentials.Name == "" {
		found.bad(in, api.ReasonInvalidBuild, "spec.buildOutput.imageRepoCredentials",
			"names no Secret", "name one, or leave imageRepoCredentials out")
	}
	if w := spec.Workspace; w != nil && w.Size != nil && w.Size.Sign() <= 0 {
		found.bad(in, api.ReasonInvalidBuild, "spec.workspace.size",
			fmt.Sprintf("%s is not a valid volume size", w.Size), "write it like 2Gi")
	}
	if p := spec.Pipeline; p != nil {
		for i, b := range p.Workspaces {
			if keepsWorkspace(spec) && isShared(b.Name) {
				found.bad(in, api.ReasonInvalidBuild, fmt.Sprintf("spec.pipeline.workspaces[%d]",
					i), "binds the workspace that spec.workspace.keep makes a volume for",
					"keep one of the two")
			}
		}
		for i, param := range p.Parameters {
			if param.Name != "image" || param.Value == nil {
				continue
			}
			if err := imageFault(*param.Value); err != nil {
				found.bad(in, api.ReasonInvalidBuild,
					fmt.Sprintf("spec.pipeline.parameters[%d].value", i),
					fmt.Sprintf("%q is not an image reference: %v", *param.Value, err),
					"write it as registry/repository:tag")
			}
		}
		found = append(found, checkPasswords(in, "spec.pipeline.parameters", p.Parameters)...)
		for i, s := range p.Steps {
			found = append(found,
				checkPasswords(in, fmt.Sprintf("spec.pipeline.steps[%d].parameters", i), s.Parameters)...)
		}
	}
	return found
}

// checkBuilder refuses a builder that the template does not offer, and one beside
// steps that are the whole pipeline.
func checkBuilder(in Input) (found faults) {
	builder, template := in.Build.Spec.Builder, in.Template
	if builder == "" || template.Broken {
		return nil
	}
	offered := template.Builders()
	switch {
	case recipe.ListsAll(in.Build):
		found.bad(in, api.ReasonInvalidBuild, "spec.builder",
			"spec.pipeline.steps lists the whole pipeline, so there is nothing to choose",
			"remove spec.builder, or list no configMap")
	case len(offered) == 0:
		found.bad(in, api.ReasonInvalidBuild, "spec.builder",
			fmt.Sprintf("the template %s offers no choice of builders", template.Doc.From),
			"remove it, or use another mode")
	case template.Isolates() && slices.Contains(recipe.Unisolated, builder):
		// checkIsolated says why not
	case !slices.Contains(offered, builder):
		found.bad(in, api.ReasonInvalidBuild, "spec.builder",
			fmt.Sprintf("the template %s has no builder %q", template.Doc.From, builder),
			"use one of "+strings.Join(offered, ", "))
	}
	return found
}

// checkSource refuses a revision that Git would take for an option, and a repository without
// a canonical form; the CRD's rules see spec.source alone.
func checkSource(in Input) (found faults) {
	if revision := Revision(in.Build, in.Template); strings.HasPrefix(revision, "-") {
		found.bad(in, api.ReasonInvalidBuild, "spec.source.sourceRevision",
			fmt.Sprintf("%q begins with '-'", revision),
			"write a branch, a tag, a full ref or a full commit SHA")
	}
	if repository := Repository(in.Build, in.Template); repository != "" {
		if _, err := gitrepo.Parse(repository); err != nil {
			found.bad(in, api.ReasonInvalidBuild, "spec.source.sourceRepository", err.Error(),
				gitrepo.Hint)
		}
	}
	return found
}

// checkPairs refuses labels or annotations that the API server would, and ours.
func checkPairs(in Input, field string, pairs map[string]string,
	fault func(value string) []string) (found faults) {
	for _, key := range sortedKeys(pairs) {
		// Runs are recognised by these: a build that set them would be taken for another one.
		if strings.HasPrefix(key, keys.Own) || key == LabelManagedBy {
			found.bad(in, api.ReasonInvalidBuild, field, fmt.Sprintf("%s is reserved", key),
				"use another key")
		}
		for _, message := range append(validation.IsQualifiedName(strings.ToLower(key)),
			fault(pairs[key])...) {
			found.bad(in, api.ReasonInvalidBuild, field, fmt.Sprintf("%s: %q: %s", key, pairs[key],
				message), "correct the key or the value")
		}
	}
	return found
}

// checkPasswords refuses passwords in a URL that is the value of a parameter; the CRD's rule sees
// spec.source.sourceRepository alone.
func checkPasswords(in Input, field string, params []api.Parameter) (found faults) {
	for i, p := range params {
		if real := recipe.Canonical(p.Name); (real == "repo-url" || real == "repo-clone-url") &&
			password().MatchString(ValueOf(p).StringVal) {
			found.bad(in, api.ReasonInvalidBuild, fmt.Sprintf("%s[%d].value", field, i),
				"must not hold a password",
				"put it in a Secret and name that in spec.source.sourceCredentials")
		}
	}
	return found
}

// checkLogin refuses to send the build's Git login where everybody on the way can
// read it: to the repository that the controller asks, and to any that a step is
// given.
func checkLogin(in Input, steps []step) (found faults) {
	if in.Build.Spec.Source.SourceCredentials == nil {
		return nil
	}
	for address, field := range loginAddresses(in, steps) {
		u, err := url.Parse(address)
		if err != nil || !strings.EqualFold(u.Scheme, "http") ||
			slices.Contains(in.Settings.PlainHTTPHosts, u.Host) ||
			slices.Contains(in.Settings.PlainHTTPHosts, u.Hostname()) {
			continue
		}
		found.bad(in, api.ReasonInsecureSource, field,
			fmt.Sprintf("a login is not sent to %s over plain http", u.Host),
			"use https or ssh, or let the operator name the host in --plain-http-hosts of "+
				"the controller")
	}
	return found
}

// loginAddresses of repositories that the build's Git login is sent to, with the field that
// names each, in their order.
func loginAddresses(in Input, steps []step) iter.Seq2[string, string] {
	return func(yield func(address, field string) bool) {
		if !yield(cloneURL(Repository(in.Build, in.Template)), "spec.source.sourceRepository") {
			return
		}
		for _, s := range steps {
			for _, name := range sortedKeys(s.known) {
				real := recipe.Canonical(name)
				if (real == "repo-url" || real == "repo-clone-url") &&
					!yield(cloneURL(s.known[name].StringVal),
						fmt.Sprintf("spec.pipeline.steps[%s].parameters[%s]", s.row.Name, name)) {
					return
				}
			}
		}
	}
}

// password in a Git URL, as the rule of spec.source.sourceRepository has it.
var password = text.Pattern(`^([A-Za-z][-A-Za-z0-9+.]*://)?[^/@]*:[^/@]*@`)

// imageFault says why an image cannot be pushed under that name.
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

// repositoryForm is the name of a repository as OCI's distribution specification has it. The
// library takes dot segments and empty parts, too, which servers read differently.
var repositoryForm = text.Pattern(
	`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
