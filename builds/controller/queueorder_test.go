package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// line is a queue without a cluster. Builds are namespace/name; those that were woken,
// since they got a place, are in order.
type line struct {
	*queue
	woken []string
}

func newLine(max, perNamespace int) *line {
	l := &line{}
	l.queue = newQueue(max, perNamespace, func(b types.NamespacedName) { l.woken = append(l.woken, b.String()) })
	l.open = true
	for _, namespace := range []string{"a", "b", "c"} {
		l.limits[namespace] = limit{max: perNamespace}
	}
	return l
}

func key(text string) types.NamespacedName {
	namespace, name, _ := strings.Cut(text, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// add builds, each a second younger than the one before.
func (l *line) add(builds ...string) (messages []string) {
	for i, b := range builds {
		messages = append(messages, l.join(ticket{build: key(b), created: time.Unix(int64(i), 0)}))
	}
	return messages
}

// run creates the run of a build that has a place, named after it.
func (l *line) run(t *testing.T, build string) {
	t.Helper()
	if !l.creates(key(build), key(build+"-run")) {
		t.Fatalf("%s has no place", build)
	}
	l.created(key(build+"-run"), types.UID(build))
}

func TestQueueOrder(t *testing.T) {
	l := newLine(1, 0)
	if got := l.add("a/first"); got[0] != "" {
		t.Fatalf("the first build waits: %s", got[0])
	}
	l.run(t, "a/first")
	l.join(ticket{build: key("a/young"), created: time.Unix(9, 0)})
	l.join(ticket{build: key("a/old"), created: time.Unix(1, 0)})
	l.join(ticket{build: key("a/urgent"), created: time.Unix(8, 0), priority: 1000})
	l.join(ticket{build: key("a/low"), created: time.Unix(0, 0), priority: -1})
	l.join(ticket{build: key("b/one"), created: time.Unix(20, 0)})
	l.join(ticket{build: key("b/two"), created: time.Unix(21, 0)})
	l.join(ticket{build: key("c/one"), created: time.Unix(30, 0)})
	// A spec that changed: its priority with it.
	l.join(ticket{build: key("b/two"), created: time.Unix(21, 0), priority: 1})
	for last := "a/first"; last != ""; {
		n := len(l.woken)
		l.ended(key(last+"-run"), types.UID(last))
		if last = ""; len(l.woken) > n {
			last = l.woken[n]
			l.run(t, last)
		}
	}
	// Namespaces take turns, whatever the priorities of one of them.
	want := []string{"b/two", "c/one", "a/urgent", "b/one", "a/old", "a/young", "a/low"}
	if diff := cmp.Diff(want, l.woken); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if len(l.used) != 0 || len(l.running) != 0 || len(l.unseen) != 0 || len(l.granted) != 0 {
		t.Errorf("places that nobody has are taken: %v %v %v %v", l.used, l.running, l.unseen, l.granted)
	}
}

// Places are given once, whoever asks at the same moment, and a namespace's limit
// leaves the rest to the others.
func TestQueueLimits(t *testing.T) {
	l := newLine(3, 2)
	got := l.add("a/1", "a/2", "a/3", "a/4", "b/1", "b/2")
	want := []string{"", "", "waits until other builds end: number 1 in the queue of namespace a",
		"waits until other builds end: number 2 in the queue of namespace a", "", "waits until other builds end: number 1 in the queue of namespace b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	l.run(t, "a/1")
	if l.join(ticket{build: key("a/1")}) != "" {
		t.Error("a build whose run the watch does not show yet has to wait")
	}
	if l.creates(key("a/1"), key("a/other-run")) {
		t.Error("a second run of the build takes the same place")
	}
	// a/2 was given a place and has a problem after all.
	l.reconciled(key("a/2"), false, false)
	if diff := cmp.Diff([]string{"a/3"}, l.woken); diff != "" {
		t.Errorf("woken after a place was given back (-want +got):\n%s", diff)
	}
	// The limit is lowered: what runs goes on, and nothing starts.
	l.limits["a"] = limit{max: 1}
	l.ended(key("a/1-run"), "another object")
	if len(l.woken) != 1 {
		t.Errorf("the end of another run of that name frees a place: %v", l.woken)
	}
	l.ended(key("a/1-run"), "a/1")
	l.reconciled(key("b/1"), false, false)
	if diff := cmp.Diff([]string{"a/3", "b/2"}, l.woken); diff != "" {
		t.Errorf("woken above the limit (-want +got):\n%s", diff)
	}
	l.run(t, "a/3")
	l.ended(key("a/3-run"), "a/3")
	if diff := cmp.Diff([]string{"a/3", "b/2", "a/4"}, l.woken); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}
}

// The watch may show a run, and its end, before the answer to its create is there.
func TestQueueWatchBeforeTheAnswer(t *testing.T) {
	for _, ends := range []bool{false, true} {
		l := newLine(1, 0)
		l.add("a/1", "a/2")
		build, run := key("a/1"), key("a/1-run")
		if !l.creates(build, run) {
			t.Fatal("no place")
		}
		l.began(run, "uid", build, true)
		if ends {
			l.ended(run, "uid")
		}
		l.created(run, "uid")
		if want := map[bool]int{false: 1, true: 0}[ends]; len(l.running) != want || len(l.unseen) != 0 || len(l.woken) != 1-want {
			t.Errorf("ends %v: %d runs, %v unseen, woken %v", ends, len(l.running), l.unseen, l.woken)
		}
	}
}

// A create whose answer is lost keeps its place until it is known to have failed.
func TestQueueLostAnswer(t *testing.T) {
	l := newLine(1, 0)
	l.add("a/1", "a/2")
	run := key("a/1-run")
	l.creates(key("a/1"), run)
	l.reconciled(key("a/1"), false, false)
	if len(l.woken) != 0 {
		t.Fatalf("woken: %v", l.woken)
	}
	now := time.Now()
	if got := l.overdue(now.Add(unseenTimeout + time.Second)); len(got) != 1 || got[0] != run {
		t.Errorf("overdue: %v", got)
	}
	if l.lost(run, now.Add(unseenTimeout)) || !l.lost(run, now.Add(createTimeout+time.Second)) {
		t.Error("the create is given up too early, or never")
	}
}

// No place is given before the runs of before are counted, and none in a namespace
// whose order is not known yet.
func TestQueueOpens(t *testing.T) {
	l := newLine(2, 0)
	l.open = false
	l.gathering, l.gatherUntil = map[string]map[types.NamespacedName]bool{"a": {key("a/old"): true}}, time.Now().Add(time.Hour)
	l.add("a/young", "b/1", "b/2")
	l.began(key("c/run"), "uid", key("c/1"), false)
	if len(l.woken) != 0 {
		t.Fatalf("woken before the queue is open: %v", l.woken)
	}
	l.update(func() { l.open = true })
	if diff := cmp.Diff([]string{"b/1"}, l.woken); diff != "" {
		t.Fatalf("woken (-want +got):\n%s", diff)
	}
	l.join(ticket{build: key("a/old"), created: time.Unix(-1, 0)})
	l.reconciled(key("a/old"), true, false)
	l.ended(key("c/run"), "uid")
	if diff := cmp.Diff([]string{"b/1", "a/old"}, l.woken); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}
}

// However many builds wait, few messages are brought up to date at a time, those of
// the builds in front first.
func TestQueueMessages(t *testing.T) {
	l := newLine(1, 0)
	var builds []string
	for i := range 500 {
		builds = append(builds, fmt.Sprintf("a/%03d", i))
	}
	l.add(builds...)
	l.run(t, "a/000")
	l.ended(key("a/000-run"), "a/000")
	got := l.outdated()
	if len(got) != messagesEachTick || got[0].Name != "002" || got[messagesEachTick-1].Name != fmt.Sprintf("%03d", messagesEachTick+1) {
		t.Errorf("outdated: %v", got)
	}
	if m := l.join(ticket{build: key("a/002"), created: time.Unix(2, 0)}); m != "waits until other builds end: number 1 in the queue of namespace a" {
		t.Errorf("message: %s", m)
	}
	if m := l.join(ticket{build: key("a/400"), created: time.Unix(400, 0)}); m != "waits until other builds end: number 400 in the queue of namespace a" {
		t.Errorf("a message changes before its turn: %s", m)
	}
}

func TestQueueLimitOfANamespace(t *testing.T) {
	for _, c := range []struct {
		flag    int
		text    string
		max     int
		problem bool
	}{
		{0, "3", 3, false}, {5, "3", 3, false}, {5, "7", 5, false}, {5, "0", 0, true}, {0, "0", 0, true}, {5, "-1", 0, true}, {5, "+1", 0, true},
		{5, "", 0, true}, {5, "five", 0, true}, {5, "1.5", 0, true}, {5, " 1", 0, true}, {5, "99999999999999999999", 0, true},
	} {
		l := newLine(1, c.flag).limitOf("a", c.text, true)
		if (l.problem != "") != c.problem || !c.problem && l.max != c.max {
			t.Errorf("flag %d, annotation %q: %+v", c.flag, c.text, l)
		}
	}
	if l := newLine(1, 5).limitOf("a", "", false); l.max != 5 || l.problem != "" {
		t.Errorf("without an annotation: %+v", l)
	}
}
