package console

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/live"
	"github.com/armature-dev/armature/catalog/console/facts"
)

// buildsData is the list of builds.
type buildsData struct {
	Filter     buildFilter
	Namespaces []string
	Phases     []api.Phase
	Rows       []buildRow
	Total      int
	Next       string // the address of the page after this one
}

// buildFilter is the state of the list, which is in its address.
type buildFilter struct{ Q, Namespace, Phase string }

// buildRow is a build of the list.
type buildRow struct{ live.Summary }

// Path of its page.
func (r buildRow) Path() string { return buildPath(r.Namespace, r.Name) }

// State of the build.
func (r buildRow) State() State { return buildState(r.AgentBuild) }

// buildState is how a build is.
func buildState(b *api.AgentBuild) State {
	switch b.Status.Phase {
	case api.PhaseSucceeded:
		return Healthy
	case api.PhaseFailed:
		return Failing
	case api.PhaseCancelled:
		return Cancelled
	case api.PhaseBuilding:
		return Building
	}
	return Queued
}

func buildPath(namespace, name string) string { return facts.Path("builds", namespace, name) }

// buildsPerPage of the list.
const buildsPerPage = 50

// buildsPage lists the builds that the caller may list, the latest first.
func buildsPage(v *Visit) (*Page, error) {
	get := func(name string) string { return strings.TrimSpace(v.URL.Query().Get(name)) }
	data := buildsData{Filter: buildFilter{get("q"), get("namespace"), get("phase")},
		Phases: []api.Phase{api.PhaseBuilding, api.PhaseFailed, api.PhasePending,
			api.PhaseSucceeded, api.PhaseCancelled}}
	page, err := strconv.Atoi(cmp.Or(get("page"), "1"))
	if err != nil || page < 1 || page > 1e6 {
		return nil, &Problem{http.StatusBadRequest, "There is no such page of the list.",
			"Use page=1 in the address."}
	}
	if phase := data.Filter.Phase; phase != "" && !slices.Contains(data.Phases, api.Phase(phase)) {
		return nil, &Problem{http.StatusBadRequest, "There is no such phase.", "Choose one of the list."}
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
	words := strings.Fields(strings.ToLower(data.Filter.Q))
	found := slices.DeleteFunc(all, func(b *api.AgentBuild) bool {
		f, s := data.Filter, live.Summary{AgentBuild: b}
		return f.Namespace != "" && b.Namespace != f.Namespace ||
			f.Phase != "" && s.Phase() != f.Phase || !s.Mentions(words)
	})
	slices.SortStableFunc(found, func(a, b *api.AgentBuild) int {
		return live.Summary{AgentBuild: b}.At().Compare(live.Summary{AgentBuild: a}.At())
	})
	data.Total = len(found)
	from := min((page-1)*buildsPerPage, len(found))
	for _, b := range found[from:min(from+buildsPerPage, len(found))] {
		data.Rows = append(data.Rows, buildRow{live.Summary{AgentBuild: b}})
	}
	if from+buildsPerPage < len(found) {
		next := v.URL.Query() // the same question, further on
		next.Set("page", strconv.Itoa(page+1))
		data.Next = "/builds?" + next.Encode()
	}
	return &Page{Title: "Builds", Section: "/builds",
		Parts: []Part{{"filters", "builds-filters", data}, {"list", "builds-list", data}}}, nil
}
