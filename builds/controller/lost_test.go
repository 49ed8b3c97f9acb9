package controller_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

const (
	pressure = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, " +
		"available: 2Mi."
	overIts = `Pod ephemeral local storage usage exceeds the total limit of containers 300Mi. `
)

// working adds to a run a TaskRun that waits for a pod, as Tekton would; edit changes it before it
// is created.
func (w *world) working(run *tektonv1.PipelineRun,
	edit ...func(*tektonv1.TaskRun, *corev1.Pod)) *corev1.Pod {
	w.Helper()
	w.begin(run)
	yes := true
	labels := map[string]string{"tekton.dev/pipelineRun": run.Name,
		"tekton.dev/pipelineTask": "tests"}
	task := &tektonv1.TaskRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: run.Name + "-tests",
			Labels: labels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "tekton.dev/v1",
				Kind: "PipelineRun", Name: run.Name, UID: run.UID, Controller: &yes}}},
		Spec: tektonv1.TaskRunSpec{TaskRef: &tektonv1.TaskRef{Name: "tests"}},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: task.Name + "-pod",
			Labels: labels},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "step-test", Image: "busybox"}}},
	}
	task.Status.PodName = pod.Name
	task.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded,
		Status: corev1.ConditionUnknown, Reason: "Running"})
	for _, e := range edit {
		e(task, pod)
	}
	status := task.Status
	w.must(w.Client.Create(w.Context(), task))
	task.Status = status
	w.must(w.Status().Update(w.Context(), task))
	if pod.OwnerReferences == nil {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "tekton.dev/v1", Kind: "TaskRun",
			Name: task.Name, UID: task.UID, Controller: &yes}}
	}
	state := pod.Status
	w.must(w.Client.Create(w.Context(), pod))
	pod.Status = state
	if pod.Status.Phase == "" {
		pod.Status.Phase = corev1.PodRunning
	}
	w.must(w.Status().Update(w.Context(), pod))
	return pod
}

// evict a pod, as the kubelet writes it, some time ago.
func (w *world) evict(pod *corev1.Pod, message string, ago time.Duration) {
	w.Helper()
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "Evicted", message
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady,
		Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(time.Now().Add(-ago))}}
	w.must(w.Status().Update(w.Context(), pod))
}

// stopped waits until the controller stops a run for a pod that it lost.
func (w *world) stopped(run *tektonv1.PipelineRun) {
	w.Helper()
	w.eventually("the run is stopped", func() string {
		w.must(w.Get(w.Context(), client.ObjectKeyFromObject(run), run))
		if run.Annotations["armature.dev/lost-pod"] == "" {
			return "it has no annotation"
		}
		return cancelState(w, run.Name)
	})
}

func retryOnce(b *api.AgentBuild) {
	b.Spec.Retries = &api.Retries{Limit: 1, Backoff: &metav1.Duration{Duration: time.Millisecond}}
}

