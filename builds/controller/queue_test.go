package controller_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
)

// queued waits until a build says that it waits, with this in its message.
func (w *world) queued(name, message string) *api.AgentBuild {
	w.Helper()
	var b *api.AgentBuild
	w.eventually(fmt.Sprintf("build %s waits, and says %q", name, message), func() string {
		b = w.build(name)
		for _, kind := range []string{api.ConditionReady, api.ConditionRunExists,
			api.ConditionSucceeded} {
			if c := condition(b, kind); c.Reason != api.ReasonQueued ||
				c.Status == metav1.ConditionTrue || !strings.Contains(c.Message, message) ||
				c.ObservedGeneration != b.Generation {
				return fmt.Sprintf("%+v", c)
			}
		}
		if b.Status.Phase != api.PhasePending || b.Status.ObservedGeneration != b.Generation {
			return string(b.Status.Phase)
		}
		return ""
	})
	return b
}

// inLine is the message of a build that waits.
const inLine = "waits until other builds end"

// soleRun waits for the only run of the namespace that is under way, which is of a build.
func (w *world) soleRun(build string) *tektonv1.PipelineRun {
	w.Helper()
	var found *tektonv1.PipelineRun
	w.eventually("the run of "+build+" is the one under way", func() string {
		var others []string
		found = nil
		for _, run := range w.runs() {
			if run.Status.CompletionTime != nil {
				continue
			}
			if name := run.Annotations[keys.AnnotationBuild]; name != build {
				others = append(others, name)
			} else {
				found = &run
			}
		}
		if found == nil || len(others) > 0 {
			return fmt.Sprintf("runs of %v", others)
		}
		return ""
	})
	return found
}

// What happens to a build that waits: nothing is made for it; it may be deleted,
// cancelled, changed and preferred; one with a problem holds up nobody; retries and
// reruns wait as well, and keep what the status says of the last run.
func TestQueue(t *testing.T) {
	w := newWorld(t)
	w.options.MaxRunningPerNamespace = 1
	w.options.Settings.PipelineObjects = true
	counted := w.census()
	w.start()
	// In the order of their names, where their creation times are the same second.
	w.create("a-first", kept)
	w.soleRun("a-first")
	w.create("broken", func(b *api.AgentBuild) {
		b.Spec.Source.SourceCredentials = &corev1.LocalObjectReference{Name: "none"}
	})
	if c := condition(w.phase("broken", api.PhaseFailed),
		api.ConditionReady); c.Reason != api.ReasonSourceSecretNotFound {
		t.Errorf("condition: %+v", c)
	}
	w.create("b-second", kept)
	w.queued("b-second", inLine)
	w.create("c-deleted")
	w.queued("c-deleted", inLine)
	w.create("d-cancelled")
	w.queued("d-cancelled", inLine)
	w.create("e-third", kept, func(b *api.AgentBuild) {
		b.Spec.Retries = &api.Retries{Limit: 1,
			Backoff: &metav1.Duration{Duration: time.Millisecond},
			After:   []api.RetryOn{api.RetryAny}}
	})
	third := w.queued("e-third", inLine)
	w.must(w.Client.Delete(t.Context(), w.build("c-deleted")))
	w.change(w.build("d-cancelled"), func(b *api.AgentBuild) { b.Spec.Cancel = true })
	w.phase("d-cancelled", api.PhaseCancelled)
	w.queued("e-third", inLine)
	w.change(third, retag("v2"))
	w.queued("e-third", inLine)
	w.change(third, func(b *api.AgentBuild) { b.Spec.Priority = 1000 })
	w.queued("e-third", inLine)
	var pipelines tektonv1.PipelineList
	w.must(w.List(t.Context(), &pipelines, client.InNamespace(w.namespace)))
	if runs := w.runs(); len(runs) != 1 || len(pipelines.Items) != 1 {
		t.Errorf("%d runs and %d pipelines exist, want 1 of each", len(runs), len(pipelines.Items))
	}

	w.succeed(w.soleRun("a-first"))
	run := w.soleRun("e-third")
	if image := run.Annotations[keys.AnnotationImage]; !strings.HasSuffix(image, ":v2") {
		t.Errorf("the run builds %s, which is not of the changed spec", image)
	}
	// A spec that changes during a run waits for its next one behind the others.
	w.change(third, func(b *api.AgentBuild) { b.Spec.Priority = -1 })
	w.failAt(run, "kaniko-build", "build-and-push", 1, "Error")
	w.soleRun("b-second")
	got := w.queued("e-third", inLine)
	if s := got.Status; s.FailureDetails == nil || s.FailureDetails.Step != "build-and-push" ||
		s.PipelineRunName != run.Name || s.LastRunPhase != api.PhaseFailed || s.Attempt != 1 {
		t.Errorf("the failed attempt is not in status: %+v", s)
	}
	if got.Over() {
		t.Error("a build that waits for its next attempt is over")
	}
	w.change(w.build("a-first"), func(b *api.AgentBuild) {
		b.Annotations = map[string]string{"agent.kagenti.dev/rerun": "one"}
	})
	if got := w.queued("a-first", inLine); got.Status.BuiltImage == "" {
		t.Error("the image of before is forgotten")
	}
	w.succeed(w.soleRun("b-second"))
	w.succeed(w.soleRun("a-first"))
	w.phase("a-first", api.PhaseSucceeded)
	again := w.soleRun("e-third")
	w.succeed(again)
	if got := w.phase("e-third", api.PhaseSucceeded); got.Status.Attempt != 2 ||
		got.Status.RunReason != api.TriggerRetry {
		t.Errorf("attempt %d because of %s", got.Status.Attempt, got.Status.RunReason)
	}
	counted.mu.Lock()
	defer counted.mu.Unlock()
	if counted.peak != 1 || len(counted.started) != 5 || counted.failed != "" {
		t.Errorf("%d runs at once, %d in all: %v %s", counted.peak, len(counted.started),
			counted.started, counted.failed)
	}
}

