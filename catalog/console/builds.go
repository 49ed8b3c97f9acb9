package console

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/live"
	"github.com/armature-dev/armature/catalog/store"
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

func buildPath(namespace, name string) string { return path("builds", namespace, name) }

// buildsPerPage of the list.
const buildsPerPage = 50

// buildsPage lists the builds that the caller may list, the latest first.
func buildsPage(v *Visit) (*Page, error) {
	if err := v.Allow("q", "namespace", "phase", "page"); err != nil {
		return nil, err
	}
	get := func(name string) string { return strings.TrimSpace(v.URL.Query().Get(name)) }
	data := buildsData{Filter: buildFilter{get("q"), get("namespace"), get("phase")},
		Phases: []api.Phase{api.PhaseBuilding, api.PhaseFailed, api.PhasePending, api.PhaseSucceeded, api.PhaseCancelled}}
	page, err := strconv.Atoi(cmp.Or(get("page"), "1"))
	if err != nil || page < 1 || page > 1e6 {
		return nil, &Problem{http.StatusBadRequest, "There is no such page of the list.", "Use page=1 in the address."}
	}
	if phase := data.Filter.Phase; phase != "" && !slices.Contains(data.Phases, api.Phase(phase)) {
		return nil, &Problem{http.StatusBadRequest, "There is no such phase.", "Choose one of the list."}
	}
	all, namespaces, err := v.builds()
	if err != nil {
		return nil, err
	}
	data.Namespaces = namespaces
	words := strings.Fields(strings.ToLower(data.Filter.Q))
	found := slices.DeleteFunc(all, func(b *api.AgentBuild) bool {
		f, s := data.Filter, live.Summary{AgentBuild: b}
		return f.Namespace != "" && b.Namespace != f.Namespace || f.Phase != "" && s.Phase() != f.Phase || !s.Mentions(words)
	})
	slices.SortFunc(found, func(a, b *api.AgentBuild) int {
		return cmp.Or(live.Summary{AgentBuild: b}.At().Compare(live.Summary{AgentBuild: a}.At()), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
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
	return &Page{Title: "Builds", Section: "/builds", Parts: []Part{{"filters", "builds-filters", data}, {"list", "builds-list", data}}}, nil
}

// builds that the caller may list, in no order, and their namespaces. They are shared: do not
// change them.
func (v *Visit) builds(options ...client.ListOption) (seen []*api.AgentBuild, namespaces []string, err error) {
	c := v.Console.Cluster
	if c == nil {
		return nil, nil, nil
	}
	var list api.AgentBuildList
	if err := c.list(v.Context(), c.Builds(), &list, options...); err != nil {
		return nil, nil, err
	}
	places := map[string]bool{}
	for i := range list.Items {
		places[list.Items[i].Namespace] = true
	}
	for namespace := range places {
		namespaces = append(namespaces, namespace)
	}
	scope, err := v.Scope(map[string][]string{c.Builds(): namespaces})
	if err != nil {
		return nil, nil, err
	}
	hidden := func(namespace string) bool {
		return !scope.Allows(store.Key{Resource: c.Builds(), Namespace: namespace})
	}
	namespaces = slices.DeleteFunc(namespaces, hidden)
	for namespace := range places {
		places[namespace] = slices.Contains(namespaces, namespace)
	}
	for i := range list.Items {
		if places[list.Items[i].Namespace] {
			seen = append(seen, &list.Items[i])
		}
	}
	slices.Sort(namespaces)
	return seen, namespaces, nil
}