// A pod that is gone, while its TaskRun waits for it, ends the run, and the build fails for
// the pod's sake: it is tried again, unless it was over a limit of its own.
func TestLostPod(t *testing.T) {
	for name, test := range map[string]struct {
		lose    func(*world, *corev1.Pod)
		reason  string
		cause   api.FailureCause
		message string
	}{
		"evicted": {func(w *world, p *corev1.Pod) { w.evict(p, pressure, time.Hour) },
			api.ReasonEvicted, api.CauseEvicted, pressure},
		"over its own limit": {func(w *world, p *corev1.Pod) { w.evict(p, overIts, time.Hour) },
			api.ReasonEvicted, "", "exceeds the total limit"},
		"by a taint": {func(w *world, p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget,
				Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager",
				Message: "Taint manager: deleting due to NoExecute taint"}}
			w.must(w.Status().Update(w.Context(), p))
		}, api.ReasonFailed, api.CauseNodeLost, "Taint manager"},
		"by the eviction API": {func(w *world, p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget,
				Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI",
				Message: "Eviction API: evicting"}}
			w.must(w.Status().Update(w.Context(), p))
		}, api.ReasonEvicted, api.CauseEvicted, "Eviction API"},
		"with its node": {func(w *world, p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message =
				corev1.PodFailed, "Terminated",
				"Pod was terminated in response to imminent node shutdown."
			w.must(w.Status().Update(w.Context(), p))
		}, api.ReasonFailed, api.CauseNodeLost, "node shutdown"},
		"on a node that does not answer": {func(w *world, p *corev1.Pod) {
			w.must(w.Client.Delete(w.Context(), p, client.GracePeriodSeconds(1)))
		}, api.ReasonFailed, api.CauseNodeLost, "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.options.LostAfter = 200 * time.Millisecond
			stop := w.start()
			w.create("weather", retryOnce)
			run := w.run(1)
			pod := w.working(run, func(_ *tektonv1.TaskRun, pod *corev1.Pod) {
				pod.Finalizers = []string{"armature.dev/test"}
			})
			test.lose(w, pod)
			w.stopped(run)
			if b := w.build("weather"); b.Status.Phase != api.PhaseBuilding {
				t.Errorf("phase %s before the run has ended", b.Status.Phase)
			}
			stop() // another controller reads the cause of the run
			w.start()
			w.finish(run, corev1.ConditionFalse, "Cancelled", "PipelineRun was cancelled")
			if test.cause != "" {
				if got := w.run(2); got.Annotations["armature.dev/attempt"] != "2" {
					t.Errorf("the second run is attempt %s",
						got.Annotations["armature.dev/attempt"])
				}
				return
			}
			b := w.phase("weather", api.PhaseFailed)
			if d := b.Status.FailureDetails; d == nil || d.Reason != test.reason ||
				d.Cause != test.cause || d.Task != "tests" ||
				!strings.Contains(d.Message, test.message) {
				t.Errorf("failure %+v", d)
			}
			w.eventually("the message says so", func() string {
				if m := w.build("weather").Status.Message; !strings.Contains(m, test.message) ||
					!strings.Contains(m, "attempt 1 of 2, not tried again") {
					return m
				}
				return ""
			})
			w.never("another attempt", func() string {
				if n := len(w.runs()); n != 1 {
					return fmt.Sprintf("%d runs", n)
				}
				return ""
			})
		})
	}
}

// The cause of a lost pod is in status where there are no retries.
func TestLostPodIsReported(t *testing.T) {
	w := newWorld(t)
	w.options.LostAfter = 200 * time.Millisecond
	w.start()
	w.create("weather")
	run := w.run(1)
	w.evict(w.working(run), pressure, time.Hour)
	w.stopped(run)
	w.finish(run, corev1.ConditionFalse, "Cancelled", "PipelineRun was cancelled")
	b := w.phase("weather", api.PhaseFailed)
	if d := b.Status.FailureDetails; d == nil || d.Reason != api.ReasonEvicted ||
		d.Cause != api.CauseEvicted || d.Task != "tests" || !strings.Contains(d.Message, pressure) {
		t.Errorf("failure %+v", d)
	}
	if c := condition(b, api.ConditionSucceeded); c.Reason != api.ReasonEvicted ||
		!strings.Contains(c.Message, "task tests: pod "+run.Name+"-tests-pod was lost") {
		t.Errorf("condition %+v", c)
	}
}

// What Tekton notices by itself, or what is not this run's, stops no run.
func TestNoLostPod(t *testing.T) {
	for name, test := range map[string]struct {
		after time.Duration
		edit  func(*tektonv1.TaskRun, *corev1.Pod)
		lose  func(*world, *corev1.Pod)
	}{
		"a step that failed": {lose: func(w *world, p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			w.must(w.Status().Update(w.Context(), p))
		}},
		"a moment ago": {after: time.Hour,
			lose: func(w *world, p *corev1.Pod) { w.evict(p, pressure, 0) }},
		"a TaskRun that ended": {edit: func(task *tektonv1.TaskRun, _ *corev1.Pod) {
			task.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded,
				Status: corev1.ConditionFalse, Reason: "PodEvicted"})
		}},
		"a TaskRun that is being cancelled": {edit: func(task *tektonv1.TaskRun, _ *corev1.Pod) {
			task.Spec.Status = tektonv1.TaskRunSpecStatusCancelled
		}},
		"a TaskRun with another pod": {edit: func(task *tektonv1.TaskRun, _ *corev1.Pod) {
			task.Status.PodName = "another"
		}},
		"a TaskRun of another run": {edit: func(task *tektonv1.TaskRun, _ *corev1.Pod) {
			task.OwnerReferences[0].UID = "another"
		}},
		"a pod of nobody's": {edit: func(task *tektonv1.TaskRun, pod *corev1.Pod) {
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "tekton.dev/v1",
				Kind: "TaskRun", Name: task.Name, UID: "another", Controller: new(bool)}}
		}},
		"another run's pod": {edit: func(_ *tektonv1.TaskRun, pod *corev1.Pod) {
			pod.Labels = map[string]string{"tekton.dev/pipelineRun": "another"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.options.LostAfter = 200 * time.Millisecond
			if test.after > 0 {
				w.options.LostAfter = test.after
			}
			lists := w.podLists()
			edits := []func(*tektonv1.TaskRun, *corev1.Pod){}
			if test.edit != nil {
				edits = append(edits, test.edit)
			}
			w.start()
			w.create("weather", retryOnce)
			run := w.run(1)
			pod := w.working(run, edits...)
			if test.lose == nil {
				test.lose = func(w *world, p *corev1.Pod) { w.evict(p, pressure, time.Hour) }
			}
			test.lose(w, pod)
			if test.after == 0 {
				before := lists()
				w.eventually("pods were looked at several times", func() string {
					if n := lists() - before; n < 6 {
						return fmt.Sprintf("%d times", n)
					}
					return ""
				})
			}
			w.never("the run is stopped", func() string {
				w.must(w.Get(w.Context(), client.ObjectKeyFromObject(run), run))
				return string(run.Spec.Status) + run.Annotations["armature.dev/lost-pod"]
			})
		})
	}
}

