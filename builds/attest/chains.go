package attest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/gitrepo"
)

// Where Tekton Chains attests, the controller looks at the same run by the same rules,
// and then at what Chains signed. Chains signs every run of a cluster, a tenant's own too,
// and believes the status that a run has at its end. So a statement counts by the UID of
// the run alone, and by agreeing with what was observed.

// chainsBuildTypes are those of Chains' provenance of a PipelineRun, which this file reads.
var chainsBuildTypes = []string{"https://tekton.dev/chains/v2/slsa", "https://tekton.dev/chains/v2/slsa-tekton"}

// ErrNotByChains is that Chains attested nothing of a run.
var ErrNotByChains = errors.New("Tekton Chains has attested nothing of the run")

// ByChains gives b with the provenance that Tekton Chains made of its run. The predicates
// are of the type sign.PredicateType, and the caller has verified that Chains' key signed
// each as about b.Digest. The error is ErrNotByChains where none is of the run, and
// otherwise a refusal as Check gives it: one of the run is not what was observed. Chains
// attests no bill of materials.
func (b Built) ByChains(build *api.AgentBuild, predicates []json.RawMessage) (*Built, json.RawMessage, error) {
	run, source := b.Provenance.RunDetails.Metadata.InvocationID, b.Provenance.BuildDefinition.ResolvedDependencies[0]
	var found *Built
	var text json.RawMessage
	for _, predicate := range predicates {
		var made sign.Provenance
		if err := json.Unmarshal(predicate, &made); err != nil || made.RunDetails.Metadata == nil || made.RunDetails.Metadata.InvocationID != run {
			continue // of another run, or of a TaskRun
		}
		if what := chainsDiffers(made, source); what != "" {
			return nil, nil, compose.Place(build).Fault(
				api.ReasonChainsMismatch, "what Tekton Chains attested of the run is not what was observed: "+what, tampered)
		}
		if found == nil {
			b.Provenance, b.Bills, text = made, nil, predicate
			found = &b
		}
	}
	if found == nil {
		return nil, nil, ErrNotByChains
	}
	return found, text, nil
}

// chainsDiffers says what of a provenance by Chains is not as observed, "" for nothing.
// Chains reads the repository and the commit from the run's results.
func chainsDiffers(made sign.Provenance, source sign.ResourceDescriptor) string {
	if !slices.Contains(chainsBuildTypes, made.BuildDefinition.BuildType) {
		return fmt.Sprintf("its build type is %q", made.BuildDefinition.BuildType)
	}
	if made.RunDetails.Builder.ID == "" {
		return "it names no builder"
	}
	noted, _ := source.Annotations.(sign.SourceAnnotations)
	commit := source.Digest["gitCommit"]
	repository, err := gitrepo.Parse(noted.Repository)
	if err != nil {
		return "the run's repository has no canonical form"
	}
	same := false
	for _, d := range made.BuildDefinition.ResolvedDependencies {
		if named, err := gitrepo.Parse(strings.TrimPrefix(d.URI, "git+")); err != nil || !named.Same(repository) {
			continue
		}
		if len(d.Digest) != 1 || d.Digest["sha1"] != commit {
			return fmt.Sprintf("its source is not only the commit %s", commit)
		}
		same = true
	}
	if !same {
		return fmt.Sprintf("it does not name the commit %s of %s", commit, repository)
	}
	return ""
}
