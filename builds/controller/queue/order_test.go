package queue

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/apis"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/functions/api/keys"
)

// line is a queue over caches that a test fills.
type line struct {
	*testing.T
	*Queue
	builds []*api.AgentBuild
	seen   []*runs.PipelineRun
	woken  []string
}

func newLine(t *testing.T, max, perNamespace int) *line {
	l := &line{T: t}
	l.Queue = &Queue{Max: max, PerNamespace: perNamespace, Cache: l, Live: l,
		SlotOf: func(_ context.Context, run *runs.PipelineRun) (types.NamespacedName, bool) {
			return (&runs.Store{BuildNamespace: "builds", Instance: "ours"}).BuildOf(run)
		},
		Wake: func(b types.NamespacedName) { l.woken = append(l.woken, b.String()) }}
	return l
}

func (l *line) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(options)
	fits := func(object client.Object) bool {
		if o.FieldSelector != nil {
			if wanted, _ := o.FieldSelector.RequiresExactMatch(Index); !slices.Contains(
				IndexOf(object), wanted) {
				return false
			}
		}
		return o.Namespace == "" || object.GetNamespace() == o.Namespace
	}
	switch list := list.(type) {
	case *api.AgentBuildList:
		for _, b := range l.builds {
			if fits(b) {
				list.Items = append(list.Items, *b)
			}
		}
	case *runs.PipelineRunList:
		for _, run := range l.seen {
			if fits(run) {
				list.Items = append(list.Items, *run)
			}
		}
	}
	return nil
}

// Get a Namespace without an annotation.
func (l *line) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

// build that is so many seconds old.
func (l *line) build(namespace, name string, age int, priority int32) *api.AgentBuild {
	b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		UID: types.UID(namespace + name), CreationTimestamp: metav1.Unix(int64(1000-age), 0)}}
	b.Spec.Priority = priority
	l.builds = append(l.builds, b)
	return b
}

// joins reports whether a build has a slot; else its status says that it waits.
func (l *line) joins(b *api.AgentBuild) bool {
	return l.joinsWith(b,
		&compose.Output{
			Run: &tektonv1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace}}})
}

func (l *line) joinsWith(b *api.AgentBuild, out *compose.Output) bool {
	l.Helper()
	message, err := l.Join(l.Context(), b, out)
	if err != nil {
		l.Fatal(err)
	}
	b.Status = api.AgentBuildStatus{Phase: api.PhasePending, Message: message,
		Conditions: []metav1.Condition{{Type: api.ConditionReady, Reason: api.ReasonQueued}}}
	if message == "" {
		b.Status = api.AgentBuildStatus{Phase: api.PhaseBuilding}
	}
	return message == ""
}

// creates the run of a build that has a slot, as the cache does not show it yet.
func (l *line) creates(b *api.AgentBuild) *runs.PipelineRun {
	l.Helper()
	run := &runs.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace,
		Name: b.Name + "-run",
		OwnerReferences: []metav1.OwnerReference{{Kind: api.Kind, Name: b.Name, UID: b.UID,
			Controller: new(true)}}}}
	if p := l.places[client.ObjectKeyFromObject(b)]; p == nil || p.granted.IsZero() {
		l.Fatalf("%s/%s has no slot", b.Namespace, b.Name)
	}
	return run
}

// shows a run in the cache, whose event has its build reconciled.
func (l *line) shows(run *runs.PipelineRun) {
	l.seen = append(l.seen, run)
	if owner := metav1.GetControllerOf(run); owner != nil {
		l.Leave(l.Context(), types.NamespacedName{Namespace: run.Namespace, Name: owner.Name})
	}
}

func (l *line) ends(run *runs.PipelineRun) {
	run.Status.SetConditions(apis.Conditions{{Type: apis.ConditionSucceeded,
		Status: corev1.ConditionTrue}})
}

func (l *line) nexts() (out []string) {
	for _, request := range l.NextRequests(l.Context(), nil) {
		out = append(out, request.String())
	}
	return out
}

