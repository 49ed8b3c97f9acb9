// Package queue decides when the run of a build may be created: by limits of the operator, or
// as Kueue admits it.
package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process"
)

// Queue limits the runs under way: a build needs a slot before its run is created. The caches have
// the state: a run that has not ended uses a slot, and a build with the reason Queued waits.
//
//   - A build joins once nothing else prevents its run. Until then it delays no other build.
//   - Within a namespace, the higher spec.priority goes first, then the older build. Namespaces
//     take turns: the namespace that was served longest ago is next.
//   - The watch lags behind creates: a granted slot counts until the cache shows its run.
//   - When a run ends, or a build leaves the queue, the next builds are reconciled again.
//
// If Kueue is enabled, it admits runs instead.
type Queue struct {
	// Max limits the runs of the cluster, and PerNamespace those of a namespace; zero is unlimited.
	Max, PerNamespace int
	// Isolated limits the isolated runs of each namespace.
	Isolated runs.Limits
	// Cache has runs and builds, and Live reads from the API server.
	Cache, Live client.Reader
	// SlotOf returns the build whose slot a run under way uses; ok is false if it uses none.
	SlotOf func(context.Context, *runs.PipelineRun) (build types.NamespacedName, ok bool)
	// IsolatedOf lists the isolated runs of a namespace's builds, including those of other shards,
	// which the cache does not have. It is nil if there are no other shards.
	IsolatedOf func(ctx context.Context, namespace string) (*runs.PipelineRunList, error)
	// Wake requests a reconcile of a build that may start now, or whose limit has changed.
	Wake func(types.NamespacedName)

	mu     sync.Mutex                      // never held during a request
	places map[types.NamespacedName]*place // builds that wait or were granted a slot
	limits map[string]limit
	served map[string]time.Time // when a namespace was last granted a slot; nil before begin
}

// limit is the limit of the runs of one namespace together. If it has a problem, no run starts.
type limit struct {
	runs.Limits
	problem string
	read    time.Time
}

// place is the place of a build in the queue.
type place struct {
	use     corev1.ResourceList
	granted time.Time // when it was granted a slot; zero once the cache shows its run
}

const (
	// Tick is how often the queue reads limits of namespaces, and looks for unused slots.
	Tick = 5 * time.Second
	// limitKeeps is how long the annotation of a namespace is not read again.
	limitKeeps = 4 * time.Second
	// grantTimeout is when a create without an answer has failed for good.
	grantTimeout = 90 * time.Second
)

// Index is the name of the index of runs that use a slot and of builds that wait for one.
const Index = "queue"

// usesSlot and waitsForSlot are the values of the index.
const usesSlot, waitsForSlot = "uses", "waits"

// IndexOf returns the value of the index for a run or a build.
func IndexOf(o client.Object) []string {
	switch o := o.(type) {
	case *runs.PipelineRun:
		if !runs.Read(o).Done() {
			return []string{usesSlot}
		}
	case *api.AgentBuild:
		if Waits(o.Status) && o.DeletionTimestamp.IsZero() {
			return []string{waitsForSlot}
		}
	}
	return nil
}

// Waits reports whether a build waits in the queue according to its status.
func Waits(status api.AgentBuildStatus) bool {
	ready := meta.FindStatusCondition(status.Conditions, api.ConditionReady)
	return status.Phase == api.PhasePending && ready != nil && ready.Reason == api.ReasonQueued
}

// Leaves selects the events after which a slot may be free or another build is next.
var Leaves = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return IndexOf(e.ObjectOld) != nil && IndexOf(e.ObjectNew) == nil
	},
	DeleteFunc:  func(e event.DeleteEvent) bool { return IndexOf(e.Object) != nil },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// Limited reports whether there are limits.
func (q *Queue) Limited() bool { return q.Max > 0 || q.PerNamespace > 0 || len(q.Isolated) > 0 }