// A rerun that is withdrawn while it waits leaves the build as it was.
func TestQueueWithdrawnRerun(t *testing.T) {
	w := newWorld(t)
	w.options.MaxRunningPerNamespace = 1
	w.start()
	w.create("weather")
	w.succeed(w.soleRun("weather"))
	before := w.phase("weather", api.PhaseSucceeded)
	w.left(0)
	w.create("other")
	w.soleRun("other")
	w.change(before, retag("v2"))
	w.queued("weather", inLine)
	w.change(before, retag("v1"))
	after := w.phase("weather", api.PhaseSucceeded)
	if c := condition(after, api.ConditionReady); c.Status != metav1.ConditionTrue ||
		after.Status.BuiltImage != before.Status.BuiltImage || after.Status.FailureDetails != nil {
		t.Errorf("status: %+v", after.Status)
	}
	w.soleRun("other")
}

// Many builds at once, many reconciles at once, one place.
func TestQueueOnePlace(t *testing.T) {
	w := newWorld(t)
	w.options.MaxRunning = 1
	counted := w.census()
	counted.succeedAll(w)
	w.start()
	const builds = 30
	w.burst(0, builds)
	w.eventually("all builds are done", func() string {
		if n := w.inPhase(api.PhaseSucceeded); n != builds {
			return fmt.Sprintf("%d of %d", n, builds)
		}
		return ""
	})
	counted.mu.Lock()
	defer counted.mu.Unlock()
	if counted.peak != 1 || len(counted.started) != builds || counted.failed != "" {
		t.Errorf("%d runs at once, %d in all of %d builds: %s", counted.peak, len(counted.started),
			builds, counted.failed)
	}
}

// A create whose answer is lost keeps its place, and the run is made once.
func TestQueueLostCreate(t *testing.T) {
	w := newWorld(t)
	w.options.MaxRunning = 1
	f := w.faulty()
	f.lost.Store(true)
	counted := w.census()
	w.start()
	w.create("a")
	w.soleRun("a")
	w.create("b")
	w.queued("b", inLine)
	w.succeed(w.soleRun("a"))
	w.succeed(w.soleRun("b"))
	w.phase("b", api.PhaseSucceeded)
	counted.mu.Lock()
	defer counted.mu.Unlock()
	if counted.peak != 1 || len(counted.started) != 2 {
		t.Errorf("%d runs at once, %d in all", counted.peak, len(counted.started))
	}
}

