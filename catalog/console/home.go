package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/catalog/console/resources"
	"github.com/armature-dev/armature/catalog/store"
)

// finding is a problem with its cause and remedy, or a change.
type finding struct {
	State State
	// Kind of the object, such as agent, its namespace and name, and the path of its page.
	Kind, Namespace, Name, Path string
	Why, Fix                    string
	At                          time.Time
}

// tile counts the objects of a section.
type tile struct {
	section
	Count, Bad int
	Note       string // how many are bad, or that none is
}

type homeData struct {
	State    State
	Sentence string
	Tiles    []tile
}

type wrongData struct {
	Findings []finding
	Left     int // that are not shown
}

// Bounds of the home page.
const (
	shownFindings = 20
	shownChanges  = 12
)

// home returns the home page: the overall state in a sentence, then the problems, then the changes.
func home(v *Visit) (*Page, error) {
	scope, err := v.Catalog()
	if err != nil {
		return nil, err
	}
	var tiles []tile
	var findings, changes []finding
	unknown := 0
	for i, kind := range []store.Type{store.Agent, store.Server} {
		t := tile{section: sections[1+i]}
		wrong, silent, err := v.judge(store.Query{Scope: scope, Type: kind}, &t)
		if err != nil {
			return nil, err
		}
		tiles, findings, unknown = append(tiles, t), append(findings, wrong...), unknown+silent
	}
	entries, err := v.Console.Store.List(v.Context(),
		store.Query{Scope: scope, Latest: true, Limit: shownChanges})
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		changes = append(changes, entryFinding(e, entryNews(e)))
	}
	builds, err := v.builds()
	if err != nil {
		return nil, err
	}
	if c := v.Console.Cluster; c != nil && c.Watches(c.Builds()) {
		t := tile{section: sections[3], Count: len(builds)}
		for _, b := range builds {
			if f, ok := buildFinding(b); ok {
				findings, t.Bad = append(findings, f), t.Bad+1
			}
			changes = append(changes, buildNews(b))
		}
		tiles = append(tiles, t)
	}
	packages, err := v.packages()
	if err != nil {
		return nil, err
	}
	if v.Console.Cluster.Watches(configMapsResource) {
		t := tile{section: sections[4], Count: len(packages)}
		for i := range packages {
			if f, ok := packages[i].finding(); ok {
				findings, t.Bad = append(findings, f), t.Bad+1
			}
			changes = append(changes, packages[i].about("applied"))
		}
		tiles = append(tiles, t)
	}
	wrong := 0
	for i, t := range tiles {
		wrong += t.Bad
		tiles[i].Note = "nothing wrong"
		if t.Bad > 0 {
			tiles[i].Note = resources.Count(t.Bad) + " to look at"
		}
		if t.Count == 0 {
			tiles[i].Note = "none yet"
		}
	}
	slices.SortStableFunc(findings, func(a, b finding) int {
		return cmp.Or(cmp.Compare(severity(b.State), severity(a.State)), b.At.Compare(a.At))
	})
	changes = slices.DeleteFunc(changes, func(c finding) bool { return c.At.IsZero() })
	slices.SortStableFunc(changes, func(a, b finding) int { return b.At.Compare(a.At) })
	findings = findings[:min(len(findings), shownFindings)]
	return &Page{Title: "Home", Section: "/", Parts: []Part{
		{"state", "home-state", summary(tiles, wrong, unknown)},
		{"wrong", "home-wrong", wrongData{findings, wrong - len(findings)}},
		{"changes", "home-changes", changes[:min(len(changes), shownChanges)]},
	}}, nil
}

// judge counts the entries of a query for a tile. It returns the first findings about them, and how
// many did not answer yet.
func (v *Visit) judge(of store.Query, t *tile) (findings []finding, unknown int, err error) {
	health, err := store.Tally(v.Context(), v.Console.Store, of)
	drifted := of
	drifted.Health, drifted.Drifted = store.Healthy, true
	differ, err2 := store.Tally(v.Context(), v.Console.Store, drifted)
	if err = cmp.Or(err, err2); err != nil {
		return nil, 0, err
	}
	for _, n := range health {
		t.Count += n
	}
	t.Bad = health[store.Failing] + health[store.Degraded] + differ[store.Healthy]

	failing, degraded := of, of
	failing.Health, degraded.Health = store.Failing, store.Degraded
	for _, wrong := range []struct {
		store.Query
		entries int
	}{{failing, health[store.Failing]}, {degraded, health[store.Degraded]},
		{drifted, differ[store.Healthy]}} {
		if wrong.entries == 0 { // the database would read all entries to find none
			continue
		}
		wrong.Limit = shownFindings
		entries, err := v.Console.Store.List(v.Context(), wrong.Query)
		if err != nil {
			return nil, 0, err
		}
		for _, e := range entries {
			findings = append(findings, wrongEntry(e))
		}
	}
	return findings, health[store.Unknown], nil
}

