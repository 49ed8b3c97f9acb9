package controller

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
)

// Where the operator limits how many runs there are at once, a build needs a place
// before its run is created. The queue gives places out:
//
//   - A build joins once nothing else keeps its run from being created: it composes,
//     its Secrets are there, its commit is known. Until then it holds up nobody.
//   - Inside a namespace the higher spec.priority goes first, then the older build.
//     Namespaces take turns: the one that was served longest ago is next.
//   - A place is taken under one lock, before the create, and is free again when the
//     API server's watch shows that the run ended or is gone. The watch lags behind
//     our creates, so a place counts from the moment that it is given, whatever the
//     watch shows. A run is counted by name, so that a lost answer counts once.
//   - Nothing is stored but the runs and the builds. A controller that starts gives no
//     place out before it has listed the runs on the API server itself: its own cache
//     may begin with an old list. See queuekeep.go.
//
// A nil queue has no limits.
type queue struct {
	// max of the cluster and perNamespace; zero is unlimited.
	max, perNamespace int
	// wake a build that was given a place, or whose message is out of date.
	wake func(types.NamespacedName)
	// flights read the limits of namespaces.
	flights flights

	mu sync.Mutex // never held while a server is asked
	// open once the runs of before were counted.
	open bool
	// gathering are the builds that were there at the start and were not reconciled
	// yet, by namespace: until they were, or until gatherUntil, the order of their
	// namespace is not known. looked are those reconciled before it was filled.
	gathering   map[string]map[types.NamespacedName]bool
	gatherUntil time.Time
	looked      map[types.NamespacedName]bool
	waiting     map[string][]*ticket // by namespace, the next first
	granted     map[types.NamespacedName]*ticket
	running     map[types.NamespacedName]*taken               // by the run's name
	unseen      map[types.NamespacedName]types.NamespacedName // build -> its run, until the watch shows it
	used        map[string]int                                // places taken, by namespace
	limits      map[string]limit
	served      map[string]time.Time // when a namespace was last given a place
}

// ticket of a build that waits, or that was given a place and has no run yet.
type ticket struct {
	build    types.NamespacedName
	created  time.Time
	priority int32
	// want is what the commit was resolved for.
	want   api.Inputs
	commit resolved
	// shown in the build's status; empty where that does not say that it waits.
	shown string
	given time.Time
}

// taken is the place of a run.
type taken struct {
	build types.NamespacedName
	// uid is empty while the answer to the create is not known.
	uid types.UID
	// seen by the watch, which from then on decides.
	seen  bool
	since time.Time
}

// limit of one namespace; zero is none. With a problem nothing starts there.
type limit struct {
	max     int
	problem string
	read    time.Time
}

func newQueue(max, perNamespace int, wake func(types.NamespacedName)) *queue {
	if max == 0 && perNamespace == 0 {
		return nil
	}
	return &queue{max: max, perNamespace: perNamespace, wake: wake,
		looked: map[types.NamespacedName]bool{}, waiting: map[string][]*ticket{}, granted: map[types.NamespacedName]*ticket{},
		running: map[types.NamespacedName]*taken{}, unseen: map[types.NamespacedName]types.NamespacedName{},
		used: map[string]int{}, limits: map[string]limit{}, served: map[string]time.Time{}}
}

// update changes the queue, gives out the places that are free, and wakes the
// builds that got one.
func (q *queue) update(change func()) {
	q.mu.Lock()
	change()
	given := q.dispatch()
	q.mu.Unlock()
	for _, build := range given {
		q.wake(build)
	}
}

// join the queue, or change what it knows of a build. The message says what the
// build waits for; it is empty when the build has a place.
func (q *queue) join(t ticket) (message string) {
	q.mu.Lock()
	if !q.placed(t.build) {
		if old := q.drop(t.build); old != nil {
			t.shown = old.shown
		}
		line := q.waiting[t.build.Namespace]
		at, _ := slices.BinarySearchFunc(line, &t, order)
		q.waiting[t.build.Namespace] = slices.Insert(line, at, &t)
		t.shown = cmp.Or(t.shown, q.message(t.build.Namespace, at))
	}
	given := q.dispatch()
	if !q.placed(t.build) {
		message = t.shown
	}
	q.mu.Unlock()
	for _, build := range given {
		if build != t.build {
			q.wake(build)
		}
	}
	return message
}

// placed reports whether a build has a place for the run that it is to make.
func (q *queue) placed(build types.NamespacedName) bool {
	_, made := q.unseen[build]
	return made || q.granted[build] != nil
}

// order inside a namespace.
func order(a, b *ticket) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), a.created.Compare(b.created), cmp.Compare(a.build.Name, b.build.Name))
}

// message for the status of the build at a place of its namespace's line.
func (q *queue) message(namespace string, at int) string {
	if problem := q.limits[namespace].problem; problem != "" {
		return problem
	}
	return fmt.Sprintf("waits until other builds end: number %d in the queue of namespace %s", at+1, namespace)
}

// drop a build from its line.
func (q *queue) drop(build types.NamespacedName) *ticket {
	line := q.waiting[build.Namespace]
	at := slices.IndexFunc(line, func(t *ticket) bool { return t.build == build })
	if at < 0 {
		return nil
	}
	t := line[at]
	if line = slices.Delete(line, at, at+1); len(line) == 0 {
		delete(q.waiting, build.Namespace)
	} else {
		q.waiting[build.Namespace] = line
	}
	return t
}

