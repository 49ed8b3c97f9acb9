// Package console serves the pages on which people see agents, tool servers, builds and
// packages. It reads and never changes what Git owns, and shows a caller what that caller
// may list in Kubernetes, nothing else.
package console

import (
	"cmp"
	"context"
	"errors"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/console/resources"
	"github.com/armature-dev/armature/catalog/store"
)

// Console answers from the catalog's store and from the objects of a cluster that it watches.
type Console struct {
	Store store.Store
	// Access says who a caller is and what they may see.
	Access access.Access
	// Cluster has builds and packages; nil shows none.
	Cluster *Cluster
	// Now is the time; nil is time.Now.
	Now func() time.Time
	// Poll is how often open pages look for changes; zero means a second.
	Poll time.Duration
	// Beat is how often a quiet stream sends an event; zero means 15 seconds.
	Beat time.Duration
	Log  logr.Logger

	templates *template.Template
	pages     *http.ServeMux
	streams   streams
}

// route is a page, and the parameters that it knows.
type route struct {
	build  func(*Visit) (*Page, error)
	params string
}

// routes returns the pages. Only these have a stream.
func routes() map[string]route {
	const filters = "q namespace kind health skill tag after"
	return map[string]route{
		"/{$}":                                   {home, ""},
		"/agents":                                {agents, filters},
		"/tools":                                 {servers, filters},
		"/builds":                                {buildsPage, "q namespace phase page"},
		"/builds/{namespace}/{name}":             {buildPage, "task"},
		"/packages":                              {packagesPage, ""},
		"/packages/{namespace}/{name}":           {packagePage, ""},
		"/entries/{resource}/{namespace}/{name}": {entryPage, ""},
		"/rights":                                {rightsPage, ""},
	}
}

// section is a section of the navigation.
type section struct{ Path, Name, Icon string }

var sections = []section{
	{"/", "Home", "home"},
	{"/agents", "Agents", "agent"},
	{"/tools", "Tool servers", "tool"},
	{"/builds", "Builds", "build"},
	{"/packages", "Packages", "package"},
}

// Handler returns the handler of the pages and of the files that they load.
func (c *Console) Handler() http.Handler {
	c.Poll, c.Beat = cmp.Or(c.Poll, time.Second), cmp.Or(c.Beat, 15*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	c.templates = parse(c.Now)
	c.streams.open, c.streams.printing =
		access.NewPlaces(maxStreams, maxOwnStreams), make(chan struct{}, maxPrinting)
	c.pages = http.NewServeMux()
	for pattern, page := range routes() {
		c.pages.HandleFunc("GET "+pattern, func(w http.ResponseWriter, r *http.Request) {
			c.serve(w, r, func(v *Visit) (*Page, error) {
				err := access.CheckParameters(v.Request, strings.Fields(page.params)...)
				if err != nil {
					return nil, err
				}
				return page.build(v)
			})
		})
	}
	c.pages.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		c.serve(w, r, func(*Visit) (*Page, error) { return nil, store.ErrNotFound })
	})
	mux := http.NewServeMux()
	mux.Handle("GET /", c.pages)
	mux.HandleFunc("GET /events", c.events)
	mux.HandleFunc("GET /static/", serveAsset)
	mux.HandleFunc("GET /login", func(w http.ResponseWriter, r *http.Request) {
		c.write(w, r, nil, c.signIn(http.StatusOK, "", r.URL.Query().Get("next")))
	})
	mux.HandleFunc("POST /login", c.login)
	mux.HandleFunc("POST /logout", c.logout)
	if l := c.Access.Login; l != nil {
		l.Failed = func(w http.ResponseWriter, r *http.Request, why string, err error) {
			c.Log.Error(err, "a person is not signed in")
			c.write(w, r, nil, c.signIn(http.StatusForbidden, why, ""))
		}
		if l.Provider() {
			mux.HandleFunc("GET "+access.LoginPath, l.Begin)
			mux.HandleFunc("GET "+access.LoginCallback, l.End)
		}
	}
	if c.Cluster != nil && c.Cluster.builds.BuildNamespace != "" {
		(&resources.Door{Access: c.Access, Runs: c.Cluster.builds, Build: c.Cluster.build, Beat: c.Beat,
			Log: c.Log}).Mount(mux)
	}
	if c.Cluster != nil {
		mux.HandleFunc("GET /builds/{namespace}/{name}/log/{task}/{step}", c.logFile)
		for _, a := range []action{
			{"cancel", "CancelRequested", c.Cluster.builds.Cancel},
			{"retry", "RetryRequested", func(ctx context.Context, b *api.AgentBuild) error {
				return c.Cluster.builds.Rerun(ctx, b, c.Now())
			}},
		} {
			mux.HandleFunc("POST /builds/{namespace}/{name}/"+a.verb,
				func(w http.ResponseWriter, r *http.Request) { c.act(w, r, a) })
		}
	}
	return http.NewCrossOriginProtection().Handler(access.Harden(policy, mux))
}

// policy lets a page load files of this server only, and run no script that is in the page itself.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"font-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; " +
	"base-uri 'none'"

// patience is how long the store and Kubernetes may take for a page.
const patience = 5 * time.Second

