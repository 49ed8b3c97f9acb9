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

// leaseDuration is how long a lease lasts after its last renewal. The holder renews it several
// times in that time, and writes for at most two thirds of it: requests that it sent by then have
// arrived when another client takes over.
const leaseDuration = 15 * time.Second

// errLost means that another client may be applying the package now.
var errLost = errors.New("the lease is lost")

const leaseRights = "grant the user get, create, update and delete on leases.coordination.k8s.io " +
	"in the namespace of the inventory, so that only one client applies a package at a time"

// lease is the right to write the objects of a package, for one apply or delete at a time. It is a
// Lease with the name and namespace of the inventory, and has no holder between two applies.
// (client-go's leader election does not report until when its holder may write, and stops in an
// outage, in which no other client can take the lease either.)
type lease struct {
	resourcelock.LeaseLock
	duration time.Duration
	stop     context.CancelFunc
	stopped  chan struct{} // closed when renewing has ended
	record   []byte        // the last record of the holder
	since    time.Time     // when record was first seen

	lock    sync.Mutex
	until   time.Time // when every write has to end; zero until the lease is acquired
	silence time.Time // when a write last got no answer
	lost    bool      // another client took it, or it was deleted
	failed  error     // the error of the last attempt to renew it
}

// acquire waits at most opt.Timeout until no other client applies or deletes the package.
func acquire(ctx context.Context, c *Cluster, p Package, opt Options) (*lease, error) {
	leases, err := coordinationv1.NewForConfigAndClient(c.config, c.http)
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname() // only informative
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
	other, timeout := "", time.After(opt.timeout())
	for {
		holder, err := l.attempt()
		switch {
		case holder == l.Identity():
			// Renewing does not end with ctx: release has to know what is stored.
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
		case <-timeout:
		}
		if err != nil {
			return nil, fmt.Errorf("taking the lease of %s: %w", p, err)
		}
		return nil, fmt.Errorf("%s is applying or deleting %s, and was not done after %s: "+
			"nothing was written\n  hint: apply again when they are done",
			cmp.Or(other, "somebody"), p, opt.timeout())
	}
}

// attempt acquires or renews the lease. It returns the resulting holder, or "" if that is unknown.
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
		return "", nil // another client was faster: the next attempt reads which
	}
	if err != nil {
		return "", err
	}
	l.lock.Lock()
	defer l.lock.Unlock()
	l.until = began.Add(l.duration * 2 / 3)
	return l.Identity(), nil
}

// expired reports whether a lease is free: its holder released it, or did not renew it for its
// duration by the local clock.
func (l *lease) expired(record *resourcelock.LeaderElectionRecord, raw []byte) bool {
	if !bytes.Equal(raw, l.record) {
		l.record, l.since = raw, time.Now()
	}
	return record.HolderIdentity == "" ||
		time.Since(l.since) > time.Duration(record.LeaseDurationSeconds)*time.Second
}

// renew renews the lease until ctx ends, or until the lease has another holder or was deleted.
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

// good waits until the lease allows a write, and returns when the write has to end. It checks both
// the monotonic clock and the time of day, because the former stops while a machine sleeps. The
// error is errLost if another client has the lease. good waits for at most outagePatience, and not
// at all if the right to renew the lease was withdrawn.
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

// unanswered records that one of our writes may still reach the API server.
func (l *lease) unanswered() {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.silence = time.Now()
}

// release releases the lease immediately, and deletes it if the package was deleted. An error does
// not matter, since the lease expires. It has to expire if one of our writes may still reach the
// API server.
func (l *lease) release(deleted bool) {
	l.stop()
	<-l.stopped
	if l.lost || !l.silence.IsZero() && time.Since(l.silence) < l.duration {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.duration/3)
	defer cancel()
	if !deleted {
		_ = l.Update(ctx, resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1})
		return
	}
	leases := l.Client.Leases(l.LeaseMeta.Namespace)
	stored, err := leases.Get(ctx, l.LeaseMeta.Name, metav1.GetOptions{})
	if err == nil && stored.Spec.HolderIdentity != nil &&
		*stored.Spec.HolderIdentity == l.Identity() {
		unchanged := metav1.Preconditions{UID: &stored.UID,
			ResourceVersion: &stored.ResourceVersion}
		_ = leases.Delete(ctx, l.LeaseMeta.Name, metav1.DeleteOptions{Preconditions: &unchanged})
	}
}
