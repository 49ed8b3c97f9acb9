package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
)

// What keeps the queue true: the watch of runs, the list of runs at the start, and a
// look at all that could be lost every queueTick.

const (
	queueTick = 5 * time.Second
	// messagesEachTick bounds the messages that are brought up to date, those of the
	// builds in front first. When a run ends, the position of every build behind it
	// changes.
	messagesEachTick = 10
	// queueSettles is how long a controller waits before it lists the runs of before,
	// so that the last requests of one that was killed have ended.
	queueSettles = 2 * time.Second
	// gatherPatience is how long all namespaces wait until the builds that were there at
	// the start are known, and gatherTimeout how long a namespace waits for its own:
	// their Git servers are asked.
	gatherPatience = 5 * time.Second
	gatherTimeout  = 30 * time.Second
	// limitKeeps is how long a namespace's annotation is not read again.
	limitKeeps = 5 * time.Second
	// unseenTimeout is when the API server is asked for a run that the watch does not
	// show; createTimeout is when a create without an answer has failed for good.
	unseenTimeout = 15 * time.Second
	createTimeout = 90 * time.Second
)

// line is where a build waits for a place. The message says so; it is empty when the
// build has one.
func (r *Reconciler) line(ctx context.Context, s *seen, commit resolved) (message string, err error) {
	if r.queue == nil {
		return "", nil
	}
	if err := r.readLimit(ctx, s.build.Namespace); err != nil {
		return "", err
	}
	t := ticket{build: client.ObjectKeyFromObject(s.build), created: s.build.CreationTimestamp.Time, priority: s.build.Spec.Priority, want: s.want, commit: commit}
	if queued(s.build.Status) {
		t.shown = s.build.Status.Message // of before a restart: it is brought up to date with the others
	}
	return r.queue.join(t), nil
}

// readLimit of a namespace, unless it was read a moment ago. One that was read
// before stays where the API server does not answer.
func (r *Reconciler) readLimit(ctx context.Context, namespace string) error {
	q := r.queue
	q.mu.Lock()
	have, known := q.limits[namespace]
	q.mu.Unlock()
	if known && time.Since(have.read) < limitKeeps {
		return nil
	}
	fresh, err := fly(ctx, &q.flights, namespace, func(ctx context.Context) (limit, error) {
		have := metadataOf("v1", "Namespace")
		if err := r.Live.Get(ctx, types.NamespacedName{Name: namespace}, have); err != nil {
			return limit{}, err
		}
		text, set := have.Annotations[keys.AnnotationMaxRunning]
		return q.limitOf(namespace, text, set), nil
	})
	switch {
	case err != nil && known && !apierrors.IsForbidden(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading the limit of Namespace %s: %w", namespace, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limits[namespace] = fresh
	return nil
}

// queued reports whether status says that the build waits in the queue.
func queued(status api.AgentBuildStatus) bool {
	ready := meta.FindStatusCondition(status.Conditions, api.ConditionReady)
	return status.Phase == api.PhasePending && ready != nil && ready.Reason == api.ReasonQueued
}

// wholeNumber from 1, as decimal digits.
func wholeNumber(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err == nil && n > 0
}

// watchRuns keeps the count of runs under way. The events of a run come in their
// order, and after the cache has them.
func (r *Reconciler) watchRuns(ctx context.Context, c cache.Cache) error {
	informer, err := c.GetInformer(ctx, &PipelineRun{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("setting up the watch of runs: %w", err)
	}
	changed := func(o any) {
		if run, ok := o.(*PipelineRun); ok {
			r.countRun(ctx, run, true)
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(_, o any) { changed(o) },
		DeleteFunc: func(o any) {
			if lost, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = lost.Obj
			}
			if run, ok := o.(*PipelineRun); ok {
				r.queue.ended(client.ObjectKeyFromObject(run), run.UID)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("setting up the watch of runs: %w", err)
	}
	return nil
}

// countRun as it is: under way, or not.
func (r *Reconciler) countRun(ctx context.Context, run *PipelineRun, seen bool) {
	key := client.ObjectKeyFromObject(run)
	switch {
	case readRun(run).done():
		r.queue.ended(key, "")
	case !r.queue.knows(key, run.UID) && r.counts(ctx, run):
		r.queue.began(key, run.UID, types.NamespacedName{Namespace: run.Namespace, Name: metav1.GetControllerOf(run).Name}, seen)
	}
}

// counts reports whether a run takes a place. A tenant could make copies of runs that
// we made, and keep others waiting with them: a run that its build's status has left
// behind, or knows under another UID, is one. Copies of the runs of deleted builds are
// deleted by the cluster.
func (r *Reconciler) counts(ctx context.Context, run *PipelineRun) bool {
	owner := metav1.GetControllerOf(run)
	if owner == nil || owner.Kind != api.Kind {
		return false
	}
	build, read := &api.AgentBuild{}, readRun(run)
	if err := r.Client.Get(ctx, types.NamespacedName{Namespace: run.Namespace, Name: owner.Name}, build); err != nil || build.UID != owner.UID {
		return r.proven(run, owner.UID)
	}
	if earlier(build, read) {
		return true
	}
	status := build.Status
	current := read.number > status.RunNumber || read.number == status.RunNumber && (status.PipelineRunUID == "" || status.PipelineRunUID == run.UID)
	return current && r.proven(run, owner.UID)
}

// keepQueue opens the queue and keeps it until ctx ends.
func (r *Reconciler) keepQueue(ctx context.Context) error {
	began := time.Now()
	for !r.gather(ctx, began) {
		if !sleep(ctx, time.Second) {
			return nil
		}
	}
	if !sleep(ctx, queueSettles-time.Since(began)) {
		return nil
	}
	for time.Since(began) < gatherPatience && !r.queue.gathered() {
		if !sleep(ctx, 50*time.Millisecond) {
			return nil
		}
	}
	for {
		err := r.countListed(ctx)
		if err == nil {
			break
		}
		ctrl.LoggerFrom(ctx).Error(err, "nothing is started before the runs are counted")
		if !sleep(ctx, time.Second) {
			return nil
		}
	}
	r.queue.update(func() { r.queue.open = true })
	for sleep(ctx, queueTick) {
		r.refreshQueue(ctx)
	}
	return nil
}

// sleep reports whether ctx still goes on.
func sleep(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

// gather notes the builds that the queue has to know before it can tell their order,
// and when their namespaces were last served.
func (r *Reconciler) gather(ctx context.Context, began time.Time) bool {
	var list api.AgentBuildList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "listing the builds for the queue")
		return false
	}
	q := r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gathering, q.gatherUntil = map[string]map[types.NamespacedName]bool{}, began.Add(gatherTimeout)
	for i := range list.Items {
		b := &list.Items[i]
		if at := b.Status.LastBuildTime; at != nil && at.After(q.served[b.Namespace]) {
			q.served[b.Namespace] = at.Time // of runs that may be gone
		}
		if key := client.ObjectKeyFromObject(b); !q.looked[key] {
			if q.gathering[b.Namespace] == nil {
				q.gathering[b.Namespace] = map[types.NamespacedName]bool{}
			}
			q.gathering[b.Namespace][key] = true
		}
	}
	q.looked = nil
	return true
}

// gathered reports whether the queue knows the builds that were there at the start.
func (q *queue) gathered() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.gathering) == 0
}

// turned notes when a namespace had a turn, before this controller started.
func (q *queue) turned(namespace string, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if at.After(q.served[namespace]) {
		q.served[namespace] = at
	}
}

// countListed counts the runs that the API server itself lists.
func (r *Reconciler) countListed(ctx context.Context) error {
	namespaces := r.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		next := ""
		for {
			var list PipelineRunList
			err := r.Live.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{compose.LabelManagedBy: compose.ManagedBy}, client.Limit(500), client.Continue(next))
			if err != nil {
				return fmt.Errorf("listing the runs under way: %w", err)
			}
			for i := range list.Items {
				run := &list.Items[i]
				r.queue.turned(run.Namespace, run.CreationTimestamp.Time)
				if !readRun(run).done() {
					r.countRun(ctx, run, false)
				}
			}
			if next = list.Continue; next == "" {
				break
			}
		}
	}
	return nil
}

