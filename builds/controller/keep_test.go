package controller_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// A kept workspace never takes over a volume that somebody else made, since it
// would be deleted with the build.
func TestKeptWorkspaceIsNotOurs(t *testing.T) {
	w := newWorld(t)
	theirs := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "weather-workspace"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	w.must(w.Client.Create(t.Context(), theirs))
	w.start()
	keep := func(b *api.AgentBuild) { b.Spec.Workspace = &api.Workspace{Keep: true} }
	b := w.create("weather", keep)
	got := w.phase("weather", api.PhaseFailed)
	if c := condition(got, api.ConditionReady); c.Reason != api.ReasonClaimForeign ||
		!strings.Contains(c.Message, "weather-workspace exists that is not this build's") {
		t.Errorf("condition: %+v", c)
	}
	w.must(w.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs))
	if len(theirs.OwnerReferences) > 0 || len(w.runs()) > 0 {
		t.Errorf("%d runs, and the volume belongs to %v", len(w.runs()), theirs.OwnerReferences)
	}

	// Our own volume serves the next run as well.
	w.create("other", keep)
	w.succeed(w.run(1))
	w.phase("other", api.PhaseSucceeded)
	w.left(0)
	w.change(w.build("other"), retag("v2"))
	w.run(1)
	w.must(w.Client.Delete(t.Context(), b))
}
