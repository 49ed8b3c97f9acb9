package attest_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/attest/attesttest"
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

func twoPlatforms(b *api.AgentBuild) {
	b.Spec.Builder, b.Spec.Platforms, b.Spec.PlatformNodes = "buildkit", []string{"linux/amd64", "linux/arm64"}, api.PlatformNodesAny
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
			want := attest.Built{Image: image, Digest: digest, Provenance: built.Provenance,
				Platforms: []api.PlatformStatus{{Platform: "linux/amd64", Digest: parts[0]}, {Platform: "linux/arm64", Digest: parts[1]}},
				Bills: []attest.Bill{
					{Digest: attesttest.DigestOf(attesttest.SBOM(parts[0])), Of: parts[0]},
					{Digest: attesttest.DigestOf(attesttest.SBOM(parts[1])), Of: parts[1]},
				}}
			if tests := built.Tests; len(tests) != 1 || tests[0].Step != "tests" || tests[0].Of != "" || tests[0].Verdict != "PASSED" {
				t.Errorf("tests %+v", tests)
			}
			built.Tests = nil
			if diff := cmp.Diff(&want, built); diff != "" {
				t.Errorf("built (-want +got):\n%s", diff)
			}
		})
	}
}

// A digest that one of the tasks of platforms forges is not vouched for.
func TestForgedPlatforms(t *testing.T) {
	for what, attack := range map[string]struct {
		edit   func(fixture)
		reason string
	}{
		"a TaskRun's layout": {func(f fixture) { f.report("buildkit-build-linux-arm64", "layout-digest", other, false, true, true) }, api.ReasonResultsForged},
		"a pod's layout, not what was pushed": {func(f fixture) {
			tr, pod := f.task("buildkit-build-linux-arm64")
			last := pod.Status.ContainerStatuses[len(pod.Status.ContainerStatuses)-1].State.Terminated
			last.Message = strings.ReplaceAll(last.Message, parts[1], other)
			tr.Status.Results[0].Value = *tektonv1.NewStructuredValues(other)
		}, api.ReasonNotAsOrdered},
		"what push is given":       {func(f fixture) { f.give("push", "layout-digest", parts[0]+","+other) }, api.ReasonNotAsOrdered},
		"what the SBOM is made of": {func(f fixture) { f.give("sbom-linux-arm64", "image-digest", parts[0]) }, api.ReasonNotAsOrdered},
		"what is scanned":          {func(f fixture) { f.give("vulnerability-scan-linux-arm64", "image-digest", parts[0]) }, api.ReasonNotAsOrdered},
		"the platform of a scan":   {func(f fixture) { f.give("vulnerability-scan-linux-arm64", "platform", "linux/amd64") }, api.ReasonNotAsOrdered},
		"the run's list":           {func(f fixture) { f.report("push", "PLATFORM_DIGESTS", "linux/amd64="+parts[0], false, false, true) }, api.ReasonResultsForged},
		"one platform alone":       {func(f fixture) { f.report("push", "PLATFORM_DIGESTS", "linux/amd64="+parts[0], true, true, true) }, api.ReasonResultInvalid},
		"the other order":          {func(f fixture) { f.list("linux/arm64="+parts[1], "linux/amd64="+parts[0]) }, api.ReasonResultInvalid},
		"another platform":         {func(f fixture) { f.list("linux/amd64="+parts[0], "linux/s390x="+parts[1]) }, api.ReasonResultInvalid},
		"one image for two":        {func(f fixture) { f.list("linux/amd64="+parts[0], "linux/arm64="+parts[0]) }, api.ReasonResultInvalid},
		"the index as a platform":  {func(f fixture) { f.list("linux/amd64="+parts[0], "linux/arm64="+digest) }, api.ReasonResultInvalid},
		"a platform more":          {func(f fixture) { f.list("linux/amd64="+parts[0], "linux/arm64="+parts[1], "linux/s390x="+other) }, api.ReasonResultInvalid},
		"a TaskRun's SBOM":         {func(f fixture) { f.report("sbom-linux-arm64", "SBOM_DIGEST", other, false, true, true) }, api.ReasonResultsForged},
		"a digest that is none":    {func(f fixture) { f.report("sbom-linux-arm64", "SBOM_DIGEST", "sbom.json", true, true, true) }, api.ReasonResultInvalid},
		"a scan that did not end well": {func(f fixture) {
			_, pod := f.task("vulnerability-scan-linux-arm64")
			pod.Status.ContainerStatuses[1].State.Terminated.ExitCode = 2
		}, api.ReasonNotAsOrdered},
		"no scan of one platform": {func(f fixture) {
			f.TaskRuns = slices.DeleteFunc(f.TaskRuns, func(tr *tektonv1.TaskRun) bool {
				return tr.Labels["tekton.dev/pipelineTask"] == "vulnerability-scan-linux-arm64"
			})
		}, api.ReasonNotAsOrdered},
	} {
		t.Run(what, func(t *testing.T) {
			f := fixture{observe(t, false, twoPlatforms)}
			attack.edit(f)
			var refusal *krm.Finding
			if _, err := attest.Check(*f.Observed); !errors.As(err, &refusal) || refusal.Rule != attack.reason {
				t.Errorf("the refusal is %v, want %s", err, attack.reason)
			}
		})
	}
}

// list makes push report that list.
func (f fixture) list(platforms ...string) {
	f.report("push", "PLATFORM_DIGESTS", strings.Join(platforms, ","), true, true, true)
}

// give a TaskRun another value.
func (f fixture) give(task, parameter, value string) {
	tr, _ := f.task(task)
	for i := range tr.Spec.Params {
		if p := &tr.Spec.Params[i]; p.Name == parameter {
			p.Value = *tektonv1.NewStructuredValues(value)
			return
		}
	}
	panic(parameter)
}
