package apply

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	poll "k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/render/deliver/health"
)

// How long requests are repeated. An API server that restarts is away for half a
// minute, or a few where there is only one; one that answers, but with an error of
// its own, recovers sooner or not at all.
const (
	outagePatience = 2 * time.Minute
	answerPatience = 20 * time.Second
	// internalPatience is for errors that mostly stay.
	internalPatience = 3 * time.Second
	requestTimeout   = 2 * time.Minute // of one attempt
	// discoveryTimeout is client-go's default for questions about kinds.
	discoveryTimeout = 32 * time.Second
)

// connection is a client that repeats requests without an answer, and those that the API
// server asks to repeat. This is safe for all requests of this package: reads, dry runs and
// server-side applies are idempotent, deletes name a UID, and an inventory that was stored by
// a request without an answer is recognized.
//
// With a lease, each attempt to write waits until the lease is good for it, and has
// to end before the lease does. Such an attempt is not broken off when the caller
// is interrupted: it could reach the API server after the lease was released.
type connection struct {
	client.Client
	reached *atomic.Bool // the API server has answered at least once
	lease   *lease       // nil where nothing is written
	tell    func(string)
}

func (c *connection) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	return c.call(ctx, false, func(ctx context.Context) error { return c.Client.Get(ctx, key, into, options...) })
}

func (c *connection) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	return c.call(ctx, false, func(ctx context.Context) error { return c.Client.List(ctx, into, options...) })
}

func (c *connection) Create(ctx context.Context, u client.Object, options ...client.CreateOption) error {
	return c.call(ctx, true, func(ctx context.Context) error { return c.Client.Create(ctx, u, options...) })
}

func (c *connection) Update(ctx context.Context, u client.Object, options ...client.UpdateOption) error {
	return c.call(ctx, true, func(ctx context.Context) error { return c.Client.Update(ctx, u, options...) })
}

func (c *connection) Delete(ctx context.Context, u client.Object, options ...client.DeleteOption) error {
	return c.call(ctx, true, func(ctx context.Context) error { return c.Client.Delete(ctx, u, options...) })
}

func (c *connection) Patch(ctx context.Context, u client.Object, patch client.Patch, options ...client.PatchOption) error {
	writes := len((&client.PatchOptions{}).ApplyOptions(options).DryRun) == 0
	return c.call(ctx, writes, func(ctx context.Context) error { return c.Client.Patch(ctx, u, patch, options...) })
}

func (c *connection) Apply(ctx context.Context, u runtime.ApplyConfiguration, options ...client.ApplyOption) error {
	writes := len((&client.ApplyOptions{}).ApplyOptions(options).DryRun) == 0
	return c.call(ctx, writes, func(ctx context.Context) error { return c.Client.Apply(ctx, u, options...) })
}

// call makes a request, again and again while that may help.
func (c *connection) call(ctx context.Context, writes bool, request func(context.Context) error) error {
	var last error
	began := time.Now()
	pauses := poll.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 6, Cap: 3 * time.Second}
	err := pauses.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if last != nil && c.tell != nil {
			c.tell("waiting for the API server: " + short(last))
		}
		last = c.attempt(ctx, writes, request)
		return last == nil || time.Since(began) > c.patience(last), nil
	})
	if err != nil {
		return err
	}
	return last
}

func (c *connection) attempt(ctx context.Context, writes bool, request func(context.Context) error) error {
	until := time.Now().Add(requestTimeout)
	writes = writes && c.lease != nil
	if writes {
		var err error
		if until, err = c.lease.good(ctx); err != nil {
			return err
		}
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	err := request(ctx)
	if err == nil || answered(err) {
		c.reached.Store(true)
	} else if writes && !utilnet.IsConnectionRefused(err) {
		c.lease.unanswered()
	}
	return err
}

// patience is how long a request with such an error is repeated. An API server that
// never answered is more likely a wrong address than a restart.
func (c *connection) patience(err error) time.Duration {
	var status apierrors.APIStatus
	switch {
	case unanswered(err) && c.reached.Load():
		return outagePatience
	case apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err),
		errors.As(err, &status) && status.Status().Code == http.StatusBadGateway:
		return answerPatience
	case apierrors.IsInternalError(err) && !strings.Contains(err.Error(), badPatch):
		return internalPatience
	}
	return 0
}

// badPatch is in the API server's answer where fields of an apply are unknown, or of
// another type. It calls that an internal error, but it is one of the request.
const badPatch = "typed patch object"

// answered reports whether an error is the API server's own.
func answered(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// unanswered reports whether a request got no answer, or not all of it.
func unanswered(err error) bool {
	var request *url.Error
	return !answered(err) && !errors.Is(err, context.Canceled) &&
		(errors.As(err, &request) || errors.Is(err, io.ErrUnexpectedEOF) || utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err))
}

// short is an error without the URL that it is about.
func short(err error) string {
	var where *url.Error
	if !answered(err) && errors.As(err, &where) {
		err = where.Err
	}
	return health.OneLine(err.Error())
}

// answerLimit is how many bytes an API server may answer to one request.
const answerLimit = 512 << 20

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func limitAnswers(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err == nil {
			answer.Body = http.MaxBytesReader(nil, answer.Body, answerLimit)
		}
		return answer, err
	})
}