// Join adds a composed run to the queue. The message says what the build waits for; it is empty if
// the run may be created. Join records the requests of an isolated run in an annotation, which the
// cache of runs has later.
func (q *Queue) Join(ctx context.Context, b *api.AgentBuild,
	out *compose.Output) (message string, err error) {
	isolated := out.Run.Namespace != b.Namespace
	if !q.Limited() || !isolated && q.Max == 0 && q.PerNamespace == 0 {
		return "", nil
	}
	if isolated {
		out.Run.Annotations[keys.AnnotationRequests] = tekton.JSON(requests(out))
	}
	use, err := useOf(out.Run, b.Namespace)
	if err != nil {
		return "", err
	}
	if over := q.Isolated.Exceeded(use, nil); over != "" {
		return "", compose.Place(b).At("spec.pod.resources").Fault(api.ReasonInvalidBuild,
			fmt.Sprintf("the run requests %s that all runs of mode %s of a namespace have together",
				over, cmp.Or(b.Spec.Mode, "dev")),
			"request less, or let the platform raise maxIsolatedPerNamespace")
	}
	if message, err := q.Crowded(ctx, b, out); message != "" || err != nil {
		return message, err
	}
	if err := q.readLimit(ctx, b.Namespace); err != nil {
		return "", err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	build := client.ObjectKeyFromObject(b)
	own := q.places[build]
	if own == nil {
		own = &place{}
		q.places[build] = own
	}
	own.use = use
	next, err := q.next(ctx, b)
	switch {
	case err != nil || !own.granted.IsZero():
		return "", err
	case slices.Contains(next, build):
		own.granted, q.served[b.Namespace] = time.Now(), time.Now()
		return "", nil
	}
	return cmp.Or(q.limits[b.Namespace].problem, waits), nil
}

const waits = "waits until other builds end"

// Crowded returns what an isolated run waits for because of the isolated runs of all shards. The
// last check follows the creation of a held run: if two shards create runs at the same time, at
// least one of them sees both.
func (q *Queue) Crowded(ctx context.Context, b *api.AgentBuild,
	out *compose.Output) (message string, _ error) {
	if q.IsolatedOf == nil || len(q.Isolated) == 0 || out.Run.Namespace == b.Namespace {
		return "", nil
	}
	list, err := q.IsolatedOf(ctx, b.Namespace)
	if err != nil {
		return "", err
	}
	own, err := useOf(out.Run, b.Namespace)
	others := sums[string]{}
	for i := range list.Items {
		if run := &list.Items[i]; run.Name != out.Run.Name && !runs.Read(run).Done() {
			use, failed := useOf(run, b.Namespace)
			err = cmp.Or(err, failed)
			others.add(use, b.Namespace)
		}
	}
	if err == nil && q.Isolated.Exceeded(own, others[b.Namespace]) != "" {
		return waits, nil
	}
	return "", err
}

// number is the resource name for the number of runs under way.
const number corev1.ResourceName = "number"

var one = *resource.NewQuantity(1, resource.DecimalSI)

// useOf returns the limited resources that a run of a build in the namespace uses.
func useOf(run metav1.Object, namespace string) (corev1.ResourceList, error) {
	use := corev1.ResourceList{}
	if run.GetNamespace() != namespace { // The run is isolated.
		if text := run.GetAnnotations()[keys.AnnotationRequests]; text != "" {
			if err := json.Unmarshal([]byte(text), &use); err != nil {
				return nil, fmt.Errorf("reading what run %s requests: %w", run.GetName(), err)
			}
		}
		use[runs.Isolated] = one
	}
	use[number] = one
	return use, nil
}

// next returns the builds that may start now. self waits even if the cache does not show it, or is
// nil.
func (q *Queue) next(ctx context.Context,
	self *api.AgentBuild) (out []types.NamespacedName, _ error) {
	if err := q.begin(ctx); err != nil {
		return nil, err
	}
	used, busy, err := q.used(ctx)
	if err != nil || self != nil && !q.hasRoom(client.ObjectKeyFromObject(self), used) {
		return nil, err
	}
	waiting, err := q.waiting(ctx)
	if err != nil {
		return nil, err
	}
	waiting = slices.DeleteFunc(waiting, func(b *api.AgentBuild) bool {
		return busy[client.ObjectKeyFromObject(b)] || self != nil && b.UID == self.UID
	})
	if self != nil {
		waiting = append(waiting, self)
	}
	slices.SortFunc(waiting, q.order)
	turn, turns := map[*api.AgentBuild]int{}, map[string]int{} // Namespaces alternate.
	for _, b := range waiting {
		turns[b.Namespace]++
		turn[b] = turns[b.Namespace]
	}
	slices.SortStableFunc(waiting,
		func(a, b *api.AgentBuild) int { return cmp.Compare(turn[a], turn[b]) })
	full := map[string]bool{} // namespaces whose first waiting build has no room
	for _, b := range waiting {
		build := client.ObjectKeyFromObject(b)
		if full[b.Namespace] = full[b.Namespace] || !q.hasRoom(build, used); !full[b.Namespace] {
			used.add(q.useOf(build), "", b.Namespace)
			out = append(out, build)
		}
	}
	return out, nil
}

// waiting returns the builds that wait. They belong to the cache: do not change them.
func (q *Queue) waiting(ctx context.Context,
	options ...client.ListOption) (out []*api.AgentBuild, _ error) {
	var list api.AgentBuildList
	if err := q.Cache.List(ctx, &list, append(options, client.MatchingFields{Index: waitsForSlot},
		client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("listing the builds that wait: %w", err)
	}
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out, nil
}

// begin reads from the builds when each namespace was last served before this controller started.
func (q *Queue) begin(ctx context.Context) error {
	if q.served != nil {
		return nil
	}
	var list api.AgentBuildList
	if err := q.Cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing the builds: %w", err)
	}
	q.places, q.limits = map[types.NamespacedName]*place{}, map[string]limit{}
	q.served = map[string]time.Time{}
	for _, b := range list.Items {
		if at := b.Status.LastBuildTime; at != nil && at.After(q.served[b.Namespace]) {
			q.served[b.Namespace] = at.Time
		}
	}
	return nil
}

// order compares builds by the order of the queue: namespaces by their last slot, and the builds of
// a namespace by priority and age.
func (q *Queue) order(a, b *api.AgentBuild) int {
	return cmp.Or(q.served[a.Namespace].Compare(q.served[b.Namespace]),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(b.Spec.Priority, a.Spec.Priority),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// hasRoom reports whether a build may be granted a slot. If the limit of its namespace or the use
// of its run is not known yet, the build finds them when it is reconciled.
func (q *Queue) hasRoom(build types.NamespacedName, used sums[string]) bool {
	l, all := q.limits[build.Namespace], used[""]
	return l.problem == "" && l.Exceeded(q.useOf(build), used[build.Namespace]) == "" &&
		(q.Max == 0 || all.Name(number, resource.DecimalSI).Value() < int64(q.Max))
}

// useOf returns the limited resources that the run of a build in the queue uses.
func (q *Queue) useOf(build types.NamespacedName) corev1.ResourceList {
	if p := q.places[build]; p != nil {
		return p.use
	}
	return corev1.ResourceList{number: one}
}

// used returns the sum of what the runs under way use, by namespace and in total under "", and the
// builds that have a run or a granted slot.
func (q *Queue) used(ctx context.Context) (sums[string], map[types.NamespacedName]bool, error) {
	used, busy := sums[string]{}, map[types.NamespacedName]bool{}
	var list runs.PipelineRunList
	if err := q.Cache.List(ctx, &list, client.MatchingFields{Index: usesSlot},
		client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("listing the runs under way: %w", err)
	}
	for i := range list.Items {
		build, ok := q.SlotOf(ctx, &list.Items[i])
		if !ok {
			continue
		}
		use, err := useOf(&list.Items[i], build.Namespace)
		if err != nil {
			return nil, nil, err
		}
		used.add(use, "", build.Namespace)
		busy[build] = true
	}
	for build, p := range q.places {
		switch {
		case p.granted.IsZero():
		case busy[build] || time.Since(p.granted) > grantTimeout:
			p.granted = time.Time{}
		default:
			used.add(p.use, "", build.Namespace)
			busy[build] = true
		}
	}
	return used, busy, nil
}

// Leave removes a build from the queue. If it was granted a slot that it did not use,
// another build gets it.
func (q *Queue) Leave(ctx context.Context, build types.NamespacedName) {
	q.mu.Lock()
	left := q.places[build]
	delete(q.places, build)
	q.mu.Unlock()
	if left != nil && !left.granted.IsZero() {
		q.wakeNext(ctx, build)
	}
}

// NextRequests returns requests for the builds that may start now.
func (q *Queue) NextRequests(ctx context.Context, _ client.Object) (out []reconcile.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	next, err := q.next(ctx, nil)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err,
			"the next builds of the queue are not known; looking for them again")
	}
	for _, build := range next {
		out = append(out, reconcile.Request{NamespacedName: build})
	}
	return out
}

// wakeNext wakes the builds that may start now, except one that has just left the queue.
func (q *Queue) wakeNext(ctx context.Context, except types.NamespacedName) {
	for _, request := range q.NextRequests(ctx, nil) {
		if request.NamespacedName != except {
			q.Wake(request.NamespacedName)
		}
	}
}

// Watch reads limits that may have changed, and looks for unused slots, until ctx ends.
func (q *Queue) Watch(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		waiting, err := q.waiting(ctx)
		for _, b := range waiting {
			err = cmp.Or(err, q.readLimit(ctx, b.Namespace))
		}
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "the limit of a namespace may be out of date")
		}
		q.wakeNext(ctx, types.NamespacedName{})
	}, Tick)
	return nil
}

