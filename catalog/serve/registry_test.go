package serve_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/catalog/store"
)

// published are the registry's OpenAPI and the schema of server.json.
type published struct {
	paths                    map[string]any
	list, response, document *jsonschema.Schema
}

func readPublished(t *testing.T) published {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "registry", "openapi.yaml"))
	must(t, err)
	asJSON, err := yaml.YAMLToJSON(text)
	must(t, err)
	openAPI, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	must(t, err)
	delete(openAPI.(map[string]any), "$id") // is that of the draft
	text, err = os.ReadFile(filepath.Join("testdata", "registry", "server.schema.json"))
	must(t, err)
	server, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	must(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	must(t, c.AddResource("https://registry.test/openapi.json", openAPI))
	must(t,
		c.AddResource(
			"https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json", server))
	schema := func(at string) *jsonschema.Schema {
		s, err := c.Compile(at)
		must(t, err)
		return s
	}
	return published{
		paths:    openAPI.(map[string]any)["paths"].(map[string]any),
		list:     schema("https://registry.test/openapi.json#/components/schemas/ServerList"),
		response: schema("https://registry.test/openapi.json#/components/schemas/ServerResponse"),
		document: schema(
			"https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"),
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type listed struct {
	Servers []struct {
		Server struct {
			Name, Title, Description, Version string
			Remotes                           []struct{ Type, URL string }
		}
		Meta map[string]map[string]any `json:"_meta"`
	}
	Metadata struct {
		Count      int
		NextCursor string
	}
}

func (l listed) names() (names []string) {
	for _, s := range l.Servers {
		names = append(names, s.Server.Name)
	}
	return names
}

// servers asks for a list, which has to be as published.
func (p published) servers(w *world, token, path string) (out listed) {
	w.Helper()
	status, body := w.ask(token, path)
	if status != http.StatusOK {
		w.Fatalf("%s answers %d: %s", path, status, body)
	}
	p.check(w, path, body, p.list)
	w.must(json.Unmarshal([]byte(body), &out))
	return out
}

func (p published) check(w *world, path, body string, schema *jsonschema.Schema) {
	w.Helper()
	answer, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
	w.must(err)
	if err := schema.Validate(answer); err != nil {
		w.Errorf("%s: %v\n%s", path, err, body)
	}
	found := []any{answer}
	if schema == p.list {
		found = answer.(map[string]any)["servers"].([]any)
	}
	for _, one := range found {
		if err := p.document.Validate(one.(map[string]any)["server"]); err != nil {
			w.Errorf("%s: server.json: %v\n%s", path, err, body)
		}
	}
}

func (w *world) putServer(e store.Entry) {
	w.Helper()
	e.Resource, e.Namespace, e.Type, e.Kind, e.APIVersion =
		servers, w.prefix+e.Namespace, store.Server, "RemoteMCPServer", "kagent.dev/v1alpha2"
	e.UID = e.Namespace + e.Name
	_, err := w.store.Put(w.Context(), e, true)
	w.must(err)
}

// What the catalog answers is what the registry's OpenAPI and the schema of server.json
// describe, whatever a server reports about itself.
func TestRegistry(t *testing.T) {
	p := readPublished(t)
	for path := range p.paths {
		if strings.HasPrefix(path, "/v0.1/servers") && strings.Count(path, "/") <= 5 &&
			p.paths[path].(map[string]any)["get"] != nil && !slices.Contains(
			[]string{"/v0.1/servers", "/v0.1/servers/{serverName}/versions",
				"/v0.1/servers/{serverName}/versions/{version}"}, path) {
			t.Errorf(
				"the registry has a path %s that can be read, which the catalog does not answer", path)
		}
	}
	w := newWorld(t)
	token := w.token("all", "*")
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	long := strings.Repeat("ü", 150)
	for _, e := range []store.Entry{
		{Key: store.Key{Namespace: "team1", Name: "weather"}, Title: "Weather",
			Description: "Forecasts", Version: "1.2.3", URL: "https://weather.example/mcp",
			Protocol: "mcp", Created: created, Health: store.Healthy, Images: []string{"sha256:aa"},
			Builds: []store.Build{{Name: "weather", Image: "r.example/w@sha256:aa",
				Builder: "https://armature.dev/builders/prod", Level: 2}}},
		{Key: store.Key{Namespace: "team1", Name: "inside"},
			URL: "http://inside.team1.svc.cluster.local:8080/mcp", Protocol: "mcp",
			Version: "latest"},
		{Key: store.Key{Namespace: "team1", Name: "address"}, URL: "http://10.0.0.7/mcp",
			Protocol: "mcp", Version: "^1.2"},
		{Key: store.Key{Namespace: "team1", Name: "routed"}, URL: "http://routed.team1.svc:80/sse",
			PublishedURL: "https://tools.example/sse", Protocol: "mcp+sse"},
		{Key: store.Key{Namespace: "team1", Name: "hostile"}, Title: long + "\u202e\x00",
			Description: "line\n\nof\u200b text " + long, Version: strings.Repeat("9", 300),
			URL: "https://u:p@x.example/ a", Protocol: "mcp"},
		{Key: store.Key{Namespace: "team1", Name: "dotted.name"}, URL: "javascript:alert(1)",
			PublishedURL: "file:///etc/passwd"},
		{Key: store.Key{Namespace: "team1", Name: strings.Repeat("n", 200)},
			URL: "https://long.example/mcp"},
	} {
		w.putServer(e)
	}
	all := p.servers(w, token, "/v0.1/servers?limit=100")
	if strings.Contains(strings.Join(all.names(), " "), "nnn") {
		t.Error("a name that is too long for the registry is listed")
	}
	of := map[string]int{}
	for i, s := range all.Servers {
		of[s.Server.Name[strings.LastIndex(s.Server.Name, "/")+1:]] = i
	}
	weather := all.Servers[of["weather"]]
	if want := "dev.kagent.remotemcpservers." + w.prefix +
		"team1/weather"; weather.Server.Name != want || weather.Server.Version != "1.2.3" ||
		weather.Server.Remotes[0].URL != "https://weather.example/mcp" {
		t.Errorf("%+v, want %s", weather, want)
	}
	ours, official := weather.Meta["dev.armature/catalog"],
		weather.Meta["io.modelcontextprotocol.registry/official"]
	build := ours["builds"].([]any)[0].(map[string]any)
	if ours["images"].([]any)[0] != "sha256:aa" ||
		build["builder"] != "https://armature.dev/builders/prod" || build["level"] != 2.0 {
		t.Errorf("%v", ours)
	}
	if official["status"] != "active" || official["isLatest"] != true ||
		official["publishedAt"] != "2026-01-02T03:04:05Z" {
		t.Errorf("%v", official)
	}
	for name, remote := range map[string]string{"inside": "", "address": "", "hostile": "",
		"dotted.name": "", "routed": "sse https://tools.example/sse"} {
		s := all.Servers[of[name]]
		got := ""
		for _, r := range s.Server.Remotes {
			got += r.Type + " " + r.URL
		}
		if got != remote {
			t.Errorf("%s has the remotes %q, want %q", name, got, remote)
		}
		if name != "routed" && s.Server.Version != "0.0.0" {
			t.Errorf("%s has the version %q", name, s.Server.Version)
		}
	}
	if text := all.Servers[of["hostile"]].Server; strings.ContainsAny(text.Title+text.Description,
		"\n\u200b\u202e\x00") {
		t.Errorf("%q", text)
	}
	if inside := all.Servers[of["inside"]].Meta["dev.armature/catalog"]; inside["clusterURL"] !=
		"http://inside.team1.svc.cluster.local:8080/mcp" {
		t.Errorf("%v", inside)
	}

	name := url.PathEscape(weather.Server.Name)
	if got := p.servers(w, token, "/v0.1/servers/"+name+"/versions"); !slices.Equal(got.names(),
		[]string{weather.Server.Name}) {
		t.Errorf("versions: %v", got.names())
	}
	for version, want := range map[string]int{"latest": 200, "1.2.3": 200, "1.2.4": 404,
		url.PathEscape("../..") + "x": 404} {
		path := "/v0.1/servers/" + name + "/versions/" + version
		status, body := w.ask(token, path)
		if status != want {
			t.Errorf("%s answers %d: %s", path, status, body)
		} else if status == 200 {
			p.check(w, path, body, p.response)
		}
	}
}

// The pages of a list have each server once, and filters apply before pages.
func TestRegistryPages(t *testing.T) {
	p := readPublished(t)
	w := newWorld(t)
	token := w.token("all", "*")
	for i := range 130 {
		e := store.Entry{Key: store.Key{Namespace: "team1",
			Name: "server-" + string(rune('a'+i/26)) + string(rune('a'+i%26))}, Version: "1.0.0"}
		if i%10 == 0 {
			e.Version = "2.0.0"
		}
		w.putServer(e)
	}
	every := p.servers(w, token, "/v0.1/servers?limit=100")
	every.Servers = append(every.Servers,
		p.servers(w, token, "/v0.1/servers?limit=100&cursor="+every.Metadata.NextCursor).Servers...)
	if n := len(every.Servers); n != 132 { // and those of the world
		t.Fatalf("%d servers", n)
	}
	for _, c := range []struct {
		query string
		want  int
	}{
		{"limit=7", 132}, {"", 132}, {"search=SERVER-A", 26}, {"search=server-a&limit=5", 26},
		{"version=2.0.0&limit=4", 13}, {"version=latest", 132}, {"search=nothing", 0},
		{"updated_since=2999-01-01T00:00:00Z", 0}, {"search=team2", 1},
		{"include_deleted=true", 132},
	} {
		var names []string
		cursor, pages := "", 0
		for {
			page := p.servers(w, token, "/v0.1/servers?"+c.query+"&cursor="+cursor)
			names = append(names, page.names()...)
			if page.Metadata.Count != len(page.Servers) {
				t.Errorf("%s: count %d of %d", c.query, page.Metadata.Count, len(page.Servers))
			}
			if cursor = page.Metadata.NextCursor; cursor == "" {
				break
			}
			if pages++; pages > 200 {
				t.Fatalf("%s does not end", c.query)
			}
		}
		all := len(names)
		slices.Sort(names)
		if names = slices.Compact(names); len(names) != c.want || all != c.want {
			t.Errorf("%s: %d servers, %d different, want %d", c.query, all, len(names), c.want)
		}
	}
	for _, bad := range []string{"limit=0", "limit=101", "limit=x", "updated_since=yesterday",
		"cursor=%21", "cursor=YQ", "include_deleted=maybe", "serach=x"} {
		if status, body := w.ask(token, "/v0.1/servers?"+bad); status != http.StatusBadRequest {
			t.Errorf("%s answers %d: %s", bad, status, body)
		}
	}
}

// A caller sees the servers of the namespaces that they may list, and of others not even
// that they exist.
func TestRegistryRights(t *testing.T) {
	p := readPublished(t)
	w := newWorld(t)
	name := func(ns string) string {
		return "dev.kagent.remotemcpservers." + w.prefix + ns + "/office"
	}
	for who, sees := range map[string][]string{"nobody": nil, "reader1": {"team1"},
		"all": {"team1", "team2"}} {
		namespaces := sees
		if who == "all" {
			namespaces = []string{"*"}
		}
		token := w.token(who, namespaces...)
		var want []string
		for _, ns := range sees {
			want = append(want, name(ns))
		}
		if got := p.servers(w, token, "/v0.1/servers").names(); !slices.Equal(got, want) {
			t.Errorf("%s sees %v, want %v", who, got, want)
		}
		for _, ns := range []string{"team1", "team2"} {
			for _, path := range []string{"/versions", "/versions/latest"} {
				status, body := w.ask(token, "/v0.1/servers/"+url.PathEscape(name(ns))+path)
				if want := slices.Contains(sees, ns); (status == http.StatusOK) != want ||
					!want &&
						(status != http.StatusNotFound ||
							body != "{\"error\":\"Server not found\"}\n") {
					t.Errorf("%s: %s of %s answers %d: %s", who, path, ns, status, body)
				}
			}
		}
	}
	all := w.token("everything", "*")
	for _, path := range []string{
		// an agent
		"dev.kagent.remotemcpservers." + w.prefix + "team1/none",
		"io.kagenti.agentcards." + w.prefix + "team1/weather", "x", "/", "a/b", "a.b/c/d",
		"..%2f..", regexp.QuoteMeta("*"),
	} {
		if status, body := w.ask(all, "/v0.1/servers/"+url.PathEscape(path)+"/versions"); status !=
			http.StatusNotFound {
			t.Errorf("%s answers %d: %s", path, status, body)
		}
	}
	if status, _ := w.ask("", "/v0.1/servers"); status != http.StatusUnauthorized {
		t.Errorf("without a token it answers %d", status)
	}
}
