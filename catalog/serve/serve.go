// Package serve answers who asks the catalog by an HTTP API and by MCP. People get the
// pages of catalog/console. It reads and never writes, and shows a caller what that
// caller may list in Kubernetes, nothing else.
package serve

import (
	"cmp"
	"context"
	"crypto/tls"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/cert"

	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/process"
)

// Server answers from a store.
type Server struct {
	Store store.Store
	// Access says who a caller is and what they may see.
	Access access.Access
	// Pages answer every other path; nil answers none.
	Pages http.Handler
	// Now is the time; nil is time.Now.
	Now func() time.Time
	// Poll is how often a watch looks for changes; zero means a second.
	Poll time.Duration
	// Beat is how often a quiet watch sends an event, and the rights of each watcher
	// are checked again; zero means 15 seconds.
	Beat time.Duration
	Log  logr.Logger

	watches *access.Places
}

// openAPI describes the HTTP API.
//
//go:embed openapi.json
var openAPI []byte

// Handler returns the handler of all that the catalog serves.
func (s *Server) Handler() http.Handler {
	s.Poll, s.Beat = cmp.Or(s.Poll, time.Second), cmp.Or(s.Beat, 15*time.Second)
	if s.Now == nil {
		s.Now = time.Now
	}
	s.watches = access.NewPlaces(maxWatches, maxAccountWatches)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		s.write(w, http.StatusOK, json.RawMessage(openAPI))
	})
	mux.Handle("GET /api/v1/entries", s.api(s.list))
	mux.Handle("GET /api/v1/entries/{resource}/{namespace}/{name}", s.api(s.get))
	mux.Handle("GET /api/v1/search", s.api(s.search))
	mux.Handle("GET /api/v1/watch", s.guarded(s.watch, s.refuseAPI))
	mux.Handle("/mcp", s.guarded(s.mcp().ServeHTTP, s.refuseAPI))
	s.registry(mux)
	if s.Pages != nil {
		mux.Handle("/", s.Pages)
	}
	return harden(mux)
}

// harden sets what keeps a browser from doing more than showing the page, and
// bounds what a caller may send.
func harden(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		// the pages have their own
		h.Set("Content-Security-Policy",
			"default-src 'none'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		next.ServeHTTP(w, r)
	})
}

// maxConnections of a catalog: each open page and each watch has one.
const maxConnections = 2500

// Options configures a listening server.
type Options struct {
	// Address to listen on, such as :8443.
	Address string
	// CertFile and KeyFile of the server's certificate. Without them it signs one
	// itself.
	CertFile, KeyFile string
	// PlainHTTP leaves encryption to a proxy in front. Tokens then cross the
	// network as they are.
	PlainHTTP bool
}

// Run listens until ctx ends.
func (s *Server) Run(ctx context.Context, o Options) error {
	server := &http.Server{
		Addr: o.Address, Handler: s.Handler(),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	listener, err := net.Listen("tcp", o.Address)
	if err != nil {
		return fmt.Errorf("serving the catalog: %w", err)
	}
	listener = process.Bounded(listener, maxConnections)
	if !o.PlainHTTP {
		certificate, err := o.certificate()
		if err != nil {
			return multi.Errors(err, listener.Close())
		}
		listener = tls.NewListener(listener,
			&tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12,
				NextProtos: []string{"http/1.1"}})
	}
	ended := context.AfterFunc(ctx, func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := server.Shutdown(stop); err != nil {
			s.Log.Error(err, "ending the catalog's server")
		}
	})
	defer ended()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the catalog: %w", err)
	}
	return nil
}

func (o Options) certificate() (tls.Certificate, error) {
	if o.CertFile != "" || o.KeyFile != "" {
		c, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return c, fmt.Errorf("reading the catalog's certificate: %w", err)
		}
		return c, nil
	}
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("armature-catalog", nil, []string{"localhost"})
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a certificate: %w", err)
	}
	return tls.X509KeyPair(certPEM, keyPEM)
}

// problem is an error that the caller sees.
type problem struct {
	status  int
	message string
}

func (p *problem) Error() string { return p.message }

// scope returns the scope of a request's caller.
func (s *Server) scope(r *http.Request) (store.Scope, error) {
	who, err := s.Access.Caller(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	places, err := s.Store.Places(ctx, "")
	if err != nil {
		return nil, err
	}
	return s.Access.Scope(r.Context(), who, places)
}

type scopeKey struct{}

func withScope(ctx context.Context, scope store.Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, scope)
}

// scopeOf returns the scope of a request; without one nothing is seen.
func scopeOf(ctx context.Context) store.Scope {
	scope, _ := ctx.Value(scopeKey{}).(store.Scope)
	return scope
}

// guarded lets a caller in whose rights are known, and puts these into the
// request's context.
func (s *Server) guarded(next http.HandlerFunc,
	refuse func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scope, err := s.scope(r)
		if err != nil {
			refuse(w, r, err)
			return
		}
		next(w, r.WithContext(withScope(r.Context(), scope)))
	})
}

// api returns a handler whose answer is JSON.
func (s *Server) api(answer func(r *http.Request) (body any, err error)) http.Handler {
	return s.guarded(func(w http.ResponseWriter, r *http.Request) {
		body, err := answer(r)
		if err != nil {
			s.refuseAPI(w, r, err)
			return
		}
		s.write(w, http.StatusOK, body)
	}, s.refuseAPI)
}

// refuseAPI writes an error as JSON. Internal errors are logged, not written.
func (s *Server) refuseAPI(w http.ResponseWriter, r *http.Request, err error) {
	p := s.problem(r.Context(), r.URL.Path, err)
	if p.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	retryLater(w, p)
	s.write(w, p.status, map[string]string{"error": p.message})
}

