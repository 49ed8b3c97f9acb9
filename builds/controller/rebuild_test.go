package controller_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/templates"
)

const (
	followsTemplate = "steps: [{name: only, configMap: own-step}]"
	followsStep     = "steps: [{name: say, image: busybox, command: [echo]}]"
)

// A changed step builds the commit that was built before, although the branch has
// moved on, whether or not the earlier run is still there. A template that names
// another source is followed.
func TestTemplateChangeBuildsTheKnownCommit(t *testing.T) {
	for _, cleanup := range []bool{true, false} {
		t.Run(fmt.Sprintf("cleanup=%v", cleanup), func(t *testing.T) {
			w := newWorld(t)
			r := w.serveGit("")
			w.own("pipeline-template-own", templates.TemplateKeyYAML, followsTemplate)
			w.own("own-step", templates.StepKey, followsStep)
			first := r.git("rev-parse", "HEAD")
			w.start()
			w.create("weather", r.source(""), func(b *api.AgentBuild) {
				b.Spec.Mode, b.Spec.CleanupAfterBuild = "own", &cleanup
			})
			w.ended(1)
			w.phase("weather", api.PhaseSucceeded)
			r.git("branch", "other")
			second := r.commit("second")
			// Git's answer of before serves for two seconds: the branch is asked for again
			time.Sleep(3 * time.Second)
			builds := func(n int, commit string) {
				w.Helper()
				w.ended(n)
				w.eventually("the run is in status", func() string {
					if s := w.build("weather").Status; s.RunNumber != int32(n) ||
						s.RunReason != api.TriggerTemplate || s.Phase != api.PhaseSucceeded {
						return fmt.Sprintf("run %d because of %s: %s", s.RunNumber, s.RunReason, s.Phase)
					}
					return ""
				})
				if got := w.build("weather").Status.Source.Git.CommitSHA; got != commit {
					t.Errorf("run %d builds %s, want %s", n, got, commit)
				}
			}
			w.rewrite("own-step", templates.StepKey, followsStep+"\ndescription: new")
			builds(2, first)
			w.rewrite("pipeline-template-own", templates.TemplateKeyYAML,
				followsTemplate+"\nglobalParameters: [{name: revision, value: other}]")
			builds(3, first)
			w.rewrite("pipeline-template-own", templates.TemplateKeyYAML,
				followsTemplate+"\nglobalParameters: [{name: revision, value: refs/heads/main}]")
			builds(4, second)
		})
	}
}

// A changed step is rebuilt at a bounded rate; builds that wait for their turn
// stay as they are, and a changed spec does not wait.
func TestRebuildRate(t *testing.T) {
	w := newWorld(t)
	w.own("pipeline-template-own", templates.TemplateKeyYAML, followsTemplate)
	w.own("own-step", templates.StepKey, followsStep)
	w.options.RebuildRate = 2
	w.start()
	const builds = 5
	name := func(i int) string { return fmt.Sprintf("b%d", i) }
	for i := range builds {
		w.create(name(i), func(b *api.AgentBuild) {
			keep := false
			b.Spec.Mode, b.Spec.CleanupAfterBuild = "own", &keep
		})
		w.succeed(w.run(i + 1))
		w.phase(name(i), api.PhaseSucceeded)
	}
	w.rewrite("own-step", templates.StepKey, followsStep+"\ndescription: new")
	w.left(builds + 2)
	w.never("a third rebuild at once", func() string {
		if n := len(w.runs()); n != builds+2 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
	waits := ""
	for i := range builds {
		switch b := w.build(name(i)); b.Status.Phase {
		case api.PhaseSucceeded:
			waits = b.Name
		case api.PhaseBuilding:
		default:
			t.Errorf("%s is %s: %s", b.Name, b.Status.Phase, b.Status.Message)
		}
	}
	if waits == "" {
		t.Fatal("no build waits")
	}
	w.change(w.build(waits), retag("v2"))
	w.left(builds + 3)
	if got := w.phase(waits, api.PhaseBuilding).Status.RunReason; got != api.TriggerConfig {
		t.Errorf("the changed spec is built because of %s", got)
	}
}
