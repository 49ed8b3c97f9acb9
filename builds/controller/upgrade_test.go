package controller_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/recipe"
	"github.com/armature-dev/armature/functions/api/keys"
)

// The builds and runs of an earlier release are taken over: they are valid, nothing is
// built twice, a run that was under way is followed to its end, and a change starts the
// next run.
func TestUpgrade(t *testing.T) {
	w := newWorld(t)
	w.own("pipeline-template-own", recipe.TemplateKeyYAML, "steps: [{name: only, configMap: own-step}]")
	w.own("own-step", recipe.StepKey, "steps: [{name: say, image: busybox, command: [echo, one]}]")
	before := w.earlier("testdata/upgrade/6931e67.yaml")
	if len(before) != 4 || len(w.runs()) != 3 {
		t.Fatalf("the earlier release left %d builds and %d runs", len(before), len(w.runs()))
	}
	w.start()

	w.eventually("the run that was under way is followed", func() string {
		run := &tektonv1.PipelineRun{}
		w.must(w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "running-88b9d90eb0"}, run))
		if run.Status.CompletionTime == nil {
			w.succeed(run)
		}
		b := w.build("running")
		if b.Status.Phase != api.PhaseSucceeded || b.Status.BuiltImage != "registry.local:5000/running:v1@"+digest {
			return fmt.Sprintf("%s: %s", b.Status.Phase, b.Status.Message)
		}
		return ""
	})
	for name, want := range map[string]api.Phase{"done": api.PhaseSucceeded, "cleaned": api.PhaseSucceeded, "failed": api.PhaseFailed} {
		b := w.phase(name, want)
		if b.Status.RunNumber != 1 || b.Status.BuiltImage != before[name].Status.BuiltImage {
			t.Errorf("build %s: run %d, image %q; it was 1, %q", name, b.Status.RunNumber, b.Status.BuiltImage, before[name].Status.BuiltImage)
		}
	}
	w.never("a build that an earlier release ran is run again", func() string {
		if writes, by := w.writes.total(); by["POST pipelineruns"] > 0 {
			return fmt.Sprintf("%d writes: %v", writes, by)
		}
		return ""
	})

	for n, name := range []string{"done", "cleaned", "failed"} {
		w.change(w.build(name), retag("v2"))
		w.eventually("the change of build "+name+" starts run 2", func() string {
			for _, run := range w.runs() {
				if run.Annotations[keys.AnnotationBuild] == name && run.Annotations[keys.AnnotationNumber] == "2" {
					return ""
				}
			}
			return fmt.Sprintf("%d runs, after %d changes", len(w.runs()), n+1)
		})
	}
}

// earlier puts the objects of a file into the cluster, as the controller of an earlier
// release left them there, and gives the builds by name.
func (w *world) earlier(file string) map[string]*api.AgentBuild {
	w.Helper()
	text, err := os.ReadFile(file)
	w.must(err)
	builds := map[string]*api.AgentBuild{}
	decoder := utilyaml.NewYAMLToJSONDecoder(bytes.NewReader(text))
	for {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(&u.Object); errors.Is(err, io.EOF) {
			return builds
		} else {
			w.must(err)
		}
		if u.Object == nil {
			continue
		}
		u.SetNamespace(w.namespace)
		owners := u.GetOwnerReferences()
		for i := range owners {
			owners[i].UID = builds[owners[i].Name].UID
		}
		u.SetOwnerReferences(owners)
		status := u.Object["status"]
		w.must(w.Client.Create(w.Context(), u))
		u.Object["status"] = status
		w.must(w.Status().Update(w.Context(), u))
		if u.GetKind() == "AgentBuild" {
			b := &api.AgentBuild{}
			w.must(runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b))
			builds[b.Name] = b
		}
	}
}