// A run that the API server refuses leaves its place to another build.
func TestQueueDenied(t *testing.T) {
	w := newWorld(t)
	other := w.namespace + "-other"
	w.must(w.Client.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}))
	w.options.Namespaces = append(w.options.Namespaces, other)
	w.options.MaxRunning = 1
	defer w.deny()()
	w.start()
	w.create("denied")
	if c := condition(w.phase("denied", api.PhaseFailed),
		api.ConditionReady); c.Reason != api.ReasonRunDenied {
		t.Errorf("condition: %+v", c)
	}
	b := w.newBuild("weather")
	b.Namespace = other
	w.must(w.Client.Create(t.Context(), b))
	w.eventually("the build of the other namespace runs", func() string {
		w.must(w.Get(t.Context(), client.ObjectKeyFromObject(b), b))
		if b.Status.Phase != api.PhaseBuilding {
			return b.Status.Message
		}
		return ""
	})
}

// The annotation on a Namespace lowers its limit and never raises it. A text that is
// not a limit stops the namespace with a remedy; a limit below what runs stops no run.
func TestQueueAnnotation(t *testing.T) {
	w := newWorld(t)
	w.options.MaxRunningPerNamespace = 2
	annotate := func(value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, keys.AnnotationMaxRunning, value)
		w.must(w.Patch(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}},
			client.RawPatch(types.MergePatchType, []byte(patch))))
	}
	annotate(`"five"`)
	counted := w.census()
	w.start()
	for i := range 6 {
		w.create(fmt.Sprintf("b%d", i), kept)
	}
	w.queued("b0", `the annotation armature.dev/max-running of Namespace `+w.namespace+` is "five"`)
	if n := len(w.runs()); n != 0 {
		t.Fatalf("%d runs", n)
	}
	annotate(`"7"`)
	w.left(2)
	w.queued("b2", inLine)
	annotate(`"none"`)
	w.queued("b2", `is "none"`)
	annotate(`"1"`)
	w.queued("b2", inLine)
	runs := w.runs()
	w.succeed(&runs[0])
	w.never("a run above the lowered limit", func() string {
		if n := len(w.runs()); n != 2 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
	w.succeed(&runs[1])
	w.left(3)
	w.never("a second run at once", func() string {
		if n := len(w.runs()); n != 3 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
	annotate("null")
	w.left(4)
	counted.mu.Lock()
	defer counted.mu.Unlock()
	if counted.peak != 2 {
		t.Errorf("%d runs at once", counted.peak)
	}
}

// A copy of a run that is gone, as a tenant can make, takes no place.
func TestQueueCopiedRun(t *testing.T) {
	w := newWorld(t)
	w.options.MaxRunning = 1
	w.start()
	w.create("weather")
	run := w.soleRun("weather")
	w.succeed(run)
	w.phase("weather", api.PhaseSucceeded)
	w.left(0)
	w.must(w.Client.Create(t.Context(),
		&tektonv1.PipelineRun{Spec: run.Spec, ObjectMeta: metav1.ObjectMeta{
			Namespace: run.Namespace, Name: run.Name, Labels: run.Labels,
			Annotations: run.Annotations, OwnerReferences: run.OwnerReferences}}))
	w.never("the copy is the build's run", func() string {
		if b := w.build("weather"); b.Status.Phase != api.PhaseSucceeded ||
			b.Status.PipelineRunUID != run.UID {
			return fmt.Sprintf("%s of %s", b.Status.Phase, b.Status.PipelineRunUID)
		}
		return ""
	})
	w.create("other")
	w.phase("other", api.PhaseBuilding)
}

// A replica that takes over counts the runs that the leader before it began.
func TestQueueHandover(t *testing.T) {
	w := newWorld(t)
	w.options.Namespace = w.namespace // a lease of its own
	w.own("pipeline-template-own", "template.yaml", followsTemplate)
	w.own("own-step", "task-spec.yaml", followsStep)
	own := func(b *api.AgentBuild) { b.Spec.Mode = "own" }
	w.options.LeaderElection, w.options.MaxRunning = true, 1
	stop := w.start()
	w.create("first", own)
	w.soleRun("first")
	w.start()
	stop()
	w.create("second", own)
	w.queued("second", inLine)
	w.left(1)
	w.succeed(w.soleRun("first"))
	w.soleRun("second")
}
