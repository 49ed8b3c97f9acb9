package serve

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/store"
)

// The catalog's tool servers as a registry of MCP servers, read-only, as the OpenAPI of
// modelcontextprotocol/registry, version v0.1, describes it. A server has one version, the
// one that runs, and the caller sees those that they may list in Kubernetes.

const (
	serverSchema = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
	// officialMeta is for clients of the registry, catalogMeta has the additions of this catalog.
	officialMeta = "io.modelcontextprotocol.registry/official"
	catalogMeta  = "dev.armature/catalog"
	// unknownVersion is the version of a server that reports none which the registry accepts.
	unknownVersion = "0.0.0"

	maxServerName = 200
	maxServerText = 100
	maxVersion    = 255
	maxServers    = 100
)

// registryServer is the registry's server.json.
type registryServer struct {
	Schema      string           `json:"$schema"`
	Name        string           `json:"name"`
	Description string           `json:"description"`
	Title       string           `json:"title,omitempty"`
	Version     string           `json:"version"`
	Remotes     []registryRemote `json:"remotes,omitempty"`
}

type registryRemote struct {
	Type string `json:"type"`
	URL  string `json:"url"`
}

type registryOfficial struct {
	Status      string    `json:"status"`
	PublishedAt time.Time `json:"publishedAt,omitzero"`
	UpdatedAt   time.Time `json:"updatedAt,omitzero"`
	IsLatest    bool      `json:"isLatest"`
}

// registryDetails are the fields of an entry that the catalog adds to server.json, by the names
// of its own API.
var registryDetails = []string{"resource", "namespace", "name", "health", "message", "fetched",
	"counts", "images", "builds", "toolLock"}

type registryAnswer struct {
	Server registryServer `json:"server"`
	Meta   map[string]any `json:"_meta"`

	updated time.Time
}

type registryList struct {
	Servers  []registryAnswer `json:"servers"`
	Metadata registryPage     `json:"metadata"`
}

type registryPage struct {
	Count      int    `json:"count"`
	NextCursor string `json:"nextCursor,omitempty"`
}

// registry answers from a store.
type registry struct{ store store.Followed }

// registry adds the registry's paths.
func (s *Server) registry(mux *http.ServeMux) {
	from := registry{s.Store}
	mux.Handle("GET /v0.1/servers", s.api(from.list))
	mux.Handle("GET /v0.1/servers/{server}/versions", s.api(from.versions))
	mux.Handle("GET /v0.1/servers/{server}/versions/{version}", s.api(from.version))
}

func (g registry) list(r *http.Request) (any, error) {
	if err := access.CheckParameters(r, "cursor", "limit", "search", "updated_since",
		"version", "include_deleted"); err != nil {
		return nil, err
	}
	v := r.URL.Query()
	limit, since := 30, time.Time{}
	var err error
	if text := v.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxServers {
			return nil, access.Bad("limit: use 1 to %d", maxServers)
		}
	}
	if text := v.Get("updated_since"); text != "" {
		if since, err = time.Parse(time.RFC3339, text); err != nil {
			return nil, access.Bad("updated_since: use a time as in RFC 3339, such as " +
				"2026-08-07T13:15:04Z")
		}
	}
	if err := checkDeleted(v.Get("include_deleted")); err != nil {
		return nil, err
	}
	q := store.Query{Scope: scopeOf(r.Context()), Type: store.Server, Limit: maxServers}
	if q.After, err = registryCursor(v.Get("cursor")); err != nil {
		return nil, err
	}
	search, version := strings.ToLower(v.Get("search")), v.Get("version")
	out := registryList{Servers: []registryAnswer{}}
	for { // the store cannot search for a part of a registry name
		entries, err := within(r.Context(), g.store.List, q)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			found, ok := registryEntry(e)
			if !ok || !strings.Contains(strings.ToLower(found.Server.Name), search) ||
				found.updated.Before(since) || version != "" && !found.has(version) {
				continue
			}
			if len(out.Servers) == limit { // there is at least one more
				out.Metadata.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(q.After.Cursor()))
				return out, nil
			}
			out.Servers, out.Metadata.Count, q.After =
				append(out.Servers, found), out.Metadata.Count+1, e.Key
		}
		if len(entries) < q.Limit {
			return out, nil
		}
		q.After = entries[len(entries)-1].Key
	}
}

func (g registry) versions(r *http.Request) (any, error) {
	found, err := g.find(r)
	if err != nil {
		return nil, err
	}
	return registryList{Servers: []registryAnswer{found}, Metadata: registryPage{Count: 1}}, nil
}

