package serve

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/armature-dev/armature/catalog/store"
)

//go:embed page
var pageFiles embed.FS

// pageTemplates are parsed when the first page is asked for: a process that does
// not serve the catalog pays nothing.
var pageTemplates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"entryPath": entryPath, "pretty": pretty, "link": link, "commitLink": commitLink, "plural": plural, "age": age,
	}).ParseFS(pageFiles, "page/*.html"))
})

// pages are for people: rendered here, without scripts.
func (s *Server) pages(mux *http.ServeMux) {
	mux.HandleFunc("GET /style.css", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFileFS(w, r, pageFiles, "page/style.css")
	})
	mux.HandleFunc("GET /login", func(w http.ResponseWriter, _ *http.Request) { s.page(w, http.StatusOK, "login.html", loginPage{}) })
	mux.HandleFunc("POST /login", s.login)
	mux.HandleFunc("POST /logout", func(w http.ResponseWriter, r *http.Request) {
		setCookie(w, r, "", -1)
		http.Redirect(w, r, "/login", http.StatusSeeOther)
	})
	mux.Handle("GET /{$}", s.guarded(s.overview, s.refusePage))
	mux.Handle("GET /entries/{resource}/{namespace}/{name}", s.guarded(s.details, s.refusePage))
}

type loginPage struct{ Problem string }

type problemPage struct {
	Status  int
	Problem string
}

// refusePage sends who is not known to the login form.
func (s *Server) refusePage(w http.ResponseWriter, r *http.Request, err error) {
	p := s.problem(r.Context(), r.URL.Path, err)
	if p.status == http.StatusUnauthorized {
		s.page(w, p.status, "login.html", loginPage{})
		return
	}
	retryLater(w, p)
	s.page(w, p.status, "problem.html", problemPage{p.status, p.message})
}

// login checks a token and puts it into a cookie that scripts cannot read.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimSpace(r.PostFormValue("token"))
	check := r.Clone(r.Context())
	check.Header = http.Header{"Authorization": {"Bearer " + token}}
	if _, err := s.Access.caller(check); err != nil || token == "" {
		s.page(w, http.StatusUnauthorized, "login.html", loginPage{"Kubernetes does not know this token, or it has expired."})
		return
	}
	setCookie(w, r, token, 8*3600)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func setCookie(w http.ResponseWriter, r *http.Request, value string, seconds int) {
	http.SetCookie(w, &http.Cookie{Name: cookie, Value: value, Path: "/", MaxAge: seconds, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode})
}

// overviewPage is the list, or what a search found.
type overviewPage struct {
	Now     time.Time
	Text    string
	Type    string
	Entries []store.Entry
	Hits    []store.Hit
	Next    string
}

func (s *Server) overview(w http.ResponseWriter, r *http.Request) {
	q, err := query(r, "q", "kind")
	if err != nil {
		s.refusePage(w, r, err)
		return
	}
	p := overviewPage{Now: s.Now(), Text: q.Text, Type: string(q.Type)}
	if q.Text != "" {
		p.Hits, err = within(r.Context(), s.Store.Search, q)
	} else {
		p.Entries, err = within(r.Context(), s.Store.List, q)
		if next := nextPage(p.Entries, q); next != "" {
			more := r.URL.Query() // the same question, further on
			more.Set("after", next)
			p.Next = "/?" + more.Encode()
		}
	}
	if err != nil {
		s.refusePage(w, r, err)
		return
	}
	s.page(w, http.StatusOK, "overview.html", p)
}

type detailsPage struct {
	Now time.Time
	store.Entry
}

func (s *Server) details(w http.ResponseWriter, r *http.Request) {
	e, err := visibleEntry(r.Context(), s.Store, pathKey(r))
	if err != nil {
		s.refusePage(w, r, err)
		return
	}
	s.page(w, http.StatusOK, "details.html", detailsPage{s.Now(), e})
}

// page prints one whole, or an error: never half of it.
func (s *Server) page(w http.ResponseWriter, status int, name string, data any) {
	var out bytes.Buffer
	if err := pageTemplates().ExecuteTemplate(&out, name, data); err != nil {
		s.Log.Error(err, "printing a page", "page", name)
		http.Error(w, "the catalog cannot answer now", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = out.WriteTo(w) // the reader may have disconnected
}

func entryPath(e store.Entry) string {
	return "/entries/" + url.PathEscape(e.Resource) + "/" + url.PathEscape(e.Namespace) + "/" + url.PathEscape(e.Name)
}

func age(at, now time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return duration.HumanDuration(max(0, now.Sub(at))) + " ago"
}

// pretty prints JSON for people.
func pretty(document json.RawMessage) string {
	var out bytes.Buffer
	if err := json.Indent(&out, document, "", "  "); err != nil {
		return string(document)
	}
	return out.String()
}

// link is an address that a browser may go to: what agents say may be anything.
func link(text string) string {
	if u, err := url.Parse(text); err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil {
		return text
	}
	return ""
}

// commitLink is where forges show a commit of a repository.
func commitLink(b store.Build) string {
	repository := strings.TrimSuffix(b.Repository, ".git")
	if !strings.Contains(repository, "://") {
		repository = "https://" + repository
	}
	if link(repository) == "" || b.Commit == "" {
		return ""
	}
	return repository + "/commit/" + url.PathEscape(b.Commit)
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if stem, ok := strings.CutSuffix(one, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, one)
}
