package sign

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/multi"
)

// TestResultType is the predicate type of in-toto's test results.
const TestResultType = "https://in-toto.io/attestation/test-result/v0.1"

// Verdicts of a test, from the best to the worst.
const (
	Passed = "PASSED"
	Warned = "WARNED"
	Failed = "FAILED"
)

// Verdicts are the verdicts from the best to the worst.
var Verdicts = []string{Passed, Warned, Failed}

// TestResult is a predicate of TestResultType with the results of the tests of one run.
type TestResult struct {
	// Result is the worst verdict of all tests.
	Result string `json:"result"`
	// Configuration describes how the tests ran. A descriptor with TestAnnotations describes the
	// test of its name.
	Configuration []ResourceDescriptor `json:"configuration"`
	// PassedTests, WarnedTests and FailedTests are the names of the tests by their verdicts.
	PassedTests []string `json:"passedTests,omitempty"`
	WarnedTests []string `json:"warnedTests,omitempty"`
	FailedTests []string `json:"failedTests,omitempty"`
}

// TestAnnotations name the run of a test of an AgentBuild and its parameters.
type TestAnnotations struct {
	// Run is the invocationId of the run's provenance.
	Run string `json:"armature_run"`
	// ConfigMap of the platform that defines the step, NAMESPACE/NAME. The digest of the descriptor
	// is that of its text.
	ConfigMap string `json:"armature_configMap"`
	// Parameters of the step. Those with lists or maps are in JSON.
	Parameters map[string]string `json:"armature_parameters,omitempty"`
}

// verdict returns the worst verdict of a test, or "" if the lists do not name it.
func (r TestResult) verdict(name string) (worst string) {
	for i, names := range [][]string{r.PassedTests, r.WarnedTests, r.FailedTests} {
		if slices.Contains(names, name) {
			worst = Verdicts[i]
		}
	}
	return worst
}

// RequiredTest is a test that must have run in the run that built the image.
type RequiredTest struct {
	// Step of the template, whose task reports the verdict.
	Step string `json:"step"`
	// MaxResult is the worst verdict that is accepted: PASSED or WARNED. Omitted, PASSED.
	MaxResult string `json:"maxResult,omitempty"`
	// Digests are the allowed digests of the step's definition, each "sha256:" and 64 hexadecimal
	// digits. Omitted, any definition.
	Digests []string `json:"digests,omitempty"`
	// Parameters that the step must have had, by name. If builds may set a parameter, for example
	// the command, the test proves nothing unless its value is required here. Omitted, any values.
	Parameters map[string]string `json:"parameters,omitempty"`
}

// check returns an error if the requirement is invalid.
func (d RequiredTest) check() error {
	if strings.TrimSpace(d.Step) == "" {
		return errors.New("needs a step")
	}
	if d.MaxResult != "" && d.MaxResult != Passed && d.MaxResult != Warned {
		return fmt.Errorf("maxResult %q: use %s or %s", d.MaxResult, Passed, Warned)
	}
	return checkDigests("digests", d.Digests)
}

// tests verifies the test results of the run that made the provenance. Results of other runs of the
// same image do not count.
func (t trust) tests(e *evidence, b *Builds, made *Provenance, v *Verified) error {
	if made.RunDetails.Metadata == nil || made.RunDetails.Metadata.InvocationID == "" {
		return errors.New("the provenance does not say which run built the image, and the policy " +
			"demands tests of that run")
	}
	statements, err := t.attested(e, TestResultType)
	if err != nil {
		return err
	}
	for _, demand := range b.Tests {
		var found bool
		var reasons []error
		for _, s := range statements { // each of the run has to satisfy the policy
			of, err := demand.judge(s.Predicate, made.RunDetails.Metadata.InvocationID)
			if err != nil {
				reasons = append(reasons, err)
			} else if of && !found { // a statement may exist in both forms
				found = true
				v.basedOn(s)
			}
		}
		if len(reasons) > 0 {
			return multi.Errors(reasons...)
		}
		if !found {
			return fmt.Errorf("the run that built the image attests no test %q", demand.Step)
		}
	}
	return nil
}

// judge compares a test result with the requirement. It reports whether the result is of that test
// in that run.
func (d RequiredTest) judge(predicate json.RawMessage, run string) (of bool, _ error) {
	var r struct {
		TestResult
		Configuration []struct {
			Name        string            `json:"name"`
			Digest      map[string]string `json:"digest"`
			Annotations json.RawMessage   `json:"annotations"`
		} `json:"configuration"`
	}
	if err := json.Unmarshal(predicate, &r); err != nil {
		return false, err
	}
	for _, c := range r.Configuration {
		var how TestAnnotations
		if c.Name != d.Step || json.Unmarshal(c.Annotations, &how) != nil || how.Run != run {
			continue
		}
		of = true
		if digest := "sha256:" + c.Digest["sha256"]; len(d.Digests) > 0 &&
			!slices.Contains(d.Digests, digest) {
			return false, fmt.Errorf(
				"test %q is defined by %s of digest %s, which is none of the policy's", d.Step,
				how.ConfigMap, digest)
		}
		for _, name := range slices.Sorted(maps.Keys(d.Parameters)) {
			if have, given := how.Parameters[name]; !given || have != d.Parameters[name] {
				return false, fmt.Errorf("test %q had another value of %s than the policy demands",
					d.Step, name)
			}
		}
	}
	if !of {
		return false, nil
	}
	verdict, most := r.verdict(d.Step), slices.Index(Verdicts, Passed)
	if d.MaxResult == Warned {
		most = slices.Index(Verdicts, Warned)
	}
	if have := slices.Index(Verdicts, verdict); have < 0 || have > most {
		return false, fmt.Errorf("test %q ended with %q, and the policy accepts %s", d.Step,
			verdict, Verdicts[most])
	}
	return true, nil
}
