package attest_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/attest/attesttest"
	"github.com/armature-dev/armature/functions/finding"
)

// An image of one platform is vouched for, if that is what was ordered.
func TestPlatform(t *testing.T) {
	arm64 := func(b *api.AgentBuild) {
		b.Spec.Builder, b.Spec.Platforms =
			"buildkit", []string{"linux/arm64"}
	}
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
			fixture{o}.report("push", "PLATFORM_DIGESTS", reported)
			_, err := attest.Check(*o)
			var refusal *finding.Finding
			if !errors.As(err, &refusal) || refusal.Rule != api.ReasonResultInvalid ||
				!strings.Contains(refusal.Message,
					"PLATFORM_DIGESTS is not the digest of linux/arm64") {
				t.Errorf("the refusal is %v", err)
			}
		})
	}
}

func twoPlatforms(b *api.AgentBuild) {
	b.Spec.Builder, b.Spec.Platforms, b.Spec.PlatformNodes =
		"buildkit", []string{"linux/amd64", "linux/arm64"}, api.PlatformNodesAny
}

// What was built for several platforms is the index, with the image of each, and a bill of
// materials of each.
func TestPlatforms(t *testing.T) {
	for what, objects := range map[string]bool{"embedded": false, "pipeline-object": true} {
		t.Run(what, func(t *testing.T) {
			built, err := attest.Check(*observe(t, objects, twoPlatforms))
			if err != nil {
				t.Fatal(err)
			}
			want := attest.Built{Image: image, Digest: digest, Level: 3,
				Provenance: built.Provenance,
				Platforms: []api.PlatformStatus{{Platform: "linux/amd64", Digest: parts[0]},
					{Platform: "linux/arm64", Digest: parts[1]}},
				Bills: []attest.Bill{
					{Digest: attesttest.DigestOf(attesttest.SBOM(parts[0])), Of: parts[0]},
					{Digest: attesttest.DigestOf(attesttest.SBOM(parts[1])), Of: parts[1]},
				}}
			if tests := built.Tests; len(tests) != 1 || tests[0].Step != "tests" ||
				tests[0].Digest != "" || tests[0].Result != "PASSED" {
				t.Errorf("tests %+v", tests)
			}
			built.Tests = nil
			if diff := cmp.Diff(&want, built); diff != "" {
				t.Errorf("built (-want +got):\n%s", diff)
			}
		})
	}
}

// A list of platforms or a bill of materials that a task reports wrongly is not vouched for.
func TestForgedPlatforms(t *testing.T) {
	for what, forge := range map[string]func(fixture){
		"one platform alone": func(f fixture) { f.list("linux/amd64=" + parts[0]) },
		"the other order": func(f fixture) {
			f.list("linux/arm64="+parts[1], "linux/amd64="+parts[0])
		},
		"another platform": func(f fixture) {
			f.list("linux/amd64="+parts[0], "linux/s390x="+parts[1])
		},
		"one image for two": func(f fixture) {
			f.list("linux/amd64="+parts[0], "linux/arm64="+parts[0])
		},
		"the index as a platform": func(f fixture) {
			f.list("linux/amd64="+parts[0], "linux/arm64="+digest)
		},
		"a platform more": func(f fixture) {
			f.list("linux/amd64="+parts[0], "linux/arm64="+parts[1], "linux/s390x="+other)
		},
		"a digest that is none": func(f fixture) {
			f.report("sbom-linux-arm64", "SBOM_DIGEST", "sbom.json")
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := fixture{observe(t, false, twoPlatforms)}
			forge(f)
			var refusal *finding.Finding
			if _, err := attest.Check(*f.Observed); !errors.As(err, &refusal) ||
				refusal.Rule != api.ReasonResultInvalid {
				t.Errorf("the refusal is %v, want %s", err, api.ReasonResultInvalid)
			}
		})
	}
}

// list makes push report that list.
func (f fixture) list(platforms ...string) {
	f.report("push", "PLATFORM_DIGESTS", strings.Join(platforms, ","))
}
