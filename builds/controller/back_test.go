package controller_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
)

// Going back to an earlier spec, step or rerun mark is a change like any other: it
// gets a run of its own, whether or not the earlier one still exists, and status
// reports it.
func TestBackToAnEarlierSpec(t *testing.T) {
	for _, keep := range []bool{true, false} {
		t.Run(fmt.Sprintf("cleanup=%v", !keep), func(t *testing.T) {
			w := newWorld(t)
			w.start()
			clean := !keep
			b := w.create("weather", func(b *api.AgentBuild) { b.Spec.CleanupAfterBuild = &clean })
			names := map[string]bool{}
			for i, tag := range []string{"v1", "v2", "v1", "v2"} {
				w.change(b, retag(tag))
				w.ended(i + 1)
				got := w.phase("weather", api.PhaseSucceeded)
				if got.Status.BuiltImage != "registry.local:5000/weather:"+tag+"@"+digest {
					t.Errorf("run %d built %s", i+1, got.Status.BuiltImage)
				}
				names[got.Status.PipelineRunName] = true
			}
			if len(names) != 4 {
				t.Errorf("a name was used twice: %v", names)
			}
		})
	}
}

// ended waits for the n-th run of build weather, and ends it well.
func (w *world) ended(n int) {
	w.Helper()
	w.eventually(fmt.Sprintf("run %d exists", n), func() string {
		for _, run := range w.runs() {
			if run.Annotations[keys.AnnotationNumber] == fmt.Sprint(n) &&
				run.DeletionTimestamp == nil {
				if run.Status.CompletionTime == nil {
					w.succeed(&run)
				}
				return ""
			}
		}
		return fmt.Sprintf("%d others", len(w.runs()))
	})
}

func TestBackToAnEarlierStep(t *testing.T) {
	w := newWorld(t)
	w.own("pipeline-template-own", templates.TemplateKeyYAML,
		"steps: [{name: only, configMap: own-step}]")
	step := func(word string) string {
		return "steps: [{name: say, image: busybox, command: [echo, " + word + "]}]"
	}
	w.own("own-step", templates.StepKey, step("one"))
	w.start()
	keep := false
	w.create("weather", func(b *api.AgentBuild) { b.Spec.Mode, b.Spec.CleanupAfterBuild = "own", &keep })
	for i, word := range []string{"one", "two", "one"} {
		w.rewrite("own-step", templates.StepKey, step(word))
		w.ended(i + 1)
		w.eventually("status reports the run", func() string {
			if s := w.build("weather").Status; s.RunNumber != int32(i+1) ||
				s.Phase != api.PhaseSucceeded {
				return fmt.Sprintf("run %d: %s", s.RunNumber, s.Phase)
			}
			return ""
		})
	}
}

// A controller that dies right after it created the run, and one whose answer got
// lost, leave one run and a status that reports it.
func TestBackToAnEarlierSpecWithACrash(t *testing.T) {
	w := newWorld(t)
	keep := false
	died := make(chan struct{})
	var stop func()
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		posts := 0
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/pipelineruns") {
				return next.RoundTrip(r)
			}
			response, err := next.RoundTrip(r)
			if posts++; posts == 3 {
				// Nothing that the controller would still write arrives.
				go func() { stop(); close(died) }()
				<-r.Context().Done()
				if err == nil {
					_ = response.Body.Close()
				}
				return nil, r.Context().Err()
			}
			return response, err
		})
	})
	stop = w.start()
	b := w.create("weather", func(b *api.AgentBuild) { b.Spec.CleanupAfterBuild = &keep })
	w.ended(1)
	w.phase("weather", api.PhaseSucceeded)
	w.change(b, retag("v2"))
	w.ended(2)
	w.phase("weather", api.PhaseSucceeded)
	w.change(b, retag("v1"))
	<-died
	if got := w.build("weather").Status; len(w.runs()) != 3 || got.RunNumber != 2 {
		t.Fatalf("%d runs, and status reports run %d", len(w.runs()), got.RunNumber)
	}
	w.start()
	w.ended(3)
	if got := w.phase("weather", api.PhaseSucceeded).Status; got.RunNumber != 3 ||
		got.BuiltImage != "registry.local:5000/weather:v1@"+digest {
		t.Errorf("run %d built %s", got.RunNumber, got.BuiltImage)
	}
	w.left(3)
}