func TestQueueOrder(t *testing.T) {
	l := newLine(t, 1, 0)
	first := l.build("a", "first", 99, 0)
	if !l.joins(first) {
		t.Fatalf("the first build waits: %s", first.Status.Message)
	}
	run := l.creates(first)
	for _, b := range []*api.AgentBuild{
		l.build("a", "young", 1, 0), l.build("a", "old", 9, 0), l.build("a", "urgent", 2, 1000),
		l.build("a", "low", 90, -1), l.build("b", "one", 60, 0), l.build("b", "two", 50, 1),
		l.build("c", "one", 40, 0),
	} {
		if l.joins(b) {
			t.Fatalf("%s/%s has a slot", b.Namespace, b.Name)
		}
	}
	l.shows(run)
	var order []string
	for len(order) < 8 {
		l.ends(run)
		next := l.nexts()
		if len(next) == 0 {
			break
		}
		order = append(order, next...)
		for _, b := range l.builds {
			if client.ObjectKeyFromObject(b).String() == next[0] {
				if !l.joins(b) {
					t.Fatalf("%s is next, and has no slot", next[0])
				}
				run = l.creates(b)
				l.shows(run)
			}
		}
	}
	// Namespaces take turns, whatever the priorities of one of them.
	want := []string{"b/two", "c/one", "a/urgent", "b/one", "a/old", "a/young", "a/low"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if len(l.places) != 0 {
		t.Errorf("the queue remembers %v of builds that have left", l.places)
	}
}

// Slots are given once, whoever asks at the same moment, and a namespace's limit
// leaves the rest to the others.
func TestQueueLimits(t *testing.T) {
	l := newLine(t, 3, 2)
	var got []bool
	for i := range 6 {
		got = append(got, l.joins(l.build([]string{"a", "b"}[i/4], fmt.Sprint(i), 60-i, 0)))
	}
	if diff := cmp.Diff([]bool{true, true, false, false, true, false}, got); diff != "" {
		t.Errorf("slots (-want +got):\n%s", diff)
	}
	run := l.creates(l.builds[0])
	if !l.joins(l.builds[0]) {
		t.Error("a build whose run the watch does not show yet has to wait")
	}
	// a/1 was given a slot and has a problem after all.
	l.builds[1].Status.Phase = api.PhaseFailed
	l.Leave(t.Context(), client.ObjectKeyFromObject(l.builds[1]))
	if diff := cmp.Diff([]string{"a/2"}, l.woken); diff != "" {
		t.Errorf("woken after a slot was given back (-want +got):\n%s", diff)
	}
	// The limit is lowered: what runs goes on, and nothing starts.
	l.limits["a"] = limit{Limits: runs.Limits{number: one}, read: time.Now()}
	if diff := cmp.Diff([]string{"b/5"}, l.nexts()); diff != "" {
		t.Errorf("next above the limit (-want +got):\n%s", diff)
	}
	// A run that is over when the cache first shows it has had its slot.
	l.ends(run)
	l.shows(run)
	if diff := cmp.Diff([]string{"a/2", "b/5"}, l.nexts()); diff != "" {
		t.Errorf("next (-want +got):\n%s", diff)
	}
	l.limits["a"] = limit{problem: "no number", read: time.Now()}
	if l.joins(l.builds[2]); l.builds[2].Status.Message != "no number" {
		t.Errorf("message: %q", l.builds[2].Status.Message)
	}
}

// A controller that starts counts what the caches show, and serves first the namespace
// whose last run is the oldest.
func TestQueueRestart(t *testing.T) {
	l := newLine(t, 2, 0)
	for i, namespace := range []string{"a", "b", "c"} {
		at := metav1.Unix(int64(100-i), 0)
		l.build(namespace, "before", 90, 0).Status.LastBuildTime = &at
		b := l.build(namespace, "waits", 80, 0)
		b.Status = api.AgentBuildStatus{Phase: api.PhasePending,
			Conditions: []metav1.Condition{{Type: api.ConditionReady, Reason: api.ReasonQueued}}}
	}
	l.shows(
		&runs.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "run",
			OwnerReferences: []metav1.OwnerReference{{Kind: api.Kind, Name: "before",
				Controller: new(true)}}}})
	l.shows(&runs.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "copy"}})
	if diff := cmp.Diff([]string{"c/waits"}, l.nexts()); diff != "" {
		t.Errorf("next (-want +got):\n%s", diff)
	}
	if l.joins(l.build("a", "young", 1, 1000)) || l.joins(l.builds[1]) {
		t.Error("a build has the slot of another namespace, whose turn it is")
	}
}