func (g registry) version(r *http.Request) (any, error) {
	found, err := g.find(r)
	if err == nil && !found.has(r.PathValue("version")) {
		err = errServerNotFound
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

var errServerNotFound = access.Refuse(http.StatusNotFound, "Server not found", "")

// find returns the server of a name that the caller may see.
func (g registry) find(r *http.Request) (none registryAnswer, _ error) {
	if err := access.CheckParameters(r, "include_deleted"); err != nil {
		return none, err
	}
	if err := checkDeleted(r.URL.Query().Get("include_deleted")); err != nil {
		return none, err
	}
	key, ok := registryKey(r.PathValue("server"))
	if !ok || !scopeOf(r.Context()).Allows(key) {
		return none, errServerNotFound
	}
	e, err := within(r.Context(), g.store.Summary, key)
	if errors.Is(err, store.ErrNotFound) {
		return none, errServerNotFound
	} else if err != nil {
		return none, err
	}
	found, ok := registryEntry(e)
	if !ok || e.Type != store.Server {
		return none, errServerNotFound
	}
	return found, nil
}

// checkDeleted checks include_deleted. A server that is deleted is not in the catalog.
func checkDeleted(text string) error {
	if _, err := strconv.ParseBool(cmp.Or(text, "false")); err != nil {
		return access.Bad("include_deleted: use true or false")
	}
	return nil
}

// registryCursor returns the key after which a page begins.
func registryCursor(text string) (store.Key, error) {
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	key, ok := store.ParseKey(string(decoded))
	if err != nil || !ok {
		return key, access.Bad("cursor: use nextCursor of the previous page")
	}
	return key, nil
}

// registryName returns the name of a server in the registry: the resource in reverse order, the
// namespace, and the object's name, as dev.kagent.remotemcpservers.team1/office.
func registryName(k store.Key) string {
	parts := strings.Split(k.Resource, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".") + "." + k.Namespace + "/" + k.Name
}

// registryKey returns the inverse of registryName.
func registryKey(name string) (store.Key, bool) {
	space, object, ok := strings.Cut(name, "/")
	parts := strings.Split(space, ".")
	if !ok || object == "" || strings.Contains(object, "/") || len(parts) < 2 {
		return store.Key{}, false
	}
	namespace, resource := parts[len(parts)-1], parts[:len(parts)-1]
	slices.Reverse(resource)
	return store.Key{Resource: strings.Join(resource, "."), Namespace: namespace, Name: object}, true
}

// registryEntry returns a server as the registry lists it. ok is false for one whose name is too
// long for a registry.
func registryEntry(e store.Entry) (out registryAnswer, ok bool) {
	name := registryName(e.Key)
	if len(name) > maxServerName {
		return out, false
	}
	out.updated = e.Created
	if e.Changed.After(e.Created) {
		out.updated = e.Changed
	}
	var known map[string]json.RawMessage
	text, err := json.Marshal(e)
	if err != nil || json.Unmarshal(text, &known) != nil {
		return out, false
	}
	details := map[string]any{}
	for _, field := range registryDetails {
		if value, ok := known[field]; ok {
			details[field] = value
		}
	}
	out.Server = registryServer{
		Schema: serverSchema, Name: name, Title: registryText(e.Title),
		Version: registryVersion(e.Version),
		Description: cmp.Or(registryText(e.Description), registryText(e.Title),
			registryText("Tool server "+e.Name)),
	}
	kind := "streamable-http"
	if strings.HasSuffix(e.Protocol, "+sse") {
		kind = "sse"
	}
	switch address := cmp.Or(e.PublishedURL, e.URL); {
	case reachable(address):
		out.Server.Remotes = []registryRemote{{kind, address}}
	default:
		details["clusterURL"] = e.URL
	}
	out.Meta = map[string]any{
		officialMeta: registryOfficial{Status: "active", PublishedAt: e.Created,
			UpdatedAt: out.updated, IsLatest: true},
		catalogMeta: details,
	}
	return out, true
}

// has reports whether a server has a version: the one that runs, or latest.
func (a registryAnswer) has(version string) bool {
	return version == "latest" || version == a.Server.Version
}

// registryText returns text of a server, on one line and short, without characters that are not
// printed.
func registryText(text string) string {
	clean := []rune(strings.Join(strings.FieldsFunc(text,
		func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " "))
	if len(clean) > maxServerText {
		clean = append(clean[:maxServerText-1], '…')
	}
	return string(clean)
}

// registryVersion returns a server's version, if that names one version.
func registryVersion(text string) string {
	if text == "" || text == "latest" || len(text) > maxVersion ||
		strings.ContainsAny(text, "^~<>=*| /") || registryText(text) != text {
		return unknownVersion
	}
	return text
}

// reachable reports whether an address is one that is of use outside the cluster.
func reachable(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" ||
		strings.ContainsFunc(address, unicode.IsSpace) || u.User != nil {
		return false
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsGlobalUnicast() && !ip.IsPrivate()
	}
	return strings.Contains(host, ".") && !strings.HasSuffix(host, ".svc") &&
		!strings.HasSuffix(host, ".local") && !strings.HasSuffix(host, ".internal")
}
