package sign_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/sign"
)

// tested is what the controller attests of the tests of a run.
func tested(run, command, verdict string, steps ...string) map[string]any {
	r := sign.TestResult{Result: verdict}
	for _, step := range steps {
		r.Configuration = append(r.Configuration, sign.ResourceDescriptor{Name: step,
			Digest: map[string]string{"sha256": strings.TrimPrefix(template, "sha256:")},
			Annotations: sign.TestAnnotations{Run: run, ConfigMap: "armature-system/run-tests-step",
				Parameters: map[string]string{"TEST_COMMAND": command}}})
	}
	*map[string]*[]string{sign.Passed: &r.PassedTests, sign.Warned: &r.WarnedTests,
		sign.Failed: &r.FailedTests}[verdict] = steps
	return map[string]any{"result": r.Result, "configuration": r.Configuration,
		"passedTests": r.PassedTests, "warnedTests": r.WarnedTests, "failedTests": r.FailedTests}
}

// builtBy is a provenance of a run.
func builtBy(run string) map[string]any {
	return build(func(p map[string]any) {
		p["runDetails"].(map[string]any)["metadata"].(map[string]any)["invocationId"] = run
	})
}

// testPolicy demands that a step has passed.
func testPolicy(key string, demands ...sign.RequiredTest) sign.Policy {
	p := local(key)
	p.Builds = &sign.Builds{Builders: []sign.TrustedBuilder{{ID: builderID, Level: 2}}, Tests: demands}
	return p
}

// A test counts if it ran in the run that built the image, as the policy demands, and was
// signed by the policy's signer.
func TestRequiredTests(t *testing.T) {
	const run, step, command = "uid-1", "evaluate", "make evaluate"
	evaluate := sign.RequiredTest{Step: step}
	for name, c := range map[string]struct {
		attested map[string]any // nil: no test result
		demand   sign.RequiredTest
		why      string // "" is accepted
	}{
		"passed":              {tested(run, command, sign.Passed, step), evaluate, ""},
		"passed among others": {tested(run, command, sign.Passed, "tests", step), evaluate, ""},
		"warned, and accepted": {tested(run, command, sign.Warned, step),
			sign.RequiredTest{Step: step, MaxResult: sign.Warned}, ""},
		"as defined": {tested(run, command, sign.Passed, step),
			sign.RequiredTest{Step: step, Digests: []string{template2, template},
				Parameters: map[string]string{"TEST_COMMAND": command}}, ""},

		"none": {nil, evaluate,
			"none of the attestations is of type " + sign.TestResultType},
		"warned": {tested(run, command, sign.Warned, step), evaluate,
			`test "evaluate" ended with "WARNED", and the policy accepts PASSED`},
		"failed": {tested(run, command, sign.Failed, step),
			sign.RequiredTest{Step: step, MaxResult: sign.Warned}, `ended with "FAILED"`},
		"another step": {tested(run, command, sign.Passed, "tests"), evaluate,
			`attests no test "evaluate"`},
		"another run": {tested("uid-2", command, sign.Passed, step), evaluate,
			`attests no test "evaluate"`},
		"no run": {tested("", command, sign.Passed, step), evaluate,
			`attests no test "evaluate"`},
		"another definition": {tested(run, command, sign.Passed, step),
			sign.RequiredTest{Step: step, Digests: []string{template2}},
			"which is none of the policy's"},
		"another command": {tested(run, "true", sign.Passed, step),
			sign.RequiredTest{Step: step, Parameters: map[string]string{"TEST_COMMAND": command}},
			"had another value of TEST_COMMAND"},
		"a parameter is missing": {tested(run, "", sign.Passed, step), sign.RequiredTest{Step: step,
			Parameters: map[string]string{"OTHER": ""}}, "had another value of OTHER"},
		"named as passed alone": {map[string]any{"result": "PASSED", "configuration": []any{},
			"passedTests": []string{step}}, evaluate, `attests no test "evaluate"`},
		"in no list": {func() map[string]any {
			p := tested(run, command, sign.Passed, step)
			delete(p, "passedTests")
			return p
		}(), evaluate,
			`ended with ""`},
		"passed and failed": {func() map[string]any {
			p := tested(run, command, sign.Passed, step)
			p["failedTests"] = []string{step}
			return p
		}(), evaluate, `ended with "FAILED"`},
		"not a test result": {map[string]any{"configuration": "x"}, evaluate, "tests: "},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			private, public := f.key("ours")
			all := map[string]any{sign.PredicateType: builtBy(run)}
			if c.attested != nil {
				all[sign.TestResultType] = c.attested
			}
			f.attest(private, all)
			p := testPolicy(public, c.demand)
			if c.why != "" {
				f.refused(p, c.why)
				return
			}
			v, err := sign.Verify(t.Context(), f.artifact, p)
			if err != nil || len(v.Attestations) != 2 {
				t.Errorf("%+v %v", v, err)
			}
		})
	}
}

// What another signer attests does not count, nor what is attested of another image, nor a
// provenance that does not name its run.
func TestForgedTests(t *testing.T) {
	f := setup(t)
	private, public := f.key("ours")
	tenant, _ := f.key("tenant")
	demand := testPolicy(public, sign.RequiredTest{Step: "evaluate"})
	f.attest(private, map[string]any{sign.PredicateType: builtBy("uid-1")})
	f.attest(tenant,
		map[string]any{sign.TestResultType: tested("uid-1", "", sign.Passed, "evaluate")})
	f.refused(demand, "tests: ")

	session, err := signer(private).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := f.artifact
	f.artifact = f.push("second")
	f.attest(private,
		map[string]any{sign.TestResultType: tested("uid-1", "", sign.Passed, "evaluate")})
	f.artifact = first
	f.refused(demand, "tests: ")

	// A run that failed and one that passed built the same image: the policy accepts the second.
	if _, err := session.Attest(t.Context(), f.artifact, sign.TestResultType,
		tested("uid-1", "", sign.Failed, "evaluate")); err != nil {
		t.Fatal(err)
	}
	f.refused(demand, `ended with "FAILED"`)
	f.attest(private, map[string]any{sign.PredicateType: builtBy("uid-2"),
		sign.TestResultType: tested("uid-2", "", sign.Passed, "evaluate")})
	v, err := sign.Verify(t.Context(), f.artifact, demand)
	if err != nil || v.Provenance.RunDetails.Metadata.InvocationID != "uid-2" {
		t.Errorf("%+v %v", v, err)
	}
	// Of the results of one run each has to be good enough.
	if _, err := session.Attest(t.Context(), f.artifact, sign.TestResultType,
		tested("uid-2", "", sign.Failed, "evaluate")); err != nil {
		t.Fatal(err)
	}
	f.refused(demand, `ended with "FAILED"`)

	f.artifact = f.push("third")
	f.attest(private, map[string]any{sign.PredicateType: build(nil),
		sign.TestResultType: tested("", "", sign.Passed, "evaluate")})
	f.refused(demand, "does not say which run")
}

// A demand that restricts nothing, or that nothing can meet, is not a policy.
func TestInvalidRequiredTests(t *testing.T) {
	for why, demand := range map[string]sign.RequiredTest{
		"builds.tests[0] needs a step":           {Step: " "},
		`builds.tests[0] maxResult "FAILED"`:     {Step: "x", MaxResult: sign.Failed},
		`builds.tests[0] digests[0] "sha256:aa"`: {Step: "x", Digests: []string{"sha256:aa"}},
	} {
		if err := testPolicy("k", demand).Check(); err == nil ||
			!strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
}
