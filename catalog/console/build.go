package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	buildclient "github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/builds/client/delivery"
	"github.com/armature-dev/armature/builds/controller/runs"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/console/resources"
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

// pin says how the image of a build is written to Git.
type pin struct {
	Update *updates.ImageUpdate
	// Link to the pull request, Commit that was written, and why the image is held back.
	Link, Commit, Held string
}

// causeData is why a build failed.
type causeData struct {
	*api.FailureDetails
	Message, Remedy string
	// Edit is the address of the line of the Dockerfile that failed, at its forge, and File its
	// name.
	Edit, File string
}

// runData is the state of the last run.
type runData struct {
	Build *api.AgentBuild
	buildclient.View
	// Hidden says that the caller may not read runs.
	Hidden bool
}

// Link returns the address of a task's log.
func (d runData) Link(task string) string {
	return buildPath(d.Build.Namespace, d.Build.Name) + "?" +
		url.Values{"task": {task}}.Encode() + "#log"
}

// buildPage shows one build.
func buildPage(v *Visit) (*Page, error) {
	b, err := v.build()
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
	var earlier []runs.Run
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

// build returns the build at the address, if the caller may list it; other builds do not exist for
// the caller.
func (v *Visit) build() (*api.AgentBuild, error) {
	c, namespace := v.Console.Cluster, v.PathValue("namespace")
	if c == nil || !c.Watches(c.Builds()) {
		return nil, store.ErrNotFound
	}
	if ok, err := v.May(c.Builds(), namespace); err != nil || !ok {
		return nil, cmp.Or(err, store.ErrNotFound)
	}
	return c.build(v.Context(), namespace, v.PathValue("name"))
}

func (v *Visit) buildData(b *api.AgentBuild) (buildData, error) {
	c := v.Console
	may, err := c.Access.May(v.Context(), v.User, "patch", c.Cluster.Builds(), b.Namespace, b.Name)
	if err != nil {
		return buildData{}, err
	}
	d := buildData{buildRow: buildRow{buildclient.Summary{AgentBuild: b}},
		MayCancel: may && !b.Over() && !b.Spec.Cancel, MayRetry: may && (b.Over() || b.Spec.Cancel)}
	d.CommitLink = resources.ForgeLink(b.Spec.Source.SourceRepository, "commit", d.Commit(), "")
	d.Attested = meta.FindStatusCondition(b.Status.Conditions, api.ConditionAttested)
	all, err := v.ImageUpdates(client.InNamespace(b.Namespace))
	if err != nil {
		return buildData{}, err
	}
	if u := delivery.UpdateOf(b, all); u != nil {
		d.Pin = &pin{Update: u, Link: resources.Link(u.Status.PullRequest), Commit: u.Status.Commit}
		for _, h := range u.Status.Held {
			if h.Build == b.Name && h.Image == b.Status.BuiltImage {
				d.Pin.Held = h.Why
			}
		}
	}
	return d, nil
}

// causeOfBuild returns why a build failed or waits, or nil for neither.
func causeOfBuild(b *api.AgentBuild) *causeData {
	if b.Status.Phase != api.PhaseFailed &&
		(b.Status.Phase != api.PhasePending || b.Status.Message == "") {
		return nil
	}
	d := &causeData{FailureDetails: b.Status.FailureDetails}
	d.Message, d.Remedy, _ = strings.Cut(cmp.Or(b.Status.Message,
		"The build failed, and its status does not say why."), "\n  hint: ")
	source := b.Spec.Source
	d.Edit, d.File = resources.SourceLine(d.Message, source.SourceRepository,
		buildclient.Summary{AgentBuild: b}.Commit(), source.SourceSubfolder)
	return d
}

// mayRead reports whether the caller may read a build's last run: the given kinds in the namespace
// of the run or, if the run is isolated, the logs of the build.
func (v *Visit) mayRead(b *api.AgentBuild, kinds ...string) (bool, error) {
	c := v.Console.Cluster
	place := c.builds.Place(b)
	if place == c.builds.BuildNamespace {
		return resources.MayLog(v.Context(), v.Console.Access, v.User, c.group, b.Namespace, b.Name)
	}
	for _, resource := range kinds {
		ok, err := v.Console.Access.May(v.Context(), v.User, "get", resource, place, "")
		if err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// view returns a build's last run, or only the part in its status if the caller may not read runs.
func (v *Visit) view(b *api.AgentBuild) (buildclient.View, bool, error) {
	ok, err := v.mayRead(b, "pipelineruns.tekton.dev", "taskruns.tekton.dev")
	if err != nil {
		return buildclient.View{}, false, err
	}
	fromStatus := buildclient.ViewOf(b, nil, nil)
	if !ok {
		return fromStatus, false, nil
	}
	view, err := v.Console.Cluster.builds.View(v.Context(), b)
	if apierrors.IsForbidden(err) { // the console's own rights
		return fromStatus, false, nil
	}
	return view, true, err
}

// earlier returns the runs of a build in the namespace of its last one, newest first.
func (v *Visit) earlier(b *api.AgentBuild) ([]runs.Run, error) {
	found, err := v.Console.Cluster.builds.History(v.Context(), b)
	// the console's own rights, or no Tekton
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil, nil
	}
	return found, err
}

// action changes a build. Its event has the reason.
type action struct {
	verb, reason string
	do           func(context.Context, *api.AgentBuild) error
}

// act retries or cancels a build for a caller who may change it, and records who did.
func (c *Console) act(w http.ResponseWriter, r *http.Request, a action) {
	path, who, err := visit(c, r, patience, func(v *Visit) (string, error) {
		b, err := v.build()
		if err == nil {
			before := b.ResourceVersion
			if err = v.change(b, a); err == nil && b.ResourceVersion != before {
				v.await(b, before)
			}
		}
		return buildPath(v.PathValue("namespace"), v.PathValue("name")), err
	})
	if err != nil {
		c.write(w, r, who, c.refuse(r, err))
		return
	}
	http.Redirect(w, r, path, http.StatusSeeOther)
}

// change changes a build. It writes the event first: without it, nothing is changed.
func (v *Visit) change(b *api.AgentBuild, a action) error {
	c := v.Console
	ok, err := c.Access.May(v.Context(), v.User, "patch", c.Cluster.Builds(), b.Namespace, b.Name)
	if err != nil {
		return err
	}
	if !ok {
		return access.Refuse(http.StatusForbidden, "You may not "+a.verb+" this build.",
			"Ask for the right to patch agentbuilds in "+b.Namespace+".")
	}
	err = c.Cluster.builds.Record(v.Context(), b, program, a.reason, a.verb,
		fmt.Sprintf("%s asked the console to %s this build", resources.Clip(300, v.User.GetName()),
			a.verb), c.Now())
	if err == nil {
		c.Log.Info("a person changes a build", "user", v.User.GetName(), "action", a.verb,
			"namespace", b.Namespace, "name", b.Name)
		err = a.do(v.Context(), b)
	}
	switch {
	case apierrors.IsConflict(err):
		return access.Refuse(http.StatusConflict, "The build changed in the meantime.",
			"Review it before you "+a.verb+" it.")
	case apierrors.IsForbidden(err):
		c.Log.Error(err, "changing a build")
		return access.Refuse(http.StatusForbidden, "The console itself may not do this.",
			"See the missing rights on its page of rights, or use armature build.")
	}
	return err
}

// await waits until the cache no longer has a build as it was before a change, so that the next
// page shows the change also to a browser without scripts. It waits at most for patience; then the
// page shows the build as it was.
func (v *Visit) await(b *api.AgentBuild, before string) {
	const every = 100 * time.Millisecond // each look copies the build
	_ = wait.PollUntilContextCancel(v.Context(), every, true,
		func(ctx context.Context) (bool, error) {
			now, err := v.Console.Cluster.build(ctx, b.Namespace, b.Name)
			return err != nil || now.ResourceVersion != before, nil
		})
}

// program is the console's name in events.
const program = "armature-console"

// buildsData is the list of builds.
type buildsData struct {
	Filter     url.Values // the state of the list, which is in its address
	Namespaces []string
	Phases     []api.Phase
	Rows       []buildRow
	Total      int
	Next       string // the address of the page after this one
}

// buildRow is a build of the list.
type buildRow struct{ buildclient.Summary }

// Path returns the path of its page.
func (r buildRow) Path() string { return buildPath(r.Namespace, r.Name) }

// State returns the state of the build.
func (r buildRow) State() State { return stateOf(r.AgentBuild.Status.Phase, Queued) }

func buildPath(namespace, name string) string { return resources.Path("builds", namespace, name) }

// buildsPerPage is how many rows a page of the list has.
const buildsPerPage = 50

// buildsPage lists the builds that the caller may list, the latest first.
func buildsPage(v *Visit) (*Page, error) {
	data := buildsData{Filter: v.filter(), Phases: []api.Phase{api.PhaseBuilding, api.PhaseFailed,
		api.PhasePending, api.PhaseSucceeded, api.PhaseCancelled}}
	namespace, phase := data.Filter.Get("namespace"), data.Filter.Get("phase")
	page, err := strconv.Atoi(cmp.Or(v.URL.Query().Get("page"), "1"))
	if err != nil || page < 1 || page > 1e6 {
		return nil, access.Refuse(http.StatusBadRequest, "There is no such page of the list.",
			"Use page=1 in the address.")
	}
	if phase != "" && !slices.Contains(data.Phases, api.Phase(phase)) {
		return nil, access.Refuse(http.StatusBadRequest, "There is no such phase.",
			"Choose one of the list.")
	}
	all, err := v.builds()
	if err != nil {
		return nil, err
	}
	for _, b := range all {
		if n := len(data.Namespaces); n == 0 || data.Namespaces[n-1] != b.Namespace {
			data.Namespaces = append(data.Namespaces, b.Namespace)
		}
	}
	words := strings.Fields(strings.ToLower(data.Filter.Get("q")))
	found := slices.DeleteFunc(all, func(b *api.AgentBuild) bool {
		s := buildclient.Summary{AgentBuild: b}
		return namespace != "" && b.Namespace != namespace ||
			phase != "" && s.Phase() != phase || !s.Mentions(words)
	})
	slices.SortStableFunc(found, func(a, b *api.AgentBuild) int {
		return buildclient.Summary{AgentBuild: b}.At().Compare(buildclient.Summary{AgentBuild: a}.At())
	})
	data.Total = len(found)
	from := min((page-1)*buildsPerPage, len(found))
	for _, b := range found[from:min(from+buildsPerPage, len(found))] {
		data.Rows = append(data.Rows, buildRow{buildclient.Summary{AgentBuild: b}})
	}
	if from+buildsPerPage < len(found) {
		next := v.URL.Query() // the same filters, on the next page
		next.Set("page", strconv.Itoa(page+1))
		data.Next = "/builds?" + next.Encode()
	}
	return &Page{Title: "Builds", Section: "/builds",
		Parts: []Part{{"filters", "builds-filters", data}, {"list", "builds-list", data}}}, nil
}