// summary returns the overall state in a sentence.
func summary(tiles []tile, wrong, unknown int) homeData {
	out := homeData{Healthy, "Everything is as it should be.", tiles}
	total := 0
	for _, t := range tiles {
		total += t.Count
	}
	switch {
	case total == 0:
		out.State, out.Sentence = Unknown, "There is nothing here yet that you may see."
	case wrong > 0:
		out.State, out.Sentence =
			Failing, resources.Plural(wrong, "thing")+" to look at; everything else is as it should be."
		if wrong == total {
			out.Sentence = "Nothing is as it should be."
		}
	case unknown == total:
		out.State, out.Sentence = Unknown, "Nothing has answered yet."
	case unknown > 0:
		out.Sentence = "Everything that has answered is as it should be; " + resources.Count(unknown) +
			" did not answer yet."
	}
	return out
}

// severity returns the rank of a state; the worst state has the highest.
func severity(s State) int {
	return slices.Index([]State{Healthy, Unknown, Queued, Building, Cancelled, Drifted, Degraded,
		Failing}, s)
}

func noun(e store.Entry) string {
	if e.Type == store.Server {
		return "tool server"
	}
	return "agent"
}

// entryPath returns the path of the page of an agent or tool server.
func entryPath(k store.Key) string { return resources.Path("entries", k.Resource, k.Namespace, k.Name) }

// entryFinding returns a finding about an entry.
func entryFinding(e store.Entry, why string) finding {
	return finding{State: stateOf(e.Health, Unknown), Kind: noun(e), Namespace: e.Namespace,
		Name: cmp.Or(e.Title, e.Name), Path: entryPath(e.Key), At: e.Changed, Why: why}
}

// wrongEntry returns the problem of an entry.
func wrongEntry(e store.Entry) finding {
	f := entryFinding(e, cmp.Or(e.Message, "it did not answer"))
	f.Fix = remedy(e)
	if e.Health == store.Healthy {
		f.State, f.Why = Drifted, toolsDrifted
	}
	return f
}

// toolsDrifted is the problem of a server that offers other tools than its lock has.
const toolsDrifted = "its tools differ from armature.lock"

// remedy returns what to do about an entry that does not answer, or whose tools drifted.
func remedy(e store.Entry) string {
	switch {
	case e.Health == store.Healthy:
		return "`armature tools verify` shows the difference; if it is intended, `armature tools " +
			"pin` puts it into the lock."
	case e.Health == store.Degraded:
		return "some pods answer and others do not: look at those that do not, below the agent."
	case strings.Contains(e.Message, "is missing"):
		return "create what is missing, or correct the name in " + e.Kind + " " + e.Name + "."
	case e.Type == store.Server:
		return "check that " + cmp.Or(e.URL, "its address") +
			" can be reached from the cluster, and the headers that " + e.Kind + " " + e.Name + " sends."
	}
	return "check the pods and the port and path in " + e.Kind + " " + e.Name + "."
}

func entryNews(e store.Entry) string {
	switch e.Health {
	case store.Failing:
		return "does not answer"
	case store.Degraded:
		return "answers in part"
	case store.Unknown:
		return "was registered"
	}
	return "answers, with " + offers(e)
}

// offers describes the items of an entry.
func offers(e store.Entry) string {
	var words []string
	for _, kind := range []string{store.Skill, store.Tool, store.Resource, store.Prompt} {
		if n := e.Counts[kind]; n > 0 {
			words = append(words, resources.Plural(n, kind))
		}
	}
	return cmp.Or(strings.Join(words, ", "), "nothing to offer")
}

// buildFinding returns the problem of a build, if it has one.
func buildFinding(b *api.AgentBuild) (finding, bool) {
	f := finding{State: Failing, Kind: "build", Namespace: b.Namespace, Name: b.Name,
		Path: buildPath(b.Namespace, b.Name)}
	if t := b.Status.CompletionTime; t != nil {
		f.At = t.Time
	}
	attested := meta.FindStatusCondition(b.Status.Conditions, api.ConditionAttested)
	switch {
	case attested != nil && attested.Status == metav1.ConditionFalse:
		f.Why, f.Fix = cause("its image is not attested: " + attested.Message)
	case b.Status.Phase != api.PhaseFailed:
		return f, false
	default:
		f.Why, f.Fix = cause(cmp.Or(b.Status.Message, "it failed"))
		if d := b.Status.FailureDetails; d != nil && d.Step != "" &&
			!strings.Contains(f.Why, d.Step) {
			f.Why = fmt.Sprintf("step %s: %s", d.Step, f.Why)
		}
	}
	f.Fix = cmp.Or(f.Fix, "read the log of the step that failed.")
	return f, true
}

// cause splits a message from its remedy, which is after "hint: ".
func cause(message string) (why, fix string) {
	why, fix, _ = strings.Cut(message, "hint: ")
	return strings.Join(strings.Fields(why), " "), strings.Join(strings.Fields(fix), " ")
}

// buildNews returns the last change of a build. Without a time, there was none.
func buildNews(b *api.AgentBuild) finding {
	f := finding{Kind: "build", Namespace: b.Namespace, Name: b.Name,
		Path: buildPath(b.Namespace, b.Name), State: stateOf(b.Status.Phase, Queued)}
	switch {
	case b.Status.Phase == api.PhaseBuilding && b.Status.StartTime != nil:
		f.Why, f.At = "is building", b.Status.StartTime.Time
	case b.Status.CompletionTime != nil:
		f.At = b.Status.CompletionTime.Time
		f.Why = map[State]string{Healthy: "built an image", Failing: "failed",
			Cancelled: "was cancelled"}[f.State]
	}
	return f
}
