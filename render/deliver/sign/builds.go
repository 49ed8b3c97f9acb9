package sign

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/gitrepo"
)

// Builds are the requirements for the build of an image. They are verified with attestations that
// the policy's keys or identities signed. An image is refused if the policy requires a fact that no
// attestation states.
type Builds struct {
	// Builders are the builders whose provenance counts. At least one is required.
	Builders []TrustedBuilder `json:"builders"`
	// MinimumLevel is the minimum SLSA build level of the builder, 1 to 3. Omitted, any of Builders
	// will do.
	MinimumLevel int `json:"minimumLevel,omitempty"`
	// Sources are the repositories that may be built. Omitted, any source.
	Sources []Source `json:"sources,omitempty"`
	// Templates are the digests of the allowed pipeline templates, each "sha256:" and 64
	// hexadecimal digits. Only the provenance of AgentBuilds names a template. A template names its
	// steps, whose digests are not compared. Omitted, any template.
	Templates []string `json:"templates,omitempty"`
	// MaxAge is the maximum time since the build finished, such as 720h. Omitted, any time.
	MaxAge *metav1.Duration `json:"maxAge,omitempty"`
	// SBOM requires an attested bill of materials, SPDX or CycloneDX.
	SBOM bool `json:"sbom,omitempty"`
	// MaxSeverity is the worst vulnerability that an attested scan may report: none, low, medium or
	// high. Omitted, no scan is required.
	MaxSeverity string `json:"maxSeverity,omitempty"`
	// Tests are the steps of the platform's template that must have run, with their accepted
	// results. Omitted, no test is required.
	Tests []RequiredTest `json:"tests,omitempty"`
}

// TrustedBuilder is a builder with the level that the policy's author assigns to it, because a
// provenance does not state the level.
type TrustedBuilder struct {
	// ID is the exact runDetails.builder.id of the provenance.
	ID string `json:"id"`
	// Level is the builder's SLSA build level, 0 to 3. Omitted, 0.
	Level int `json:"level,omitempty"`
}

// Types of the attestations that Builds reads. SPDXType and CycloneDXType are bills of materials.
const (
	SPDXType      = "https://spdx.dev/Document"
	CycloneDXType = "https://cyclonedx.org/bom"
	scanType      = "https://in-toto.io/attestation/vulns/v0.2"
)

// severities are in ascending order. A score of CVSS 3 counts as its severity.
var severities = []string{"none", "low", "medium", "high", "critical"}

// Check returns an error if the requirements are invalid.
func (b *Builds) Check() error {
	if len(b.Builders) == 0 {
		return errors.New("builds names no builder, so that any signer's word about a build " +
			"would do: name builders")
	}
	for i, builder := range b.Builders {
		switch {
		case strings.TrimSpace(builder.ID) == "":
			return fmt.Errorf("builds.builders[%d] needs an id", i)
		case builder.ID == keys.LocalBuilder:
			return fmt.Errorf("builds.builders[%d]: %s is anybody's own machine, which cannot be "+
				"trusted: name a builder of a platform", i, builder.ID)
		case builder.Level < 0 || builder.Level > 3:
			return fmt.Errorf("builds.builders[%d]: level %d is not a build level of SLSA: "+
				"write 0 to 3", i, builder.Level)
		}
	}
	if b.MinimumLevel < 0 || b.MinimumLevel > 3 {
		return fmt.Errorf("builds.minimumLevel %d is not a build level of SLSA: write 1 to 3",
			b.MinimumLevel)
	}
	if !slices.ContainsFunc(b.Builders,
		func(t TrustedBuilder) bool { return t.Level >= b.MinimumLevel }) {
		return fmt.Errorf("builds.minimumLevel is %d, and none of the builders has that level: "+
			"write the level beside the builder's id", b.MinimumLevel)
	}
	for i, s := range b.Sources {
		_, err := gitrepo.Parse(s.Repository)
		switch {
		case s.Repository == "":
			return fmt.Errorf("builds.sources[%d] needs a repository", i)
		case err != nil:
			return fmt.Errorf("builds.sources[%d].repository %w: %s", i, err, gitrepo.Hint)
		case slices.Contains(s.Branches, ""):
			return fmt.Errorf("builds.sources[%d].branches contains an empty name", i)
		case !slices.Contains([]string{"", VerifiedReachable, VerifiedSigned}, s.Verified):
			return fmt.Errorf("builds.sources[%d].verified %q: use %s or %s", i, s.Verified,
				VerifiedReachable, VerifiedSigned)
		}
	}
	if err := checkDigests("builds.templates", b.Templates); err != nil {
		return err
	}
	if b.MaxAge != nil && b.MaxAge.Duration <= 0 {
		return fmt.Errorf("builds.maxAge %s: use a positive duration, such as 720h", b.MaxAge.Duration)
	}
	if b.MaxSeverity != "" && !slices.Contains(severities[:4], b.MaxSeverity) {
		return fmt.Errorf("builds.maxSeverity %q: use one of %s", b.MaxSeverity,
			strings.Join(severities[:4], ", "))
	}
	for i, test := range b.Tests {
		if err := test.check(); err != nil {
			return fmt.Errorf("builds.tests[%d] %w", i, err)
		}
	}
	return nil
}

