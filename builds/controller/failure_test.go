package controller_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/pkg/apis"

	"github.com/armature-dev/armature/builds/api"
)

// failAt ends a run with a step that failed, as Tekton would report it.
func (w *world) failAt(run *tektonv1.PipelineRun, task, step string, code int32, reason string,
	edit ...func(*tektonv1.TaskRun)) {
	w.Helper()
	tr := &tektonv1.TaskRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: run.Name + "-" + task},
		Spec:       tektonv1.TaskRunSpec{TaskRef: &tektonv1.TaskRef{Name: task}},
	}
	w.must(w.Client.Create(w.Context(), tr))
	now := metav1.Now()
	tr.Status.PodName = tr.Name + "-pod"
	tr.Status.StartTime, tr.Status.CompletionTime = &now, &now
	tr.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded,
		Status: corev1.ConditionFalse, Reason: "Failed",
		Message: fmt.Sprintf("%q exited with code %d", "step-"+step, code)})
	tr.Status.Steps = []tektonv1.StepState{{
		ContainerState: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}},
		Name: step, Container: "step-" + step,
	}}
	for _, e := range edit {
		e(tr)
	}
	w.must(w.Status().Update(w.Context(), tr))
	w.finish(run, corev1.ConditionFalse, "Failed",
		"Tasks Completed: 1 (Failed: 1, Cancelled 0), Skipped: 3",
		func(s *tektonv1.PipelineRunStatus) {
			s.ChildReferences = []tektonv1.ChildStatusReference{
				{TypeMeta: runtime.TypeMeta{APIVersion: "tekton.dev/v1", Kind: "TaskRun"},
					Name: tr.Name, PipelineTaskName: task}}
		})
}

// A failed build says which step failed, how and why, and is not tried again by
// itself.
func TestFailure(t *testing.T) {
	tests := []struct {
		name, step, reason string
		code               int32
		want               string
	}{
		{"exit", "build-and-push", "Error", 1, api.ReasonFailed},
		{"memory", "build-and-push", "OOMKilled", 137, "StepOutOfMemory"},
		{"scan", "vulnerability-scan", "Error", 2, "VulnerabilitiesFound"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.start()
			w.create("weather")
			run := w.run(1)
			w.failAt(run, "kaniko-build", test.step, test.code, test.reason)
			got := w.phase("weather", api.PhaseFailed)
			want := &api.FailureDetails{
				Reason:  test.want,
				Message: fmt.Sprintf("%q exited with code %d", "step-"+test.step, test.code),
				Task:    "kaniko-build", Step: test.step, ExitCode: &test.code,
				Location: &api.FailureLocation{Pod: run.Name + "-kaniko-build-pod",
					Container: "step-" + test.step},
			}
			if diff := cmp.Diff(want, got.Status.FailureDetails); diff != "" {
				t.Errorf("failure details (-want +got):\n%s", diff)
			}
			if c := condition(got, api.ConditionSucceeded); c.Status != metav1.ConditionFalse ||
				c.Reason != test.want ||
				!strings.Contains(c.Message, "task kaniko-build, step "+test.step) {
				t.Errorf("condition: %+v", c)
			}
			if len(got.Status.Tasks) != 1 || got.Status.Tasks[0].State != "Failed" {
				t.Errorf("tasks: %+v", got.Status.Tasks)
			}
			w.never("a retry that nobody asked for", func() string {
				if n := len(w.runs()); n != 1 {
					return fmt.Sprintf("%d runs", n)
				}
				return ""
			})
		})
	}
}

// A folder without a Dockerfile is built by buildpacks, and who forgot to name the folder reads
// it in the status, whether that succeeds or not, also after the run was read again.
func TestNoDockerfile(t *testing.T) {
	const want = "; the folder has no Dockerfile, so buildpacks build it; the repository has " +
		"api/Dockerfile: set spec.source.sourceSubfolder to api"
	for _, good := range []bool{true, false} {
		t.Run(fmt.Sprint(good), func(t *testing.T) { noDockerfile(t, good, want) })
	}
}

func noDockerfile(t *testing.T, good bool, want string) {
	w := newWorld(t)
	w.start()
	w.create("weather")
	run := w.run(1)
	tr := &tektonv1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace,
		Name: run.Name + "-clone"},
		Spec: tektonv1.TaskRunSpec{TaskRef: &tektonv1.TaskRef{Name: "clone"}}}
	w.must(w.Client.Create(w.Context(), tr))
	tr.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded,
		Status: corev1.ConditionTrue, Reason: "Succeeded"})
	tr.Status.Results = []tektonv1.TaskRunResult{{Name: "has-dockerfile",
		Value: *tektonv1.NewStructuredValues("false")},
		{Name: "dockerfile-elsewhere", Value: *tektonv1.NewStructuredValues("api/Dockerfile")}}
	w.must(w.Status().Update(w.Context(), tr))
	child := tektonv1.ChildStatusReference{TypeMeta: runtime.TypeMeta{APIVersion: "tekton.dev/v1",
		Kind: "TaskRun"}, Name: tr.Name, PipelineTaskName: "github-clone"}
	state, phase := corev1.ConditionFalse, api.PhaseFailed
	if good {
		state, phase = corev1.ConditionTrue, api.PhaseSucceeded
	}
	w.finish(run, state, map[bool]string{true: "Succeeded", false: "Failed"}[good],
		"Tasks Completed: 2", func(s *tektonv1.PipelineRunStatus) {
			s.ChildReferences = []tektonv1.ChildStatusReference{child}
		})
	got := w.phase("weather", phase)
	if c := condition(got, api.ConditionSucceeded); !strings.HasSuffix(got.Status.Message, want) ||
		c.Message != got.Status.Message {
		t.Errorf("succeeded %v: message %q, condition %q", good, got.Status.Message, c.Message)
	}
}

// A timed-out run says so.
func TestTimeout(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create("weather")
	w.finish(w.run(1), corev1.ConditionFalse, "PipelineRunTimeout",
		`PipelineRun "x" failed to finish within "30m0s"`)
	if got := w.phase("weather", api.PhaseFailed); got.Status.FailureDetails.Reason != api.ReasonTimeout {
		t.Errorf("reason %q", got.Status.FailureDetails.Reason)
	}
}

// A failed build is tried again, of the same commit, as often as its bound says
// and never more.
func TestRetryBound(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create("weather", func(b *api.AgentBuild) {
		b.Spec.Retries = &api.Retries{Limit: 2,
			Backoff: &metav1.Duration{Duration: 50 * time.Millisecond},
			After:   []api.RetryOn{api.RetryAny}}
	})
	for attempt := 1; attempt <= 3; attempt++ {
		run := w.run(attempt)
		if got := run.Annotations["armature.dev/attempt"]; got != fmt.Sprint(attempt) {
			t.Errorf("run %d says attempt %s", attempt, got)
		}
		if got := run.Annotations["armature.dev/commit"]; got != sha {
			t.Errorf("attempt %d builds commit %s", attempt, got)
		}
		w.fail(run)
	}
	w.eventually("the last attempt is reported", func() string {
		b := w.build("weather")
		if b.Status.Attempt != 3 || b.Status.Phase != api.PhaseFailed ||
			!strings.Contains(b.Status.Message, "no more retries") {
			return fmt.Sprintf("attempt %d, %s: %s", b.Status.Attempt, b.Status.Phase, b.Status.Message)
		}
		return ""
	})
	w.never("a fourth attempt", func() string {
		if n := len(w.runs()); n != 3 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
	if got := w.build("weather").Status.RunReason; got != api.TriggerRetry {
		t.Errorf("the last run started because of %s", got)
	}
}
