package apply_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

const hpa = `apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: NS}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  maxReplicas: 9
`

func (w *world) replicas(want int64) {
	w.Helper()
	if got := field(w.get("apps/v1", "Deployment", "web"), "spec", "replicas"); got != want {
		w.Errorf("replicas are %v, want %d", got, want)
	}
}

// An autoscaler owns the replicas: they start as the package says, and are left
// alone from then on, whatever the package says.
func TestHorizontalPodAutoscaler(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web, hpa)
	w.replicas(2)
	w.patch("apps/v1", "Deployment", "web", "kube-controller-manager", `{"spec":{"replicas":7}}`, "scale")
	w.expect(w.apply(apply.Options{}, web, hpa), "unchanged Deployment NS/web",
		"unchanged HorizontalPodAutoscaler NS/web")
	w.replicas(7)
	before := w.writes.count()
	w.apply(apply.Options{}, web, hpa)
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("wrote %v", all)
	}
}

// An autoscaler that somebody else put into the cluster counts too. Nobody has
// scaled yet, so that the replicas are still recorded as ours: they stay, and do
// not fall to 1.
func TestLiveAutoscaler(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web)
	w.create(hpa)
	w.apply(apply.Options{}, web+"  minReadySeconds: 3\n")
	w.replicas(2)
	w.patch("apps/v1", "Deployment", "web", "kube-controller-manager", `{"spec":{"replicas":7}}`, "scale")
	w.apply(apply.Options{}, web+"  minReadySeconds: 4\n")
	w.replicas(7)
}

// Without an autoscaler, who scales by hand is in conflict with the package.
func TestScaledByHand(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web)
	w.patch("apps/v1", "Deployment", "web", "kubectl", `{"spec":{"replicas":5}}`, "scale")
	w.refused(apply.Options{}, "kubectl has set spec.replicas", web)
	w.apply(apply.Options{ForceConflicts: []string{"kubectl"}}, web)
	w.replicas(2)
}

// A ScaledObject of KEDA points to a Deployment unless it says otherwise.
func TestScaledObject(t *testing.T) {
	w := newWorld(t)
	scaled := "{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {name: web}, spec: " +
		"{scaleTargetRef: {name: web}}}"
	keda := crd("keda.sh", "v1alpha1", "ScaledObject")
	w.apply(apply.Options{}, web, keda, scaled)
	w.patch("apps/v1", "Deployment", "web", "keda-operator", `{"spec":{"replicas":0}}`, "scale")
	w.apply(apply.Options{}, web+"  minReadySeconds: 3\n", keda, scaled)
	w.replicas(0)
	_, err := w.Delete(t.Context(), w.Package, apply.Options{Wait: true}) // the CRD is everybody's
	w.must(err)
}

// A package that drops its autoscaler has its replicas back, at once and for good.
func TestDropAutoscaler(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web, hpa)
	w.patch("apps/v1", "Deployment", "web", "kube-controller-manager", `{"spec":{"replicas":7}}`, "scale")
	w.apply(apply.Options{}, web, hpa)
	w.replicas(7)
	w.expect(w.apply(apply.Options{}, web), "change Deployment NS/web",
		"prune HorizontalPodAutoscaler NS/web")
	w.replicas(2)
	before := w.writes.count()
	w.expect(w.apply(apply.Options{}, web), "unchanged Deployment NS/web")
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("wrote %v", all)
	}
	w.replicas(2)
}

// A package that has no replicas any more leaves them to an autoscaler that somebody
// else put into the cluster.
func TestDropReplicasForLiveAutoscaler(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web)
	w.create(hpa)
	w.apply(apply.Options{}, strings.Replace(web, "  replicas: 2\n", "", 1))
	w.replicas(2)
}