// serve builds a page for a known caller, and prints it.
func (c *Console) serve(w http.ResponseWriter, r *http.Request, build func(*Visit) (*Page, error)) {
	page, who, err := visit(c, r, patience, build)
	if err != nil {
		page = c.refuse(r, err)
	}
	if into, ok := r.Context().Value(captureKey{}).(*captured); ok {
		into.page = page
		return
	}
	// A person who is still signed in at the provider returns without a prompt.
	if l := c.Access.Login; errors.As(err, new(access.Unknown)) && l != nil && l.Provider() &&
		l.Began(r) {
		http.Redirect(w, r, access.LoginPath+"?"+
			url.Values{"next": {access.LocalPath(r.URL.RequestURI())}}.Encode(), http.StatusSeeOther)
		return
	}
	c.write(w, r, who, page)
}

// visit answers a known caller, within a time. The server has to know that no other site made the
// browser send the request.
func visit[T any](c *Console, r *http.Request, within time.Duration,
	answer func(*Visit) (T, error)) (out T, who user.Info, err error) {
	if who, err = c.Access.Actor(r); err != nil {
		return out, nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), within)
	defer cancel()
	out, err = answer(&Visit{Request: r.WithContext(ctx), Console: c, User: who})
	return out, who, err
}

// refuse returns the page of an error: internal ones are logged, not shown.
func (c *Console) refuse(r *http.Request, err error) *Page {
	var unknown access.Unknown
	var problem *access.Problem
	switch {
	case errors.As(err, &unknown):
		return c.signIn(http.StatusUnauthorized, "", r.URL.RequestURI())
	case errors.As(err, &problem):
	case errors.Is(err, store.ErrNotFound):
		problem = access.Refuse(http.StatusNotFound, "There is nothing here that you may see.",
			"The address may be misspelt, the object deleted, or your rights may not include it.")
	default:
		if r.Context().Err() == nil {
			c.Log.Error(err, "printing a page", "path", r.URL.Path)
		}
		problem = access.Refuse(http.StatusServiceUnavailable, "The catalog cannot answer now.",
			"Its store or the Kubernetes API does not answer. Reload the page in a few seconds.")
	}
	return &Page{Title: http.StatusText(problem.Status), Status: problem.Status,
		Parts: []Part{{"problem", "problem", problem}}}
}

// Visit is one request of a page, by a known caller.
type Visit struct {
	*http.Request
	Console *Console
	User    user.Info
}

// Scope returns what the caller may list of the given namespaces of each resource.
func (v *Visit) Scope(places map[string][]string) (store.Scope, error) {
	return v.Console.Access.Scope(v.Context(), v.User, places)
}

// Catalog returns what the caller may see of the catalog.
func (v *Visit) Catalog() (store.Scope, error) {
	places, err := store.Places(v.Context(), v.Console.Store, "")
	if err != nil {
		return nil, err
	}
	return v.Scope(places)
}

// May reports whether the caller may list a resource, such as agentbuilds.agent.kagenti.dev,
// in a namespace.
func (v *Visit) May(resource, namespace string) (bool, error) {
	scope, err := v.Scope(map[string][]string{resource: {namespace}})
	return scope.Allows(store.Key{Resource: resource, Namespace: namespace}), err
}

// Visible returns the objects of a resource that the caller may list.
func Visible[T any](v *Visit, resource string, all []T, namespace func(T) string) ([]T, error) {
	places := map[string]bool{}
	for _, one := range all {
		places[namespace(one)] = false
	}
	scope, err := v.Scope(map[string][]string{resource: slices.Collect(maps.Keys(places))})
	if err != nil {
		return nil, err
	}
	for place := range places {
		places[place] = scope.Allows(store.Key{Resource: resource, Namespace: place})
	}
	return slices.DeleteFunc(slices.Clone(all),
		func(one T) bool { return !places[namespace(one)] }), nil
}

// login checks a token and puts it into a cookie that scripts cannot read.
func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	token, next := strings.TrimSpace(r.PostFormValue("token")), r.PostFormValue("next")
	check := r.Clone(r.Context())
	check.Header = http.Header{"Authorization": {"Bearer " + token}}
	if _, err := c.Access.Caller(check); err != nil || token == "" {
		c.write(w, r, nil, c.signIn(http.StatusUnauthorized,
			"Kubernetes does not know this token, or it has expired.", next))
		return
	}
	if err := c.endSession(w, r); err != nil {
		c.write(w, r, nil, c.refuse(r, err))
		return
	}
	setCookie(w, r, token, 8*3600)
	http.Redirect(w, r, access.LocalPath(next), http.StatusSeeOther)
}

func (c *Console) logout(w http.ResponseWriter, r *http.Request) {
	setCookie(w, r, "", -1)
	if err := c.endSession(w, r); err != nil {
		c.write(w, r, nil, c.refuse(r, err))
		return
	}
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

func (c *Console) endSession(w http.ResponseWriter, r *http.Request) error {
	if c.Access.Login == nil {
		return nil
	}
	return c.Access.Login.Logout(w, r)
}

func setCookie(w http.ResponseWriter, r *http.Request, value string, seconds int) {
	http.SetCookie(w, &http.Cookie{Name: access.Cookie, Value: value, Path: "/", MaxAge: seconds,
		HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode})
}

// signInData has the ways to sign in. Next is the path to go on to.
type signInData struct {
	Problem, Next, Provider string
	Tokens                  bool
}

func (c *Console) signIn(status int, problem, next string) *Page {
	next = access.LocalPath(next)
	d := signInData{Problem: problem, Next: next, Tokens: c.Access.Tokens()}
	if l := c.Access.Login; l != nil && l.Provider() {
		d.Provider = access.LoginPath + "?" + url.Values{"next": {next}}.Encode()
	}
	return &Page{Title: "Sign in", Status: status, Parts: []Part{{"sign-in", "sign-in", d}}}
}
