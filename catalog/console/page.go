package console

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"hash/fnv"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/armature-dev/armature/catalog/console/resources"
	"github.com/armature-dev/armature/render/page/design"
)

// Page is the page at an address.
type Page struct {
	Title string
	// Section is the path of the section of the navigation that it belongs to.
	Section string
	// Status of the answer; zero is 200.
	Status int
	// Live is set for a page that changes more often than the watched objects, such as one with a
	// log.
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

// State is the state of an object, shown by an icon, a colour and a word.
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

// states maps the words of the objects' own states.
var states = map[string]State{
	"Healthy": Healthy, "Degraded": Degraded, "Failing": Failing, // agents and tool servers
	"Valid": Healthy, "Invalid": Failing, "UnknownKey": Degraded, // signatures
	"Succeeded": Healthy, "Failed": Failing, "Cancelled": Cancelled, "Building": Building,
	"Running": Building, "Skipped": Cancelled, // builds, their runs and tasks
	"Done": Healthy, "Waiting": Queued, // links of a chain
}

// stateOf returns the state for an object's own state, or a default if that is not known.
func stateOf[S ~string](own S, or State) State { return cmp.Or(states[string(own)], or) }

// pill is a state in a word.
type pill struct {
	State State
	Words string
}

//go:embed templates
var templateFiles embed.FS

// parse parses the templates. now returns their time.
func parse(now func() time.Time) *template.Template {
	of := template.FuncMap{
		"asset": assetPath, "stateOf": stateOf[string],
		"pill":    func(state State, words string) pill { return pill{state, words} },
		"causeOf": func(why string) [2]string { w, fix := cause(why); return [2]string{w, fix} },
	}
	all := template.New("").Funcs(resources.Funcs(now)).Funcs(of)
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
		// Writing to a hash never fails.
		_, _ = sum.Write(text.Bytes())
		out = append(out, printed{part.ID, fmt.Sprintf("%016x", sum.Sum64()),
			template.HTML(text.String())}) //nolint:gosec // it is a template's
	}
	return out, nil
}

// seen returns the hashes of the parts of a page, which identify the state that a reader has.
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

// write prints a whole page or an error, never a part of a page.
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

//go:embed static
var staticFiles embed.FS

// assets are the files that pages load, by their name, each with its parts. vendor/package.json
// pins the origin of third-party files.
var assets = map[string][]string{
	"console.css": {"vendor/sizes.min.css", "vendor/fonts.min.css", "console.css"},
	"console.js":  {"vendor/htmx.min.js", "vendor/hx-sse.min.js", "console.js"},
	"inter.woff2": {"vendor/inter.woff2"},
	"icon.svg":    {"icon.svg"},
}

type asset struct {
	hash string
	data []byte
}

// loaded reads the assets when the first page is requested. The style sheet names the font by its
// address.
var loaded = sync.OnceValue(func() map[string]asset {
	out := map[string]asset{}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(assets))) { // the font first
		var data []byte
		if name == "console.css" {
			data = []byte(design.Tokens)
		}
		for i, file := range assets[name] {
			text, err := staticFiles.ReadFile("static/" + file)
			if err != nil {
				panic(err) // it is not embedded
			}
			if i > 0 {
				data = append(data, '\n')
			}
			data = append(data, text...)
		}
		if name == "console.css" {
			data = bytes.ReplaceAll(data, []byte("url(inter.woff2)"),
				[]byte("url(../"+out["inter.woff2"].hash+"/inter.woff2)"))
		}
		sum := fnv.New64a()
		_, _ = sum.Write(data) // it never fails
		out[name] = asset{fmt.Sprintf("%016x", sum.Sum64()), data}
	}
	return out
})

// assetPath returns the address of a file. It changes with the content, so that a browser can cache
// the file.
func assetPath(name string) string { return "/static/" + loaded()[name].hash + "/" + name }

// serveAsset serves a file at its path.
func serveAsset(w http.ResponseWriter, r *http.Request) {
	hash, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/static/"), "/")
	file, ok := loaded()[name]
	if !ok || hash != file.hash {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	if strings.HasSuffix(name, ".woff2") {
		w.Header().Set("Content-Type", "font/woff2")
	}
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(file.data))
}