// resolved is the commit that a build found when it joined; with other inputs it
// has to ask again.
func (q *queue) resolved(build types.NamespacedName, want api.Inputs) (resolved, bool) {
	if q == nil {
		return resolved{}, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.granted[build]
	if at := slices.IndexFunc(q.waiting[build.Namespace], func(t *ticket) bool { return t.build == build }); at >= 0 {
		t = q.waiting[build.Namespace][at]
	}
	if t == nil || t.want != want || t.commit.commit == "" {
		return resolved{}, false
	}
	return t.commit, true
}

// reconciled notes that a build was looked at. Unless it waits in the queue it
// leaves: a place that it was given and made no run in goes to another. A build
// that waits for its Git server (pending) is not known to the queue yet.
func (q *queue) reconciled(build types.NamespacedName, waits, pending bool) {
	if q == nil {
		return
	}
	q.update(func() {
		if !waits {
			q.drop(build)
			if q.granted[build] != nil {
				delete(q.granted, build)
				q.release(build.Namespace)
			}
		}
		switch {
		case pending:
		case q.gathering == nil && !q.open:
			q.looked[build] = true
		default:
			if left := q.gathering[build.Namespace]; left != nil {
				if delete(left, build); len(left) == 0 {
					delete(q.gathering, build.Namespace)
				}
			}
		}
	})
}

// dispatch gives out the places that are free, and lists who got one.
func (q *queue) dispatch() (given []types.NamespacedName) {
	for q.open && (q.max == 0 || len(q.granted)+len(q.running) < q.max) {
		next := ""
		for namespace := range q.waiting {
			if !q.room(namespace) {
				continue
			}
			if next == "" || cmp.Or(q.served[namespace].Compare(q.served[next]), cmp.Compare(namespace, next)) < 0 {
				next = namespace
			}
		}
		if next == "" {
			break
		}
		t := q.waiting[next][0]
		q.drop(t.build)
		t.given = time.Now()
		q.granted[t.build], q.served[next] = t, t.given
		q.used[next]++
		given = append(given, t.build)
	}
	return given
}

// room reports whether a namespace may be given one more place of its own.
func (q *queue) room(namespace string) bool {
	if q.gathering[namespace] != nil && time.Now().Before(q.gatherUntil) {
		return false
	}
	l, known := q.limits[namespace]
	return known && l.problem == "" && (l.max == 0 || q.used[namespace] < l.max)
}

func (q *queue) release(namespace string) {
	if q.used[namespace]--; q.used[namespace] <= 0 {
		delete(q.used, namespace)
	}
}

// creates notes that a build's run is about to be created in its place. It is false
// when another run of that build was created, which the caches do not show yet.
func (q *queue) creates(build, run types.NamespacedName) bool {
	if q == nil {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if before, ok := q.unseen[build]; ok {
		return before == run
	}
	if q.granted[build] == nil {
		return false // it was taken back
	}
	delete(q.granted, build)
	if q.running[run] != nil { // the place that it was given is one too many
		q.release(build.Namespace)
		return true
	}
	q.running[run], q.unseen[build] = &taken{build: build, since: time.Now()}, run
	return true
}

// created notes the answer to a create. Where the watch was faster, it knows better.
func (q *queue) created(run types.NamespacedName, uid types.UID) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if p := q.running[run]; p != nil && p.uid == "" {
		p.uid = uid
	}
}

// began counts a run that is under way: the watch shows it (seen), or the API server
// lists it.
func (q *queue) began(run types.NamespacedName, uid types.UID, build types.NamespacedName, seen bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.running[run]
	if p == nil {
		p = &taken{build: build, since: time.Now()}
		q.running[run] = p
		q.used[run.Namespace]++
	}
	switch p.uid = uid; {
	case seen:
		p.seen = true
		q.forget(p.build, run)
	case !p.seen:
		q.unseen[p.build] = run
	}
}

// knows reports whether a run is counted and shown by the watch.
func (q *queue) knows(run types.NamespacedName, uid types.UID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.running[run]
	return p != nil && p.seen && p.uid == uid
}

// ended frees the place of a run. With a UID it is that of this very run.
func (q *queue) ended(run types.NamespacedName, uid types.UID) {
	if q == nil {
		return
	}
	q.update(func() {
		p := q.running[run]
		if p == nil || uid != "" && p.uid != uid {
			return
		}
		delete(q.running, run)
		q.forget(p.build, run)
		q.release(run.Namespace)
	})
}

func (q *queue) forget(build, run types.NamespacedName) {
	if q.unseen[build] == run {
		delete(q.unseen, build)
	}
}

// lengths of the queue, by namespace.
func (q *queue) lengths() map[string]int {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	out := map[string]int{}
	for namespace, line := range q.waiting {
		out[namespace] = len(line)
	}
	return out
}

// limitOf a namespace, from its annotation: it may lower the flag's limit, and
// never raises it. A text that is not a limit stops the namespace, since nobody
// knows which limit was meant.
func (q *queue) limitOf(namespace, text string, set bool) limit {
	l := limit{max: q.perNamespace, read: time.Now()}
	if !set {
		return l
	}
	n, ok := wholeNumber(text)
	if !ok {
		l.problem = fmt.Sprintf("waits: the annotation %s of Namespace %s is %q\n  hint: set a whole number from 1, or remove the annotation", keys.AnnotationMaxRunning, namespace, text[:min(len(text), 40)])
		return l
	}
	if l.max == 0 || n < l.max {
		l.max = n
	}
	return l
}
