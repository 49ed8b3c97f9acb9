package localbuild

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/local"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// writeProvenance writes the provenance of a local build: an unsigned in-toto statement with SLSA's
// predicate, by a builder that no policy may name.
func (l *Build) writeProvenance(b manifest.Build, out *compose.Output, image string,
	results *local.Result, began time.Time) error {
	ref, err := name.NewDigest(image)
	if err != nil {
		return err
	}
	source := sign.ResourceDescriptor{Name: "source"}
	for result, value := range results.Pipeline {
		if strings.HasSuffix(result, "CHAINS-GIT_COMMIT") {
			source.Digest = map[string]string{"gitCommit": strings.TrimSpace(value)}
		}
	}
	if l.source == "" {
		source.URI = "git+" + b.Spec.Source.SourceRepository
	}
	external := attest.ExternalOf(b.AgentBuild)
	external.WorkingTree = l.source != ""
	var materials any // nil for templates that are not attested
	if text := out.Run.Annotations[keys.AnnotationMaterials]; text != "" {
		materials = json.RawMessage(text)
	}
	began, ended := began.UTC().Truncate(time.Second), time.Now().UTC().Truncate(time.Second)
	text, err := json.MarshalIndent(map[string]any{
		"_type":         "https://in-toto.io/Statement/v1",
		"predicateType": "https://slsa.dev/provenance/v1",
		"subject": []any{map[string]any{"name": b.Spec.BuildOutput.Image,
			"digest": map[string]string{"sha256": strings.TrimPrefix(ref.DigestStr(), "sha256:")}}},
		"predicate": sign.Provenance{
			BuildDefinition: sign.BuildDefinition{
				BuildType:            keys.AgentBuildType,
				ExternalParameters:   external,
				InternalParameters:   materials,
				ResolvedDependencies: []sign.ResourceDescriptor{source},
			},
			RunDetails: sign.RunDetails{Builder: sign.Builder{ID: keys.LocalBuilder},
				Metadata: &sign.Metadata{StartedOn: &began, FinishedOn: &ended}},
		},
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(l.provenance, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("--provenance-file: %w", err)
	}
	return nil
}
