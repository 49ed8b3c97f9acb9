package controller_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// logsSay makes the API server answer a question for any log with a text.
func (w *world) logsSay(text string) {
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/log") {
				return &http.Response{StatusCode: http.StatusOK,
					Header: http.Header{"Content-Type": {"text/plain"}},
					Body:   io.NopCloser(strings.NewReader(text)), Request: r}, nil
			}
			return next.RoundTrip(r)
		})
	})
}

// By default a run is tried again where the build is not to blame, and the cause
// is in status, whether or not status keeps the log; a build's own failure is
// tried again by choice.
func TestRetryByCause(t *testing.T) {
	const unavailable = "error pushing image: PUT https://registry.local/v2/weather/manifests/v1:" +
		" unexpected status code 503 Service Unavailable\n"
	const ended = `"sidecar-buildkitd" exited with code 1: Error`
	for name, test := range map[string]struct {
		reason, message, log string
		on                   []api.RetryOn
		lines                int64
		pod                  bool // is there still
		cause                api.FailureCause
		again                bool
	}{
		"evicted": {reason: "PodEvicted", message: "The node was low on resource: memory.",
			cause: api.CauseEvicted, again: true},
		"named": {reason: "PodEvicted", on: []api.RetryOn{api.RetryInfrastructure},
			cause: api.CauseEvicted, again: true},
		"registry": {reason: "StepFailed", log: unavailable, lines: 20,
			cause: api.CauseServerError, again: true},
		"no lines": {reason: "StepFailed", log: unavailable, cause: api.CauseServerError,
			again: true},
		"compiler": {reason: "StepFailed", log: "main.go:7:2: undefined: x\n", lines: 20},
		"by choice": {reason: "StepFailed", log: "main.go:7:2: undefined: x\n", lines: 20,
			on: []api.RetryOn{api.RetryAny}, again: true},
		"timeout": {reason: "TaskRunTimeout"},
		"pod gone": {reason: "SidecarFailed", message: ended, cause: api.CausePodFailed,
			again: true},
		"buildkitd": {reason: "SidecarFailed", message: ended, pod: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.logsSay(test.log)
			w.options.LogLines = test.lines
			w.start()
			w.create("weather", func(b *api.AgentBuild) {
				b.Spec.Retries = &api.Retries{Limit: 1,
					Backoff: &metav1.Duration{Duration: time.Second}, After: test.on}
			})
			run := w.run(1)
			if test.pod {
				w.must(w.Client.Create(w.Context(), &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace,
						Name: run.Name + "-kaniko-build-pod"},
					Spec: corev1.PodSpec{
						Containers: []corev1.Container{{Name: "step-build-and-push",
							Image: "busybox"}}},
				}))
			}
			w.failFor(run, test.reason, test.message)
			w.eventually("the cause is in status", func() string {
				b := w.build("weather")
				d := b.Status.FailureDetails
				switch {
				case test.again && len(w.runs()) == 2:
				case d == nil || d.Cause != test.cause || (len(d.LogTail) > 0) != (test.lines > 0):
					return fmt.Sprintf("%+v", d)
				case b.Over() == test.again:
					return fmt.Sprintf("over is %v", b.Over())
				case !test.again &&
					!strings.Contains(b.Status.Message, "attempt 1 of 2, not tried again"):
					return b.Status.Message
				}
				return ""
			})
			if test.again {
				if got := w.run(2); got.Annotations["armature.dev/attempt"] != "2" {
					t.Errorf("the second run is attempt %s",
						got.Annotations["armature.dev/attempt"])
				}
				return
			}
			w.never("another attempt", func() string {
				if n := len(w.runs()); n != 1 {
					return fmt.Sprintf("%d runs", n)
				}
				return ""
			})
		})
	}
}

// A problem that keeps a retry from starting, and a place that is taken when it is
// solved, delay the retry and do not lose it.
func TestRetryAfterAProblem(t *testing.T) {
	for name, queue := range map[string]int{"at once": 0, "in turn": 1} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.options.MaxRunning = queue
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace,
				Name: "builder"}}
			w.must(w.Client.Create(t.Context(), account.DeepCopy()))
			w.start()
			w.create("weather", func(b *api.AgentBuild) {
				b.Spec.ServiceAccountName = account.Name
				b.Spec.Retries = &api.Retries{Limit: 1,
					Backoff: &metav1.Duration{Duration: time.Second}}
			})
			run := w.run(1)
			w.must(w.Delete(t.Context(), account.DeepCopy()))
			w.failFor(run, "PodEvicted", "The node was low on resource: memory.")
			w.eventually("the retry is held up", func() string {
				if d := w.build("weather").Status.FailureDetails; d == nil ||
					d.Reason != api.ReasonServiceAccount || d.Cause != api.CauseEvicted {
					return fmt.Sprintf("%+v", d)
				}
				return ""
			})
			if queue > 0 {
				w.create("other")
				other := w.soleRun("other")
				w.must(w.Client.Create(t.Context(), account.DeepCopy()))
				w.queued("weather", "")
				w.succeed(other)
			} else {
				w.must(w.Client.Create(t.Context(), account.DeepCopy()))
			}
			w.eventually("the second attempt", func() string {
				if b := w.build("weather"); b.Status.Attempt != 2 ||
					b.Status.RunReason != api.TriggerRetry {
					return fmt.Sprintf("attempt %d, %s", b.Status.Attempt, b.Status.Message)
				}
				return ""
			})
		})
	}
}

// failFor ends a run with a task that failed for a reason, as Tekton reports it.
func (w *world) failFor(run *tektonv1.PipelineRun, reason, message string) {
	w.Helper()
	w.failAt(run, "kaniko-build", "build-and-push", 1, "Error", func(tr *tektonv1.TaskRun) {
		c := tr.Status.GetCondition(apis.ConditionSucceeded)
		c.Reason = reason
		if message != "" {
			c.Message = message
		}
		tr.Status.SetCondition(c)
	})
	w.must(w.Get(w.Context(), client.ObjectKeyFromObject(run), run))
}