// isolated is a composed run in the build namespace that requests so much.
func (l *line) isolated(b *api.AgentBuild, cpu string) *compose.Output {
	run := &tektonv1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "builds",
		Name: b.Namespace + b.Name, Labels: map[string]string{keys.LabelInstance: "ours"},
		Annotations: map[string]string{keys.AnnotationBuildNamespace: b.Namespace,
			keys.AnnotationBuild: b.Name}}}
	steps := []tektonv1.Step{
		{
			ComputeResources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
	task := tektonv1.PipelineTask{Name: "build",
		TaskSpec: &tektonv1.EmbeddedTask{TaskSpec: tektonv1.TaskSpec{Steps: steps}}}
	return &compose.Output{Run: run,
		Pipeline: &tektonv1.Pipeline{
			Spec: tektonv1.PipelineSpec{Tasks: []tektonv1.PipelineTask{task}}}}
}

// The isolated runs of a namespace have so many slots and requests together, whatever another
// namespace has, and what runs is counted by a controller that starts.
func TestQueueIsolated(t *testing.T) {
	l := newLine(t, 0, 0)
	var err error
	if l.Isolated, err = runs.ParseLimits("runs=3,cpu=4"); err != nil {
		t.Fatal(err)
	}
	var got []bool
	var all []*compose.Output
	for i, c := range []struct{ namespace, cpu string }{{"a", "1500m"}, {"a", "2"}, {"a", "1"},
		{"a", "100m"}, {"b", "4"}, {"b", "1m"}} {
		b := l.build(c.namespace, fmt.Sprint(i), 60-i, 0)
		all = append(all, l.isolated(b, c.cpu))
		got = append(got, l.joinsWith(b, all[i]))
	}
	// What asks for little does not pass by what waits already.
	if diff := cmp.Diff([]bool{true, true, false, false, true, false}, got); diff != "" {
		t.Errorf("slots (-want +got):\n%s", diff)
	}
	if !l.joins(l.build("a", "dev", 1, 0)) {
		t.Error("a run in its build's own namespace has to wait")
	}
	for _, i := range []int{0, 1, 4} {
		l.seen = append(l.seen, &runs.PipelineRun{ObjectMeta: all[i].Run.ObjectMeta})
	}
	l.Queue = &Queue{Isolated: l.Isolated, Cache: l, Live: l, SlotOf: l.SlotOf,
		Wake: l.Wake}
	if l.joinsWith(l.builds[2], all[2]) {
		t.Error("a controller that starts does not know what runs")
	}
	l.ends(l.seen[0])
	if !l.joinsWith(l.builds[2], all[2]) || !l.joinsWith(l.builds[3], all[3]) ||
		l.joinsWith(l.builds[5], all[5]) {
		t.Error("what a run had is not the next one's, or another namespace's")
	}
	large := l.build("c", "large", 1, 0)
	if _, err := l.Join(t.Context(), large, l.isolated(large, "5")); err == nil ||
		!strings.Contains(err.Error(), "requests 5 of cpu, of 4 that all runs") {
		t.Errorf("a run that never fits: %v", err)
	}
}

// A create whose answer is lost keeps its slot until it is known to have failed.
func TestQueueLostAnswer(t *testing.T) {
	l := newLine(t, 1, 0)
	first, second := l.build("a", "1", 9, 0), l.build("a", "2", 8, 0)
	l.joins(first)
	l.joins(second)
	l.creates(first)
	if len(l.woken) != 0 || l.joins(second) {
		t.Fatalf("the slot goes to another: %v", l.woken)
	}
	l.places[client.ObjectKeyFromObject(first)].granted = time.Now().Add(-grantTimeout - time.Second)
	if !l.joins(second) {
		t.Error("a create without an answer keeps its slot for ever")
	}
}

func TestQueueLimitOfANamespace(t *testing.T) {
	for _, c := range []struct {
		flag    int
		text    string
		max     int64
		problem bool
	}{
		{0, "3", 3, false}, {5, "3", 3, false}, {5, "7", 5, false}, {5, "0", 0, true},
		{0, "0", 0, true}, {5, "-1", 0, true}, {5, "+1", 0, true}, {5, "", 0, true},
		{5, "five", 0, true}, {5, "1.5", 0, true}, {5, " 1", 0, true},
		{5, "99999999999999999999", 0, true},
	} {
		l := newLine(t, 1, c.flag).limitOf("a",
			map[string]string{keys.AnnotationMaxRunning: c.text})
		if (l.problem != "") != c.problem ||
			!c.problem && l.Limits[number] != *resource.NewQuantity(c.max, resource.DecimalSI) {
			t.Errorf("flag %d, annotation %q: %+v", c.flag, c.text, l)
		}
	}
	if l := newLine(t, 1, 5).limitOf("a",
		nil); l.Limits[number] != *resource.NewQuantity(5, resource.DecimalSI) || l.problem != "" {
		t.Errorf("without an annotation: %+v", l)
	}
}
