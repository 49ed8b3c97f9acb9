package forge

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/answers"
)

const (
	// maxAnswer bounds an answer in bytes, and maxTime its duration.
	maxAnswer, maxTime = 8 << 20, 30 * time.Second
	// maxDecoding bounds the memory for decoding the answers of one namespace, and maxAnswers that
	// for all concurrent answers, in bytes. The controller has 1 GiB.
	maxDecoding, maxAnswers = 64 << 20, 128 << 20
	// maxValues bounds the values of a list or object. Requests ask for fewer.
	maxValues = 1000
	// maxRequests is the number of concurrent requests of one credential.
	maxRequests = 8
	// maxTries is the number of attempts of a request that a limit or a failing server rejects.
	maxTries = 3
	// maxWait is the longest wait for a limit, even if the deadline is later.
	maxWait = 2 * time.Minute
	// longestLimit is the longest limit that a server may announce.
	longestLimit = time.Hour
	// maxAccounts bounds the accounts that are cached. An account that was not used for
	// longestLimit has no limit left.
	maxAccounts = 10_000
)

// account is the state of one credential on one host.
type account struct {
	slots  chan struct{}
	writes *rate.Limiter // nil if the server counts all requests alike
	login  atomic.Value  // a string

	mu       sync.Mutex
	until    time.Time        // the end of the limit
	attempts int              // consecutive limits without a time
	tokens   map[string]token // of an App, by repository and right
}

// token is the token of an installation.
type token struct {
	text    string
	expires time.Time
}

// account returns the account of a credential on a host.
func (c *Clients) account(kind, host string, login Credential) *account {
	var app App
	if login.App != nil {
		app = *login.App
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %d %d %q", kind, host, login.Token, app.ID,
		app.Installation, app.Key))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.accounts == nil {
		c.accounts = cache.NewLRUExpireCache(maxAccounts)
		c.memory = answers.NewBudget(maxAnswers, maxDecoding)
	}
	known, ok := c.accounts.Get(key)
	if !ok {
		a := &account{slots: make(chan struct{}, maxRequests), tokens: make(map[string]token)}
		if kind == GitHub { // it allows 80 writes per minute, and 500 per hour
			a.writes = rate.NewLimiter(rate.Every(8*time.Second), 40)
		}
		known = a
	}
	c.accounts.Add(key, known, longestLimit+maxWait)
	return known.(*account)
}

// limited returns the error of a request that the limit rejects.
func (a *account) limited(host string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &LimitedError{host, a.until}
}

// wait waits until the server accepts a request.
func (a *account) wait(ctx context.Context, host string, write bool) error {
	latest := time.Now().Add(maxWait)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(latest) {
		latest = deadline
	}
	for waiting := true; waiting; {
		a.mu.Lock()
		until := a.until
		a.mu.Unlock()
		waiting = time.Now().Before(until)
		if waiting && until.After(latest) {
			return &LimitedError{host, until}
		}
		if err := sleep(ctx, time.Until(until)); err != nil {
			return err
		}
	}
	if !write || a.writes == nil {
		return nil
	}
	turn := a.writes.Reserve()
	if until := time.Now().Add(turn.Delay()); until.After(latest) {
		turn.Cancel()
		return &LimitedError{host, until}
	}
	return sleep(ctx, turn.Delay())
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(max(d, 0)):
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// learn reads the limits from an answer. limited reports that a limit rejected the request.
func (a *account) learn(r *http.Response, body []byte) (limited bool) {
	header := func(name string) string {
		return cmp.Or(r.Header.Get("X-RateLimit-"+name), r.Header.Get("RateLimit-"+name))
	}
	after, exhausted := r.Header.Get("Retry-After"), header("Remaining") == "0"
	limited = r.StatusCode == http.StatusTooManyRequests || r.StatusCode == http.StatusForbidden &&
		(after != "" || exhausted || bytes.Contains(bytes.ToLower(body), []byte("rate limit")))
	a.mu.Lock()
	defer a.mu.Unlock()
	if !limited && !exhausted {
		if r.StatusCode < 300 {
			a.attempts = 0
		}
		return false
	}
	now := time.Now()
	var until time.Time
	reset, failed := strconv.ParseInt(header("Reset"), 10, 64)
	if seconds, err := strconv.Atoi(after); err == nil {
		until = now.Add(time.Duration(min(max(seconds, 1), int(longestLimit/time.Second))) * time.Second)
	} else if at, err := http.ParseTime(after); err == nil {
		until = at
	} else if failed == nil && exhausted {
		until = time.Unix(reset, 0)
	} else if limited { // exponential backoff from one minute
		until = now.Add(time.Minute << min(a.attempts, 5))
		a.attempts++
	}
	if latest := now.Add(longestLimit); until.After(latest) {
		until = latest
	}
	if until.After(a.until) {
		a.until = until
	}
	return limited
}

// transport sends the requests of one account, only to one host.
type transport struct {
	http.RoundTripper
	scheme, host string
	account      *account
	login        Credential
	memory       *answers.Budget
}

// RoundTrip waits for the limits, reads the whole answer, and returns an error unless it is a
// success. It acquires the memory for decoding the answer until the body is closed.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != t.host || r.URL.Scheme != t.scheme {
		return nil, fmt.Errorf("%s is not the server of the repository: nothing was sent to it",
			r.URL.Host)
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close() // it was read completely
	}
	ctx := r.Context()
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	for try := 1; ; try++ {
		if err := t.account.wait(ctx, t.host, !reads && ctx.Value(asking{}) == nil); err != nil {
			return nil, err
		}
		memory := t.memory.Share(t.login.Namespace)
		answer, text, err := t.once(r, body, memory)
		if err == nil && answer.StatusCode/100 == 2 {
			t.account.learn(answer, text)
			context.AfterFunc(ctx, memory.Release)
			answer.Body = &decoded{answer.Body, memory}
			return answer, nil
		}
		memory.Release()
		failing := err != nil && !errors.Is(err, answers.ErrTooLarge) ||
			err == nil && answer.StatusCode >= 500
		switch {
		case err == nil && t.account.learn(answer, text):
			if try == maxTries {
				return nil, t.account.limited(t.host)
			}
		case reads && failing && try < maxTries && ctx.Err() == nil:
			if err := sleep(ctx, time.Duration(try)*200*time.Millisecond); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, err
		default:
			return nil, t.refusal(answer, text)
		}
	}
}