// readLimit reads the limit of a namespace, unless it was read a moment ago. If the API server does
// not answer, the known limit stays. After a change it wakes the waiting builds of the namespace.
func (q *Queue) readLimit(ctx context.Context, namespace string) error {
	q.mu.Lock()
	err := q.begin(ctx)
	have, known := q.limits[namespace]
	q.mu.Unlock()
	if err != nil || known && time.Since(have.read) < limitKeeps {
		return err
	}
	object := process.MetadataOf("v1", "Namespace")
	err = q.Live.Get(ctx, types.NamespacedName{Name: namespace}, object)
	if err != nil && known && !apierrors.IsForbidden(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("reading the limit of Namespace %s: %w", namespace, err)
	}
	fresh := q.limitOf(namespace, object.Annotations)
	q.mu.Lock()
	q.limits[namespace] = fresh
	q.mu.Unlock()
	if !known || fresh.problem == have.problem && maps.Equal(fresh.Limits, have.Limits) {
		return nil
	}
	waiting, err := q.waiting(ctx, client.InNamespace(namespace))
	for _, b := range waiting {
		q.Wake(client.ObjectKeyFromObject(b))
	}
	return err
}

// limitOf returns the limit of a namespace: the lower of its annotation and the flag. An annotation
// that is not a number stops the namespace, because the intended limit is unknown.
func (q *Queue) limitOf(namespace string, annotations map[string]string) limit {
	l, most := limit{Limits: runs.Limits{}, read: time.Now()}, q.PerNamespace
	maps.Copy(l.Limits, q.Isolated)
	if text, set := annotations[keys.AnnotationMaxRunning]; set {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil || n == 0 {
			l.problem = fmt.Sprintf("waits: the annotation %s of Namespace %s is %q\n"+
				"  hint: set a whole number from 1, or remove the annotation",
				keys.AnnotationMaxRunning, namespace, text[:min(len(text), 40)])
		}
		if most == 0 || int(n) < most {
			most = int(n)
		}
	}
	if most > 0 {
		l.Limits[number] = *resource.NewQuantity(int64(most), resource.DecimalSI)
	}
	return l
}
