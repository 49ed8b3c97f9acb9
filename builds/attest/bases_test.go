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
	"github.com/armature-dev/armature/render/deliver/sign"
)

// baseImages are the base images in the provenance of a run.
func baseImages(t *testing.T, f fixture) (out []sign.ResourceDescriptor) {
	t.Helper()
	built, err := attest.Check(*f.Observed)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range built.Provenance.BuildDefinition.ResolvedDependencies {
		if strings.HasSuffix(d.Name, "/base-image") {
			out = append(out, d)
		}
	}
	return out
}

// The images that BuildKit used are in the provenance by digest, as what the builder says.
func TestBaseImages(t *testing.T) {
	name, digest, _ := strings.Cut(attesttest.BaseImage, "@sha256:")
	stated := map[string]string{"armature_reportedBy": "builder"}
	first := sign.ResourceDescriptor{Name: "buildkit-build/base-image", URI: "oci://" + name,
		Digest: map[string]string{"sha256": digest}, Annotations: stated}
	if diff := cmp.Diff([]sign.ResourceDescriptor{first},
		baseImages(t, fixture{observe(t, false)})); diff != "" {
		t.Errorf("of BuildKit (-want +got):\n%s", diff)
	}
	f := fixture{observe(t, false)}
	f.report("buildkit-build", attest.BaseImagesResult,
		attesttest.BaseImage+" registry.local:5000/base@"+other)
	second := sign.ResourceDescriptor{Name: "buildkit-build/base-image",
		URI:    "oci://registry.local:5000/base",
		Digest: map[string]string{"sha256": strings.TrimPrefix(other, "sha256:")}, Annotations: stated}
	if diff := cmp.Diff([]sign.ResourceDescriptor{first, second}, baseImages(t, f)); diff != "" {
		t.Errorf("of two (-want +got):\n%s", diff)
	}
	f = fixture{observe(t, false)}
	f.report("buildkit-build", attest.BaseImagesResult, "none")
	if got := baseImages(t, f); got != nil {
		t.Errorf("of none: %+v", got)
	}
}

// What is not a list of images is refused.
func TestForgedBaseImages(t *testing.T) {
	one := "docker.io/library/a:v1@" + other
	for what, c := range map[string]struct{ value, says string }{
		"too many":        {"too-many", "cannot report the base images"},
		"nothing":         {"", "not a list of base images"},
		"an image by tag": {"docker.io/library/a:v1", "not a list of base images"},
		"a purl":          {"pkg:docker/library/a@v1?digest=" + other, "not a list of base images"},
		"a thousand": {strings.TrimSpace(strings.Repeat(one+" ", 1000)),
			"not a list of base images"},
	} {
		t.Run(what, func(t *testing.T) {
			f := fixture{observe(t, false)}
			f.report("buildkit-build", attest.BaseImagesResult, c.value)
			built, err := attest.Check(*f.Observed)
			var refusal *finding.Finding
			if built != nil || !errors.As(err, &refusal) ||
				refusal.Rule != api.ReasonResultInvalid ||
				!strings.Contains(refusal.Message, c.says) || len(refusal.Message) > 400 {
				t.Errorf("the refusal is %v, want %q", err, c.says)
			}
		})
	}
}
