package attest_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/functions/krm"
)

// An image of one platform is vouched for, if that is what was ordered.
func TestPlatform(t *testing.T) {
	arm64 := func(b *api.AgentBuild) { b.Spec.Builder, b.Spec.Platforms = "buildkit", []string{"linux/arm64"} }
	built, err := attest.Check(*observe(t, false, arm64))
	if err != nil {
		t.Fatal(err)
	}
	if built.Digest != digest {
		t.Errorf("the digest is %s", built.Digest)
	}
	for what, reported := range map[string]string{
		"another platform": "linux/amd64=" + digest,
		"another image":    "linux/arm64=" + other,
		"a platform more":  "linux/arm64=" + digest + ",linux/amd64=" + other,
		"a digest alone":   digest,
	} {
		t.Run(what, func(t *testing.T) {
			o := observe(t, false, arm64)
			fixture{o}.report("push", "PLATFORM_DIGESTS", reported, true, true, true)
			_, err := attest.Check(*o)
			var refusal *krm.Finding
			if !errors.As(err, &refusal) || refusal.Rule != api.ReasonResultInvalid || !strings.Contains(refusal.Message, "PLATFORM_DIGESTS is not the digest of linux/arm64") {
				t.Errorf("the refusal is %v", err)
			}
		})
	}
	o := observe(t, false, arm64)
	fixture{o}.report("push", "PLATFORM_DIGESTS", "linux/arm64="+other, false, false, true)
	var refusal *krm.Finding
	if _, err := attest.Check(*o); !errors.As(err, &refusal) || refusal.Rule != api.ReasonResultsForged {
		t.Errorf("a result of the run that no pod reported: %v", err)
	}
}
