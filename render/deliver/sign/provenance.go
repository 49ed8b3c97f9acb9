package sign

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/version"
)

// PredicateType is the predicate type of SLSA provenance v1.
const PredicateType = "https://slsa.dev/provenance/v1"

// Render describes a render for its provenance.
type Render struct {
	// Source and Revision are as in oci.Metadata.
	Source, Revision string
	// Config and Lock are the specs of the RenderConfig and the ImageLock; nil if the render had
	// none.
	Config, Lock any
	// Functions are the names of the functions that ran, in order.
	Functions []string
	// Inputs are the files, each with its Data.
	Inputs []render.File
}

// Provenance is a predicate of SLSA v1 (slsa.dev/provenance/v1).
type Provenance struct {
	BuildDefinition BuildDefinition `json:"buildDefinition"`
	RunDetails      RunDetails      `json:"runDetails"`
}

// BuildDefinition contains all inputs of a build, from which it can be repeated.
type BuildDefinition struct {
	BuildType string `json:"buildType"`
	// ExternalParameters and InternalParameters have the form that the build type defines.
	ExternalParameters   any                  `json:"externalParameters"`
	InternalParameters   any                  `json:"internalParameters,omitempty"`
	ResolvedDependencies []ResourceDescriptor `json:"resolvedDependencies"`
}

type externalParameters struct {
	Source   string `json:"source,omitempty"`
	Revision string `json:"revision,omitempty"`
	Config   any    `json:"config,omitempty"`
	Lock     any    `json:"lock,omitempty"`
}

type internalParameters struct {
	Functions []function `json:"functions"`
}

type function struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// ResourceDescriptor is an input: a file of a package by its name, or a resource by its URI.
type ResourceDescriptor struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
	// Annotations are statements of the builder: SourceAnnotations for the source of an AgentBuild.
	Annotations any `json:"annotations,omitempty"`
}

// SourceAnnotations contain the repository and the ref of an AgentBuild's source. The fields from
// SourceRefs on state that a policy of the builder's platform accepts the commit. The name
// SourceRefs comes from SLSA's summaries about sources.
type SourceAnnotations struct {
	// Repository that was cloned, as String of gitrepo.Repository formats it.
	Repository string `json:"armature_repository"`
	// Ref is the full name of the branch that the revision named; "" if the revision was a commit
	// or a tag.
	Ref string `json:"armature_ref,omitempty"`
	// SourceRefs are the full names of the branches and tags from which the commit was reachable.
	SourceRefs []string `json:"sourceRefs,omitempty"`
	// Policy is the place of the policy on the platform, and PolicyDigest the digest of its
	// content. They are "" if no policy was required.
	Policy       string `json:"armature_policy,omitempty"`
	PolicyDigest string `json:"armature_policyDigest,omitempty"`
	// Signer of the commit; "" if the policy requires no signature.
	Signer string `json:"armature_signer,omitempty"`
}

// RunDetails names the builder and the time of the build. The provenance of a render has no time,
// because a render does not know it.
type RunDetails struct {
	Builder  Builder   `json:"builder"`
	Metadata *Metadata `json:"metadata,omitempty"`
}

// Builder is the program or platform that built the artifact: Armature, for a render.
type Builder struct {
	ID      string            `json:"id"`
	Version map[string]string `json:"version,omitempty"`
}

// thisBuilder returns Armature in this version as the builder.
func thisBuilder() Builder {
	return Builder{ID: keys.Builder, Version: map[string]string{"armature": version.String()}}
}

// Metadata describes one run of a builder. Times are in RFC 3339, and nil if the builder does not
// state them.
type Metadata struct {
	InvocationID string     `json:"invocationId,omitempty"`
	StartedOn    *time.Time `json:"startedOn,omitempty"`
	FinishedOn   *time.Time `json:"finishedOn,omitempty"`
}

// NewProvenance returns the provenance of a render. Equal renders have equal provenance.
func NewProvenance(r Render) Provenance {
	p := Provenance{
		BuildDefinition: BuildDefinition{
			BuildType: keys.RenderBuildType,
			ExternalParameters: externalParameters{Source: r.Source, Revision: r.Revision,
				Config: r.Config, Lock: r.Lock},
		},
		RunDetails: RunDetails{Builder: thisBuilder()},
	}
	var ran internalParameters
	for _, name := range r.Functions {
		ran.Functions = append(ran.Functions, function{name, version.String()})
	}
	p.BuildDefinition.InternalParameters = ran
	for _, in := range slices.SortedFunc(slices.Values(r.Inputs),
		func(a, b render.File) int { return strings.Compare(a.Path, b.Path) }) {
		p.BuildDefinition.ResolvedDependencies = append(p.BuildDefinition.ResolvedDependencies,
			ResourceDescriptor{Name: in.Path,
				Digest: map[string]string{"sha256": fmt.Sprintf("%x", sha256.Sum256(in.Data))}})
	}
	return p
}

// Record signs an artifact and attests its provenance.
func (s *Session) Record(p Provenance) func(context.Context, name.Digest) error {
	return func(ctx context.Context, artifact name.Digest) error {
		if _, err := s.Sign(ctx, artifact); err != nil {
			return err
		}
		_, err := s.Attest(ctx, artifact, PredicateType, p)
		return err
	}
}

// Stated is an attested provenance.
type Stated struct {
	Provenance
	// Digest of the signed predicate: "sha256:" and 64 hexadecimal digits.
	Digest string
}

// Provenances returns each provenance of an artifact that a key or identity of the policy signed.
// It contacts the same servers as Verify, and ignores the other requirements of the policy. It
// returns an error if there is none.
func Provenances(ctx context.Context, artifact name.Digest, p Policy) (all []Stated, err error) {
	ctx, cancel := context.WithTimeout(ctx, MaxTime)
	defer cancel()
	trusted, e, err := p.open(ctx, artifact)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, t := range trusted {
		statements, err := t.attested(e, PredicateType)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", t.who, err))
		}
		for _, s := range statements {
			stated := Stated{Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(s.Predicate))}
			if err := json.Unmarshal(s.Predicate, &stated.Provenance); err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", s.place, err))
				continue
			}
			all = append(all, stated)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no provenance that is trusted: %w", artifact,
			multi.Errors(failed...))
	}
	return all, nil
}
