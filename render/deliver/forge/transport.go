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

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/answers"
)

const (
	// maxAnswer is how much a forge may answer, in bytes, and maxTime how long it may take.
	maxAnswer, maxTime = 8 << 20, 30 * time.Second
	// maxDecoding is what one answer and those of one namespace may take once they are
	// decoded, and maxAnswers all of them at once. The installation gives the controller 1 GiB.
	maxDecoding, maxAnswers = 64 << 20, 128 << 20
	// maxValues of any list or object: nothing longer is asked for.
	maxValues = 1000
	// maxRequests of one credential are under way at once.
	maxRequests = 8
	// maxTries of a request that a limit or a failing server did not answer.
	maxTries = 3
	// maxWait for a limit, also where the deadline is later.
	maxWait = 2 * time.Minute
	// longestLimit is the longest time that a server may announce.
	longestLimit = time.Hour
	// maxAccounts are remembered. One that was not used for longestLimit has no limit left.
	maxAccounts = 1000
)

// account is what is remembered of one credential on one host.
type account struct {
	slots  chan struct{}
	writes *rate.Limiter // nil where the server counts all requests alike

	mu      sync.Mutex
	used    time.Time
	until   time.Time        // when the server answers again
	strikes int              // limits in a row that named no time
	tokens  map[string]token // of an App, by repository and right
	login   string
}

// token of an installation.
type token struct {
	text    string
	expires time.Time
}

// account of a credential on a host.
func (c *Clients) account(kind, host string, login Credential) *account {
	hash := sha256.New()
	for _, part := range []string{kind, host, login.User, login.Token} {
		fmt.Fprintf(hash, "%d %s", len(part), part)
	}
	if a := login.App; a != nil {
		fmt.Fprintf(hash, "%d %d %s", a.ID, a.Installation, a.Key)
	}
	key := [sha256.Size]byte(hash.Sum(nil))
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if len(c.accounts) >= maxAccounts {
		for key, a := range c.accounts {
			a.mu.Lock()
			if now.Sub(a.used) > longestLimit {
				delete(c.accounts, key)
			}
			a.mu.Unlock()
		}
	}
	if c.memory == nil {
		c.memory = answers.NewBudget(maxAnswers, maxDecoding)
	}
	a := c.accounts[key]
	if a == nil {
		a = &account{slots: make(chan struct{}, maxRequests), tokens: make(map[string]token)}
		if kind == GitHub { // 80 that create content in a minute, 500 in an hour
			a.writes = rate.NewLimiter(rate.Every(8*time.Second), 40)
		}
		if c.accounts == nil {
			c.accounts = make(map[[sha256.Size]byte]*account)
		}
		c.accounts[key] = a
	}
	a.mu.Lock()
	a.used = now
	a.mu.Unlock()
	return a
}

// wait until the server takes a request.
func (a *account) wait(ctx context.Context, host string, write bool) error {
	latest := time.Now().Add(maxWait)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(latest) {
		latest = deadline
	}
	for waiting := true; waiting; {
		a.mu.Lock()
		until := a.until
		a.used = time.Now()
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
	if d <= 0 {
		return ctx.Err()
	}
	clock := time.NewTimer(d)
	defer clock.Stop()
	select {
	case <-clock.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// learn what an answer says about limits. limited reports that the request was not answered
// because of one.
func (a *account) learn(r *http.Response, body []byte) (limited bool) {
	remaining := cmp.Or(r.Header.Get("X-RateLimit-Remaining"), r.Header.Get("RateLimit-Remaining"))
	limited = r.StatusCode == http.StatusTooManyRequests || r.StatusCode == http.StatusForbidden &&
		(r.Header.Get("Retry-After") != "" || remaining == "0" || bytes.Contains(bytes.ToLower(body), []byte("rate limit")))
	a.mu.Lock()
	defer a.mu.Unlock()
	if !limited && remaining != "0" {
		if r.StatusCode < 300 {
			a.strikes = 0
		}
		return false
	}
	now := time.Now()
	var until time.Time
	after := r.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(after); err == nil {
		until = now.Add(time.Duration(min(max(seconds, 1), int(longestLimit/time.Second))) * time.Second)
	} else if at, err := http.ParseTime(after); err == nil {
		until = at
	} else if reset, err := strconv.ParseInt(cmp.Or(r.Header.Get("X-RateLimit-Reset"), r.Header.Get("RateLimit-Reset")), 10, 64); err == nil && remaining == "0" {
		until = time.Unix(reset, 0)
	} else if limited { // at least a minute, and longer each time
		until = now.Add(time.Minute << min(a.strikes, 5))
		a.strikes++
	}
	if latest := now.Add(longestLimit); until.After(latest) {
		until = latest
	}
	if until.After(a.until) {
		a.until = until
	}
	return limited
}

// transport sends requests of one account to one host alone.
type transport struct {
	http.RoundTripper
	scheme, host string
	account      *account
	login        Credential
	memory       *answers.Budget
}

// RoundTrip waits for the limits, reads the whole answer, and returns one that is not a success
// as an error. What decoding the answer takes is counted before, and until its body is closed.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		if err := r.Body.Close(); err != nil {
			return nil, err
		}
	}
	if r.URL.Host != t.host || r.URL.Scheme != t.scheme {
		return nil, fmt.Errorf("%s is not the server of the repository: nothing was sent to it", r.URL.Host)
	}
	ctx := r.Context()
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	for try := 1; ; try++ {
		if err := t.account.wait(ctx, t.host, !reads && ctx.Value(asking{}) == nil); err != nil {
			return nil, err
		}
		memory := t.memory.Share(t.login.Namespace)
		answer, text, err := t.once(r, body, memory)
		if err != nil || answer.StatusCode/100 != 2 {
			memory.Release()
		}
		limited := err == nil && t.account.learn(answer, text)
		switch {
		case limited && try == maxTries:
			t.account.mu.Lock()
			defer t.account.mu.Unlock()
			return nil, &LimitedError{t.host, t.account.until}
		case limited:
			continue
		case reads && try < maxTries && ctx.Err() == nil && (err != nil && !errors.Is(err, answers.ErrTooLarge) || err == nil && answer.StatusCode >= 500):
			if err := sleep(ctx, time.Duration(try)*200*time.Millisecond); err != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, err
		case answer.StatusCode/100 != 2:
			return nil, t.refusal(answer, text)
		}
		context.AfterFunc(ctx, memory.Release)
		answer.Body = &decoded{answer.Body, memory}
		return answer, nil
	}
}