// podLists counts how often the controller lists pods.
func (w *world) podLists() func() int64 {
	var n atomic.Int64
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods") {
				n.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	return n.Load
}

// What else happens to a build while its run loses a pod.
func TestLostPodMeanwhile(t *testing.T) {
	begin := func(t *testing.T,
		before func(*world, *api.AgentBuild)) (*world, *api.AgentBuild, *tektonv1.PipelineRun) {
		w := newWorld(t)
		w.options.LostAfter = 200 * time.Millisecond
		w.start()
		b := w.create("weather", retryOnce)
		run := w.run(1)
		pod := w.working(run)
		if before != nil {
			w.phase("weather", api.PhaseBuilding)
			before(w, b)
			w.eventually("the run is cancelled", func() string { return cancelState(w, run.Name) })
		}
		w.evict(pod, pressure, time.Hour)
		return w, b, run
	}
	one := func(w *world) {
		w.never("another run", func() string {
			if n := len(w.runs()); n != 1 {
				return fmt.Sprintf("%d runs", n)
			}
			return ""
		})
	}
	t.Run("it was cancelled before", func(t *testing.T) {
		w, _, run := begin(t, func(w *world, b *api.AgentBuild) {
			w.change(b, func(b *api.AgentBuild) { b.Spec.Cancel = true })
		})
		w.never("a lost pod is reported", func() string {
			w.must(w.Get(w.Context(), client.ObjectKeyFromObject(run), run))
			return run.Annotations["armature.dev/lost-pod"]
		})
		w.finish(run, corev1.ConditionFalse, "Cancelled", "PipelineRun was cancelled")
		w.phase("weather", api.PhaseCancelled)
		one(w)
	})
	t.Run("it is cancelled after", func(t *testing.T) {
		w, b, run := begin(t, nil)
		w.stopped(run)
		w.change(b, func(b *api.AgentBuild) { b.Spec.Cancel = true })
		w.finish(run, corev1.ConditionFalse, "Cancelled", "PipelineRun was cancelled")
		w.phase("weather", api.PhaseFailed)
		one(w)
	})
	t.Run("Tekton notices after all", func(t *testing.T) {
		w, _, run := begin(t, nil)
		w.stopped(run)
		w.finish(run, corev1.ConditionFalse, "Failed",
			"Tasks Completed: 1 (Failed: 1, Cancelled 0)")
		if got := w.run(2); got.Annotations["armature.dev/attempt"] != "2" {
			t.Errorf("the second run is attempt %s", got.Annotations["armature.dev/attempt"])
		}
	})
	t.Run("the spec changes", func(t *testing.T) {
		w, b, run := begin(t, nil)
		w.stopped(run)
		w.change(b, func(b *api.AgentBuild) { b.Spec.BuildOutput.ImageTag = "v2" })
		one(w)
		w.finish(run, corev1.ConditionFalse, "Cancelled", "PipelineRun was cancelled")
		if got := w.run(2); got.Annotations["armature.dev/attempt"] != "1" ||
			got.Annotations["armature.dev/run-reason"] != string(api.TriggerConfig) {
			t.Errorf("the second run is attempt %s for %s", got.Annotations["armature.dev/attempt"],
				got.Annotations["armature.dev/run-reason"])
		}
	})
}
