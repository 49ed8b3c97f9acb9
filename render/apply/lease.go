package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
)

// leaseDuration is how long a lease lasts after its holder was last heard of. A
// holder renews it several times in that time, and writes for two thirds of it at
// most: what it sent by then has arrived when somebody else takes over.
const leaseDuration = 15 * time.Second

var (
	leases    = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	leaseKind = schema.GroupKind{Group: "coordination.k8s.io", Kind: "Lease"}
)

// errLost says that somebody else may be applying the package now.
var errLost = errors.New("the lease is lost")

// lease is the right to write the objects of a package, for one apply or delete
// at a time. It is a Lease beside the inventory, with the same name, which stays
// without a holder between two applies: its resource version then says whether
// anybody wrote since.
type lease struct {
	cluster  *Cluster
	pkg      Package
	identity string
	duration time.Duration

	lock     sync.Mutex
	stored   *coordinationv1.Lease
	until    time.Time     // no write may take longer
	renewed  chan struct{} // closed when any of this has changed
	lost     error
	silence  time.Time // when a write last got no answer
	stop     context.CancelFunc
	stopped  chan struct{}
	released bool
}

// readLease gives the lease of a package; nil where there is none.
func (c *Cluster) readLease(ctx context.Context, p Package) (*coordinationv1.Lease, error) {
	u, err := c.dynamic.Resource(leases).Namespace(p.Namespace).Get(ctx, p.configMap(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the Lease of %s: %w", p, plain(err))
	}
	return parseLease(u)
}

// leaseBefore is readLease for a plan, which may come out idle and need no lease:
// then it does not matter who may read it.
func (c *Cluster) leaseBefore(ctx context.Context, p Package) (l *coordinationv1.Lease, known bool) {
	l, err := c.readLease(ctx, p)
	return l, err == nil
}

func parseLease(u *unstructured.Unstructured) (*coordinationv1.Lease, error) {
	l := &coordinationv1.Lease{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, l); err != nil {
		return nil, fmt.Errorf("reading Lease %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	return l, nil
}

// acquire waits until nobody else applies or deletes the package, patience at most.
// The lease of a holder that died is taken over when it has not changed for as long
// as it lasts; clocks of different machines are not compared. Untouched says that
// nobody held it since it was as in before.
func (c *Cluster) acquire(ctx context.Context, p Package, before *coordinationv1.Lease, opt Options) (l *lease, untouched bool, err error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	l = &lease{
		cluster: c, pkg: p, duration: c.leaseDuration, renewed: make(chan struct{}),
		identity: fmt.Sprintf("%s_%d_%s", host, os.Getpid(), uuid.NewUUID()),
	}
	began, seen, seenAt := time.Now(), before, time.Now()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		now, err := c.readLease(ctx, p)
		if err != nil {
			return nil, false, forbiddenLease(err)
		}
		if now == nil || seen == nil || now.ResourceVersion != seen.ResourceVersion {
			seen, seenAt = now, time.Now()
		}
		if l.mayTake(now, seenAt) {
			taken, err := l.take(ctx, now)
			if err != nil {
				return nil, false, forbiddenLease(err)
			}
			if taken {
				l.renewAlways()
				untouched := before == nil && now == nil || before != nil && now != nil && before.ResourceVersion == now.ResourceVersion && holderOf(before) == ""
				return l, untouched, nil
			}
			continue
		}
		if time.Since(began) > opt.timeout() {
			return nil, false, fmt.Errorf("%s is applying or deleting %s, and was not done after %s: this one wrote nothing\n  hint: apply again when they are done", holderOf(now), p, opt.timeout())
		}
		opt.tell("waiting: %s is applying or deleting %s", holderOf(now), p)
		select {
		case <-ctx.Done():
			return nil, false, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func forbiddenLease(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w\n  hint: whoever applies needs to get, create, update and delete leases.coordination.k8s.io in the namespace of the inventory, so that no two apply a package at once", err)
	}
	return err
}

func holderOf(l *coordinationv1.Lease) string {
	if l == nil {
		return ""
	}
	return ptr.Deref(l.Spec.HolderIdentity, "")
}

// mayTake reports whether a lease is free, or its holder was not heard of for as
// long as it lasts.
func (l *lease) mayTake(now *coordinationv1.Lease, unchangedSince time.Time) bool {
	if holderOf(now) == "" || holderOf(now) == l.identity {
		return true
	}
	lasts := time.Duration(ptr.Deref(now.Spec.LeaseDurationSeconds, int32(leaseDuration/time.Second))) * time.Second
	return time.Since(unchangedSince) > lasts
}

// take stores the lease as ours, if it is still as in now. It is not where somebody
// was faster.
func (l *lease) take(ctx context.Context, now *coordinationv1.Lease) (bool, error) {
	began := time.Now()
	next := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: l.pkg.Namespace, Name: l.pkg.configMap(), Labels: map[string]string{"app.kubernetes.io/managed-by": FieldManager}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(l.identity), LeaseDurationSeconds: ptr.To(int32(max(1, l.duration/time.Second))),
			AcquireTime: ptr.To(metav1.NowMicro()), RenewTime: ptr.To(metav1.NowMicro()), LeaseTransitions: ptr.To(int32(0)),
		},
	}
	if now != nil {
		next.UID, next.ResourceVersion = now.UID, now.ResourceVersion
		next.Spec.LeaseTransitions = ptr.To(ptr.Deref(now.Spec.LeaseTransitions, 0) + 1)
	}
	stored, err := l.cluster.storeLease(ctx, next)
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), now != nil && apierrors.IsNotFound(err):
		return false, nil
	case apierrors.IsNotFound(err):
		return false, fmt.Errorf("namespace %s for the inventory of %s does not exist\n  hint: create it, add it to the package, or choose another with --namespace", l.pkg.Namespace, l.pkg)
	case err != nil:
		return false, fmt.Errorf("writing the Lease of %s: %w", l.pkg, plain(err))
	}
	l.stored, l.until = stored, began.Add(l.duration*2/3)
	return true, nil
}

