package console

import (
	"bytes"
	"embed"
	"fmt"
	"hash/fnv"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/armature-dev/armature/catalog/console/facts"
)

// Page is what a person sees at an address.
type Page struct {
	Title string
	// Section is the path of the section of the navigation that it belongs to.
	Section string
	// Status of the answer; zero is 200.
	Status int
	// Live is a page that changes more often than what is watched, such as with a log.
	Live bool
	// Parts from top to bottom. An open page gets those that changed.
	Parts []Part
}

// Part is a part of a page. Its ID is unique in the page and stays the same.
type Part struct {
	ID string
	// Template that prints it, with Data.
	Template string
	Data     any
}

// State is how a thing is, as an icon, a colour and a word show it.
type State string

// The states.
const (
	Healthy   State = "healthy"
	Degraded  State = "degraded"
	Failing   State = "failing"
	Unknown   State = "unknown"
	Building  State = "building"
	Queued    State = "queued"
	Drifted   State = "drifted"
	Cancelled State = "cancelled"
)

// pill is a state in a word.
type pill struct {
	State State
	Words string
}

//go:embed templates
var templateFiles embed.FS

// parse parses the templates, for which it is now.
func parse(now func() time.Time) *template.Template {
	of := template.FuncMap{
		"asset": assetPath, "linkState": linkState,
		"pill":    func(state State, words string) pill { return pill{state, words} },
		"causeOf": func(why string) [2]string { w, fix := cause(why); return [2]string{w, fix} },
	}
	all := template.New("").Funcs(facts.Funcs(now)).Funcs(of)
	return template.Must(all.ParseFS(templateFiles, "templates/*.html"))
}

// printed is a part as HTML.
type printed struct {
	ID, Hash string
	HTML     template.HTML
}

// print prints the parts of a page.
func (c *Console) print(p *Page) ([]printed, error) {
	var out []printed
	for _, part := range p.Parts {
		var text bytes.Buffer
		if err := c.templates.ExecuteTemplate(&text, part.Template, part.Data); err != nil {
			return nil, fmt.Errorf("printing %s of %q: %w", part.ID, p.Title, err)
		}
		sum := fnv.New64a()
		// it takes all
		_, _ = sum.Write(text.Bytes())
		out = append(out, printed{part.ID, fmt.Sprintf("%016x", sum.Sum64()),
			template.HTML(text.String())}) //nolint:gosec // it is a template's
	}
	return out, nil
}

// seen names what a reader has of a page: the hashes of its parts.
func seen(parts []printed) string {
	var out []string
	for _, p := range parts {
		out = append(out, p.Hash)
	}
	return strings.Join(out, ",")
}

type layoutData struct {
	*Page
	Printed  []printed
	Sections any
	User     user.Info
	// Stream of changes; "" for a page that never changes.
	Stream string
}

// write prints a page whole, or an error: never half of it.
func (c *Console) write(w http.ResponseWriter, r *http.Request, who user.Info, p *Page) {
	var out bytes.Buffer
	parts, err := c.print(p)
	if err == nil {
		data := layoutData{Page: p, Printed: parts, Sections: sections, User: who}
		if p.Status == 0 {
			data.Stream = "/events?" +
				url.Values{"page": {r.URL.RequestURI()}, "seen": {seen(parts)}}.Encode()
		}
		err = c.templates.ExecuteTemplate(&out, "layout", data)
	}
	if err != nil {
		c.Log.Error(err, "printing a page", "path", r.URL.Path)
		http.Error(w, "the console cannot answer now", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "5")
	}
	if p.Status != 0 {
		w.WriteHeader(p.Status)
	}
	_, _ = out.WriteTo(w) // the reader may have disconnected
}