// refreshQueue reads the limits of the namespaces that wait, asks for the runs that
// the watch should have shown, and wakes builds whose message or place is old.
func (r *Reconciler) refreshQueue(ctx context.Context) {
	q := r.queue
	for namespace := range q.lengths() {
		if err := r.readLimit(ctx, namespace); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "the limit of a namespace may be out of date")
		}
	}
	for _, run := range q.overdue(time.Now()) {
		r.confirm(ctx, run)
	}
	var wake []types.NamespacedName
	q.update(func() { wake = append(q.outdated(), q.idle()...) })
	for _, build := range wake {
		q.wake(build)
	}
}

// overdue are the runs that the watch should show by now.
func (q *queue) overdue(now time.Time) (out []types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for run, p := range q.running {
		if !p.seen && now.Sub(p.since) > unseenTimeout {
			out = append(out, run)
		}
	}
	return out
}

// confirm a run that the watch did not show: it may have ended, or was never created.
func (r *Reconciler) confirm(ctx context.Context, key types.NamespacedName) {
	run := &PipelineRun{}
	switch err := r.Live.Get(ctx, key, run); {
	case apierrors.IsNotFound(err):
		if r.queue.lost(key, time.Now()) {
			r.queue.ended(key, "")
		}
	case err != nil:
		ctrl.LoggerFrom(ctx).Error(err, "a run that takes a place cannot be read", "run", key)
	default:
		r.countRun(ctx, run, false)
	}
}

// lost reports whether a run that does not exist will not come, either.
func (q *queue) lost(run types.NamespacedName, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.running[run]
	return p != nil && (p.uid != "" || now.Sub(p.since) > createTimeout)
}

// outdated are the builds whose message is to be written again, those in front first.
func (q *queue) outdated() []types.NamespacedName {
	type change struct {
		*ticket
		at      int
		message string
	}
	var changes []change
	for namespace, line := range q.waiting {
		for at, t := range line {
			if message := q.message(namespace, at); message != t.shown {
				changes = append(changes, change{t, at, message})
			}
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), order(a.ticket, b.ticket)) })
	var out []types.NamespacedName
	for _, c := range changes[:min(len(changes), messagesEachTick)] {
		c.shown = c.message
		out = append(out, c.build)
	}
	return out
}

// idle are the builds that were given a place a while ago and made no run in it.
func (q *queue) idle() (out []types.NamespacedName) {
	for build, t := range q.granted {
		if time.Since(t.given) > queueTick {
			out = append(out, build)
		}
	}
	return out
}
