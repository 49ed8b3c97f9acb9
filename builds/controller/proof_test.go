package controller_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
)

// copyOf is a run with all that a tenant can copy of another, for a build.
func copyOf(run *tektonv1.PipelineRun, b *api.AgentBuild) *tektonv1.PipelineRun {
	forged := &tektonv1.PipelineRun{Spec: *run.Spec.DeepCopy(),
		ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace, Name: run.Name, Labels: run.Labels, Annotations: map[string]string{}, OwnerReferences: run.OwnerReferences}}
	for k, v := range run.Annotations {
		forged.Annotations[k] = v
	}
	forged.OwnerReferences[0].Name, forged.OwnerReferences[0].UID = b.Name, b.UID
	return forged
}

// hostile is a pipeline of the tenant's.
func hostile(run *tektonv1.PipelineRun) *tektonv1.PipelineRun {
	run.Spec.PipelineSpec.Tasks[0].TaskSpec.Steps[0].Image = "hostile"
	return run
}

// attestedMode makes a build of mode prod, which is attested.
func attestedMode(b *api.AgentBuild) { b.Spec.Mode, b.Spec.CleanupAfterBuild = "prod", new(bool) }

// A run that a tenant made first, with our labels, owner and annotations, is not
// adopted under any name: not from another build's run, and not with a proof that
// was made for that.
func TestForgedRunIsNotAdopted(t *testing.T) {
	w := newWorld(t)
	stop := w.start()
	w.create("weather", kept)
	first := w.run(1)
	w.phase("weather", api.PhaseBuilding)
	stop()
	// The same build again: its run will have the same name, number and annotations.
	b := w.build("weather")
	w.change(b, func(b *api.AgentBuild) { b.Finalizers = nil })
	w.must(w.Client.Delete(t.Context(), b))
	w.must(w.Client.Delete(t.Context(), first))
	b = w.create("weather", kept)
	same := hostile(copyOf(first, b))
	w.must(w.Client.Create(t.Context(), same))
	other := hostile(copyOf(first, b))
	other.Name += "-2"
	other.Annotations[keys.AnnotationNumber] = "2"
	w.must(w.Client.Create(t.Context(), other))
	for _, run := range w.runs() {
		w.succeed(&run)
	}

	w.start()
	got := w.phase("weather", api.PhaseFailed)
	if c := condition(got, api.ConditionRunExists); c.Reason != api.ReasonRunForeign || c.Status != metav1.ConditionFalse {
		t.Errorf("condition %+v", c)
	}
	if s := got.Status; s.BuiltImage != "" || s.PipelineRunName != "" {
		t.Errorf("status speaks of a forged run: %+v", s)
	}
	// Without them the build goes on, with a run of its own.
	for _, run := range []*tektonv1.PipelineRun{same, other} {
		w.must(w.Client.Delete(t.Context(), run))
	}
	own := w.run(1)
	got = w.phase("weather", api.PhaseBuilding)
	if got.Status.PipelineRunUID != own.UID {
		t.Errorf("status has run %s, the build made %s", got.Status.PipelineRunUID, own.UID)
	}
}

// A run that takes the place of ours, with everything copied, does not count: its
// UID is another one.
func TestReplacedRunDoesNotCount(t *testing.T) {
	w := newWorld(t)
	w.start()
	b := w.create("weather", kept)
	run := w.run(1)
	w.phase("weather", api.PhaseBuilding)
	w.must(w.Client.Delete(t.Context(), run))
	replaced := copyOf(run, b)
	w.eventually("the name is free", func() string {
		if err := w.Client.Create(t.Context(), replaced.DeepCopy()); err != nil {
			return err.Error()
		}
		return ""
	})
	w.succeed(replaced)
	got := w.phase("weather", api.PhaseFailed)
	if c := condition(got, api.ConditionReady); c.Reason != api.ReasonRunDeleted || got.Status.BuiltImage != "" {
		t.Errorf("builtImage %q, condition %+v", got.Status.BuiltImage, c)
	}
}

// A run whose annotations or labels somebody else edits no longer counts, and the
// build says so.
func TestEditedRunDoesNotCount(t *testing.T) {
	for name, edit := range map[string]func(*tektonv1.PipelineRun){
		"commit": func(run *tektonv1.PipelineRun) { run.Annotations[keys.AnnotationCommit] = strings.Repeat("b", 40) },
		"image": func(run *tektonv1.PipelineRun) {
			run.Annotations[keys.AnnotationImage] = "registry.local:5000/other:v1"
		},
		"proof": func(run *tektonv1.PipelineRun) { delete(run.Annotations, keys.AnnotationProof) },
		"label": func(run *tektonv1.PipelineRun) { delete(run.Labels, compose.LabelManagedBy) },
		"owner": func(run *tektonv1.PipelineRun) { run.OwnerReferences = nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.start()
			w.create("weather", kept)
			run := w.run(1)
			w.phase("weather", api.PhaseBuilding)
			before := run.DeepCopy()
			edit(run)
			w.must(w.Patch(t.Context(), run, client.MergeFrom(before)))
			got := w.phase("weather", api.PhaseFailed)
			if c := condition(got, api.ConditionReady); c.Reason != api.ReasonRunForeign || !strings.Contains(c.Message, "somebody else changed run "+run.Name) {
				t.Errorf("condition %+v", c)
			}
			w.succeed(run)
			w.never("a result of the edited run", func() string { return w.build("weather").Status.BuiltImage })
		})
	}
}

// errKilled is what a killed controller sees of the API server: nothing.
var errKilled = errors.New("killed")

// killedAfterCreate lets a controller create one run and nothing after it, not even
// read the answer.
func (w *world) killedAfterCreate() {
	w.Helper()
	var killed atomic.Bool
	whole := w.config
	w.config = rest.CopyConfig(whole)
	created := make(chan struct{})
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if killed.Load() && r.Method != http.MethodGet {
				return nil, errKilled
			}
			response, err := next.RoundTrip(r)
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pipelineruns") && err == nil && response.StatusCode == http.StatusCreated && killed.CompareAndSwap(false, true) {
				_ = response.Body.Close()
				close(created)
				return nil, errKilled
			}
			return response, err
		})
	})
	stop := w.start()
	select {
	case <-created:
	case <-time.After(time.Minute):
		w.Fatal("no run was created")
	}
	stop()
	w.config = whole
}

// A controller that is killed between the create and its answer finds its run
// again, and builds nothing twice.
func TestKilledBeforeAnswer(t *testing.T) {
	for _, mode := range []string{"dev", "prod"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t)
			edit := attestedMode
			if mode == "dev" {
				edit = kept
			}
			w.create("weather", edit)
			w.killedAfterCreate()
			run := w.run(1)
			if got := w.build("weather").Status; got.PipelineRunUID != "" {
				t.Fatalf("status knows of run %s already", got.PipelineRunUID)
			}
			w.start()
			got := w.phase("weather", api.PhaseBuilding)
			if got.Status.PipelineRunUID != run.UID {
				t.Errorf("status has run %q, the build made %s", got.Status.PipelineRunUID, run.UID)
			}
			w.never("a second run", func() string {
				if n := len(w.runs()); n != 1 {
					return fmt.Sprintf("%d runs", n)
				}
				return ""
			})
		})
	}
}
