package apply

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/armature-dev/armature/render/deliver/apply/fields"
)

// leaseDuration is how long a lease lasts after its holder was last heard of. A
// holder renews it several times in that time, and writes for two thirds of it at
// most: what it sent by then has arrived when somebody else takes over.
const leaseDuration = 15 * time.Second

// errLost says that somebody else may be applying the package now.
var errLost = errors.New("the lease is lost")

const leaseRights = "grant the user get, create, update and delete on leases.coordination.k8s.io " +
	"in the namespace of the inventory, so that only one client applies a package at a time"

// lease is the right to write the objects of a package, for one apply or delete at a time: a Lease
// with the name and the namespace of the inventory. It stays without a holder between two applies.
// (client-go's leader election does not report until when its holder may write, and stops in an
// outage, in which no other client can take the lease either.)
type lease struct {
	resourcelock.LeaseLock
	duration time.Duration
	stop     context.CancelFunc
	stopped  chan struct{} // closed when it is not renewed any more
	record   []byte        // of the holder, as it was last seen
	since    time.Time     // it was first seen so

	lock    sync.Mutex
	until   time.Time // no write may take longer; zero until it is taken
	silence time.Time // when a write last got no answer
	lost    bool      // somebody else took it, or it was deleted
	failed  error     // of the last attempt to renew it
}

// acquire waits until nobody else applies or deletes the package, opt.Timeout at most.
func acquire(ctx context.Context, c *Cluster, p Package, opt Options) (*lease, error) {
	leases, err := coordinationv1.NewForConfigAndClient(c.config, c.http)
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname() // it is for people
	l := &lease{
		LeaseLock: resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.configMap()},
			Client:    leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: fmt.Sprintf("%s_%d_%s", host,
				os.Getpid(), uuid.NewUUID())},
			Labels: map[string]string{"app.kubernetes.io/managed-by": fields.Manager},
		},
		duration: c.leaseDuration, stopped: make(chan struct{}),
	}
	other, late := "", time.After(opt.timeout())
	for {
		holder, err := l.attempt()
		switch {
		case holder == l.Identity():
			// not broken off with ctx: release has to know what is stored
			var background context.Context
			background, l.stop = context.WithCancel(context.Background())
			go l.renew(background)
			return l, nil
		case apierrors.IsForbidden(err):
			return nil, fmt.Errorf("%w\n  hint: %s", err, leaseRights)
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("namespace %s for the inventory does not exist\n"+
				"  hint: create it, add it to the package, or choose another with --namespace",
				p.Namespace)
		case holder != "" && holder != other:
			other = holder
			opt.tell("waiting: %s is applying or deleting %s", other, p)
		}
		select {
		case <-time.After(l.duration / 15):
			continue
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-late:
		}
		if err != nil {
			return nil, fmt.Errorf("taking the lease of %s: %w", p, err)
		}
		return nil, fmt.Errorf("%s is applying or deleting %s, and was not done after %s: "+
			"nothing was written\n  hint: apply again when they are done",
			cmp.Or(other, "somebody"), p, opt.timeout())
	}
}

// attempt acquires or renews the lease, and returns its holder afterwards; "" if unknown.
func (l *lease) attempt() (holder string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), l.duration/3)
	defer cancel()
	began := time.Now()
	mine := resourcelock.LeaderElectionRecord{HolderIdentity: l.Identity(),
		LeaseDurationSeconds: int(l.duration.Seconds()), AcquireTime: metav1.NewTime(began),
		RenewTime: metav1.NewTime(began)}
	record, raw, err := l.Get(ctx)
	switch {
	case apierrors.IsNotFound(err) && l.until.IsZero():
		err = l.Create(ctx, mine)
	case err != nil:
		return "", err
	case record.HolderIdentity == l.Identity(), l.until.IsZero() && l.expired(record, raw):
		err = l.Update(ctx, mine)
	default:
		return record.HolderIdentity, nil
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return "", nil // somebody was faster: the next attempt sees who
	}
	if err != nil {
		return "", err
	}
	l.lock.Lock()
	defer l.lock.Unlock()
	l.until = began.Add(l.duration * 2 / 3)
	return l.Identity(), nil
}

// expired reports whether a lease is free: its holder released it, or did not renew it for
// its duration by our own clock.
func (l *lease) expired(record *resourcelock.LeaderElectionRecord, raw []byte) bool {
	if !bytes.Equal(raw, l.record) {
		l.record, l.since = raw, time.Now()
	}
	return record.HolderIdentity == "" ||
		time.Since(l.since) > time.Duration(record.LeaseDurationSeconds)*time.Second
}

// renew the lease again and again. One that we had and that is not ours any more is lost.
func (l *lease) renew(ctx context.Context) {
	defer close(l.stopped)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(l.duration / 15):
		}
		holder, err := l.attempt()
		l.lock.Lock()
		l.failed, l.lost = err, apierrors.IsNotFound(err) || holder != "" && holder != l.Identity()
		l.lock.Unlock()
		if l.lost {
			return
		}
	}
}

// good waits until the lease is good for a write, and says when that has to end. The
// monotonic clock counts, and the time of day too, because the first stops while a
// machine sleeps. The error is errLost where the lease is not ours any more. It waits for
// outagePatience at most, and not at all where the right to renew the lease was withdrawn.
func (l *lease) good(ctx context.Context) (time.Time, error) {
	for {
		l.lock.Lock()
		until, lost, failed := l.until, l.lost, l.failed
		l.lock.Unlock()
		switch left := min(time.Until(until), until.Round(0).Sub(time.Now().Round(0))); {
		case ctx.Err() != nil:
			return until, ctx.Err()
		case lost:
			return until, fmt.Errorf("%w: another client may be applying the package of %s",
				errLost, l.Describe())
		case left > l.duration/10:
			return until, nil
		case apierrors.IsForbidden(failed):
			return until, fmt.Errorf("%w: %v: %s", errLost, failed, leaseRights)
		case left < -outagePatience:
			return until, fmt.Errorf("renewing the lease %s for %s: %w", l.Describe(),
				outagePatience, cmp.Or(failed, errLost))
		}
		time.Sleep(l.duration / 100)
	}
}

// unanswered records that a write of ours may still reach the API server.
func (l *lease) unanswered() {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.silence = time.Now()
}

// release lets others apply at once, and deletes the lease of a package that is gone. Its
// own failure does not matter: the lease expires, as it has to where a write of ours may
// arrive at the API server later.
func (l *lease) release(gone bool) {
	l.stop()
	<-l.stopped
	if l.lost || !l.silence.IsZero() && time.Since(l.silence) < l.duration {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.duration/3)
	defer cancel()
	if !gone {
		_ = l.Update(ctx, resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1})
		return
	}
	leases := l.Client.Leases(l.LeaseMeta.Namespace)
	stored, err := leases.Get(ctx, l.LeaseMeta.Name, metav1.GetOptions{})
	if err == nil && stored.Spec.HolderIdentity != nil &&
		*stored.Spec.HolderIdentity == l.Identity() {
		is := metav1.Preconditions{UID: &stored.UID, ResourceVersion: &stored.ResourceVersion}
		_ = leases.Delete(ctx, l.LeaseMeta.Name, metav1.DeleteOptions{Preconditions: &is})
	}
}
