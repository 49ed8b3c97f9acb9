package controller_test

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/store"
)

// Pods of any workload come and go, and status and store follow by the pods'
// own events.
func TestPodsComeAndGo(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.card("weather", func(c *api.AgentCard) { c.Spec.SyncPeriod = "10m" })
	want := func(phase api.Phase, pods, failed int32, health store.Health) {
		t.Helper()
		w.eventually(fmt.Sprintf("%s with %d pods", phase, pods), func() string {
			s := w.status("weather")
			e, err := w.store.Get(t.Context(),
				store.Key{Resource: cards, Namespace: w.namespace, Name: "weather"})
			if s.Phase != phase || s.DiscoveredPods != pods || s.SyncErrors != failed ||
				err != nil || e.Health != health || len(e.Instances) != int(pods) {
				return fmt.Sprintf("status %+v; store %s, %d instances, %v", s, e.Health,
					len(e.Instances), err)
			}
			return ""
		})
	}
	want(api.PhasePending, 0, 0, store.Unknown)
	first := w.pod("weather", "weather-1", weather("2.1.0"))
	want(api.PhaseActive, 1, 0, store.Healthy)
	second := w.pod("weather", "weather-2", weather("2.1.0"))
	w.pod("other", "other-1", weather("2.1.0"))
	want(api.PhaseActive, 2, 0, store.Healthy)
	w.pod("weather", "weather-3", nil)
	want(api.PhaseDegraded, 3, 1, store.Degraded)
	w.ready(second, false)
	want(api.PhaseDegraded, 2, 1, store.Degraded)
	w.remove(first)
	want(api.PhaseFailed, 1, 1, store.Failing)

	e := w.entry(cards, "weather")
	if e.Title != "Weather" || e.Version != "2.1.0" || len(e.Items) != 2 {
		t.Errorf("the last good card did not survive: %+v", e)
	}
	w.must(w.Delete(t.Context(),
		&api.AgentCard{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "weather"}}))
	w.eventually("the entry goes with its object", func() string {
		if _, err := w.store.Get(t.Context(), e.Key); err == nil {
			return "it is still there"
		}
		return ""
	})
}

// A pod that loses the label is no longer the agent's.
func TestPodLosesItsLabel(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.card("weather", func(c *api.AgentCard) { c.Spec.SyncPeriod = "10m" })
	pod := w.pod("weather", "weather-1", weather("1"))
	w.eventually("it is found", func() string {
		if p := w.status("weather").Phase; p != api.PhaseActive {
			return string("phase " + p)
		}
		return ""
	})
	w.must(w.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	pod.Labels = nil
	w.must(w.Update(t.Context(), pod))
	w.eventually("it is let go", func() string {
		if n := w.status("weather").DiscoveredPods; n != 0 {
			return fmt.Sprint(n)
		}
		return ""
	})
}

// targetRef finds the pods of any kind of workload, by its selector or by its
// pod template.
func TestTargetRef(t *testing.T) {
	w := newWorld(t)
	labels := func(name string) map[string]string { return map[string]string{"app": name} }
	template := func(name string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels(name)},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways,
				Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
	}
	once := template("cronjob")
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: w.namespace, Name: name}
	}
	selector := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: labels(name)}
	}
	for _, o := range []client.Object{
		&appsv1.Deployment{ObjectMeta: meta("deployment"),
			Spec: appsv1.DeploymentSpec{Selector: selector("deployment"),
				Template: template("deployment")}},
		&appsv1.StatefulSet{ObjectMeta: meta("statefulset"),
			Spec: appsv1.StatefulSetSpec{Selector: selector("statefulset"),
				Template: template("statefulset"), ServiceName: "a"}},
		&appsv1.DaemonSet{ObjectMeta: meta("daemonset"),
			Spec: appsv1.DaemonSetSpec{Selector: selector("daemonset"),
				Template: template("daemonset")}},
		&batchv1.CronJob{ObjectMeta: meta("cronjob"),
			Spec: batchv1.CronJobSpec{Schedule: "* * * * *",
				JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: once}}}},
	} {
		w.must(w.Create(t.Context(), o))
	}
	for name, ref := range map[string]api.TargetRef{
		"deployment":  {Kind: "Deployment"},
		"statefulset": {APIVersion: "apps/v1", Kind: "StatefulSet"},
		"daemonset":   {Kind: "DaemonSet"}, "cronjob": {APIVersion: "batch/v1", Kind: "CronJob"},
	} {
		ref.Name = name
		w.pod(name, name+"-1", weather("1"))
		w.card(name, func(c *api.AgentCard) { c.Spec.Selector, c.Spec.TargetRef = nil, &ref })
		w.sync(cards, name)
		if s := w.status(name); s.Phase != api.PhaseActive || s.DiscoveredPods != 1 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	w.card("lost", func(c *api.AgentCard) {
		c.Spec.Selector, c.Spec.TargetRef = nil, &api.TargetRef{Kind: "Deployment", Name: "nobody"}
	})
	w.sync(cards, "lost")
	if s := w.status("lost"); s.Phase != api.PhaseFailed ||
		s.Message != "Deployment nobody is missing" {
		t.Errorf("a target that is missing: %+v", s)
	}
}