// built verifies the attestations of one signer. It sets the level of the builder, its provenance,
// and the attestations on which the verdict is based.
func (t trust) built(e *evidence, b *Builds, now time.Time, v *Verified) error {
	statements, err := t.attested(e, PredicateType)
	if err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	var reasons []error
	for _, s := range statements {
		level, made, err := b.judge(s.Predicate, now)
		if err != nil {
			reasons = append(reasons, err)
			continue
		}
		tested := *v
		if len(b.Tests) > 0 {
			if err := t.tests(e, b, made, &tested); err != nil {
				reasons = append(reasons, fmt.Errorf("tests: %w", err))
				continue
			}
		}
		*v = tested
		v.Level, v.Provenance = &level, made
		v.basedOn(s)
		return t.contents(e, b, v)
	}
	return fmt.Errorf("provenance: %w", multi.Errors(reasons...))
}

// judge compares a provenance with the requirements.
func (b *Builds) judge(predicate json.RawMessage,
	now time.Time) (level int, _ *Provenance, _ error) {
	var made Provenance
	if err := json.Unmarshal(predicate, &made); err != nil {
		return 0, nil, err
	}
	id := made.RunDetails.Builder.ID
	i := slices.IndexFunc(b.Builders, func(t TrustedBuilder) bool { return t.ID == id })
	if i < 0 {
		return 0, nil, fmt.Errorf("the builder %q is none of the policy's", id)
	}
	if level = b.Builders[i].Level; level < b.MinimumLevel {
		return 0, nil, fmt.Errorf("the builder %q has level %d, and the policy demands %d", id,
			level, b.MinimumLevel)
	}
	var err error
	if len(b.Sources) > 0 {
		err = b.judgeSource(made.BuildDefinition)
	}
	if err == nil && len(b.Templates) > 0 {
		err = b.judgeTemplate(made.BuildDefinition)
	}
	if err == nil && b.MaxAge != nil {
		err = judgeAge(made.RunDetails.Metadata, b.MaxAge.Duration, now)
	}
	return level, &made, err
}

// skew is how far the builder's clock may be ahead of the local clock.
const skew = 5 * time.Minute

func judgeAge(run *Metadata, most time.Duration, now time.Time) error {
	if run == nil || run.FinishedOn == nil {
		return errors.New(
			"the provenance does not say when the build finished, and the policy has a maxAge")
	}
	age := now.Sub(*run.FinishedOn)
	switch {
	case age > most:
		return fmt.Errorf("the build finished on %s, and the policy's maxAge is %s",
			run.FinishedOn.Format(time.RFC3339), most)
	case age < -skew:
		return fmt.Errorf("the build finished on %s, which is in the future",
			run.FinishedOn.Format(time.RFC3339))
	}
	return nil
}

// digestForm matches a digest of a template or image.
var digestForm = text.Pattern(`^sha256:[0-9a-f]{64}$`)

func checkDigests(field string, all []string) error {
	for i, digest := range all {
		if !digestForm().MatchString(digest) {
			return fmt.Errorf("%s[%d] %q is not a digest: write sha256: and 64 hexadecimal digits "+
				"in small letters", field, i, digest)
		}
	}
	return nil
}