func (c *Cluster) storeLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(l)
	if err != nil {
		return nil, err
	}
	unstructured.RemoveNestedField(raw, "metadata", "creationTimestamp")
	u, where := &unstructured.Unstructured{Object: raw}, c.dynamic.Resource(leases).Namespace(l.Namespace)
	if l.ResourceVersion == "" {
		u, err = where.Create(ctx, u, metav1.CreateOptions{FieldManager: FieldManager})
	} else {
		u, err = where.Update(ctx, u, metav1.UpdateOptions{FieldManager: FieldManager})
	}
	if err != nil {
		return nil, err
	}
	return parseLease(u)
}

// renewAlways renews the lease in the background, until release.
func (l *lease) renewAlways() {
	ctx, stop := context.WithCancel(context.Background())
	l.stop, l.stopped = stop, make(chan struct{})
	go func() {
		defer close(l.stopped)
		last := time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(l.duration / 5):
			}
			err := l.renew(context.Background()) // not broken off: release has to know what is stored
			switch {
			case err == nil:
				last = time.Now()
			case errors.Is(err, errLost), time.Since(last) > outagePatience:
				l.change(func() { l.lost = fmt.Errorf("%w: somebody else may be applying %s now (%v)", errLost, l.pkg, err) })
				return
			}
		}
	}()
}

// renew the lease once. Where it is not as we stored it, it is still ours if it says
// so: then it was stored, but the answer got lost.
func (l *lease) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.duration/3)
	defer cancel()
	began := time.Now()
	next := l.stored.DeepCopy()
	next.Spec.RenewTime = ptr.To(metav1.NowMicro())
	stored, err := l.cluster.storeLease(ctx, next)
	if apierrors.IsConflict(err) {
		now, err := l.cluster.readLease(ctx, l.pkg)
		switch {
		case err != nil:
			return err
		case holderOf(now) != l.identity:
			return fmt.Errorf("%w to %q", errLost, holderOf(now))
		}
		next.ResourceVersion, began = now.ResourceVersion, time.Now()
		if stored, err = l.cluster.storeLease(ctx, next); err != nil {
			return err
		}
	} else if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: it was deleted", errLost)
	} else if err != nil {
		return err
	}
	l.change(func() { l.stored, l.until = stored, began.Add(l.duration*2/3) })
	return nil
}

func (l *lease) change(what func()) {
	l.lock.Lock()
	defer l.lock.Unlock()
	what()
	close(l.renewed)
	l.renewed = make(chan struct{})
}

// good waits until the lease is good for a write, and says when that has to end.
// The error is errLost where it is not ours any more.
func (l *lease) good(ctx context.Context) (time.Time, error) {
	for {
		l.lock.Lock()
		until, lost, renewed := l.until, l.lost, l.renewed
		l.lock.Unlock()
		switch {
		case ctx.Err() != nil:
			return until, ctx.Err()
		case lost != nil:
			return until, lost
		case remaining(until) > l.duration/10:
			return until, nil
		}
		select {
		case <-ctx.Done():
		case <-renewed:
		}
	}
}

// remaining is how much time is left until t. The monotonic clock counts, and the
// other one too, because the first stops while a machine sleeps.
func remaining(t time.Time) time.Duration {
	return min(time.Until(t), t.Round(0).Sub(time.Now().Round(0)))
}

// unanswered notes that a write may arrive at the API server later.
func (l *lease) unanswered() {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.silence = time.Now()
}

// end stops the renewal, and says what is stored; nil where the lease is not ours
// to give back, or a write of ours may still arrive, so that it has to expire.
func (l *lease) end() *coordinationv1.Lease {
	if l.released {
		return nil
	}
	l.released = true
	l.stop()
	<-l.stopped
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.lost != nil || !l.silence.IsZero() && time.Since(l.silence) < l.duration {
		return nil
	}
	return l.stored
}

// release lets others apply at once. Its own failure does not matter: the lease expires.
func (l *lease) release(ctx context.Context) {
	stored := l.end()
	if stored == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.duration/3)
	defer cancel()
	stored.Spec.HolderIdentity, stored.Spec.RenewTime = nil, nil
	_, _ = l.cluster.storeLease(ctx, stored)
}

// remove deletes the lease of a package that is gone.
func (l *lease) remove(ctx context.Context) {
	stored := l.end()
	if stored == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.duration/3)
	defer cancel()
	is := metav1.Preconditions{UID: &stored.UID, ResourceVersion: &stored.ResourceVersion}
	_ = l.cluster.dynamic.Resource(leases).Namespace(l.pkg.Namespace).Delete(ctx, l.pkg.configMap(), metav1.DeleteOptions{Preconditions: &is})
}