// asking marks the context of a POST that changes nothing, as queries in GraphQL are.
type asking struct{}

// decoded is an answer whose memory is given back when it was read.
type decoded struct {
	io.ReadCloser
	memory *answers.Share
}

func (d *decoded) Close() error {
	d.memory.Release()
	return d.ReadCloser.Close()
}

func (t *transport) once(r *http.Request, body []byte, memory *answers.Share) (*http.Response, []byte, error) {
	select {
	case t.account.slots <- struct{}{}:
		defer func() { <-t.account.slots }()
	case <-r.Context().Done():
		return nil, nil, r.Context().Err()
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), maxTime, fmt.Errorf("%s did not answer within %s", t.host, maxTime))
	defer cancel()
	send := r.Clone(ctx)
	if body != nil {
		send.Body = io.NopCloser(bytes.NewReader(body))
	}
	answer, err := t.RoundTripper.RoundTrip(send)
	if err == nil {
		var text []byte
		metered := &answers.Metered{Reader: answer.Body, Context: ctx, Memory: memory, Decoding: new(atomic.Int64), Most: maxDecoding, Longest: maxValues}
		text, err = io.ReadAll(io.LimitReader(metered, maxAnswer+1))
		if closed := answer.Body.Close(); err == nil {
			err = closed
		}
		if len(text) > maxAnswer {
			err = answers.ErrTooLarge
		}
		if errors.Is(err, answers.ErrTooLarge) {
			return nil, nil, fmt.Errorf("the answer of %s is refused: %w", t.host, err)
		}
		text = t.withoutSecrets(send, text)
		answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		if err == nil {
			return answer, text, nil
		}
	}
	if ctx.Err() != nil && r.Context().Err() == nil {
		err = context.Cause(ctx)
	}
	return nil, nil, err
}

// answerError is an answer that is not a success.
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

// withoutSecrets is a text of the server without what was sent to it, which it may repeat.
func (t *transport) withoutSecrets(sent *http.Request, text []byte) []byte {
	words := []string{t.login.Token}
	for _, name := range []string{"Authorization", "Private-Token"} {
		words = append(words, strings.Fields(sent.Header.Get(name))...)
	}
	for _, word := range words {
		escaped, _ := json.Marshal(word) // of a string, which does not fail
		for _, form := range []string{word, string(escaped[1 : len(escaped)-1]), strings.ReplaceAll(word, "/", `\/`)} {
			if len(form) > 6 { // "Bearer" is none
				text = bytes.ReplaceAll(text, []byte(form), []byte("…"))
			}
		}
	}
	return text
}

// refusal is the error of an answer.
func (t *transport) refusal(r *http.Response, body []byte) error {
	e := &answerError{host: r.Request.URL.Host, status: strconv.Itoa(r.StatusCode) + " " + http.StatusText(r.StatusCode)}
	var known struct {
		Message json.RawMessage
		Errors  json.RawMessage
	}
	text := body
	if json.Unmarshal(body, &known) == nil && known.Message != nil {
		text = append(known.Message, known.Errors...)
		var message string
		if json.Unmarshal(known.Message, &message) == nil {
			text = append([]byte(message), known.Errors...)
		}
	}
	e.text = shown(t.withoutSecrets(r.Request, text)) // once more, as it was unescaped
	switch r.StatusCode {
	case http.StatusUnauthorized:
		e.kind = ErrUnauthorized
	case http.StatusForbidden:
		e.kind = ErrUnauthorized
		for _, rule := range []string{"archived", "protected", "pre-receive", "hook declined", "rule violation"} {
			if strings.Contains(strings.ToLower(e.text), rule) {
				e.kind = ErrRefused
			}
		}
	case http.StatusNotFound, http.StatusGone:
		e.kind = ErrNotFound
	case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusConflict, http.StatusUnprocessableEntity, http.StatusLocked:
		e.kind = ErrRefused
	}
	if r.StatusCode/100 == 3 {
		e.kind, e.text = ErrNotFound, "the repository has moved: use its new URL"
		if to, err := url.Parse(r.Header.Get("Location")); err == nil && to.Host != "" {
			e.text = fmt.Sprintf("the repository has moved to %s: use its new URL", shown([]byte(to.Host+to.Path)))
		}
	}
	return e
}

// shown is the beginning of a text of a server, on one line.
func shown(text []byte) string {
	return krm.Printable(strings.Join(strings.Fields(string(text[:min(len(text), 300)])), " "))
}
