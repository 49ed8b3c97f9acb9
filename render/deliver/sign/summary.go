package sign

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// SummaryType is the predicate type of a verification summary (VSA) of SLSA v1.
const SummaryType = "https://slsa.dev/verification_summary/v1"

// Summary states that an artifact satisfies a policy. It contains no time, so that the same verdict
// is attached once.
type Summary struct {
	Verifier    Builder       `json:"verifier"`
	ResourceURI string        `json:"resourceUri"`
	Policy      SummaryPolicy `json:"policy"`
	// InputAttestations are the attestations on which the verdict is based.
	InputAttestations  []ResourceDescriptor `json:"inputAttestations,omitempty"`
	VerificationResult string               `json:"verificationResult"`
	VerifiedLevels     []string             `json:"verifiedLevels"`
}

// SummaryPolicy names a policy, and its content by the digest.
type SummaryPolicy struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest"`
}

// NewSummary returns the summary of a verdict of Verify by a policy from a file.
func NewSummary(v Verified, p Policy) (Summary, error) {
	algorithm, hex, ok := strings.Cut(p.Digest, ":")
	if !ok {
		return Summary{}, errors.New("a summary names the policy: read it from a file")
	}
	if p.Name == "" {
		return Summary{}, errors.New("a summary names the policy: give it a metadata.name")
	}
	level := "SLSA_BUILD_LEVEL_UNEVALUATED"
	if v.Level != nil {
		level = fmt.Sprintf("SLSA_BUILD_LEVEL_%d", *v.Level)
	}
	return Summary{
		Verifier: thisBuilder(), ResourceURI: v.Ref,
		Policy: SummaryPolicy{"urn:armature:verify-policy:" + p.Name,
			map[string]string{algorithm: hex}}, InputAttestations: v.Attestations,
		VerificationResult: "PASSED", VerifiedLevels: []string{level},
	}, nil
}

// Summarize verifies an artifact and attaches a summary of the verdict, unless the policy refuses
// the artifact.
func (s *Session) Summarize(ctx context.Context, artifact name.Digest, p Policy) (Verified, error) {
	v, err := Verify(ctx, artifact, p)
	if err != nil {
		return Verified{}, err
	}
	summary, err := NewSummary(v, p)
	if err != nil {
		return Verified{}, err
	}
	_, err = s.Attest(ctx, artifact, SummaryType, summary)
	return v, err
}