// asking marks the context of a POST that changes nothing, such as a query in GraphQL.
type asking struct{}

// decoded is the body of an answer. Close releases its memory.
type decoded struct {
	io.ReadCloser
	memory *answers.Share
}

func (d *decoded) Close() error {
	d.memory.Release()
	return d.ReadCloser.Close()
}

func (t *transport) once(r *http.Request, body []byte,
	memory *answers.Share) (*http.Response, []byte, error) {
	select {
	case t.account.slots <- struct{}{}:
		defer func() { <-t.account.slots }()
	case <-r.Context().Done():
		return nil, nil, r.Context().Err()
	}
	late := fmt.Errorf("%s did not answer within %s", t.host, maxTime)
	ctx, cancel := context.WithTimeoutCause(r.Context(), maxTime, late)
	defer cancel()
	send := r.Clone(ctx)
	if len(body) > 0 {
		send.Body = io.NopCloser(bytes.NewReader(body))
	}
	answer, err := t.RoundTripper.RoundTrip(send)
	var text []byte
	if err == nil {
		metered := &answers.Metered{
			Reader: answer.Body, Context: ctx, Memory: memory,
			Decoding: new(atomic.Int64), Most: maxDecoding, Longest: maxValues,
		}
		text, err = io.ReadAll(io.LimitReader(metered, maxAnswer+1))
		if closed := answer.Body.Close(); err == nil {
			err = closed
		}
		if len(text) > maxAnswer {
			err = answers.ErrTooLarge
		}
	}
	switch {
	case errors.Is(err, answers.ErrTooLarge):
		return nil, nil, fmt.Errorf("the answer of %s is refused: %w", t.host, err)
	case err != nil && ctx.Err() != nil && r.Context().Err() == nil:
		return nil, nil, late
	case err != nil:
		return nil, nil, err
	}
	text = t.withoutSecrets(send, text)
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	return answer, text, nil
}

// answerError reports an answer that is not a success.
type answerError struct {
	host, status, text string
	kind               error
}

func (e *answerError) Error() string {
	text := e.host + " answers " + e.status
	if e.kind != nil {
		text = e.kind.Error() + ": " + text
	}
	if e.text != "" {
		text += ": " + e.text
	}
	return text
}

func (e *answerError) Unwrap() error { return e.kind }

// withoutSecrets removes the credentials that were sent to the server from its answer.
func (t *transport) withoutSecrets(sent *http.Request, text []byte) []byte {
	words := []string{t.login.Token}
	for _, name := range []string{"Authorization", "Private-Token"} {
		words = append(words, strings.Fields(sent.Header.Get(name))...)
	}
	for _, word := range words {
		escaped, _ := json.Marshal(word) // a string can always be encoded
		forms := []string{word, string(escaped[1 : len(escaped)-1]),
			strings.ReplaceAll(word, "/", `\/`)}
		for _, form := range forms {
			if len(form) > 6 { // "Bearer" is not secret
				text = bytes.ReplaceAll(text, []byte(form), []byte("…"))
			}
		}
	}
	return text
}

// refusal returns the error of an answer.
func (t *transport) refusal(r *http.Response, body []byte) error {
	status := fmt.Sprintf("%d %s", r.StatusCode, http.StatusText(r.StatusCode))
	e := &answerError{host: r.Request.URL.Host, status: status}
	var known struct{ Message, Errors json.RawMessage }
	if json.Unmarshal(body, &known) == nil && known.Message != nil {
		var message string
		if json.Unmarshal(known.Message, &message) == nil {
			known.Message = []byte(message)
		}
		body = append(known.Message, known.Errors...)
	}
	e.text = shown(t.withoutSecrets(r.Request, body)) // again, because it was unescaped
	switch r.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		e.kind = ErrUnauthorized
		if r.StatusCode == http.StatusForbidden && aboutRules().MatchString(e.text) {
			e.kind = ErrRefused
		}
	case http.StatusNotFound, http.StatusGone:
		e.kind = ErrNotFound
	case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusConflict,
		http.StatusUnprocessableEntity, http.StatusLocked:
		e.kind = ErrRefused
	}
	if r.StatusCode/100 == 3 {
		e.kind, e.text = ErrNotFound, "the repository has moved: use its new URL"
		if to, err := url.Parse(r.Header.Get("Location")); err == nil && to.Host != "" {
			e.text = fmt.Sprintf("the repository has moved to %s: use its new URL",
				shown([]byte(to.Host+to.Path)))
		}
	}
	return e
}

// aboutRules matches the text of a refusal that another credential would not change.
var aboutRules = text.Pattern(`(?i)archived|protected|pre-receive|hook declined|rule violation`)

// shown returns the beginning of a text of a server, on one line.
func shown(content []byte) string {
	return text.Printable(strings.Join(strings.Fields(string(content[:min(len(content), 300)])), " "))
}
