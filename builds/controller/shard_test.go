package controller_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process"
)

const shardKey = "sharding.fluxcd.io/key"

// inShard makes a build of a shard.
func inShard(value string) func(*api.AgentBuild) {
	return func(b *api.AgentBuild) { metav1.SetMetaDataLabel(&b.ObjectMeta, shardKey, value) }
}

// startShard starts a controller of a shard, that of the objects without the label if value is
// empty.
func (w *world) startShard(value string) (stop func()) {
	w.Helper()
	w.options.Shard = process.Shard{Key: shardKey, Value: value}
	return w.start()
}

// shardOf waits until a run has the label of a shard.
func (w *world) shardOf(run *tektonv1.PipelineRun, want string) {
	w.Helper()
	w.eventually("run "+run.Name+" is of shard "+want, func() string {
		fresh := &tektonv1.PipelineRun{}
		w.must(w.Get(w.Context(), client.ObjectKeyFromObject(run), fresh))
		if got := fresh.Labels[shardKey]; got != want {
			return fmt.Sprintf("shard %q", got)
		}
		return ""
	})
}

func (w *world) stay(runs int) {
	w.Helper()
	w.never("another run", func() string {
		if n := len(w.runs()); n != runs {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
}

// Each shard builds its own, and the runs of a build have its shard.
func TestShards(t *testing.T) {
	w := newWorld(t)
	w.startShard("a")
	w.startShard("")
	w.create("of-a", inShard("a"))
	w.shardOf(w.run(1), "a")
	w.phase("of-a", api.PhaseBuilding)
	w.create("of-none")
	w.run(2)
	w.phase("of-none", api.PhaseBuilding)
	w.create("of-b", inShard("b"))
	w.stay(2)
	w.startShard("b")
	w.phase("of-b", api.PhaseBuilding)
	w.stay(3)
	for _, run := range w.runs() {
		if want := w.build(run.Annotations[keys.AnnotationBuild]).
			Labels[shardKey]; run.Labels[shardKey] != want {
			t.Errorf("run %s: labels %v, its build has %q", run.Name, run.Labels, want)
		}
	}
}

// A build that moves to another shard in the middle of its run keeps the run, whether the shard
// that it leaves is there or not: its result is recorded by the other one, and a retry follows it.
func TestShardMoves(t *testing.T) {
	for _, mode := range []string{"dev", "prod"} {
		for _, left := range []string{"there", "gone"} {
			t.Run(mode+" "+left, func(t *testing.T) {
				w := newWorld(t)
				stop := w.startShard("a")
				w.create("weather", inShard("a"), func(b *api.AgentBuild) {
					b.Spec.Mode, b.Spec.Retries =
						mode, &api.Retries{Limit: 1, After: []api.RetryOn{api.RetryAny},
							Backoff: &metav1.Duration{Duration: time.Millisecond}}
				})
				run := w.run(1)
				w.shardOf(run, "a")
				b := w.phase("weather", api.PhaseBuilding)
				if left == "gone" {
					stop()
				}
				w.startShard("b")
				w.change(b, inShard("b"))
				w.shardOf(run, "b")
				w.stay(1)
				w.fail(run)
				again := w.run(2)
				w.shardOf(again, "b")
				w.fail(again)
				got := w.phase("weather", api.PhaseFailed)
				if got.Status.PipelineRunUID != again.UID || got.Status.RunNumber != 2 {
					t.Errorf("status has run %d, %q; the second is %q", got.Status.RunNumber,
						got.Status.PipelineRunUID, again.UID)
				}
				w.stay(2)
			})
		}
	}
}

// A build that changes when it moves waits for its run, which is of the other shard.
func TestShardMovesWithAnotherSpec(t *testing.T) {
	w := newWorld(t)
	stop := w.startShard("a")
	w.create("weather", inShard("a"), kept)
	run := w.run(1)
	b := w.phase("weather", api.PhaseBuilding)
	stop()
	w.change(b, func(b *api.AgentBuild) { inShard("b")(b); b.Spec.BuildOutput.ImageTag = "v2" })
	w.startShard("b")
	w.startShard("a")
	w.shardOf(run, "b")
	w.stay(1)
	w.succeed(run)
	w.shardOf(w.run(2), "b")
	w.stay(2)
}

// A controller that is killed when it has created a run, whose build then moves, leaves a run that
// the other shard takes; it makes no second one when it is back.
func TestShardKilled(t *testing.T) {
	for _, mode := range []string{"dev", "prod"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t)
			b := w.create("weather", inShard("a"), func(b *api.AgentBuild) { b.Spec.Mode = mode })
			w.options.Shard = process.Shard{Key: shardKey, Value: "a"}
			w.killedAfterCreate()
			run := w.run(1)
			w.change(b, inShard("b"))
			w.startShard("b")
			if got := w.phase("weather", api.PhaseBuilding); got.Status.PipelineRunUID != run.UID {
				t.Errorf("status has run %q, want %q", got.Status.PipelineRunUID, run.UID)
			}
			w.shardOf(run, "b")
			w.startShard("a")
			w.stay(1)
		})
	}
}

