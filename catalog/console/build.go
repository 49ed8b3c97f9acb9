package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/builds/live"
	"github.com/armature-dev/armature/builds/live/chain"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/catalog/console/facts"
	"github.com/armature-dev/armature/catalog/store"
)

// buildData is the page of one build.
type buildData struct {
	buildRow
	// MayCancel and MayRetry say which buttons there are.
	MayCancel, MayRetry bool
	CommitLink          string
	Attested            *metav1.Condition
	Pin                 *pin
}

// pin is what writes the image of a build into Git.
type pin struct {
	Update *updates.ImageUpdate
	// Link to the pull request, Commit that was written, and why the image is held back.
	Link, Commit, Held string
}

// causeData is why a build failed.
type causeData struct {
	*api.FailureDetails
	Message, Remedy string
	// Edit is where the forge shows the line of the Dockerfile that failed, and File its name.
	Edit, File string
}

// runData is what the last run does.
type runData struct {
	Build *api.AgentBuild
	live.View
	// Hidden says that the caller may not read runs.
	Hidden bool
}

// Link of a task's log.
func (d runData) Link(task string) string { return taskLink(d.Build, task) }

// TaskState is how a task is.
func (d runData) TaskState(state string) State { return taskState(state) }

func taskState(state string) State {
	switch state {
	case "Succeeded":
		return Healthy
	case "Failed":
		return Failing
	case "Running":
		return Building
	case "Cancelled", "Skipped":
		return Cancelled
	}
	return Queued
}

func taskLink(b *api.AgentBuild, task string) string {
	return buildPath(b.Namespace, b.Name) + "?" + url.Values{"task": {task}}.Encode() + "#log"
}

// runRow is an earlier run.
type runRow struct{ runs.Run }

// State of the run.
func (r runRow) State() State { return taskState(r.Outcome()) }

// buildPage shows one build.
func buildPage(v *Visit) (*Page, error) {
	b, err := v.build(v.PathValue("namespace"), v.PathValue("name"))
	if err != nil {
		return nil, err
	}
	data, err := v.buildData(b)
	if err != nil {
		return nil, err
	}
	run, mayRuns, err := v.view(b)
	if err != nil {
		return nil, err
	}
	log, err := v.log(b, run, v.URL.Query().Get("task"))
	if err != nil {
		return nil, err
	}
	var earlier []runRow
	if mayRuns {
		if earlier, err = v.earlier(b); err != nil {
			return nil, err
		}
	}
	return &Page{Title: b.Name, Section: "/builds", Live: !b.Over(), Parts: []Part{
		{"about", "build-about", data}, {"cause", "build-cause", causeOfBuild(b)},
		{"run", "build-run", runData{Build: b, View: run, Hidden: !mayRuns}},
		{"log", "build-log", log}, {"params", "build-params", run.Params},
		{"runs", "build-runs", earlier},
	}}, nil
}

// build that the caller may list; any other does not exist for them.
func (v *Visit) build(namespace, name string) (*api.AgentBuild, error) {
	c := v.Console.Cluster
	if c == nil || !c.Watches(c.Builds()) {
		return nil, store.ErrNotFound
	}
	if ok, err := v.May(c.Builds(), namespace); err != nil || !ok {
		return nil, cmp.Or(err, store.ErrNotFound)
	}
	return c.build(v.Context(), namespace, name)
}

func (v *Visit) buildData(b *api.AgentBuild) (buildData, error) {
	c := v.Console
	may, err := c.Access.May(v.Context(), v.User, "patch", c.Cluster.Builds(), b.Namespace, b.Name)
	if err != nil {
		return buildData{}, err
	}
	d := buildData{buildRow: buildRow{live.Summary{AgentBuild: b}},
		MayCancel: may && !b.Over() && !b.Spec.Cancel, MayRetry: may && (b.Over() || b.Spec.Cancel)}
	d.CommitLink = facts.ForgeLink(b.Spec.Source.SourceRepository, "commit", d.Commit(), "")
	d.Attested = meta.FindStatusCondition(b.Status.Conditions, api.ConditionAttested)
	all, err := v.ImageUpdates(client.InNamespace(b.Namespace))
	if err != nil {
		return buildData{}, err
	}
	if u := chain.UpdateOf(b, all); u != nil {
		d.Pin = &pin{Update: u, Link: facts.Link(u.Status.PullRequest), Commit: u.Status.Commit}
		for _, h := range u.Status.Held {
			if h.Build == b.Name && h.Image == b.Status.BuiltImage {
				d.Pin.Held = h.Why
			}
		}
	}
	return d, nil
}

