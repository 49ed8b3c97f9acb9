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
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
)

// attestedMode makes a build of mode prod, which is attested.
func attestedMode(b *api.AgentBuild) { b.Spec.Mode, b.Spec.CleanupAfterBuild = "prod", new(bool) }

// A run of a mode that is not isolated, which somebody takes from its build, no longer counts, and
// the build says so.
func TestEditedRunDoesNotCount(t *testing.T) {
	for name, edit := range map[string]func(*tektonv1.PipelineRun){
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
			if c := condition(got, api.ConditionReady); c.Reason != api.ReasonRunForeign ||
				!strings.Contains(c.Message, "somebody else changed run "+run.Name) {
				t.Errorf("condition %+v", c)
			}
			w.succeed(run)
			w.never("a result of the edited run",
				func() string { return w.build("weather").Status.BuiltImage })
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
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pipelineruns") &&
				err == nil && response.StatusCode == http.StatusCreated &&
				killed.CompareAndSwap(false, true) {
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