// A forged label of a run decides nothing: the run gets that of its build again.
func TestForgedShard(t *testing.T) {
	w := newWorld(t)
	w.startShard("a")
	w.startShard("b")
	w.create("weather", inShard("a"), kept)
	run := w.run(1)
	w.phase("weather", api.PhaseBuilding)
	for _, forged := range []string{"b", "nobody", ""} {
		before := run.DeepCopy()
		if run.Labels[shardKey] = forged; forged == "" {
			delete(run.Labels, shardKey)
		}
		w.must(w.Patch(t.Context(), run, client.MergeFrom(before)))
		w.shardOf(run, "a")
		w.must(w.Get(t.Context(), client.ObjectKeyFromObject(run), run))
	}
	w.succeed(run)
	w.phase("weather", api.PhaseSucceeded)
	w.stay(1)
}

// A build that moves when nothing of it runs takes the runs that are kept along, and is not built
// again.
func TestShardMovesAtRest(t *testing.T) {
	w := newWorld(t)
	w.startShard("a")
	w.startShard("b")
	w.create("weather", inShard("a"), kept)
	run := w.run(1)
	w.succeed(run)
	b := w.phase("weather", api.PhaseSucceeded)
	w.change(b, inShard("b"))
	w.shardOf(run, "b")
	w.stay(1)
	w.must(w.Client.Delete(t.Context(), w.build("weather")))
	w.left(0)
}

// A tenant has its isolated runs once, whatever shards its builds are in, even where all shards
// start runs at the same time.
func TestShardsShareTheLimitOfIsolatedRuns(t *testing.T) {
	w := newWorld(t)
	const limit, builds = 2, 8
	w.options.Isolated = runs.Limits{runs.Isolated: *resource.NewQuantity(limit, resource.DecimalSI)}
	for i := range builds {
		w.create(fmt.Sprintf("b%d", i), attestedMode, inShard(string("ab"[i%2])))
	}
	begun := func() (out []tektonv1.PipelineRun) {
		for _, run := range w.runs() {
			if run.Annotations[keys.AnnotationHeld] == "" && run.Status.CompletionTime == nil {
				out = append(out, run)
			}
		}
		return out
	}
	w.startShard("a")
	w.startShard("b")
	for done := range builds {
		w.eventually("as many run as may", func() string {
			if n := len(begun()); n < min(limit, builds-done) {
				return fmt.Sprintf("%d runs", n)
			}
			return ""
		})
		if done%3 == 0 {
			w.never("more runs than the limit", func() string {
				if n := len(begun()); n > limit {
					return fmt.Sprintf("%d runs", n)
				}
				return ""
			})
		}
		w.fail(&begun()[0])
	}
	for i := range builds {
		w.phase(fmt.Sprintf("b%d", i), api.PhaseFailed)
	}
}

// A webhook that the default shard takes starts the run of a build of another one.
func TestShardWebhook(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	w.startShard("a")
	hook := w.takesHooks()
	w.startShard("")
	b := w.newBuild("weather", r.source("main"), inShard("a"), kept)
	b.Spec.Trigger = &api.SourceTrigger{Poll: &metav1.Duration{Duration: time.Hour},
		Webhook: &corev1.LocalObjectReference{Name: "hook"}}
	w.must(w.Client.Create(t.Context(), b))
	w.runOfCommit(1, r.git("rev-parse", "main"))
	w.phase("weather", api.PhaseSucceeded)
	second := r.commit("second")
	w.deliver(hook)
	w.runOfCommit(2, second)
}

// TestUnclaimedShard expects the status of a build to name its shard while the shard has no leader,
// and the build to run once its label names a shard that has one.
func TestUnclaimedShard(t *testing.T) {
	w := newWorld(t)
	w.options.Namespace = w.namespace // a lease of its own
	w.own("pipeline-template-own", "template.yaml", "steps: [{name: only, configMap: own-step}]")
	w.own("own-step", "task-spec.yaml", "steps: [{name: say, image: busybox, command: [echo]}]")
	own := func(b *api.AgentBuild) { b.Spec.Mode = "own" }
	w.options.LeaderElection, w.options.UnclaimedAfter = true, 5*time.Second
	w.startShard("")
	w.startShard("led")
	w.create("led", own, inShard("led"))
	w.create("lost", own, inShard("Nobody"))
	w.phase("led", api.PhaseBuilding)
	if got := w.phase("lost", api.PhasePending); !strings.Contains(got.Status.Message,
		"no controller looks after "+shardKey+"=Nobody") {
		t.Errorf("message %q", got.Status.Message)
	}
	if got := w.build("led"); got.Status.Phase != api.PhaseBuilding {
		t.Errorf("the other one: %+v", got.Status)
	}
	w.change(w.build("lost"), inShard("led"))
	w.phase("lost", api.PhaseBuilding)
}
