package apply

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// How long requests are repeated. An API server that restarts is away for half a
// minute, or a few where there is only one; one that answers, but with an error of
// its own, recovers sooner or not at all.
const (
	outagePatience = 2 * time.Minute
	answerPatience = 20 * time.Second
	requestTimeout = 2 * time.Minute // of one attempt
	longestPause   = 3 * time.Second
)

// steady is the way to the API server: it repeats requests that got no answer, or
// one that says to come again. That is safe for all that this package sends: reads,
// dry runs and server-side applies come out the same twice, deletes name a UID, and
// an inventory or a lease that was stored without our knowing is recognized.
//
// With a lease, each attempt to write waits until the lease is good for it, and has
// to end before the lease does. Such an attempt is not broken off when the caller
// is interrupted: it could reach the API server after the lease was released.
type steady struct {
	next   http.RoundTripper
	outage *outage
	lease  *lease // nil where nothing is written, or the lease itself
	tell   func(string)
}

// outage is shared by all requests to one API server, so that they give up together.
type outage struct {
	lock    sync.Mutex
	reached bool // it has answered at least once
	since   time.Time
}

// over notes that there was no answer, and says whether to give up. An API server
// that never answered is more likely a wrong address than a restart.
func (o *outage) over(now time.Time) bool {
	o.lock.Lock()
	defer o.lock.Unlock()
	if !o.reached {
		return true
	}
	if o.since.IsZero() {
		o.since = now
	}
	return now.Sub(o.since) > outagePatience
}

func (o *outage) ended() {
	o.lock.Lock()
	defer o.lock.Unlock()
	o.reached, o.since = true, time.Time{}
}

// noAnswer is the end of patience. It unwraps to nothing, so that client-go, which
// repeats some requests itself, does not start over.
type noAnswer struct{ reason string }

func (e noAnswer) Error() string { return "the API server does not answer: " + e.reason }

// plain leaves out the address of a request where nobody answers any more.
func plain(err error) error {
	var silent noAnswer
	if errors.As(err, &silent) {
		return silent
	}
	return err
}

func (s *steady) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	var troubled time.Time // when this request got no good answer first
	for attempt := 0; ; attempt++ {
		again, err := rewound(r)
		if err != nil {
			return nil, err
		}
		answer, err := s.attempt(again)
		final := err == nil && !comeAgain(answer)
		now := time.Now()
		if troubled.IsZero() {
			troubled = now
		}
		switch {
		case final:
			s.outage.ended()
			return answer, nil
		case r.Context().Err() != nil, r.Body != nil && r.GetBody == nil, err != nil && permanent(err):
			return answer, err
		case err != nil && s.outage.over(now), err != nil && now.Sub(troubled) > outagePatience:
			if attempt == 0 {
				return nil, err
			}
			return nil, noAnswer{short(err)}
		case err == nil:
			s.outage.ended()
			if now.Sub(troubled) > answerPatience || answer.StatusCode == http.StatusInternalServerError && attempt == 3 {
				answer.Header.Del("Retry-After") // client-go would start over
				return answer, nil
			}
		}
		pause := min(longestPause, 100*time.Millisecond<<min(attempt, 10))
		what := ""
		if err == nil {
			what, pause = answer.Status, max(pause, retryAfter(answer))
		} else {
			what = short(err)
		}
		if attempt > 0 && s.tell != nil {
			s.tell("waiting for the API server: " + what)
		}
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(pause):
		}
	}
}

// rewound is the request with its body from the start.
func rewound(r *http.Request) (*http.Request, error) {
	again := r.Clone(r.Context())
	if r.Body == nil || r.GetBody == nil {
		return again, nil
	}
	var err error
	if again.Body, err = r.GetBody(); err != nil {
		return nil, fmt.Errorf("repeating a request: %w", err)
	}
	return again, nil
}

// attempt sends a request once.
func (s *steady) attempt(r *http.Request) (*http.Response, error) {
	ctx, until := r.Context(), time.Now().Add(requestTimeout)
	writes := s.lease != nil && r.Method != http.MethodGet && r.URL.Query().Get("dryRun") == ""
	if writes {
		var err error
		if until, err = s.lease.good(ctx); err != nil {
			return nil, err
		}
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	answer, err := s.next.RoundTrip(r.WithContext(ctx))
	if err == nil {
		err = whole(answer)
	}
	if err != nil {
		if writes && !errors.Is(err, syscall.ECONNREFUSED) {
			s.lease.unanswered()
		}
		return nil, err
	}
	return answer, nil
}

// answerLimit is how much an API server may say to one question.
const answerLimit = 512 << 20

// whole reads an answer to its end: a connection that breaks off in the middle of it
// is not an answer.
func whole(answer *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(answer.Body, answerLimit+1))
	answer.Body.Close()
	if err == nil && len(text) > answerLimit {
		err = errTooLong
	}
	answer.Body = io.NopCloser(bytes.NewReader(text))
	return err
}

var errTooLong = errors.New("the API server's answer is too long")

// badPatch is in the API server's answer where fields of an apply are unknown, or of
// another type. It calls that an internal error, but it is one of the request.
const badPatch = "typed patch object"

// comeAgain reports whether an answer speaks of the API server's state, not of the
// request.
func comeAgain(answer *http.Response) bool {
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	case http.StatusInternalServerError:
		text, _ := io.ReadAll(answer.Body) // it is in memory
		answer.Body = io.NopCloser(bytes.NewReader(text))
		return !bytes.Contains(text, []byte(badPatch))
	}
	return false
}

func retryAfter(answer *http.Response) time.Duration {
	seconds, err := strconv.Atoi(answer.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, 10*time.Second)
}

// permanent reports whether an error comes again however often one tries.
func permanent(err error) bool {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var verification *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var dns *net.DNSError
	return errors.Is(err, errLost) || errors.Is(err, errTooLong) || errors.As(err, &authority) || errors.As(err, &host) || errors.As(err, &invalid) ||
		errors.As(err, &verification) || errors.As(err, &record) || errors.As(err, &dns) && dns.IsNotFound
}

// short is an error without the address that it is about, which everybody knows.
func short(err error) string {
	var errno syscall.Errno
	var where *url.Error
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.As(err, &where):
		err = where.Err
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}
