package controller_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/e2e/controlplane"
)

// The controller does all its work under the ServiceAccount that `armature
// install` makes, and is never forbidden anything.
func TestShippedRBAC(t *testing.T) {
	for _, mode := range []string{"cluster", "namespaced"} {
		t.Run(mode, func(t *testing.T) {
			plane := controlplane.Start(t)
			w := newWorldOn(t, plane)
			tekton, err := controlplane.ModuleDir("github.com/tektoncd/pipeline")
			w.must(err)
			w.must(plane.InstallCRDs(tekton + "/config/300-crds"))
			args := []string{"run", "../../cmd/armature", "install", "--mode", mode}
			if mode == "namespaced" {
				args = append(args, "--watch", w.namespace)
			}
			w.applyAll(args)

			access, err := plane.ServiceAccount(t.Context(), systemNamespace, "armature-controller")
			w.must(err)
			forbidden := &controlplane.Forbidden{}
			w.config = access.Config
			w.config.Wrap(forbidden.Wrap)
			w.options.Namespaces = nil
			if mode == "namespaced" {
				w.options.Namespaces = []string{systemNamespace, w.namespace}
			}
			w.options.LeaderElection = true
			w.options.MaxRunning = 8
			w.options.Settings.PipelineObjects = true
			w.options.Pod = "armature-controller-0"
			w.pod(w.options.Pod, corev1.Container{Name: "controller", Image: "registry.local/controller:v1"})
			w.start()

			w.login("login", compose.PurposeRegistry, map[string]string{"config.json": "{}"})
			w.must(w.Client.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "builder"}}))
			w.create("weather", func(b *api.AgentBuild) {
				b.Spec.BuildOutput.ImageRepoCredentials = &corev1.LocalObjectReference{Name: "login"}
				b.Spec.ServiceAccountName = "builder"
				b.Spec.Workspace = &api.Workspace{Keep: true}
				b.Spec.Retries = &api.Retries{Limit: 1, Backoff: &metav1.Duration{Duration: time.Millisecond}, After: []api.RetryOn{api.RetryAny}}
			})
			w.failAt(w.run(1), "kaniko-build", "build-and-push", 1, "Error")
			w.run(2)
			for _, run := range w.runs() {
				if run.Status.CompletionTime == nil {
					w.succeed(&run)
				}
			}
			w.phase("weather", api.PhaseSucceeded)
			b := w.create("cancelled")
			w.phase("cancelled", api.PhaseBuilding)
			w.change(b, func(b *api.AgentBuild) { b.Spec.Cancel = true })
			w.eventually("a run is cancelled", func() string {
				for _, run := range w.runs() {
					if run.Spec.Status != "" {
						return ""
					}
				}
				return "none is"
			})
			w.must(w.Client.Delete(t.Context(), b))
			w.eventually("the deleted build's runs are gone", func() string {
				for _, run := range w.runs() {
					if run.Annotations["armature.dev/build-name"] == "cancelled" {
						return run.Name
					}
				}
				return ""
			})
			time.Sleep(300 * time.Millisecond) // the last events leave
			if got := forbidden.All(); len(got) > 0 {
				t.Errorf("forbidden: %s", strings.Join(got, "\n"))
			}
		})
	}
}

// applyAll makes every object that a command prints.
func (w *world) applyAll(command []string) {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), "go", command...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	w.must(err)
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(u); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			w.Fatal(err)
		}
		w.eventually("applying "+u.GetKind()+" "+u.GetName(), func() string {
			if err := w.Client.Create(w.Context(), u.DeepCopy()); err != nil && !strings.Contains(err.Error(), "already exists") {
				return err.Error()
			}
			return ""
		})
	}
}
