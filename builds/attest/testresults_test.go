package attest_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	testresultv0 "github.com/in-toto/attestation/go/predicates/test_result/v0"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"google.golang.org/protobuf/encoding/protojson"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// The verdict of the step that runs tests becomes a predicate that satisfies in-toto's rules,
// and says which definition of the platform ran in which run with which command.
func TestTestResults(t *testing.T) {
	o := observe(t, false, func(b *api.AgentBuild) {
		command := "make evaluate"
		b.Spec.Pipeline = &api.PipelineSpec{
			Parameters: []api.Parameter{{Name: "TEST_COMMAND", Value: &command}}}
	})
	fixture{o}.report("tests", "TEST_RESULT", "WARNED")
	built, err := attest.Check(*o)
	if err != nil {
		t.Fatal(err)
	}
	r := built.TestResult(digest)
	if r == nil || r.Result != sign.Warned || !slices.Equal(r.WarnedTests, []string{"tests"}) ||
		len(r.PassedTests)+len(r.FailedTests) > 0 {
		t.Fatalf("%+v", r)
	}
	text := marshal(t, r)
	var p testresultv0.TestResult
	if err := protojson.Unmarshal([]byte(text), &p); err != nil { // unknown fields are errors
		t.Fatalf("%v\n%s", err, text)
	}
	for _, d := range p.Configuration {
		if err := d.Validate(); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	}
	var materials compose.Materials
	if err := json.Unmarshal([]byte(o.Run.Annotations["armature.dev/materials"]),
		&materials); err != nil {
		t.Fatal(err)
	}
	how := r.Configuration[0].Annotations.(sign.TestAnnotations)
	if "sha256:"+r.Configuration[0].Digest["sha256"] != materials.Steps["tests"].Digest ||
		how.Run != "run" || how.ConfigMap != "armature-system/run-tests-step" ||
		how.Parameters["TEST_COMMAND"] != "make evaluate" ||
		how.Parameters["TEST_IMAGE"] != "docker.io/library/python:3.13.5-slim" {
		t.Errorf("%s", text)
	}
}

// A verdict counts only if all containers agree, and no command failed.
func TestForgedTestResults(t *testing.T) {
	const name = "TEST_RESULT"
	first := func(f fixture) *corev1.ContainerStateTerminated {
		return f.TaskRuns["tests"].Status.Steps[0].Terminated
	}
	for what, c := range map[string]struct {
		forge  func(fixture)
		reason string
	}{
		"an unknown verdict": {func(f fixture) { f.report("tests", name, "SUCCESS") },
			api.ReasonResultInvalid},
		"an empty verdict": {func(f fixture) { f.report("tests", name, "") },
			api.ReasonResultInvalid},
		"a verdict in small letters": {func(f fixture) { f.report("tests", name, "passed") },
			api.ReasonResultInvalid},
		"no verdict": {func(f fixture) { f.TaskRuns["tests"].Status.Results = nil },
			api.ReasonResultInvalid},
		"an earlier container of the pod wrote one": {func(f fixture) {
			f.report("tests", name, "FAILED")
			first(f).Message = `[{"key":"TEST_RESULT","value":"PASSED","type":1}]`
		}, api.ReasonResultsForged},
		"the command failed, and the step went on": {func(f fixture) { first(f).ExitCode = 1 },
			api.ReasonResultInvalid},
		"a report that is not JSON": {func(f fixture) { first(f).Message = "{" },
			api.ReasonResultInvalid},
		"the definition is not among the materials": {func(f fixture) {
			f.Run.Annotations["armature.dev/materials"] = strings.Replace(
				f.Run.Annotations["armature.dev/materials"], `"tests":`, `"other":`, 1)
		}, api.ReasonNotAsOrdered},
	} {
		t.Run(what, func(t *testing.T) {
			o := observe(t, false)
			c.forge(fixture{o})
			built, err := attest.Check(*o)
			var refusal *finding.Finding
			if !errors.As(err, &refusal) || refusal.Rule != c.reason {
				t.Fatalf("%v, tests %+v", err, built)
			}
		})
	}
}

// A verdict that a task reports which declares none is not one.
func TestOtherTestResults(t *testing.T) {
	o := observe(t, false)
	status := &o.TaskRuns["buildkit-build"].Status
	status.Results = append(status.Results, tektonv1.TaskRunResult{Name: "TEST_RESULT",
		Value: *tektonv1.NewStructuredValues("FAILED")})
	built, err := attest.Check(*o)
	if err != nil || built.TestResult(digest).Result != sign.Passed {
		t.Fatalf("%v %+v", err, built)
	}
	built.Tests = nil
	if got := built.TestResult(digest); got != nil {
		t.Errorf("%+v", got)
	}
}

// Each platform has the verdicts of its own tests, and the index the worst of them.
func TestTestResultsOfPlatforms(t *testing.T) {
	built := &attest.Built{Digest: digest}
	for _, v := range []api.TestVerdict{{Step: "tests", Result: sign.Passed},
		{Step: "evaluate", Digest: parts[0], Result: sign.Passed},
		{Step: "evaluate", Digest: parts[1], Result: sign.Failed}} {
		built.Tests = append(built.Tests, attest.Test{TestVerdict: v})
	}
	for image, want := range map[string][3]string{digest: {"FAILED", "tests", "evaluate"},
		parts[0]: {"PASSED", "evaluate tests", ""}, parts[1]: {"FAILED", "tests", "evaluate"}} {
		r := built.TestResult(image)
		if r.Result != want[0] || strings.Join(r.PassedTests, " ") != want[1] ||
			strings.Join(r.FailedTests, " ") != want[2] {
			t.Errorf("%s: %+v", image, r)
		}
	}
}