// judgeTemplate compares the template in the provenance of an AgentBuild with the allowed ones.
func (b *Builds) judgeTemplate(made BuildDefinition) error {
	var platform struct {
		Template struct {
			ConfigMap string `json:"configMap"`
			Digest    string `json:"digest"`
		} `json:"template"`
	}
	text, err := json.Marshal(made.InternalParameters)
	if err != nil {
		return err
	}
	if made.BuildType != keys.AgentBuildType || json.Unmarshal(text, &platform) != nil ||
		platform.Template.Digest == "" {
		return errors.New(
			"the provenance does not say which template was used, and the policy names templates")
	}
	if t := platform.Template; !slices.Contains(b.Templates, t.Digest) {
		return fmt.Errorf("the template %s of digest %s was used, which is none of the policy's",
			t.ConfigMap, t.Digest)
	}
	return nil
}

// contents verifies the bill of materials and the scans of an image.
func (t trust) contents(e *evidence, b *Builds, v *Verified) error {
	if b.SBOM {
		if err := t.bills(e, v); err != nil {
			return fmt.Errorf("bill of materials: %w", err)
		}
	}
	if b.MaxSeverity == "" {
		return nil
	}
	scans, err := t.attested(e, scanType)
	if err != nil {
		return fmt.Errorf("vulnerabilities: %w", err)
	}
	for _, s := range scans { // a later scan may find more, so each has to satisfy the policy
		if err := judgeScan(s.Predicate, b.MaxSeverity); err != nil {
			return fmt.Errorf("vulnerabilities: %w", err)
		}
		v.basedOn(s)
	}
	return nil
}

// bills verifies that an artifact has a bill of materials. If an index has none, each of its images
// needs one.
func (t trust) bills(e *evidence, v *Verified) error {
	missing := t.bill(e, v)
	if missing == nil {
		return nil
	}
	images, _, err := oci.Images(e.artifact, e.options)
	if err != nil || len(images) == 0 {
		return multi.Errors(missing, err)
	}
	for _, image := range images {
		of, err := newEvidence(image, e.options)
		if err == nil {
			err = t.bill(of, v)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", image, err)
		}
	}
	return nil
}

// bill verifies that one image has a bill of materials in one of the two formats.
func (t trust) bill(e *evidence, v *Verified) error {
	found, err := t.attested(e, SPDXType)
	if err != nil {
		var other error
		if found, other = t.attested(e, CycloneDXType); other != nil {
			return multi.Errors(err, other)
		}
	}
	v.basedOn(found[0])
	return nil
}

// judgeScan compares the results of a scan with the worst accepted severity.
func judgeScan(predicate json.RawMessage, most string) error {
	var scan struct {
		Scanner *struct {
			Result []struct {
				ID       string `json:"id"`
				Severity []struct {
					Score string `json:"score"`
				} `json:"severity"`
			} `json:"result"`
		} `json:"scanner"`
	}
	if err := json.Unmarshal(predicate, &scan); err != nil {
		return err
	}
	if scan.Scanner == nil {
		return errors.New("the scan does not name its scanner")
	}
	for _, found := range scan.Scanner.Result {
		worst := -1
		for _, s := range found.Severity {
			worst = max(worst, severity(s.Score))
		}
		if worst < 0 {
			worst = len(severities) - 1 // no rating may mean any severity
		}
		if worst > slices.Index(severities, most) {
			return fmt.Errorf("%s is rated %s, and the policy accepts %s", found.ID,
				severities[worst], most)
		}
	}
	return nil
}

// severity returns the rank of a word or of a score of CVSS 3. Anything else is critical.
func severity(score string) int {
	word := strings.ToLower(strings.TrimSpace(score))
	if i := slices.Index(severities, word); i >= 0 {
		return i
	}
	n, err := strconv.ParseFloat(word, 64)
	switch {
	case err != nil || !(n >= 0 && n < 9):
		return 4
	case n >= 7:
		return 3
	case n >= 4:
		return 2
	case n > 0:
		return 1
	}
	return 0
}
