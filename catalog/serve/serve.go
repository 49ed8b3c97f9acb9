// Package serve serves the catalog to programs, by an HTTP API and by MCP. People get the pages of
// catalog/console. It reads and never writes, and shows a caller only what that caller may list in
// Kubernetes.
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
	Store store.Followed
	// Access says who a caller is and what they may see.
	Access access.Access
	// Pages answer every other path; nil answers none.
	Pages http.Handler
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
	s.watches = access.NewPlaces(maxWatches, maxAccountWatches)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		access.Write(w, s.Log, http.StatusOK, json.RawMessage(openAPI))
	})
	mux.Handle("GET /api/v1/entries", s.api(s.list))
	mux.Handle("GET /api/v1/entries/{resource}/{namespace}/{name}", s.api(s.get))
	mux.Handle("GET /api/v1/search", s.api(s.search))
	mux.Handle("GET /api/v1/watch", s.guarded(s.watch))
	mux.Handle("/mcp", s.guarded(s.mcp().ServeHTTP))
	s.registry(mux)
	if s.Pages != nil {
		mux.Handle("/", s.Pages)
	}
	// the pages have their own policy
	return access.Harden("default-src 'none'; base-uri 'none'; frame-ancestors 'none'", mux)
}

// maxConnections of a catalog: each open page and each watch has one.
const maxConnections = 2500

// Options configures a listening server.
type Options struct {
	// Address to listen on, such as :8443.
	Address string
	// CertFile and KeyFile of the server's certificate. Without them, it signs one itself.
	CertFile, KeyFile string
	// PlainHTTP leaves encryption to a proxy in front. Tokens then cross the network unencrypted.
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

// scope returns the scope of a request's caller.
func (s *Server) scope(r *http.Request) (store.Scope, error) {
	who, err := s.Access.Caller(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	places, err := store.Places(ctx, s.Store, "")
	if err != nil {
		return nil, err
	}
	return s.Access.Scope(r.Context(), who, places)
}

type scopeKey struct{}

// scopeOf returns the scope of a request. A request without one sees nothing.
func scopeOf(ctx context.Context) store.Scope {
	scope, _ := ctx.Value(scopeKey{}).(store.Scope)
	return scope
}

// guarded admits callers whose rights are known, and puts the rights into the request's context.
func (s *Server) guarded(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scope, err := s.scope(r)
		if err != nil {
			access.WriteError(w, r, s.Log, err)
			return
		}
		next(w, r.WithContext(context.WithValue(r.Context(), scopeKey{}, scope)))
	})
}

// api returns a handler whose answer is JSON.
func (s *Server) api(answer func(r *http.Request) (body any, err error)) http.Handler {
	return s.guarded(func(w http.ResponseWriter, r *http.Request) {
		body, err := answer(r)
		if err != nil {
			access.WriteError(w, r, s.Log, err)
			return
		}
		access.Write(w, s.Log, http.StatusOK, body)
	})
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

// within queries the store within patience.
func within[In, Out any](ctx context.Context, ask func(context.Context, In) (Out, error),
	in In) (Out, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return ask(ctx, in)
}

func (s *Server) get(r *http.Request) (any, error) {
	if err := access.CheckParameters(r); err != nil {
		return nil, err
	}
	return visibleEntry(r.Context(), s.Store, store.Key{Resource: r.PathValue("resource"),
		Namespace: r.PathValue("namespace"), Name: r.PathValue("name")})
}

// visibleEntry returns an entry that the caller may see. Other entries do not exist for the caller.
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
		return nil, access.Bad("q is missing: set it to what to search for")
	}
	hits, err := within(r.Context(), s.Store.Search, q)
	if hits == nil {
		hits = []store.Hit{}
	}
	return store.HitList{Items: hits}, err
}

// query reads a request's parameters. Unknown ones are errors, so that a misspelt one never shows
// more than intended.
func query(r *http.Request, more ...string) (store.Query, error) {
	q := store.Query{Scope: scopeOf(r.Context()), Limit: 100}
	if err := access.CheckParameters(r, append(more, "type", "resource", "namespace", "health",
		"limit", "after")...); err != nil {
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
			return q, access.Bad("limit: use 1 to 1000")
		}
		q.Limit = n
	}
	var err error
	q.After, err = parseCursor(v.Get("after"))
	return q, err
}

// check refuses types, health states and kinds that do not exist.
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
			return access.Bad("%s: use %s or %s", c.name, strings.Join(c.known[:last], ", "),
				c.known[last])
		}
	}
	return nil
}

// nextPage returns the cursor of the next page; "" after the last one.
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
		return key, access.Bad("after: use the next value of the previous page")
	}
	return key, nil
}