// retryLater says when to ask again, where the store or Kubernetes does not answer, or an account
// has too many watches.
func retryLater(w http.ResponseWriter, p *problem) {
	if p.status == http.StatusServiceUnavailable || p.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "5")
	}
}

// problem returns the part of an error that the caller may see; where is the requested path.
func (s *Server) problem(ctx context.Context, where string, err error) *problem {
	var p *problem
	var unknown access.Unknown
	switch {
	case errors.As(err, &p):
	case errors.As(err, &unknown):
		p = &problem{http.StatusUnauthorized, string(unknown)}
	case errors.Is(err, store.ErrNotFound):
		p = &problem{http.StatusNotFound, store.ErrNotFound.Error()}
	default:
		if ctx.Err() == nil {
			s.Log.Error(err, "answering a request", "path", where)
		}
		p = &problem{http.StatusServiceUnavailable, "the catalog cannot answer now"}
	}
	return p
}

func (s *Server) write(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		s.Log.Error(err, "printing an answer")
		status, data =
			http.StatusInternalServerError, []byte(`{"error":"the catalog cannot answer now"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // the caller may have disconnected
}

func (s *Server) list(r *http.Request) (any, error) {
	q, err := query(r)
	if err != nil {
		return nil, err
	}
	entries, err := within(r.Context(), s.Store.List, q)
	if err != nil {
		return nil, err
	}
	out := store.EntryList{Items: entries, Next: nextPage(entries, q)}
	if out.Items == nil {
		out.Items = []store.Entry{}
	}
	return out, nil
}

// patience is how long the store may take for an answer.
const patience = 5 * time.Second

// within asks the store within that time.
func within[In, Out any](ctx context.Context, ask func(context.Context, In) (Out, error),
	in In) (Out, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return ask(ctx, in)
}

func (s *Server) get(r *http.Request) (any, error) {
	if err := allow(r); err != nil {
		return nil, err
	}
	return visibleEntry(r.Context(), s.Store, pathKey(r))
}

func pathKey(r *http.Request) store.Key {
	return store.Key{Resource: r.PathValue("resource"), Namespace: r.PathValue("namespace"),
		Name: r.PathValue("name")}
}

// visibleEntry returns an entry that the caller may see. Any other does not exist for them.
func visibleEntry(ctx context.Context, from store.Store, key store.Key) (store.Entry, error) {
	if !scopeOf(ctx).Allows(key) {
		return store.Entry{}, store.ErrNotFound
	}
	return within(ctx, from.Get, key)
}

func (s *Server) search(r *http.Request) (any, error) {
	q, err := query(r, "q", "kind")
	if err != nil {
		return nil, err
	}
	if q.Text == "" {
		return nil, &problem{http.StatusBadRequest, "q is missing: set it to what to search for"}
	}
	hits, err := within(r.Context(), s.Store.Search, q)
	if hits == nil {
		hits = []store.Hit{}
	}
	return store.HitList{Items: hits}, err
}

// query reads a request's parameters. Unknown ones are errors, so that a typing
// error never shows more than was meant.
func query(r *http.Request, more ...string) (store.Query, error) {
	q := store.Query{Scope: scopeOf(r.Context()), Limit: 100}
	if err := allow(r, append(more, "type", "resource", "namespace", "health", "limit",
		"after")...); err != nil {
		return q, err
	}
	v := r.URL.Query()
	q.Type, q.Resource, q.Namespace, q.Health = store.Type(v.Get("type")), v.Get("resource"),
		v.Get("namespace"), store.Health(v.Get("health"))
	q.Text, q.Kind = v.Get("q"), v.Get("kind")
	if err := check(q); err != nil {
		return q, err
	}
	if text := v.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 1000 {
			return q, &problem{http.StatusBadRequest, "limit: use 1 to 1000"}
		}
		q.Limit = n
	}
	var err error
	q.After, err = parseCursor(v.Get("after"))
	return q, err
}

// check refuses words that no entry and no item has.
func check(q store.Query) error {
	for _, c := range []struct {
		name, value string
		known       []string
	}{
		{"type", string(q.Type), []string{string(store.Agent), string(store.Server)}},
		{"health", string(q.Health), []string{string(store.Healthy), string(store.Degraded),
			string(store.Failing), string(store.Unknown)}},
		{"kind", q.Kind, []string{string(store.Agent), string(store.Server), store.Skill,
			store.Tool, store.Resource, store.Prompt}},
	} {
		if last := len(c.known) - 1; c.value != "" && !slices.Contains(c.known, c.value) {
			return &problem{http.StatusBadRequest,
				c.name + ": use " + strings.Join(c.known[:last], ", ") + " or " + c.known[last]}
		}
	}
	return nil
}

func allow(r *http.Request, names ...string) error {
	for name := range r.URL.Query() {
		if !slices.Contains(names, name) {
			return &problem{http.StatusBadRequest,
				fmt.Sprintf("parameter %q is not supported", name)}
		}
	}
	return nil
}

// nextPage asks for the page after one; "" where that was the last.
func nextPage(entries []store.Entry, q store.Query) string {
	if len(entries) < q.Limit {
		return ""
	}
	return entries[len(entries)-1].Key.Cursor()
}

// parseCursor parses the next value of a page; "" is the first page.
func parseCursor(text string) (store.Key, error) {
	key, ok := store.ParseKey(text)
	if !ok {
		return key, &problem{http.StatusBadRequest,
			"after: use the next value of the previous page"}
	}
	return key, nil
}
