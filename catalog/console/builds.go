package console

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
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
type buildRow struct{ *api.AgentBuild }

// Path of its page.
func (r buildRow) Path() string { return buildPath(r.Namespace, r.Name) }

// State of the build.
func (r buildRow) State() State { return buildState(r.AgentBuild) }

// Phase in a word.
func (r buildRow) Phase() string { return cmp.Or(string(r.Status.Phase), "Pending") }

// Reason of the phase in a word, where it says more.
func (r buildRow) Reason() string { return buildReason(r.AgentBuild) }

// Commit that was built; empty where it is not known.
func (r buildRow) Commit() string {
	if r.Status.Source == nil {
		return ""
	}
	return r.Status.Source.Git.CommitSHA
}

// At is when it last began or ended.
func (r buildRow) At() time.Time { return builtAt(r.AgentBuild) }

// Took is how long the last run took; zero while it runs.
func (r buildRow) Took() time.Duration {
	s := r.Status
	if s.StartTime == nil || s.CompletionTime == nil {
		return 0
	}
	return max(0, s.CompletionTime.Sub(s.StartTime.Time)).Round(time.Second)
}

func buildPath(namespace, name string) string { return path("builds", namespace, name) }

// buildState is how a build is.
func buildState(b *api.AgentBuild) State {
	switch b.Status.Phase {
	case api.PhaseSucceeded:
		return Healthy
	case api.PhaseFailed:
		return Failing
	case api.PhaseBuilding:
		return Building
	case api.PhaseCancelled:
		return Cancelled
	}
	if buildReason(b) == api.ReasonQueued {
		return Queued
	}
	return Unknown
}

func buildReason(b *api.AgentBuild) string {
	if c := meta.FindStatusCondition(b.Status.Conditions, api.ConditionReady); c != nil && c.Reason != string(b.Status.Phase) {
		return c.Reason
	}
	return ""
}

func builtAt(b *api.AgentBuild) time.Time {
	switch s := b.Status; {
	case s.CompletionTime != nil && (s.LastBuildTime == nil || s.CompletionTime.After(s.LastBuildTime.Time)):
		return s.CompletionTime.Time
	case s.LastBuildTime != nil:
		return s.LastBuildTime.Time
	}
	return b.CreationTimestamp.Time
}

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
		f := data.Filter
		return f.Namespace != "" && b.Namespace != f.Namespace || f.Phase != "" && cmp.Or(b.Status.Phase, api.PhasePending) != api.Phase(f.Phase) || !mentions(b, words)
	})
	slices.SortFunc(found, func(a, b *api.AgentBuild) int {
		return cmp.Or(builtAt(b).Compare(builtAt(a)), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	data.Total = len(found)
	from := min((page-1)*buildsPerPage, len(found))
	for _, b := range found[from:min(from+buildsPerPage, len(found))] {
		data.Rows = append(data.Rows, buildRow{b})
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

// mentions reports whether each word occurs in what the list shows of a build.
func mentions(b *api.AgentBuild, words []string) bool {
	if len(words) == 0 {
		return true
	}
	text := strings.ToLower(strings.Join([]string{b.Namespace, b.Name, string(b.Status.Phase), buildReason(b), buildRow{b}.Commit(), b.Status.BuiltImage,
		b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision}, " "))
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
}

// commitAddress is where forges show a commit of a repository; empty for none.
func commitAddress(repository, commit string) string {
	repository = strings.TrimSuffix(repository, ".git")
	if !strings.Contains(repository, "://") {
		repository = "https://" + repository
	}
	if link(repository) == "" || commit == "" {
		return ""
	}
	return repository + "/commit/" + url.PathEscape(commit)
}
