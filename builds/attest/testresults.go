package attest

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// A step of the platform's template that declares the result TEST_RESULT is a test. Its verdict is
// the result that Tekton reports: PASSED, WARNED or FAILED.
//
// Containers of a pod share the folder of results, and each reports the content of the folder when
// it ends. A container that runs the author's code can write a verdict before the platform's own
// container does, and can leave one for it to find. Containers that report different verdicts are
// therefore refused, and so is a failed container with another verdict than FAILED.

// testResult is the result by which a step reports the verdict of its test.
const testResult = "TEST_RESULT"

// Test is the verdict of a step, one of sign.Verdicts, and how it ran.
type Test struct {
	api.TestVerdict
	how sign.ResourceDescriptor
}

// findTests sets the verdicts that steps report.
func (i *inspection) findTests() error {
	for t, verdict := range i.reports(testResult) {
		if !slices.Contains(sign.Verdicts, verdict) {
			return i.invalid("the result %s of task %s is not one of %s", testResult, t.ordered.Name,
				strings.Join(sign.Verdicts, ", "))
		}
		if err := i.checkVerdict(t, verdict); err != nil {
			return err
		}
		of := i.platformOf(t)
		step := strings.TrimSuffix(t.ordered.Name, "-"+strings.ReplaceAll(of.Platform, "/", "-"))
		test := Test{TestVerdict: api.TestVerdict{Step: step, Digest: of.Digest, Result: verdict}}
		if err := i.describe(t, &test); err != nil {
			return err
		}
		i.Tests = append(i.Tests, test)
	}
	return nil
}

// checkVerdict compares a verdict with the report of each container of the task.
func (i *inspection) checkVerdict(t *task, verdict string) error {
	for _, step := range t.run.Status.Steps {
		ended := step.Terminated
		if ended == nil {
			continue
		}
		if ended.ExitCode != 0 && verdict != sign.Failed {
			return i.invalid("container %s of task %s failed, and the verdict is %s", step.Container,
				t.ordered.Name, verdict)
		}
		var written []struct{ Key, Value string }
		if ended.Message != "" && json.Unmarshal([]byte(ended.Message), &written) != nil {
			return i.invalid("what container %s of task %s reports cannot be read", step.Container,
				t.ordered.Name)
		}
		for _, w := range written {
			if w.Key == testResult && strings.TrimSpace(w.Value) != verdict {
				return i.refuse(api.ReasonResultsForged, wrongStep,
					"containers of task %s report different verdicts", t.ordered.Name)
			}
		}
	}
	return nil
}

// describe sets how a test ran: the definition by the platform, the run and the parameters.
func (i *inspection) describe(t *task, test *Test) error {
	from, known := i.materials.Steps[t.ordered.Name]
	if !known {
		from, known = i.materials.Steps[test.Step]
	}
	if !known {
		return i.refuse(api.ReasonNotAsOrdered, changed,
			"run %s does not say what task %s was composed from", i.Run.Name, t.ordered.Name)
	}
	how := sign.TestAnnotations{Run: string(i.Run.UID), ConfigMap: from.ConfigMap,
		Parameters: map[string]string{}}
	for _, declared := range t.ordered.TaskSpec.Params {
		if declared.Default != nil {
			how.Parameters[declared.Name] = tekton.Text(*declared.Default)
		}
	}
	for _, p := range t.run.Spec.Params {
		how.Parameters[p.Name] = tekton.Text(p.Value)
	}
	test.how = sign.ResourceDescriptor{Name: test.Step,
		Digest: map[string]string{"sha256": strings.TrimPrefix(from.Digest, "sha256:")}, Annotations: how}
	return nil
}

// TestResult returns the result of the tests of an image: the whole image, or that of a platform.
// It returns nil if no step tests the image, and equal results for equal runs.
func (b *Built) TestResult(digest string) *sign.TestResult {
	worst := map[string]int{}
	r := &sign.TestResult{}
	for _, t := range b.Tests {
		if t.Digest != "" && t.Digest != digest && digest != b.Digest {
			continue
		}
		worst[t.Step] = max(worst[t.Step], slices.Index(sign.Verdicts, t.Result))
		r.Configuration = append(r.Configuration, t.how)
	}
	if len(worst) == 0 {
		return nil
	}
	of, overall := [3][]string{}, 0
	for _, step := range slices.Sorted(maps.Keys(worst)) {
		of[worst[step]] = append(of[worst[step]], step)
		overall = max(overall, worst[step])
	}
	slices.SortStableFunc(r.Configuration,
		func(a, b sign.ResourceDescriptor) int { return cmp.Compare(a.Name, b.Name) })
	r.Result, r.PassedTests, r.WarnedTests, r.FailedTests = sign.Verdicts[overall], of[0], of[1], of[2]
	return r
}
