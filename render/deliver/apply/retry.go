package apply

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

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

// answerLimit is how many bytes an API server may answer to one request.
const answerLimit = 512 << 20

// requests sends requests to the API server, and repeats those without an answer, and those that
// the API server asks to repeat. This is safe for all requests of this package: reads, dry runs
// and server-side applies are idempotent, deletes name a UID, and an inventory that was stored by
// a request without an answer is recognized.
//
// With a lease, each attempt to write waits until the lease is good for it, and has
// to end before the lease does. Such an attempt is not broken off when the caller
// is interrupted: it could reach the API server after the lease was released.
type requests struct {
	http.RoundTripper
	timeout time.Duration // of one attempt
	reached *atomic.Bool  // the API server has answered at least once
	lease   *lease        // nil where nothing is written
	tell    func(string)
	command context.Context // by whose end all requests end; nil for none
}

// RoundTrip makes a request, again and again while that may help.
func (q *requests) RoundTrip(r *http.Request) (*http.Response, error) {
	if q.command != nil {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(q.command, cancel)()
		r = r.WithContext(ctx)
	}
	began := time.Now()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 3*time.Second) {
		answer, text, err := q.attempt(r)
		switch patience := q.patience(answer, text, err); {
		case patience == 0:
			return answer, err
		case time.Since(began) > patience && err != nil:
			q.reached.Store(false) // client-go asks again by itself
			return nil, err
		case time.Since(began) > patience:
			answer.Header.Del("Retry-After") // by which client-go asks again
			return answer, nil
		}
		if q.tell != nil {
			why := err
			if status := new(metav1.Status); err == nil {
				_ = json.Unmarshal(text, status) // of another form it has no message
				why = errors.New(cmp.Or(status.Message, answer.Status))
			}
			q.tell("waiting for the API server: " + short(why))
		}
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(pause):
		}
	}
}

// attempt makes a request once, and reads the whole answer.
func (q *requests) attempt(r *http.Request) (answer *http.Response, text []byte, err error) {
	ctx, until := r.Context(), time.Now().Add(q.timeout)
	writes := q.lease != nil && r.Method != http.MethodGet && !r.URL.Query().Has("dryRun")
	if writes {
		if until, err = q.lease.good(ctx); err != nil {
			return nil, nil, err
		}
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if r = r.Clone(ctx); r.GetBody != nil {
		if r.Body, err = r.GetBody(); err != nil {
			return nil, nil, err
		}
	}
	if answer, err = q.RoundTripper.RoundTrip(r); err == nil {
		text, err = io.ReadAll(http.MaxBytesReader(nil, answer.Body, answerLimit))
		_ = answer.Body.Close() // all of it was read
		answer.Body = io.NopCloser(bytes.NewReader(text))
	}
	if err == nil {
		q.reached.Store(true)
	} else if writes && !utilnet.IsConnectionRefused(err) {
		q.lease.unanswered()
	}
	return answer, text, err
}

// patience is how long a request with such an answer is repeated. An API server that
// never answered is more likely a wrong address than a restart.
func (q *requests) patience(answer *http.Response, text []byte, err error) time.Duration {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, errLost),
		errors.As(err, new(*http.MaxBytesError)):
		return 0
	case err != nil && q.reached.Load():
		return outagePatience
	case err != nil:
		return 0
	}
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout:
		return answerPatience
	case http.StatusInternalServerError:
		if !bytes.Contains(text, []byte(badPatch)) {
			return internalPatience
		}
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

// short is an error without the URL that it is about.
func short(err error) string {
	var where *url.Error
	if !answered(err) && errors.As(err, &where) {
		err = where.Err
	}
	return health.OneLine(err.Error())
}
