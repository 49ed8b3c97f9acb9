package controller_test

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// A deleted build takes its runs with it, even when the user orphans them, and
// no run of another build.
func TestDelete(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create("stays")
	w.phase("stays", api.PhaseBuilding)
	b := w.create("goes")
	w.phase("goes", api.PhaseBuilding)
	w.must(w.Client.Delete(w.Context(), b,
		client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	w.eventually("the build and its run are gone", func() string {
		err := w.Get(w.Context(), client.ObjectKeyFromObject(b), &api.AgentBuild{})
		// No garbage collector runs here that would remove the orphan finalizer.
		if err == nil {
			got := w.build("goes")
			for _, f := range got.Finalizers {
				if f == "agent.kagenti.dev/finalizer" {
					return "the finalizer stays"
				}
			}
		} else if !apierrors.IsNotFound(err) {
			return err.Error()
		}
		if runs := w.runs(); len(runs) != 1 || runs[0].OwnerReferences[0].Name != "stays" {
			return fmt.Sprintf("%d runs are left", len(runs))
		}
		return ""
	})
}
