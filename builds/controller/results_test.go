package controller_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
)

// Results are what steps wrote: one that is not a digest or an image becomes no
// part of status.
func TestForgedResults(t *testing.T) {
	w := newWorld(t)
	w.start()
	const image = "registry.local:5000/weather:v1"
	for name, forged := range map[string]struct{ url, digest, says string }{
		"variable": {image, "sha256:$(COSIGN_PASSWORD)", "IMAGE_DIGEST is not a digest"},
		"short":    {image, "sha256:abc", "IMAGE_DIGEST is not a digest"},
		"long":     {image, digest + "00", "IMAGE_DIGEST is not a digest"},
		"escape": {"registry.local/\x1b[2Jweather", digest,
			"IMAGE_URL is not an image reference"},
		"spaces": {"registry.local/weather --key=x", digest,
			"IMAGE_URL is not an image reference"},
		"none": {image, "", "no step gave the result IMAGE_DIGEST"},
		"other": {"registry.local:5000/elsewhere:v1", digest,
			"IMAGE_URL names another repository than spec.buildOutput"},
		"nearby": {"registry.local:5000/nearby/more:v1", digest,
			"IMAGE_URL names another repository than spec.buildOutput"},
	} {
		w.create(name)
		w.phase(name, api.PhaseBuilding)
		for _, run := range w.runs() {
			if run.Annotations["armature.dev/build-name"] != name {
				continue
			}
			w.finish(&run, corev1.ConditionTrue, "Succeeded", "done",
				func(s *tektonv1.PipelineRunStatus) {
					s.Results = []tektonv1.PipelineRunResult{
						{Name: "IMAGE_URL", Value: *tektonv1.NewStructuredValues(forged.url)},
						{Name: "IMAGE_DIGEST", Value: *tektonv1.NewStructuredValues(forged.digest)},
						{Name: "CHAINS-GIT_COMMIT",
							Value: *tektonv1.NewStructuredValues(strings.Repeat("b", 40))},
					}
				})
		}
		got := w.phase(name, api.PhaseSucceeded).Status
		if got.BuiltImage != "" || !strings.Contains(got.Message, forged.says) ||
			strings.Contains(got.Message, "COSIGN_PASSWORD") {
			t.Errorf("%s: built %q: %s", name, got.BuiltImage, got.Message)
		}
	}
}

// The digests of an image's platforms are in status, and a result that is not made of them yields
// no image.
func TestPlatformResults(t *testing.T) {
	w := newWorld(t)
	w.start()
	other := "sha256:" + strings.Repeat("9", 64)
	for name, c := range map[string]struct {
		platforms, says string
		want            []api.PlatformStatus
	}{
		"two": {"linux/amd64=" + other + ",linux/arm64=" + digest, "",
			[]api.PlatformStatus{{Platform: "linux/amd64", Digest: other},
				{Platform: "linux/arm64", Digest: digest}}},
		"one": {"linux/arm64=" + digest, "",
			[]api.PlatformStatus{{Platform: "linux/arm64", Digest: digest}}},
		"none":    {"", "", nil},
		"another": {"linux/arm64=" + other, "another image than IMAGE_DIGEST", nil},
		"twice": {"linux/arm64=" + digest + ",linux/arm64=" + other, "linux/arm64 occurs twice",
			nil},
		"unknown": {"linux/sparc=" + digest, `"linux/sparc" is not a platform`, nil},
		"bare":    {"linux/arm64", "linux/arm64 has no digest", nil},
		"long":    {"linux/arm64=" + digest + "0", "linux/arm64 has no digest", nil},
	} {
		w.create(name)
		w.phase(name, api.PhaseBuilding)
		for _, run := range w.runs() {
			if run.Annotations["armature.dev/build-name"] != name {
				continue
			}
			w.finish(&run, corev1.ConditionTrue, "Succeeded", "done",
				func(s *tektonv1.PipelineRunStatus) {
					s.Results = []tektonv1.PipelineRunResult{
						{Name: "IMAGE_DIGEST", Value: *tektonv1.NewStructuredValues(digest)},
						{Name: "push-PLATFORM_DIGESTS",
							Value: *tektonv1.NewStructuredValues(c.platforms)},
					}
				})
		}
		got := w.phase(name, api.PhaseSucceeded).Status
		if (got.BuiltImage == "") != (c.says != "") || !strings.Contains(got.Message, c.says) {
			t.Errorf("%s: built %q: %s", name, got.BuiltImage, got.Message)
		}
		if diff := cmp.Diff(c.want, got.Platforms); diff != "" {
			t.Errorf("%s: platforms (-want +got):\n%s", name, diff)
		}
	}
}

// What a step says of itself reaches status without what would steer a terminal.
func TestStatusIsPlain(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create("weather")
	w.finish(w.run(1), corev1.ConditionFalse, "Failed",
		"\x1b]0;title\x07\x1b[2Jall is well\rbut not")
	s := w.phase("weather", api.PhaseFailed).Status
	texts := []string{s.Message, s.FailureDetails.Message}
	for _, c := range s.Conditions {
		texts = append(texts, c.Message)
	}
	for _, text := range texts {
		if strings.ContainsFunc(text, func(r rune) bool {
			return unicode.IsControl(r) && r != '\n'
		}) {
			t.Errorf("a control character is in %q", text)
		}
	}
	if !strings.Contains(s.Message, `\x1b[2Jall is well\rbut not`) {
		t.Errorf("the words are lost: %q", s.Message)
	}
}