// causeOfBuild is why a build failed, or waits for somebody; nil for neither.
func causeOfBuild(b *api.AgentBuild) *causeData {
	if b.Status.Phase != api.PhaseFailed &&
		(b.Status.Phase != api.PhasePending || b.Status.Message == "") {
		return nil
	}
	d := &causeData{FailureDetails: b.Status.FailureDetails}
	d.Message, d.Remedy, _ = strings.Cut(cmp.Or(b.Status.Message,
		"The build failed, and its status does not say why."), "\n  hint: ")
	source := b.Spec.Source
	d.Edit, d.File = facts.SourceLine(d.Message, source.SourceRepository,
		live.Summary{AgentBuild: b}.Commit(), source.SourceSubfolder)
	return d
}

// mayRead reports whether the caller may read what there is of a build's last run: resources where
// it is, or the logs of the build where its run is the platform's.
func (v *Visit) mayRead(b *api.AgentBuild, resources ...string) (bool, error) {
	c := v.Console.Cluster
	place := c.builds.Place(b)
	if place == c.builds.BuildNamespace {
		return facts.MayLog(v.Context(), v.Console.Access, v.User, c.group, b.Namespace, b.Name)
	}
	for _, resource := range resources {
		ok, err := v.Console.Access.May(v.Context(), v.User, "get", resource, place, "")
		if err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// view of a build's last run, of what its status has where the caller may not read runs.
func (v *Visit) view(b *api.AgentBuild) (live.View, bool, error) {
	ok, err := v.mayRead(b, "pipelineruns.tekton.dev", "taskruns.tekton.dev")
	if err != nil {
		return live.View{}, false, err
	}
	fromStatus := live.ViewOf(b, nil, nil)
	if !ok {
		return fromStatus, false, nil
	}
	view, err := v.Console.Cluster.builds.View(v.Context(), b)
	if apierrors.IsForbidden(err) { // the console's own rights
		return fromStatus, false, nil
	}
	return view, true, err
}

// earlier runs of a build where its last one is, newest first.
func (v *Visit) earlier(b *api.AgentBuild) (rows []runRow, err error) {
	found, err := v.Console.Cluster.builds.History(v.Context(), b)
	// the console's own rights, or no Tekton
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil, nil
	}
	for _, r := range found {
		rows = append(rows, runRow{r})
	}
	return rows, err
}

// act retries or cancels a build for a caller who may change it, and records who did.
func (c *Console) act(w http.ResponseWriter, r *http.Request, reason, verb string,
	do func(context.Context, *live.Reader, *api.AgentBuild) error) {
	who, err := c.Access.Actor(r)
	if err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		v := &Visit{Request: r.WithContext(ctx), Console: c, User: who}
		var b *api.AgentBuild
		if b, err = v.build(r.PathValue("namespace"), r.PathValue("name")); err == nil {
			err = v.change(b, reason, verb, do)
		}
	}
	if err != nil {
		c.write(w, r, who, c.refuse(r, err))
		return
	}
	http.Redirect(w, r, buildPath(r.PathValue("namespace"), r.PathValue("name")), http.StatusSeeOther)
}

// change a build. The event is written first: without it, nothing is changed.
func (v *Visit) change(b *api.AgentBuild, reason, verb string,
	do func(context.Context, *live.Reader, *api.AgentBuild) error) error {
	ok, err := v.Console.Access.May(v.Context(), v.User, "patch", v.Console.Cluster.Builds(),
		b.Namespace, b.Name)
	if err != nil {
		return err
	}
	if !ok {
		return &Problem{http.StatusForbidden, fmt.Sprintf("You may not %s this build.", verb),
			"Ask for the right to patch agentbuilds in " + b.Namespace + "."}
	}
	builds := v.Console.Cluster.builds
	err = builds.Record(v.Context(), b, program, reason, verb,
		fmt.Sprintf("%s asked the console to %s this build", facts.Clip(300, v.User.GetName()),
			verb), v.Console.Now())
	if err == nil {
		v.Console.Log.Info("a person changes a build", "user", v.User.GetName(), "action", verb,
			"namespace", b.Namespace, "name", b.Name)
		err = do(v.Context(), builds, b)
	}
	switch {
	case apierrors.IsConflict(err):
		return &Problem{http.StatusConflict, "The build changed in the meantime.",
			"Review it before you " + verb + " it."}
	case apierrors.IsForbidden(err):
		v.Console.Log.Error(err, "changing a build")
		return &Problem{http.StatusForbidden, "The console itself may not do this.",
			"See the missing rights on its page of rights, or use armature build."}
	}
	return err
}

// program is the console's name in events.
const program = "armature-console"
