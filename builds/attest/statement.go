package attest

import (
	"fmt"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// Statement holds the facts that the platform attested about an image of a build, read from the
// registry. The status of an AgentBuild proves nothing: a tenant with the right to write it can
// write anything there. The zero Statement means that the image is not attested.
type Statement struct {
	// Digest of the provenance, like status.attestation.provenanceDigest.
	Digest string
	// Repository and Commit of the source; the repository has the form of gitrepo.
	Repository, Commit string
	// Finished is the time at which the run ended.
	Finished time.Time
	// Current is true if the run was composed of the current spec.
	Current bool
}

// ImageOf parses an image from status. The image must have a digest and the repository of
// spec.buildOutput. The error is a *finding.Finding.
func ImageOf(build *api.AgentBuild, image string, options ...name.Option) (name.Digest, error) {
	at, err := name.NewDigest(image, options...)
	if err != nil {
		return at, notAttested(build, "status.builtImage is not an image with a digest")
	}
	if want := compose.Image(build); want != "" {
		ordered, err := name.ParseReference(want, options...)
		if err != nil || ordered.Context().Name() != at.Context().Name() {
			return at, notAttested(build,
				"status.builtImage is an image of %s, and spec.buildOutput names %s", at.Context(), want)
		}
	}
	return at, nil
}

// Find returns the newest statement about a build of this namespace, name and UID. Statements of
// the current spec take precedence. The caller has verified that the platform signed the
// provenances for the image. The error is a *finding.Finding.
func Find(build *api.AgentBuild, of []sign.Stated) (found Statement, err error) {
	var other string
	for _, p := range of {
		s, why := statementOf(build, p)
		switch {
		case why != "":
			other = why
		case found.Digest == "", s.Current && !found.Current,
			s.Current == found.Current && s.Finished.After(found.Finished):
			found = s
		}
	}
	if found.Digest == "" {
		return found, notAttested(build, "the platform attested the image as that of %s", other)
	}
	return found, nil
}

// statementOf returns the statement of a provenance. If the provenance is not about the build,
// other names its subject.
func statementOf(build *api.AgentBuild, p sign.Stated) (s Statement, other string) {
	var external ExternalParameters
	var internal struct{ BuildUID types.UID }
	made := p.BuildDefinition
	if made.BuildType != keys.AgentBuildType || !sign.Decode(made.ExternalParameters, &external) ||
		!sign.Decode(made.InternalParameters, &internal) ||
		len(made.ResolvedDependencies) == 0 || p.RunDetails.Metadata == nil ||
		p.RunDetails.Metadata.FinishedOn == nil {
		return s, "something that is not an AgentBuild"
	}
	switch of := external.AgentBuild; {
	case of.Namespace != build.Namespace || of.Name != build.Name:
		return s, fmt.Sprintf("AgentBuild %s/%s", of.Namespace, of.Name)
	case internal.BuildUID == "" || internal.BuildUID != build.UID:
		return s, fmt.Sprintf("another AgentBuild of this name, with the UID %s", internal.BuildUID)
	}
	source, noted := made.ResolvedDependencies[0], sign.SourceAnnotations{}
	if s.Commit = source.Digest["gitCommit"]; !api.IsCommit(s.Commit) ||
		!sign.Decode(source.Annotations, &noted) {
		return s, "an AgentBuild without a commit"
	}
	then, _ := compose.InputHashes(&api.AgentBuild{Spec: external.AgentBuild.Spec},
		templates.NoTemplate(), nil)
	now, _ := compose.InputHashes(build, templates.NoTemplate(), nil)
	s.Digest, s.Repository, s.Finished, s.Current =
		p.Digest, noted.Repository, *p.RunDetails.Metadata.FinishedOn, then == now
	return s, ""
}

// notAttested returns a refusal of the image in status.
func notAttested(build *api.AgentBuild, format string, args ...any) error {
	return compose.Place(build).Fault(api.ReasonNotAttested, fmt.Sprintf(format, args...),
		"look at the audit log for who writes the status of AgentBuilds, then "+rerun)
}
