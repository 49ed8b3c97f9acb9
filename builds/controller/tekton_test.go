package controller_test

import (
	"path/filepath"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/e2e/controlplane"
)

// Without Tekton's CRDs there are no runs: a deleted build goes, whether the
// controller was there before they went or starts after; and when they are back,
// builds run.
func TestTektonIsGone(t *testing.T) {
	plane := controlplane.Start(t)
	if err := furnish(plane); err != nil {
		t.Fatal(err)
	}
	w := newWorldOn(t, plane)
	stop := w.start()
	first, second := w.create("first"), w.create("second")
	w.phase("first", api.PhaseBuilding)
	w.phase("second", api.PhaseBuilding)
	w.removeTekton()

	gone := func(b *api.AgentBuild) {
		w.Helper()
		w.must(w.Client.Delete(w.Context(), b))
		w.eventually(b.Name+" is gone", func() string {
			if err := w.Get(w.Context(), client.ObjectKeyFromObject(b),
				&api.AgentBuild{}); !apierrors.IsNotFound(err) {
				return "it is still there"
			}
			return ""
		})
	}
	gone(first)
	stop()
	w.start()
	gone(second)

	w.create("third")
	tekton, err := controlplane.ModuleDir("github.com/tektoncd/pipeline")
	w.must(err)
	w.must(plane.InstallCRDs(filepath.Join(tekton, "config", "300-crds")))
	w.phase("third", api.PhaseBuilding)
	w.eventually("one run exists", func() string {
		if len(w.runs()) != 1 {
			return "there are others"
		}
		return ""
	})
}

// removeTekton deletes its CRDs and waits until the API server serves none.
func (w *world) removeTekton() {
	w.Helper()
	scheme := runtime.NewScheme()
	w.must(apiextensionsv1.AddToScheme(scheme))
	c, err := client.New(w.config, client.Options{Scheme: scheme})
	w.must(err)
	crds := func() (out []apiextensionsv1.CustomResourceDefinition) {
		var list apiextensionsv1.CustomResourceDefinitionList
		w.must(c.List(w.Context(), &list))
		for _, crd := range list.Items {
			if crd.Spec.Group == "tekton.dev" {
				out = append(out, crd)
			}
		}
		return out
	}
	for _, crd := range crds() {
		w.must(c.Delete(w.Context(), &crd))
	}
	w.within(5*time.Minute, "Tekton's CRDs are gone", func() string {
		if len(crds()) > 0 {
			return "some are there"
		}
		err := c.List(w.Context(),
			&metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "tekton.dev/v1",
				Kind: "PipelineRunList"}})
		if !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			return "runs are still served"
		}
		return ""
	})
}
