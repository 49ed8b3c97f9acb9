package sign

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/gitrepo"
)

// This file reads the repository and the ref of a build from its provenance. AgentBuilds and GitHub
// workflows have separate fields for them. Other builders may join them as git+URL@REF, which is
// ambiguous if the URL contains an '@'. Such a text is compared with the texts that a policy's
// sources would give, and never split.

// Source is a Git repository.
type Source struct {
	// Repository is its URL in a form that gitrepo.Parse accepts; a suffix .git makes no
	// difference.
	Repository string `json:"repository"`
	// Branches are the branches that may be built. Omitted, all branches and tags.
	Branches []string `json:"branches,omitempty"`
	// Verified requires that a policy of the builder's platform accepted the commit: "reachable"
	// from its branches and tags, or "signed" as well. Branches are then the branches from which
	// the commit was reachable, even if a commit was ordered. Only the provenance of AgentBuilds
	// states this. Omitted, any commit will do.
	Verified string `json:"verified,omitempty"`
}

// The values of Source.Verified.
const (
	VerifiedReachable = "reachable"
	VerifiedSigned    = "signed"
)

// commitForm matches the hash of a Git commit, SHA-1 or SHA-256.
var commitForm = text.Pattern(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// workflowTypes are the build types of GitHub's workflows, whose external parameter workflow comes
// from the builder.
var workflowTypes = []string{"https://actions.github.io/buildtypes/workflow/v1",
	"https://slsa-framework.github.io/github-actions-buildtypes/workflow/v1"}

// origin is the source of a build by its provenance.
type origin struct {
	// repository and ref, if the provenance has separate fields.
	repository gitrepo.Repository
	ref        string
	// joined text of both, if the provenance has no separate fields.
	joined string
	// verified is the result of a policy of the builder's platform; zero without a policy.
	verified SourceAnnotations
}

// judgeSource compares the source of a build with the sources that the policy names.
func (b *Builds) judgeSource(made BuildDefinition) error {
	from, err := made.origin()
	if err != nil {
		return err
	}
	var reasons *multierror.Error
	for _, s := range b.Sources {
		wanted, err := gitrepo.Parse(s.Repository)
		if err != nil {
			return fmt.Errorf("the policy's source %w: %s", err, gitrepo.Hint)
		}
		if from.joined != "" {
			err = s.judgeJoined(wanted, from.joined)
		} else if err = errOther; from.repository.Same(wanted) {
			err = s.judge(from)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, errOther) {
			reasons = multierror.Append(reasons, err)
		}
	}
	if reasons != nil {
		return reasons
	}
	built := from.joined
	if built == "" {
		built = from.repository.String()
	}
	return fmt.Errorf("%s was built, which is none of the policy's sources", built)
}

// errOther means that a source is another repository.
var errOther = errors.New("another repository")

// origin returns the source of a build: its external parameter source, or else its only dependency
// with a commit.
func (made BuildDefinition) origin() (out origin, _ error) {
	var source *ResourceDescriptor
	fromPlatform := false // the source is a statement of the platform, not of the order
	parameters, _ := made.ExternalParameters.(map[string]any)
	if parameters["source"] != nil {
		source = &ResourceDescriptor{}
		if !Decode(parameters["source"], source) {
			return out, errors.New(
				"externalParameters.source is not a resource with uri and digest")
		}
	} else {
		for i, d := range made.ResolvedDependencies {
			if d.Digest["gitCommit"] == "" {
				continue
			}
			if source != nil {
				return out, errors.New("the provenance has several dependencies with a commit, " +
					"and does not say which of them is the source")
			}
			source, fromPlatform = &made.ResolvedDependencies[i], true
		}
	}
	if source == nil || !commitForm().MatchString(source.Digest["gitCommit"]) {
		return out, errors.New("the provenance does not say which commit was built")
	}
	if made.BuildType == keys.AgentBuildType {
		return source.agentBuild(fromPlatform)
	}
	var workflow struct{ Repository, Ref string }
	if slices.Contains(workflowTypes, made.BuildType) &&
		Decode(parameters["workflow"], &workflow) && workflow.Repository != "" {
		repository, err := gitrepo.Parse(workflow.Repository)
		if err != nil {
			return out, fmt.Errorf("a workflow was built of a repository that is none of the "+
				"policy's sources: its URL %w", err)
		}
		return origin{repository: repository, ref: workflow.Ref}, nil
	}
	if source.URI == "" {
		return out, errors.New("the provenance does not say which repository was built")
	}
	return origin{joined: source.URI}, nil
}

// agentBuild returns the source in the provenance of an AgentBuild. Only a source that fromPlatform
// says the platform states may be verified.
func (d ResourceDescriptor) agentBuild(fromPlatform bool) (origin, error) {
	var noted SourceAnnotations
	if !Decode(d.Annotations, &noted) || noted.Repository == "" {
		return origin{}, errors.New("the provenance is of a release that joined repository and " +
			"ref in one text, which does not prove which repository was built: build the " +
			"image again")
	}
	repository, err := gitrepo.Parse(noted.Repository)
	if err != nil || repository.String() != noted.Repository {
		return origin{}, errors.New("the provenance names a repository that has no canonical form")
	}
	out := origin{repository: repository, ref: noted.Ref}
	if fromPlatform && noted.Policy != "" && noted.PolicyDigest != "" {
		out.verified = noted
	}
	return out, nil
}

// Decode converts a decoded JSON value to a type. It returns false if the value has another shape.
func Decode(from, to any) bool {
	text, err := json.Marshal(from)
	return err == nil && json.Unmarshal(text, to) == nil
}

// judge compares the origin of a build, which is of the source's repository, with the source.
func (s Source) judge(from origin) error {
	refs := []string{from.ref}
	if s.Verified != "" {
		refs = from.verified.SourceRefs
		if len(refs) == 0 {
			return fmt.Errorf("the provenance does not say that the commit of %s was verified, "+
				"and the policy demands that", from.repository)
		}
		if s.Verified == VerifiedSigned && from.verified.Signer == "" {
			return fmt.Errorf(
				"the commit of %s was verified without a signature, and the policy demands one",
				from.repository)
		}
	}
	if len(s.Branches) == 0 {
		return nil
	}
	for _, name := range refs {
		if branch, ok := strings.CutPrefix(name, "refs/heads/"); ok &&
			slices.Contains(s.Branches, branch) {
			return nil
		}
	}
	return fmt.Errorf("%q of %s was built, and the policy demands a branch of %s",
		strings.Join(refs, " "), from.repository, strings.Join(s.Branches, ", "))
}

// judgeJoined compares a text that may join repository and ref, with or without git+ and .git, with
// the source.
func (s Source) judgeJoined(wanted gitrepo.Repository, text string) error {
	text = strings.TrimPrefix(text, "git+")
	url := strings.TrimSuffix(wanted.String(), ".git")
	for _, url := range []string{url, url + ".git"} {
		named := slices.ContainsFunc(s.Branches,
			func(branch string) bool { return text == url+"@refs/heads/"+branch })
		switch {
		case s.Verified != "" && (text == url || named):
			return fmt.Errorf("the provenance does not say that the commit of %s was verified, "+
				"and the policy demands that", url)
		case named, text == url && len(s.Branches) == 0:
			return nil
		case text != url && !strings.HasPrefix(text, url+"@"):
		case len(s.Branches) > 0:
			return fmt.Errorf("%q was built, and the policy demands a branch of %s", text,
				strings.Join(s.Branches, ", "))
		default:
			return fmt.Errorf("%q joins repository and ref in one text, which can be read in "+
				"several ways: name the branches that may be built", text)
		}
	}
	return errOther
}
