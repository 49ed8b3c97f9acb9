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

// How long requests are repeated. An API server that restarts is unavailable for half a minute, or
// for a few minutes if there is only one. An API server that answers with its own error recovers
// sooner or not at all.
const (
	outagePatience = 2 * time.Minute
	answerPatience = 20 * time.Second
	// internalPatience is for errors that are usually permanent.
	internalPatience = 3 * time.Second
	requestTimeout   = 2 * time.Minute // of one attempt
	// discoveryTimeout is client-go's default for discovery requests.
	discoveryTimeout = 32 * time.Second
)

// answerLimit is the maximum size of the API server's answer to one request in bytes.
const answerLimit = 512 << 20

// requests sends requests to the API server. It repeats requests without an answer, and requests
// that the API server asks to repeat. This is safe for all requests of this package: reads, dry
// runs and server-side applies are idempotent, deletes name a UID, and save recognizes an inventory
// that a request without an answer stored.
//
// With a lease, each attempt to write waits until the lease allows it, and has to end before the
// lease does. Such an attempt continues when the caller is interrupted: otherwise it could reach
// the API server after the lease was released.
type requests struct {
	http.RoundTripper
	timeout time.Duration // of one attempt
	reached *atomic.Bool  // the API server has answered at least once
	lease   *lease        // nil if nothing is written
	tell    func(string)
	command context.Context // when it ends, all requests end; may be nil
}

// RoundTrip sends a request, and repeats it as long as that may help.
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
			q.reached.Store(false) // client-go repeats the request itself
			return nil, err
		case time.Since(began) > patience:
			answer.Header.Del("Retry-After") // with it client-go repeats the request
			return answer, nil
		}
		if q.tell != nil {
			why := err
			if status := new(metav1.Status); err == nil {
				_ = json.Unmarshal(text, status) // another form has no message
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

// attempt sends a request once and reads the whole answer.
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
		_ = answer.Body.Close() // it was read completely
		answer.Body = io.NopCloser(bytes.NewReader(text))
	}
	if err == nil {
		q.reached.Store(true)
	} else if writes && !utilnet.IsConnectionRefused(err) {
		q.lease.unanswered()
	}
	return answer, text, err
}

// patience returns how long a request with this answer is repeated. An API server that never
// answered is more likely a wrong address than a restart.
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

// badPatch is in the API server's answer if fields of an apply are unknown or have another type. It
// is an internal error of the API server, although the request is wrong.
const badPatch = "typed patch object"

// answered reports whether an error is an answer of the API server.
func answered(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// short returns the text of an error without its URL.
func short(err error) string {
	var where *url.Error
	if !answered(err) && errors.As(err, &where) {
		err = where.Err
	}
	return health.OneLine(err.Error())
}
