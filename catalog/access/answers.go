package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/armature-dev/armature/catalog/store"
)

// Problem is an error that the caller sees, with a remedy.
type Problem struct {
	Status          int
	Message, Remedy string
}

func (p *Problem) Error() string { return p.Message }

// Refuse returns the problem of a request.
func Refuse(status int, message, remedy string) *Problem {
	return &Problem{status, message, remedy}
}

// Bad returns the problem of a request with wrong parameters.
func Bad(format string, args ...any) *Problem {
	return &Problem{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

// ProblemOf returns the part of an error that a program may see; path is the requested one.
// Internal errors are logged.
func ProblemOf(ctx context.Context, log logr.Logger, path string, err error) *Problem {
	var p *Problem
	var unknown Unknown
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &unknown):
		return Refuse(http.StatusUnauthorized, string(unknown), "")
	case errors.Is(err, store.ErrNotFound):
		return Refuse(http.StatusNotFound, store.ErrNotFound.Error(), "")
	}
	if ctx.Err() == nil {
		log.Error(err, "answering a request", "path", path)
	}
	return Refuse(http.StatusServiceUnavailable, "the catalog cannot answer now", "")
}

// WriteError answers a program with the part of an error that it may see.
func WriteError(w http.ResponseWriter, r *http.Request, log logr.Logger, err error) {
	p := ProblemOf(r.Context(), log, r.URL.Path, err)
	switch p.Status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "5")
	}
	Write(w, log, p.Status, map[string]string{"error": p.Message})
}

// Write answers a program in JSON.
func Write(w http.ResponseWriter, log logr.Logger, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		log.Error(err, "printing an answer")
		status, data =
			http.StatusInternalServerError, []byte(`{"error":"the catalog cannot answer now"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // the caller may have disconnected
}

// CheckParameters refuses unknown parameters, so that a misspelt one never shows more than
// intended.
func CheckParameters(r *http.Request, known ...string) error {
	for name := range r.URL.Query() {
		if !slices.Contains(known, name) {
			return Refuse(http.StatusBadRequest, fmt.Sprintf("The parameter %q is not supported.",
				name), "Remove it from the address.")
		}
	}
	return nil
}

// bodyTime is how long a caller may take to send the body of a request.
const bodyTime = 30 * time.Second

// Harden sets headers that let a browser only show an answer and load what the policy allows. It
// bounds the size of a request's body, and the time in which the caller has to send it.
func Harden(policy string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		if r.Body != http.NoBody {
			// Not every server has deadlines.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
		}
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		next.ServeHTTP(w, r)
	})
}

// Places limits how much is open at the same time, in total and for each account, so that one
// account cannot take all places.
type Places struct {
	all, each int

	mu   sync.Mutex
	open int
	by   map[string]int
}

// NewPlaces returns places for all accounts together and for each.
func NewPlaces(all, each int) *Places { return &Places{all: all, each: each, by: map[string]int{}} }

// Enter takes a place for an account. It returns nil if there is none.
func (p *Places) Enter(account string) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == p.all || p.by[account] == p.each {
		return nil
	}
	p.open++
	p.by[account]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.open--
		if p.by[account]--; p.by[account] == 0 {
			delete(p.by, account)
		}
	})
}
